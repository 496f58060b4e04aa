"""The state of one region, as the job's master sees it (Flink: ``SchedulingPipelinedRegion``).

Only the master's thread calls it. It submits work to the region's lane and never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeOutput
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

    def has_more_behind(self, readers: Sequence[RegionExecution], *, until_idle: bool) -> bool | None:
        """Returns whether more input is to be read after these epochs, or None if it is not known yet.

        Args:
            readers: The regions that read input from outside the job.
            until_idle: Whether an epoch that has read nothing is the last one.
        """
        known = [region for region in readers if region.acknowledged >= self.checkpoint_ids[-1]]
        has_input = not until_idle or any(region.has_read for region in known)
        if has_input and not all(region.input_ended for region in known):
            return True
        return False if len(known) == len(readers) else None

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
    """

    def __init__(
        self,
        runner: JobRunner,
        lane: Lane,
        mailbox: Mailbox,
        before: Sequence[RegionExecution],
        slots: JobSlots,
        failover: JobFailover,
    ) -> None:
        self.runner, self.lane, self._mailbox, self.before = runner, lane, mailbox, tuple(before)
        self._slots, self._failover = slots, failover
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

    @property
    def begun(self) -> int:
        """The last checkpoint whose epoch it has begun, or 0."""
        return self.acknowledged if self._current is None else self._current.last

    def has_before(self, checkpoint_id: int) -> bool:
        """Returns whether it runs epochs that are all older than a checkpoint, or such epochs wait."""
        return any(each is not None and each.last < checkpoint_id for each in (self._current, *self._waiting))

    def enqueue(self, batch: EpochBatch) -> None:
        """Adds epochs to run when the current ones have ended and the input is there."""
        self._waiting.append(_RegionEpochs(batch))

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
            if not self._waiting or not self._is_ready(self._waiting[0].batch):
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
            return partial(self.runner.plan, checkpoint_id, last, self._inputs(checkpoint_id), drain=drain)
        if not batch.closed:
            return None
        self._failover.graph.switch_to_running(self.lane.number)
        inputs = {number: self._inputs(number) for number in batch.checkpoint_ids} if epochs.stale else {}
        return partial(self.runner.run, tuple(planned), self._restarts, rewritten=inputs, was_read=epochs.read)

    def _is_ready(self, batch: EpochBatch) -> bool:
        """Returns whether the regions before have written all that the epochs read."""
        if batch.kind is EpochKind.REPEAT or not self.before:
            return True
        return batch.closed and all(each.acknowledged >= batch.checkpoint_ids[-1] for each in self.before)

    def _inputs(self, checkpoint_id: int) -> dict[str, EdgeOutput]:
        inputs: dict[str, EdgeOutput] = {}
        for region in self.before:
            inputs |= region._outputs[checkpoint_id]
        return inputs

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
        self._done = self._done[: len(self._done) - len(again)]
        self.acknowledged = self._done[-1].last if self._done else self._settled
        self._waiting.extendleft(reversed(again))
        for epochs in (self._current, *self._waiting):
            if epochs is not None:
                epochs.stale |= rewritten and bool(epochs.planned)
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
