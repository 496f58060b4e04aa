"""The state of one region, as the job's master sees it (Flink: ``SchedulingPipelinedRegion``).

Only the master's thread calls it. It submits work to the region's lane and never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs, EdgeOutput
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_slots import JobSlots
from dagster_flinkpy.runtime.master.mailbox import Lane, Mailbox, Work
from dagster_flinkpy.runtime.master.region_runner import JobRunner, RegionEnded

__all__ = ["EpochBatch", "EpochKind", "RegionExecution"]


class EpochKind(Enum):
    """What an epoch does."""

    READ = auto()
    """It reads the next input."""
    REPEAT = auto()
    """It reads nothing: its checkpoint has the current state."""
    DRAIN = auto()
    """It reads nothing, and ends all input."""


@dataclass
class EpochBatch:
    """Epochs that each region reads with one Spark job."""

    kind: EpochKind
    checkpoint_ids: list[int]
    """The checkpoints of their barriers, in order."""
    closed: bool
    """Whether no further epoch is added."""
    ends: bool | None = None
    """Whether all input of the regions that read no blocking edge ends with them; None if it is not known yet."""

    def has_more_behind(
        self, readers: Sequence[RegionExecution], followers: Sequence[RegionExecution], *, until_idle: bool
    ) -> bool | None:
        """Returns whether more input is to be read after these epochs, or None if it is not known yet.

        Args:
            readers: The regions that read input from outside the job.
            followers: The regions that read blocking edges.
            until_idle: Whether an epoch that has read nothing is the last one, unless barriers have overtaken records.
        """
        last = self.checkpoint_ids[-1]
        known = [region for region in readers if region.acknowledged >= last]
        has_input = not until_idle or any(region.has_read for region in known)
        if has_input and not all(region.input_ended for region in known):
            return True
        if len(known) < len(readers):
            return None
        if has_input:
            return False
        unread = [region.has_unread(last) for region in followers]
        return True if True in unread else None if None in unread else False

    def will_have_more(self, readers: Sequence[RegionExecution], *, until_idle: bool) -> bool:
        """Returns whether it is known, before these epochs have ended, that there is more input behind them.

        Args:
            readers: The regions that read input from outside the job.
            until_idle: Whether an epoch that reads nothing is the last one.
        """
        if not readers or not all(region.batch is self and region.all_planned for region in readers):
            return False
        if all(region.planner.ended[self.checkpoint_ids[-1]] for region in readers):
            return False
        return not until_idle or any(any(e.splits.values()) for region in readers for e in region.epochs)


@dataclass
class _RegionEpochs:
    """The epochs of a batch, as one region reads them."""

    batch: EpochBatch
    planned: list[Epoch] = field(default_factory=list)
    """Those whose splits are assigned."""
    read: bool = False
    """Whether the enumerators know that they were read."""
    stale: bool = False
    """Whether regions before it may have written what they read anew since they were planned."""
    since_ms: int = 0
    """When they were triggered, in milliseconds since 1970."""
    found: EdgeInputs = ()
    """What was in flight to the region before them."""
    reads: Sequence[EdgeInputs] | None = None
    """What each epoch reads of blocking edges; None if it is not decided yet."""

    @property
    def first(self) -> int:
        """The first checkpoint."""
        return self.batch.checkpoint_ids[0]

    @property
    def last(self) -> int:
        """The last checkpoint."""
        return self.batch.checkpoint_ids[-1]


class RegionExecution:
    """The epochs of a region: which ones wait, which one runs, and what the last one has left.

    Args:
        runner: Plans and runs the epochs.
        lane: The lane of the region.
        mailbox: Runs the lane.
        before: The regions whose output it reads.
        slots: Tells whether it may run beside the regions that are running.
        failover: Keeps the execution graph.
        now: Tells milliseconds since 1970.
    """

    def __init__(
        self,
        runner: JobRunner,
        lane: Lane,
        mailbox: Mailbox,
        before: Sequence[RegionExecution],
        slots: JobSlots,
        failover: JobFailover,
        now: Callable[[], int],
    ) -> None:
        self.runner, self.lane, self._mailbox, self.before = runner, lane, mailbox, tuple(before)
        self._slots, self._failover, self._now = slots, failover, now
        self.at_work = False
        """Whether its lane is planning or running epochs."""
        self.acknowledged = 0
        """The last checkpoint that all tasks have acknowledged."""
        self.has_read = False
        """Whether its sources have read anything in the epoch of that checkpoint."""
        self.input_ended = False
        """Whether its input ends with that checkpoint."""
        self.abandoned = False
        """Whether what its lane is doing does not count, because the region runs epochs again."""
        self._current: _RegionEpochs | None = None
        """The epochs that are planned or run."""
        self._waiting: deque[_RegionEpochs] = deque()
        self._done: list[_RegionEpochs] = []
        """Epochs that all tasks have acknowledged, of checkpoints that are not complete."""
        self._settled = 0
        """The last checkpoint before those."""
        self._found = False
        """Whether input is assigned to the next epoch, which is not planned yet."""
        self._restarts = 0
        self._to_restart = False
        """Whether it is to run epochs again, and :meth:`restart` has not been called yet."""
        self._in_flight: EdgeInputs = self.planner.in_flight
        """What the regions before it have written and it has not read, the oldest first."""
        self.begun = 0
        """The last checkpoint for which it reads, or has read, what the regions before it have written."""
        self._unsettled: _RegionEpochs | None = None
        """Acknowledged epochs of which it is not known yet what was in flight at their barriers."""
        self._outputs: dict[int, Mapping[str, EdgeOutput]] = {}
        """What it has written to blocking edges, by checkpoint that is not complete yet."""
        self._to_notify: list[int] = []
        """Complete checkpoints that the sources have not been notified of."""

    @property
    def planner(self) -> EpochPlanner:
        """Plans the epochs, and has the state from which the next one starts."""
        return self.runner.planner

    @property
    def batch(self) -> EpochBatch | None:
        """The epochs that are planned or run."""
        return None if self._current is None else self._current.batch

    @property
    def epochs(self) -> Sequence[Epoch]:
        """Those of the batch that are planned."""
        return () if self._current is None else self._current.planned

    @property
    def idle(self) -> bool:
        """Whether no epoch is planned, runs or waits."""
        return self._current is None and not self._waiting

    @property
    def all_planned(self) -> bool:
        """Whether the epochs of the batch so far are planned."""
        return self._current is not None and len(self._current.planned) == len(self._current.batch.checkpoint_ids)

    def has_before(self, checkpoint_id: int) -> bool:
        """Returns whether it runs epochs that are all older than a checkpoint, or such epochs wait."""
        return any(each is not None and each.last < checkpoint_id for each in (self._current, *self._waiting))

    def enqueue(self, batch: EpochBatch) -> None:
        """Adds epochs to run when the current ones have ended and the input is there."""
        self._waiting.append(_RegionEpochs(batch, since_ms=self._now()))

    def drop_from(self, checkpoint_id: int) -> None:
        """Forgets epochs that do not run yet, unless all of the batch are older than a checkpoint."""
        if self._current is not None and not self.at_work and self._current.last >= checkpoint_id:
            self.on_ended()
        self._waiting = deque(each for each in self._waiting if each.last < checkpoint_id)

    def proceed(self) -> None:
        """Submits the next piece of work, if there is one that can begin."""
        if self.at_work or self._to_restart:
            return
        if self._current is None:
            # Between two epochs: what an enumerator has planned is not read yet.
            for number in () if self._found else self._to_notify:
                self._mailbox.submit(self.lane, partial(self.runner.notify_complete, number))
            if not self._found:
                self._to_notify.clear()
            if not self._waiting or self._unsettled is not None or not self._is_ready(self._waiting[0]):
                return
            if not self._slots.acquire(self.lane.number):
                return  # until another region has ended
            self._begin(self._waiting.popleft())
        assert self._current is not None
        if (work := self._next_step(self._current)) is not None:
            self.at_work = True
            self._mailbox.submit(self.lane, work)

    def _begin(self, epochs: _RegionEpochs) -> None:
        self._current = epochs
        if not epochs.planned:
            self._found = False
        self.planner.rewind(self.acknowledged)
        self._failover.deploy(self.lane.number)
        self.runner.begin(epochs.first)

    def _next_step(self, epochs: _RegionEpochs) -> Work | None:
        """Returns the next piece of work for the current epochs, or None if they wait for more."""
        batch, planned = epochs.batch, epochs.planned
        if batch.kind is EpochKind.REPEAT:
            self._failover.graph.switch_to_running(self.lane.number)
            return partial(self.runner.repeat, epochs.first)
        if len(planned) < len(batch.checkpoint_ids):
            checkpoint_id, drain = batch.checkpoint_ids[len(planned)], batch.kind is EpochKind.DRAIN
            last = planned[-1] if planned else None
            inputs = epochs.reads[len(planned)] if epochs.reads is not None else ()
            return partial(self.runner.plan, checkpoint_id, last, inputs, drain=drain)
        if not batch.closed:
            return None
        self._failover.graph.switch_to_running(self.lane.number)
        rewritten = dict(zip(batch.checkpoint_ids, epochs.reads or (), strict=True)) if epochs.stale else {}
        return partial(self.runner.run, tuple(planned), self._restarts, rewritten=rewritten, was_read=epochs.read)

    # --- blocking edges ----------------------------------------------------------------------------------------------

    def _is_ready(self, epochs: _RegionEpochs) -> bool:
        """Decides what epochs read of blocking edges. Returns False if that is not there yet."""
        batch = epochs.batch
        if batch.kind is EpochKind.REPEAT or not self.before:
            return True
        if not batch.closed or epochs.reads is not None:
            return batch.closed
        overtaken = self._overtaken(epochs)
        if overtaken is True:
            # One output per epoch, as they were written; the last epoch reads the rest.
            found, last = self._in_flight, len(batch.checkpoint_ids) - 1
            epochs.reads = [found[i : i + 1] if i < last else found[i:] for i in range(last + 1)]
        elif overtaken is False and self._written(epochs):
            own = [self._input(number) for number in batch.checkpoint_ids]
            epochs.reads = [[*self._in_flight, own[0]], *([each] for each in own[1:])]
        else:
            return False
        epochs.found = self._in_flight
        read = (o.checkpoint_id for inputs in epochs.reads for outputs in inputs for o in outputs.values())
        self.begun = max(self.begun, *read, 0)
        return True

    def _written(self, epochs: _RegionEpochs) -> bool:
        """Returns whether the regions before have acknowledged epochs."""
        return all(each.acknowledged >= epochs.last for each in self.before)

    def _overtaken(self, epochs: _RegionEpochs) -> bool | None:
        """Returns whether barriers overtake what the regions before write in these epochs; None if it is not known yet.

        An unaligned barrier waits for what the region is reading, but not for what is written meanwhile. It aligns if
        no later epoch could read what it overtakes.
        """
        checkpointing, batch = self.planner.config.checkpointing, epochs.batch
        if not checkpointing.unaligned or batch.kind is not EpochKind.READ or self.planner.partition is not None:
            return False
        if batch.ends is not False:
            return None if batch.ends is None else False
        timeout_ms = to_millis(checkpointing.aligned_timeout)
        if timeout_ms == 0:
            return True
        return self._now() > epochs.since_ms + timeout_ms if self._written(epochs) else None

    def _input(self, checkpoint_id: int) -> dict[str, EdgeOutput]:
        """Returns what the regions before have written in the epoch of a checkpoint."""
        return {uid: output for region in self.before for uid, output in region._outputs[checkpoint_id].items()}

    def settle(self) -> list[tuple[int, str, list[Json]]]:
        """Returns what was in flight at the barriers of acknowledged epochs, once the regions before have written it.

        Returns:
            Checkpoint, uid of the source that reads the edge, and what it has not read, for the metadata.
        """
        epochs = self._unsettled
        if epochs is None or (epochs.reads is not None and not self._written(epochs)):
            return []
        self._unsettled = None
        told: list[tuple[int, str, list[Json]]] = []
        outputs, read = [*epochs.found], 0
        for position, number in enumerate(epochs.batch.checkpoint_ids):
            if epochs.reads is not None:  # else they have read nothing, and nothing was written
                outputs.append(self._input(number))
                read += len(epochs.reads[position])
            for uid, sink in self.planner.edge_sources.items():
                told.append((number, uid, [each[sink].to_json(sink) for each in outputs[read:] if sink in each]))
        self._in_flight = outputs[read:]
        return told

    def has_unread(self, checkpoint_id: int) -> bool | None:
        """Returns whether records are in flight to it at the barrier of its last epoch; None if it is not known yet."""
        if not self.before:
            return False
        if self.acknowledged < checkpoint_id or self._unsettled is not None:
            return None
        return any(output.segments for outputs in self._in_flight for output in outputs.values())

    # --- what the lane reports ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Looks for input, without an epoch."""
        self.at_work = True
        self.runner.begin_look()
        self._mailbox.submit(self.lane, self.runner.look)

    def on_looked(self, *, found: bool) -> None:
        """Notes whether input is assigned to the next epoch."""
        self.at_work, self._found = False, found

    def on_planned(self, epoch: Epoch) -> None:
        """Adds a planned epoch."""
        assert self._current is not None
        self._current.planned.append(epoch)
        self.at_work = False
        if self.abandoned:
            self._put_back()

    def acknowledged_from(self, checkpoint_id: int) -> list[int]:
        """Returns the checkpoints that it must give up to run the epoch of a checkpoint and all later ones again."""
        return [number for each in self._done if each.last >= checkpoint_id for number in each.batch.checkpoint_ids]

    def rewind(self, checkpoint_id: int, *, rewritten: bool) -> None:
        """Lets the epoch of a checkpoint and all later ones run again, from :meth:`restart` on.

        Sources read the same splits. What the region's lane is doing does not count.

        Args:
            checkpoint_id: The checkpoint.
            rewritten: Whether regions before this one run again, too.
        """
        self._to_restart = True
        again = [each for each in self._done if each.last >= checkpoint_id]
        for each in again:
            for number in each.batch.checkpoint_ids:
                self._outputs.pop(number, None)
        if again:
            self._in_flight, self._unsettled = again[0].found, None
        self._done = self._done[: len(self._done) - len(again)]
        self.acknowledged = self._done[-1].last if self._done else self._settled
        self._waiting.extendleft(reversed(again))
        for epochs in (self._current, *self._waiting):
            if epochs is not None and rewritten:
                epochs.stale, epochs.reads, self.begun = bool(epochs.planned), None, self.acknowledged
        if self.at_work and self._current is not None:
            self.abandoned = True
            self.runner.session.interrupt()
        elif self._current is not None:
            self._put_back()

    def on_abandoned(self, ended: RegionEnded) -> None:
        """Notes that a Spark job has ended whose epochs run again."""
        assert self._current is not None
        self._current.read |= ended.error is None
        self.at_work = False
        self._put_back()

    def _put_back(self) -> None:
        assert self._current is not None
        self._waiting = deque(sorted([self._current, *self._waiting], key=lambda each: each.first))
        self.on_ended()

    def restart(self) -> None:
        """Begins to run the epochs again."""
        self._restarts += 1
        self._to_restart = False
        self.proceed()

    def on_ended(self) -> None:
        """Forgets the batch: its Spark job has ended, or it could not be planned."""
        if self._current is not None:
            self._slots.release(self.lane.number)
        self._current, self.at_work, self.abandoned = None, False, False

    def on_acknowledged(self, ended: RegionEnded) -> None:
        """Lets the next epoch start from the state that all tasks have acknowledged, and offers the outputs."""
        assert self._current is not None
        self._current.read, self._current.stale = True, False
        self._done.append(self._current)
        if self.before:
            self._unsettled = self._current
            if self._current.reads is None:
                self._current.found = self._in_flight
        self.on_ended()
        self.acknowledged, states = ended.checkpoint_ids[-1], ended.results.states
        self.has_read = any(state.splits for state in states.values())
        self.input_ended = self.planner.ended[self.acknowledged]
        self.planner.advance(self.acknowledged, states)
        self._outputs |= ended.outputs

    def on_completed(self, checkpoint_id: int) -> None:
        """Forgets what is only needed until a checkpoint is complete, and tells the sources when they can take it."""
        self._outputs.pop(checkpoint_id, None)
        self._done = [each for each in self._done if each.last > checkpoint_id]
        self._settled = max(self._settled, checkpoint_id)
        self.planner.forget_before(checkpoint_id)
        del self.planner.ended[checkpoint_id]
        self._to_notify.append(checkpoint_id)
