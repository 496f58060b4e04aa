"""Plans what sources read up to the next barrier. Their split enumerators run on the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.connectors.sources.source_coordinator import SourceCoordinator
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CorruptMetadataError, FlinkPyError, InputAfterEndError, RestoreError, SourceReadError
from dagster_flinkpy.runtime.blocking.blocking_edge import BlockingEdgeEnumerator, EdgeInputs
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.failure import raised_on_driver
from dagster_flinkpy.runtime.master.epochs.whole_input import StaticInput, WholeInput

__all__ = ["SplitPlanner", "create_enumerator"]


class SplitPlanner:
    """Plans the splits of epochs, and keeps the enumerators' state at each barrier (Flink: ``SourceCoordinator``).

    Args:
        graph: The program.
        restored: Restored state by uid, for all operators of the checkpoint; None for an operator without such state.
        context: Tells enumerators which job and attempt they work for.
        whole: Whether one epoch reads all of each source, as for a time partition, and more input may follow.

    Raises:
        RestoreError: A source cannot continue from its state.
        CorruptMetadataError: The checkpoint knows a source, but not its position.
    """

    def __init__(
        self, graph: JobGraph, restored: Mapping[str, Any], context: SplitEnumeratorContext, *, whole: bool = False
    ) -> None:
        self._enumerators = {
            v.uid: create_enumerator(v.uid, v.spec, restored.get(v.uid))
            for v in graph.vertices
            if isinstance(v.spec, SourceSpec)
        }
        self._edges = {u: e for u, e in self._enumerators.items() if isinstance(e, BlockingEdgeEnumerator)}
        if whole:
            kept = (*self._edges, *(u for u, e in self._enumerators.items() if isinstance(e, StaticInput)))
            own = {u: WholeInput(e) for u, e in self._enumerators.items() if u not in kept}
            self._enumerators |= own
        self._parallelism = {uid: graph.vertex(uid).parallelism for uid in self._enumerators}
        for uid, enumerator in self._enumerators.items():
            with _asked(uid):
                enumerator.start(replace(context, parallelism=self._parallelism[uid]))
            if uid in self._edges:
                continue
            if uid in restored and restored[uid] is None and enumerator.snapshot_state() is not None:
                raise CorruptMetadataError(
                    f"the checkpoint has no position of source {uid!r}, so it would read all its input again. Restore "
                    "another checkpoint or a savepoint. If the source is new and should start from the beginning, give "
                    "it another uid."
                )
        self._ended = {uid for uid in self.uids if restored.get(uid) and self._enumerators[uid].exhausted}
        """The sources that have ended with an epoch."""
        self._ahead: tuple[dict[tuple[str, int], tuple[SourceSplit, ...]], set[str]] | None = None
        """The splits of the next epoch and the sources that end with it, if they are assigned already."""
        self._sources = {v.uid: v.spec.source for v in graph.vertices if isinstance(v.spec, SourceSpec)}
        self.news: deque[int] = deque()
        """Complete checkpoints that the enumerators have not been told of. Any thread may add one."""
        self._states: dict[int, dict[str, Any]] = {}

    @property
    def uids(self) -> tuple[str, ...]:
        """Uids of the sources, without those that read a blocking edge."""
        return tuple(uid for uid in self._enumerators if uid not in self._edges)

    @property
    def all_uids(self) -> tuple[str, ...]:
        """Uids of all sources."""
        return tuple(self._enumerators)

    def plan(self, checkpoint_id: int, inputs: EdgeInputs, *, drain: bool = False) -> EpochInput:
        """Assigns the splits up to a barrier.

        Args:
            checkpoint_id: The checkpoint of the barrier.
            inputs: What it reads of blocking edges, in its order, by uid of the sink.
            drain: Whether all input ends with the epoch, and only blocking edges are read.

        Raises:
            SourceReadError: The input cannot be listed.
            InputAfterEndError: A source has input that came after its end.
        """
        splits, self._ended = ({}, set(self.uids)) if drain else self._ahead or self._assign_input()
        self._ahead = None
        of_edges = self.plan_edges(inputs)
        ended_edges = {uid for uid, edge in self._edges.items() if edge.exhausted}
        return EpochInput(checkpoint_id, splits | of_edges, frozenset(self._ended | ended_edges))

    @property
    def assigns_late(self) -> bool:
        """Whether a source may be asked for input again before the barrier."""
        return any(self._enumerators[uid].assigns_late for uid in self.uids)

    def plan_part(self, checkpoint_id: int, *, first: bool, last: bool) -> EpochInput:
        """Assigns the input that is there now; more may follow before the barrier. What was assigned before is read.

        A source whose splits may have a rest ends when they are read: until then a barrier may come amid one.

        Args:
            checkpoint_id: The checkpoint of the barrier.
            first: Whether nothing was assigned for this barrier. Otherwise only sources are asked that allow it.
            last: Whether the barrier follows. Then no source is asked that was asked before.

        Raises:
            SourceReadError: The input cannot be listed.
            InputAfterEndError: A source has input that came after its end.
        """
        if first and self._ahead is None:  # once for each barrier: it may take a listing
            self.refuse_input_after_end()
        asked = [uid for uid in self.uids if first or (self._enumerators[uid].assigns_late and not last)]
        splits, _ = self._ahead or self._assign(asked, part=True)
        self._ahead = None
        part = EpochInput(checkpoint_id, splits, open=True)
        whole = {uid for uid in self.uids if not (part.reads(uid) and self._sources[uid].resumes_splits)}
        self._ended |= {uid for uid in whole if self._enumerators[uid].exhausted}
        return replace(part, ended_sources=frozenset(self._ended))

    def plan_edges(self, inputs: EdgeInputs) -> dict[tuple[str, int], tuple[SourceSplit, ...]]:
        """Returns the splits of the blocking edges that an epoch reads, by source and subtask."""
        for edge in self._edges.values():
            edge.receive([outputs[edge.sink_uid] for outputs in inputs if edge.sink_uid in outputs])
        splits, _ = self._assign(tuple(self._edges))
        return splits

    def look(self) -> bool:
        """Looks for input. If there is some, it is assigned to the next epoch.

        Returns:
            Whether there is something to read, or a source has ended.

        Raises:
            SourceReadError: The input cannot be listed.
            InputAfterEndError: A source has input that came after its end.
        """
        splits, ended = self._assign_input()
        if any(splits.values()) or ended != self._ended:
            self._ahead = splits, ended
            return True
        for uid in self.uids:
            with _asked(uid):
                self._enumerators[uid].on_epoch_read([])
        return False

    @property
    def discovery_interval(self) -> timedelta:
        """How long to wait for new input before looking again."""
        waiting = [self._sources[uid].discovery_interval for uid in self.uids if uid not in self._ended]
        return min(waiting, default=Source.discovery_interval)

    def _assign_input(self) -> tuple[dict[tuple[str, int], tuple[SourceSplit, ...]], set[str]]:
        self.refuse_input_after_end()
        return self._assign(self.uids)

    def _assign(
        self, uids: Sequence[str], *, part: bool = False
    ) -> tuple[dict[tuple[str, int], tuple[SourceSplit, ...]], set[str]]:
        """Returns splits by source and subtask, and the sources that end with them."""
        splits: dict[tuple[str, int], tuple[SourceSplit, ...]] = {}
        for uid in uids:
            with _asked(uid):
                enumerator = self._enumerators[uid]
                planned = (enumerator.plan_part if part else enumerator.plan_epoch)(self._parallelism[uid])
            splits |= {(uid, subtask): tuple(each) for subtask, each in enumerate(planned)}
        return splits, {uid for uid in uids if self._enumerators[uid].exhausted}

    def receive(self, deployment: str, messages: Sequence[Json]) -> None:
        """Takes what readers have said while they read."""
        for uid, enumerator in self._enumerators.items():
            if isinstance(enumerator, SourceCoordinator):
                own = [(each["subtask"], each) for each in messages if each["uid"] == uid]
                enumerator.receive(deployment, own)

    def refuse_input_after_end(self, *, all_ended: bool = False) -> None:
        """Checks that no source has input that came after its end, because it would never be read.

        Args:
            all_ended: Whether the input of the whole job has ended, even if its sources have not.

        Raises:
            InputAfterEndError: A source has such input. The message names both.
        """
        for uid, enumerator in self._enumerators.items():
            names: Sequence[str] = ()
            if all_ended or enumerator.exhausted:
                with _asked(uid):
                    names = enumerator.unread()
            if names:
                raise InputAfterEndError(
                    f"source {uid!r} has input that came after its end: {_first_of(names)}. A source that "
                    "has ended stays ended, because event time is over and all windows and timers have fired. To read "
                    "this input, start from a checkpoint or savepoint from before the end (restore_from; in a script, "
                    "execution.state-recovery.path), or from empty state (start_empty; in a script, another name in "
                    "env.execute()). A source of flink_assets() never ends, unless it is declared bounded. In a "
                    "script, declare one that goes on with bounded=False or as its builder says."
                )

    def ends(self, epoch: EpochInput) -> bool:
        """Returns whether all input ends with an epoch."""
        return len(epoch.ended_sources) == len(self._enumerators)

    def take_back(self, epoch: EpochInput) -> None:
        """Gives the splits of an epoch, or of a part of it, back to the enumerators, with what was reached."""
        for uid, splits in epoch.read_splits().items():
            with _asked(uid):
                self._enumerators[uid].on_epoch_read(splits)

    def was_read(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Gives the acknowledged splits of an epoch back to the enumerators."""
        for uid in self.uids:
            enumerator = self._enumerators[uid]
            read = [s for task, state in states.items() if task.uid == uid for s in state.splits]
            with _asked(uid):
                enumerator.on_epoch_read([SourceSplit.from_json(s) for s in read])
        self.snapshot(checkpoint_id)

    def snapshot(self, checkpoint_id: int) -> None:
        """Keeps the current state of the enumerators for a checkpoint."""
        positions = self._states[checkpoint_id] = dict[str, Any]()
        for uid in self.uids:
            with _asked(uid):
                positions[uid] = _position(self._enumerators[uid])
                self._enumerators[uid].on_snapshot(checkpoint_id)

    def static_positions(self) -> dict[str, Any]:
        """Returns what static sources have read, by uid: the partitions of a job share it."""
        return {uid: each.snapshot_state() for uid, each in self._enumerators.items() if isinstance(each, StaticInput)}

    def take_states(self, checkpoint_id: int) -> dict[str, Any]:
        """Returns and forgets the state of the enumerators at the barrier of a checkpoint, by uid.

        If the epoch has run again, it was taken before.
        """
        return self._states.pop(checkpoint_id, {})

    def tell_news(self) -> None:
        """Tells the enumerators which checkpoints are complete. The sources must have read what is assigned to them."""
        while self.news and self._ahead is None:
            checkpoint_id = self.news.popleft()
            for uid, enumerator in self._enumerators.items():
                with _asked(uid):
                    enumerator.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        """Closes the enumerators."""
        for uid, enumerator in self._enumerators.items():
            with _asked(uid):
                enumerator.close()

    def describe(self, epoch: EpochInput) -> str:
        """Describes what an epoch reads, for progress messages."""
        parts = []
        for uid in self._enumerators:
            names = [
                s.split_id for (source, _), splits in sorted(epoch.splits.items()) if source == uid for s in splits
            ]
            names = [name for name in names if name]
            parts.append(f"{uid}: {_first_of(names) or 'nothing to read'}")
        return "; ".join(parts)


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _asked(uid: str) -> AbstractContextManager[None]:
    return raised_on_driver(f"the split enumerator of source {uid!r}", SourceReadError)


def _position(enumerator: SplitEnumerator) -> Any:
    position, lag = enumerator.snapshot_state(), enumerator.lag()
    return position if lag is None else {**position, "lag": lag.to_json()}


def create_enumerator(uid: str, spec: SourceSpec, restored: Any) -> SplitEnumerator:
    """Creates the enumerator of a source.

    Raises:
        RestoreError: The source cannot continue from its state.
    """
    source = spec.source
    create = partial(StaticInput, source) if spec.static else source.create_enumerator
    if restored in (None, {}):  # an epoch that reads a time partition leaves no position
        return create(None)
    try:
        return create(restored)
    except FlinkPyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RestoreError(
            f"source {uid!r}, a {type(source).__name__}, cannot continue from its stored position: {error}. "
            "If it replaces another kind of source, give it another uid, and restore with allow_non_restored_state. "
            "Otherwise the position is damaged or was written by a newer release: restore another checkpoint or "
            "savepoint."
        ) from error
