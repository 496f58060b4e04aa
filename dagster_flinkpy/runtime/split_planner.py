"""What the sources of a job read up to the next barrier: their split enumerators, which live on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dagster_flinkpy.checkpoint.messages import Task
from dagster_flinkpy.checkpoint.metadata import SubtaskState
from dagster_flinkpy.datastream.connectors.base import SourceSplit, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operators import SourceSpec
from dagster_flinkpy.runtime.epoch import Interval
from dagster_flinkpy.runtime.partition_input import WholeInput

__all__ = ["SplitPlanner"]


class SplitPlanner:
    """Plans intervals, and keeps what the enumerators say at each barrier (Flink: ``SourceCoordinator``).

    Args:
        graph: The program.
        restored: State of the enumerators, by uid of the source.
        context: Where the enumerators run.
        whole: Whether one epoch reads all of a source, and more input may follow: that of a time partition.
    """

    def __init__(
        self, graph: JobGraph, restored: Mapping[str, Any], context: SplitEnumeratorContext, *, whole: bool = False
    ) -> None:
        self._enumerators: dict[str, SplitEnumerator] = {
            v.uid: v.spec.source.create_enumerator(restored.get(v.uid))
            for v in graph.vertices
            if isinstance(v.spec, SourceSpec)
        }
        if whole:
            self._enumerators = {uid: WholeInput(each) for uid, each in self._enumerators.items()}
        for enumerator in self._enumerators.values():
            enumerator.start(context)
        self._parallelism = {uid: graph.vertex(uid).parallelism for uid in self._enumerators}
        self._states: dict[int, dict[str, Any]] = {}

    @property
    def uids(self) -> tuple[str, ...]:
        """Of the sources."""
        return tuple(self._enumerators)

    def plan(self, checkpoint_id: int) -> Interval:
        """Deals out the splits up to a barrier.

        Raises:
            SourceReadError: The input cannot be listed.
        """
        splits: dict[tuple[str, int], tuple[SourceSplit, ...]] = {}
        ended: set[str] = set()
        for uid, enumerator in self._enumerators.items():
            planned = enumerator.plan_epoch(self._parallelism[uid])
            splits |= {(uid, subtask): tuple(each) for subtask, each in enumerate(planned)}
            if enumerator.exhausted:
                ended.add(uid)
        return Interval(checkpoint_id, splits, frozenset(ended))

    def ends(self, interval: Interval) -> bool:
        """Whether all input ends with it."""
        return len(interval.ended_sources) == len(self._enumerators)

    def assume_read(self, interval: Interval) -> None:
        """Says that all of an interval will be read: another one is planned before the Spark job has run.

        The job reads all splits to their end, or fails as a whole.
        """
        for uid, enumerator in self._enumerators.items():
            given = (s for (source, _), splits in interval.splits.items() if source == uid for s in splits)
            enumerator.on_epoch_read([replace(s, finished=True) for s in given])
        self.snapshot(interval.checkpoint_id)

    def was_read(self, checkpoint_id: int, states: Mapping[Task, SubtaskState]) -> None:
        """Takes back the splits of an interval as its tasks acknowledged them."""
        for uid, enumerator in self._enumerators.items():
            read = [s for task, state in states.items() if task.uid == uid for s in state.splits]
            enumerator.on_epoch_read([SourceSplit.from_json(s) for s in read])
        self.snapshot(checkpoint_id)

    def snapshot(self, checkpoint_id: int) -> None:
        """Keeps what the enumerators say now, as their state in a checkpoint."""
        self._states[checkpoint_id] = {uid: e.snapshot_state() for uid, e in self._enumerators.items()}

    def take_states(self, checkpoint_id: int) -> dict[str, Any]:
        """State of the enumerators at a barrier, by uid."""
        return self._states.pop(checkpoint_id)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tells the enumerators that a checkpoint is complete."""
        for enumerator in self._enumerators.values():
            enumerator.notify_checkpoint_complete(checkpoint_id)

    def describe(self, interval: Interval) -> str:
        """What an interval reads, for people."""
        parts = []
        for uid in self._enumerators:
            names = [
                s.split_id for (source, _), splits in sorted(interval.splits.items()) if source == uid for s in splits
            ]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            parts.append(f"{uid}: {shown or 'nothing to read'}")
        return "; ".join(parts)
