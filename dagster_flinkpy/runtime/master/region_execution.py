"""The state of one region, as the job's master sees it (Flink: ``SchedulingPipelinedRegion``).

Only the master's thread calls it. It submits work to the region's lane and never waits.

If barriers are unaligned, no checkpoint waits for a Spark job of a region that only reads blocking edges. The region
acknowledges a checkpoint with the state of its last Spark job that has ended, as soon as the regions before it have;
what it has not read as of that state is in flight. A Spark job belongs to the next checkpoint after its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import SegmentLostError
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.acknowledged import Acknowledged
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
    """Whether regions before it may have written what they read anew since they were planned. It stays, as plans do."""
    since_ms: int = 0
    """When they were triggered, in milliseconds since 1970."""
    found: EdgeInputs = ()
    """What was in flight to the region before them."""
    reads: Sequence[EdgeInputs] | None = None
    """What each epoch reads of blocking edges; None if it is not decided yet."""
    aligns: bool = False
    """Whether it is decided that the region reads all that the regions before it write in these epochs."""
    ahead: bool = False
    """Whether no checkpoint waits for them: it is one Spark job, which the first checkpoint has only given its name."""
    start: int = 0
    """The state from which they start, by the last epoch before it."""
    before: int = 0
    """The checkpoint that the region had acknowledged before them."""
    carried: RegionEnded | None = None
    """The Spark job whose results belong to their first checkpoint, too; or None."""

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
        self._state = 0
        """The epochs whose state the next one starts from, by their last checkpoint; 0 for the start of the attempt."""
        self._found = False
        """Whether input is assigned to the next epoch, which is not planned yet."""
        self._restarts = 0
        self._to_restart = False
        """Whether it is to run epochs again, and :meth:`restart` has not been called yet."""
        self._in_flight: EdgeInputs = self.planner.in_flight
        """What the regions before it have written and it has not read, the oldest first."""
        self.begun: dict[str, int] = {}
        """The last epoch that it reads, or has read, of each blocking edge, by uid of the source."""
        self._unsettled: _RegionEpochs | None = None
        """Acknowledged epochs of which it is not known yet what was in flight at their barriers."""
        self._outputs: dict[int, EdgeInputs] = {}
        """What it has written to blocking edges, by checkpoint that is not complete yet."""
        self._overtaking: deque[_RegionEpochs] = deque()
        """Epochs of checkpoints whose barriers overtake what the region reads; they wait for the regions before it."""
        self._overtaken: dict[int, int] = {}
        """By such checkpoint that is not complete, the last epoch before the state that it has acknowledged."""
        self._permit = 0
        """The name of the next Spark job that no checkpoint waits for, or 0 if there is to be none yet."""
        self._result: RegionEnded | None = None
        """The Spark job that has ended, and whose results no checkpoint has; or None."""
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
    def works_ahead(self) -> bool:
        """Whether its Spark job is one that no checkpoint waits for."""
        return self._current is not None and self._current.ahead

    @property
    def working_for(self) -> Sequence[int]:
        """The checkpoints that wait for its Spark job."""
        return () if self._current is None or self._current.ahead else self._current.batch.checkpoint_ids

    @property
    def _reads_only_edges(self) -> bool:
        return bool(self.before) and not self.planner.splits.uids

    @property
    def all_planned(self) -> bool:
        """Whether the epochs of the batch so far are planned."""
        return self._current is not None and len(self._current.planned) == len(self._current.batch.checkpoint_ids)

    def has_before(self, checkpoint_id: int) -> bool:
        """Returns whether it runs epochs that are all older than a checkpoint, or such epochs wait."""
        epochs = (self._current, *self._waiting, *self._overtaking)
        return any(each is not None and not each.ahead and each.last < checkpoint_id for each in epochs)

    def enqueue(self, batch: EpochBatch) -> None:
        """Adds epochs to run when the current ones have ended and the input is there."""
        self._waiting.append(_RegionEpochs(batch, since_ms=self._now()))

    def drop_from(self, checkpoint_id: int) -> None:
        """Forgets epochs that do not run yet, unless all of the batch are older than a checkpoint.

        The attempt fails, so nobody needs the results of a Spark job that no checkpoint waits for.
        """
        if self.works_ahead and self.at_work:
            self.runner.session.interrupt()
        if self._current is not None and not self.at_work and (self.works_ahead or self._current.last >= checkpoint_id):
            self.on_ended()
        self._waiting = deque(each for each in self._waiting if not each.ahead and each.last < checkpoint_id)
        self._overtaking = deque(each for each in self._overtaking if each.last < checkpoint_id)
        self._permit = 0

    def proceed(self) -> None:
        """Submits the next piece of work, if there is one that can begin."""
        self._let_pass()
        if self.at_work or self._to_restart:
            return
        if self._current is None:
            # Between two epochs: what an enumerator has planned is not read yet.
            if not self._found and not (self._waiting and self._waiting[0].planned):
                for number in self._to_notify:
                    self._mailbox.submit(self.lane, partial(self.runner.notify_complete, number))
                self._to_notify.clear()
            epochs = self._next()
            if epochs is None or not self._slots.acquire(self.lane.number):
                return  # until another region has ended
            if self._waiting and self._waiting[0] is epochs:
                self._waiting.popleft()
            self._permit = 0
            self._begin(epochs)
        assert self._current is not None
        if (work := self._next_step(self._current)) is not None:
            self.at_work = True
            self._mailbox.submit(self.lane, work)

    def _let_pass(self) -> None:
        """Lets barriers pass that need not wait for what the region is reading."""
        while self._reads_only_edges and self._waiting and self._overtakes(self._waiting[0]):
            epochs = self._waiting.popleft()
            self._overtaking.append(epochs)
            self._permit = epochs.first

    def _overtakes(self, epochs: _RegionEpochs) -> bool:
        decided = epochs.ahead or epochs.aligns or epochs.reads is not None
        return not decided and epochs.batch.closed and self._is_overtaken(epochs) is True

    def _next(self) -> _RegionEpochs | None:
        """Returns the epochs to run next, or None if they cannot begin yet."""
        waiting = self._waiting[0] if self._waiting else None
        if waiting is not None and waiting.ahead:
            return waiting
        if waiting is not None and not self._overtaking and self._unsettled is None and self._is_ready(waiting):
            return waiting
        if not self._permit or self._result is not None or (waiting is not None and waiting.first < self._permit):
            return None
        batch = EpochBatch(EpochKind.READ, [self._permit], closed=True, ends=False)
        epochs = _RegionEpochs(batch, since_ms=self._now(), found=self._in_flight, reads=[self._in_flight], ahead=True)
        self._note_begun(epochs)
        return epochs

    def _begin(self, epochs: _RegionEpochs) -> None:
        self._current = epochs
        if not epochs.planned:
            self._found = False
        epochs.start = self._state
        self.planner.rewind(self._state)
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
        overtaken = False if epochs.aligns else self._is_overtaken(epochs)
        if overtaken is True:
            # One output per epoch, as they were written; the last epoch reads the rest.
            found, last = self._in_flight, len(batch.checkpoint_ids) - 1
            epochs.reads = [found[i : i + 1] if i < last else found[i:] for i in range(last + 1)]
        elif overtaken is False and self._written(epochs):
            own = [self._input(number) for number in batch.checkpoint_ids]
            epochs.reads, epochs.aligns = [[*self._in_flight, *own[0]], *own[1:]], True
        else:
            return False
        epochs.found = self._in_flight
        self._note_begun(epochs)
        return True

    def _note_begun(self, epochs: _RegionEpochs) -> None:
        for outputs in (outputs for inputs in epochs.reads or () for outputs in inputs):
            for uid, sink in self.planner.edge_sources.items():
                if sink in outputs:
                    self.begun[uid] = max(self.begun.get(uid, 0), outputs[sink].checkpoint_id)

    def written_in(self, lost: SegmentLostError) -> dict[str, list[int]]:
        """Returns the epochs in which the segment was written that it cannot read, by uid of the source."""
        reads, found = self._current.reads if self._current is not None else None, dict[str, list[int]]()
        for uid, sink in self.planner.edge_sources.items():
            if sink == lost.edge:
                outputs = [outputs[sink] for inputs in reads or () for outputs in inputs if sink in outputs]
                epochs = [o.checkpoint_id for o in outputs if any(s["key"] == lost.key for s in o.segments)]
                found |= {uid: epochs} if epochs else {}
        return found

    def _written(self, epochs: _RegionEpochs) -> bool:
        """Returns whether the regions before have acknowledged epochs."""
        return all(each.acknowledged >= epochs.last for each in self.before)

    def _is_overtaken(self, epochs: _RegionEpochs) -> bool | None:
        """Returns whether barriers overtake what the regions before write in these epochs; None if it is not known yet.

        An unaligned barrier aligns if no later epoch could read what it overtakes.
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

    def _input(self, checkpoint_id: int) -> EdgeInputs:
        """Returns what the regions before have written that belongs to a checkpoint, and to none before it."""
        return [outputs for region in self.before for outputs in region._outputs[checkpoint_id] if outputs]

    def overtake(self, passes: Callable[[EpochBatch], bool]) -> list[Acknowledged]:
        """Acknowledges checkpoints whose barriers overtake what the region reads, if those before it have done so.

        Args:
            passes: Returns whether the checkpoints of a batch need not wait for the Spark job of the region.
        """
        epochs = self._overtaking[0] if self._overtaking else None
        if epochs is None or self._unsettled is not None or not self._written(epochs):
            return []
        earlier = self._current if self._current is not None else self._waiting[0] if self._waiting else None
        if earlier is not None and not earlier.ahead and earlier.first < epochs.first:
            return []
        works = (earlier is not None and earlier.ahead) or (self._permit > 0 and self._result is None)
        if not passes(epochs.batch):
            if works:
                return []
            self._permit = 0  # the last checkpoint of a request: no other one would have the results
        self._overtaking.popleft()
        return [self._acknowledge_in_flight(number) for number in epochs.batch.checkpoint_ids]

    def _acknowledge_in_flight(self, checkpoint_id: int) -> Acknowledged:
        job, self._result = self._result, None
        states, self._outputs[checkpoint_id] = self.planner.repeat(checkpoint_id).states, []
        if job is not None:
            states, self._outputs[checkpoint_id] = job.results.states, [*job.outputs.values()]
            self.planner.acknowledged_with(self._state, checkpoint_id)
        self._in_flight = [*self._in_flight, *self._input(checkpoint_id)]
        self._overtaken[checkpoint_id], self.acknowledged = self._state, checkpoint_id
        edges = self.planner.edge_sources.items()
        return Acknowledged(checkpoint_id, states, job, [(uid, _of_edge(self._in_flight, sink)) for uid, sink in edges])

    def overtaken_from(self, checkpoint_id: int) -> list[int]:
        """Returns the incomplete checkpoints from one on whose barriers overtake what the region reads."""
        waiting = (number for each in self._overtaking for number in each.batch.checkpoint_ids)
        return [number for number in (*self._overtaken, *waiting) if number >= checkpoint_id]

    @property
    def next_to_acknowledge(self) -> int:
        """The next checkpoint that it acknowledges, or a number below it."""
        waiting = (each.first for each in (*self._overtaking, *self._waiting) if not each.ahead)
        return min(waiting, default=self.acknowledged + 1)

    def settle(self) -> list[tuple[int, str, list[Json]]]:
        """Returns what was in flight at the barriers of acknowledged epochs, once the regions before have written it.

        For the metadata: checkpoint, uid of the source that reads the edge, and what it has not read.
        """
        epochs = self._unsettled
        if epochs is None or not self._written(epochs):
            return []
        self._unsettled = None
        told: list[tuple[int, str, list[Json]]] = []
        outputs, read = [*epochs.found], 0
        for position, number in enumerate(epochs.batch.checkpoint_ids):
            outputs.extend(self._input(number))
            read += len(epochs.reads[position]) if epochs.reads is not None else 0
            told += [(number, uid, _of_edge(outputs[read:], sink)) for uid, sink in self.planner.edge_sources.items()]
        self._in_flight = outputs[read:]
        return told

    def has_unread(self, checkpoint_id: int) -> bool | None:
        """Returns whether a checkpoint lacks records that were written for the region; None if it is not known yet."""
        if not self.before:
            return False
        if self.acknowledged < checkpoint_id or self._unsettled is not None:
            return None
        return self._result is not None or any(o.segments for outputs in self._in_flight for o in outputs.values())

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
        if not self._current.ahead:
            self.planner.ended[epoch.checkpoint_id] = self.planner.splits.ends(epoch)
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
            first = again[0]
            self._in_flight, self._unsettled, self._result = first.found, None, first.carried
            self._state, self.acknowledged = first.start, first.before
        self._done = self._done[: len(self._done) - len(again)]
        self._waiting.extendleft(reversed(again))
        for epochs in (self._current, *self._waiting):
            if epochs is not None and rewritten and not epochs.ahead:  # what is in flight to those was not rewritten
                epochs.stale, epochs.reads = True, None  # it may be being planned now
                self.begun = {uid: min(number, self.acknowledged) for uid, number in self.begun.items()}
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

    def on_read_ahead(self, ended: RegionEnded) -> None:
        """Lets the next epoch start from the state of a Spark job that no checkpoint has waited for."""
        assert self._current is not None
        assert self._current.ahead
        self._in_flight = self._in_flight[len(self._current.found) :]
        self._advance(self._current, ended)
        self._result = ended
        self.on_ended()

    def on_acknowledged(self, ended: RegionEnded) -> list[Acknowledged]:
        """Lets the next epoch start from the state that all tasks have acknowledged, and offers the outputs.

        Returns:
            What the tasks have acknowledged, by checkpoint.
        """
        epochs = self._current
        assert epochs is not None
        epochs.read, epochs.before = True, self.acknowledged
        epochs.carried, self._result = self._result, None
        self._done.append(epochs)
        if self.before:
            self._unsettled = epochs
            if epochs.reads is None:
                epochs.found = self._in_flight
        self.on_ended()
        self.acknowledged = ended.checkpoint_ids[-1]
        self.has_read = any(state.splits for state in ended.results.states.values())
        self.input_ended = self.planner.ended[self.acknowledged]
        self._advance(epochs, ended)
        found: list[Acknowledged] = []
        for number, states in sorted(ended.results.acknowledged.items()):
            job = epochs.carried if not found else None
            own = [ended.outputs[number]] if number in ended.outputs else []
            self._outputs[number] = [*(job.outputs.values() if job is not None else ()), *own]
            found.append(Acknowledged(number, states).after(job))
        return found

    def _advance(self, epochs: _RegionEpochs, ended: RegionEnded) -> None:
        self._state = ended.checkpoint_ids[-1]
        ends = self.planner.splits.ends(epochs.planned[-1]) if epochs.planned else None
        self.planner.advance(self._state, ended.results.states, ended=ends)

    def on_completed(self, checkpoint_id: int) -> dict[str, set[int]]:
        """Forgets what is only needed until a checkpoint is complete, and tells the sources when they can take it.

        Returns:
            The epochs whose segments are in the checkpoint, or were read before it, by uid of the sink.
        """
        written: dict[str, set[int]] = {}
        for uid, output in ((u, o) for outputs in self._outputs.pop(checkpoint_id, ()) for u, o in outputs.items()):
            written.setdefault(uid, set()).add(output.checkpoint_id)
        self._done = [each for each in self._done if each.last > checkpoint_id]
        self.planner.forget_before(self._overtaken.pop(checkpoint_id, checkpoint_id))
        del self.planner.ended[checkpoint_id]
        self._to_notify.append(checkpoint_id)
        return written


def _of_edge(inputs: EdgeInputs, sink: str) -> list[Json]:
    return [outputs[sink].to_json(sink) for outputs in inputs if sink in outputs]
