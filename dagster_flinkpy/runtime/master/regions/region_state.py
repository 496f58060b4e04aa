"""One region in the state of a job: its epochs, and what its lane does (Flink: ``SchedulingPipelinedRegion``).

A part of :class:`~dagster_flinkpy.runtime.master.job_state.JobState`. What its lane is to do goes into the turn.

If barriers are unaligned, no checkpoint waits for a Spark job of a region that only reads blocking edges. The region
acknowledges a checkpoint with the state of its last Spark job that has ended, as soon as the regions before it have;
what it has not read as of that state is in flight. A Spark job belongs to the next checkpoint after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import FlinkPyError, IllegalStateTransitionError, SegmentLostError
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs, stored_outputs
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epoch_request import EpochBatch, EpochKind
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.job_messages import (
    BeginEpochs,
    CloseEpoch,
    InterruptRegion,
    LookForInput,
    NotifySources,
    PlanEpoch,
    RepeatState,
    RunEpochs,
)
from dagster_flinkpy.runtime.master.regions.region_epochs import Acknowledged, Phase, RegionEpochs, RegionStage, Turn
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded

__all__ = ["RegionState"]


class RegionState:
    """The epochs of a region: which ones wait, which one runs, and what the last one has left.

    Args:
        planner: Knows the operators of the region, and the state from which its next epoch starts.
        before: The regions whose output it reads.
        graph: The executions of its subtasks.
        turn: Takes what its lane is to do.
    """

    def __init__(self, planner: EpochPlanner, before: Sequence[RegionState], graph: ExecutionGraph, turn: Turn) -> None:
        self.planner, self.before, self.number = planner, tuple(before), planner.number
        self._graph, self._turn = graph, turn
        self._executions_before = graph.attempt(self.number)
        """How many executions of earlier attempts each subtask has had."""
        self.phase = Phase.IDLE
        self._epochs: list[RegionEpochs] = []
        """All epochs that are not forgotten, in the order of their checkpoints."""
        self.acknowledged = 0
        """The last checkpoint that all tasks have acknowledged."""
        self.has_read = False
        """Whether its sources have read anything in the epoch of that checkpoint."""
        self.input_ended = False
        """Whether its input ends with that checkpoint."""
        self.found = False
        """Whether input is assigned to the next epoch, which is not planned yet."""
        self.begun: dict[str, int] = {}
        """The last epoch that it reads, or has read, of each blocking edge, by uid of the source."""
        self.outputs: dict[int, EdgeInputs] = {}
        """What it has written to blocking edges, by checkpoint that is not complete yet."""
        self._state = 0
        """The epochs whose state the next one starts from, by their last checkpoint; 0 for the start of the attempt."""
        self._in_flight: EdgeInputs = planner.in_flight
        """What the regions before it have written and it has not read, the oldest first."""
        self._permit = 0
        """The name of the next Spark job that no checkpoint waits for, or 0 if there is to be none yet."""
        self._result: RegionEnded | None = None
        """The Spark job that has ended, and whose results no checkpoint has; or None."""
        self._to_notify: list[int] = []
        """Complete checkpoints that the sources have not been notified of."""

    # --- what is known -----------------------------------------------------------------------------------------------

    def _first(self, stage: RegionStage) -> RegionEpochs | None:
        return next((each for each in self._epochs if each.stage is stage), None)

    @property
    def _current(self) -> RegionEpochs | None:
        return self._first(RegionStage.CURRENT)

    @property
    def _unsettled(self) -> RegionEpochs | None:
        """Acknowledged epochs of which it is not known yet what was in flight at their barriers."""
        return next((e for e in self._epochs if e.stage is RegionStage.ACKNOWLEDGED and not e.settled), None)

    @property
    def batch(self) -> EpochBatch | None:
        """The epochs that are planned or run."""
        return None if (current := self._current) is None else current.batch

    @property
    def planned(self) -> Sequence[EpochInput]:
        """Those of the batch that are planned."""
        return () if (current := self._current) is None else current.planned

    @property
    def all_planned(self) -> bool:
        """Whether the epochs of the batch so far are planned."""
        return (batch := self.batch) is not None and len(self.planned) == len(batch.checkpoint_ids)

    @property
    def at_work(self) -> bool:
        """Whether its lane looks for input, plans, or runs a Spark job."""
        return self.phase in (Phase.LOOKING, Phase.PLANNING, Phase.RUNNING)

    @property
    def executing(self) -> bool:
        """Whether its lane does something for epochs."""
        return self.phase in (Phase.PLANNING, Phase.RUNNING)

    @property
    def canceling(self) -> bool:
        """Whether what its lane does for epochs does not count, because they run again, or nobody needs them."""
        return self.executing and self._graph.canceling(self.number)

    @property
    def idle(self) -> bool:
        """Whether no epoch is planned, runs or waits."""
        return self._current is None and self._first(RegionStage.WAITING) is None

    @property
    def works_ahead(self) -> bool:
        """Whether its Spark job is one that no checkpoint waits for."""
        return (current := self._current) is not None and current.ahead

    @property
    def working_for(self) -> Sequence[int]:
        """The checkpoints that wait for its Spark job."""
        current = self._current
        return () if current is None or current.ahead or current.batch.open else current.batch.checkpoint_ids

    @property
    def restarts(self) -> int:
        """How often it has restarted in this execution attempt."""
        return self._graph.attempt(self.number) - self._executions_before

    def has_before(self, checkpoint_id: int) -> bool:
        """Returns whether it runs epochs that are all older than a checkpoint, or such epochs wait."""
        to_run = (RegionStage.WAITING, RegionStage.PASSING, RegionStage.CURRENT)
        return any(e.stage in to_run and not e.ahead and e.last < checkpoint_id for e in self._epochs)

    @property
    def next_to_acknowledge(self) -> int:
        """The next checkpoint that it acknowledges, or a number below it."""
        waiting = (RegionStage.WAITING, RegionStage.PASSING)
        return min((e.first for e in self._epochs if e.stage in waiting and not e.ahead), default=self.acknowledged + 1)

    def acknowledged_from(self, checkpoint_id: int) -> list[int]:
        """Returns the checkpoints that it must give up to run the epoch of a checkpoint and all later ones again."""
        return [number for each in self._done_from(checkpoint_id) for number in each.batch.checkpoint_ids]

    def _done_from(self, checkpoint_id: int) -> list[RegionEpochs]:
        return [e for e in self._epochs if e.stage is RegionStage.ACKNOWLEDGED and e.last >= checkpoint_id]

    def unwritten_before(self, checkpoint_id: int) -> FlinkPyError | None:
        """Returns why part of the state is not in the store from which the epoch of a checkpoint would run again."""
        again = self._done_from(checkpoint_id)
        failure = self.planner.unwritten_at(again[0].start if again else self._state)
        return None if failure is None else failure.error

    def overtaken_from(self, checkpoint_id: int) -> list[int]:
        """Returns the incomplete checkpoints from one on whose barriers overtake what the region reads."""
        passing = (e for stage in (RegionStage.PASSED, RegionStage.PASSING) for e in self._epochs if e.stage is stage)
        return [number for each in passing for number in each.batch.checkpoint_ids if number >= checkpoint_id]

    def has_unread(self, checkpoint_id: int) -> bool | None:
        """Returns whether a checkpoint lacks records that were written for the region; None if it is not known yet."""
        if not self.before:
            return False
        if self.acknowledged < checkpoint_id or self._unsettled is not None:
            return None
        return self._result is not None or any(o.segments for outputs in self._in_flight for o in outputs.values())

    def written_in(self, lost: SegmentLostError) -> dict[str, list[int]]:
        """Returns the epochs in which the segment was written that it cannot read, by uid of the source."""
        reads, found = current.reads if (current := self._current) is not None else None, dict[str, list[int]]()
        for uid, sink in self.planner.edge_sources.items():
            if sink == lost.edge:
                outputs = [outputs[sink] for inputs in reads or () for outputs in inputs if sink in outputs]
                epochs = [o.checkpoint_id for o in outputs if any(s["key"] == lost.key for s in o.segments)]
                found |= {uid: epochs} if epochs else {}
        return found

    # --- the phases of its lane --------------------------------------------------------------------------------------

    def _to(self, phase: Phase) -> None:
        """Goes to another phase, with what belongs to the transition."""
        transition = _TRANSITIONS.get((self.phase, phase))
        if transition is None:
            raise IllegalStateTransitionError(
                f"region {self.number} cannot go from {self.phase.name} to {phase.name}; its epochs: "
                + (", ".join(f"{each.batch.checkpoint_ids} {each.stage.name}" for each in self._epochs) or "none")
            )
        self.phase = phase
        transition(self)

    def _tell(self, instruction: Instruction) -> None:
        self._turn.instructions.append(instruction)

    def _deploy(self) -> None:
        epochs = self._at_hand
        self.found &= bool(epochs.planned)
        epochs.start = self._state
        self.planner.rewind(self._state)
        self._graph.schedule(self.number)
        self._graph.deploy(self.number)
        self._tell(BeginEpochs(self.number, epochs.first))

    def _plan(self) -> None:
        epochs, planned = self._at_hand, self._at_hand.planned
        checkpoint_id, drain = epochs.batch.checkpoint_ids[len(planned)], epochs.batch.kind is EpochKind.DRAIN
        inputs = epochs.reads[len(planned)] if epochs.reads is not None else ()
        self._tell(PlanEpoch(self.number, checkpoint_id, planned[-1] if planned else None, inputs, drain))

    def _run(self) -> None:
        epochs, numbers, live = self._at_hand, self._at_hand.batch.checkpoint_ids, self._at_hand.batch.live
        if not live:  # otherwise they say when they run
            self._graph.switch_to_running(self.number)
        elif not epochs.planned:
            epochs.planned.append(EpochInput(epochs.first, {}))
        if epochs.batch.kind is EpochKind.REPEAT:
            self._tell(RepeatState(self.number, epochs.first, self.restarts))
            return
        rewritten = dict(zip(numbers, epochs.reads or (), strict=True)) if epochs.stale else {}
        planned = tuple(replace(each, open=live) for each in epochs.planned)
        self._tell(RunEpochs(self.number, planned, self.restarts, rewritten, epochs.read))
        if live and not epochs.batch.open:
            self.close(None)

    @property
    def _at_hand(self) -> RegionEpochs:
        current = self._current
        assert current is not None, f"region {self.number} has no epochs at hand"
        return current

    def _put_down(self, stage: RegionStage | None) -> None:
        """Has no epochs at hand any more; they are in another stage, or forgotten."""
        if self.phase is not Phase.IDLE:
            self._to(Phase.IDLE)
        if (current := self._current) is not None:
            if stage is None:
                self._epochs.remove(current)
            else:
                current.stage = stage

    # --- epochs begin ------------------------------------------------------------------------------------------------

    def enqueue(self, batch: EpochBatch) -> None:
        """Adds epochs to run when the current ones have ended and the input is there."""
        self._add(RegionEpochs(batch, since_ms=self._turn.now_ms))

    def _add(self, epochs: RegionEpochs) -> None:
        self._epochs.append(epochs)
        self._epochs.sort(key=lambda each: each.first)

    def drop_from(self, checkpoint_id: int) -> None:
        """Forgets epochs that do not run yet, unless all of the batch are older than a checkpoint.

        The attempt fails, so nobody needs the results of a Spark job that no checkpoint waits for.
        """
        if (current := self._current) is not None:
            if (current.ahead or current.batch.open) and self.executing:
                self._tell(InterruptRegion(self.number))
            if not self.executing and (current.ahead or current.last >= checkpoint_id):
                self._put_down(None)
        waiting = (RegionStage.WAITING, RegionStage.PASSING)
        self._epochs = [e for e in self._epochs if e.stage not in waiting or (not e.ahead and e.last < checkpoint_id)]
        self._permit = 0

    def look(self) -> None:
        """Looks for input, without an epoch."""
        self._to(Phase.LOOKING)

    def proceed(self) -> None:
        """Goes on to the next phase, if it can."""
        self._let_pass()
        if self.at_work or self.number in self._graph.waiting:
            return
        if self.phase is Phase.IDLE:
            waiting = self._first(RegionStage.WAITING)
            # Between two epochs: what an enumerator has planned is not read yet.
            if not self.found and not (waiting is not None and waiting.planned):
                for number in self._to_notify:
                    self._tell(NotifySources(self.number, number))
                self._to_notify.clear()
            epochs = self._next()
            if epochs is None:
                return
            if epochs is not waiting:
                self._add(epochs)
            epochs.stage, self._permit = RegionStage.CURRENT, 0
            self._to(Phase.DEPLOYED)
        batch = self._at_hand.batch
        if batch.kind is not EpochKind.REPEAT and not batch.live and not self.all_planned:
            self._to(Phase.PLANNING)
        elif batch.closed or batch.kind is EpochKind.REPEAT:
            self._to(Phase.RUNNING)

    def _let_pass(self) -> None:
        """Lets barriers pass that need not wait for what the region is reading."""
        reads_only_edges = bool(self.before) and not self.planner.splits.uids
        while reads_only_edges and (epochs := self._first(RegionStage.WAITING)) is not None and self._overtakes(epochs):
            epochs.stage, self._permit = RegionStage.PASSING, epochs.first

    def _overtakes(self, epochs: RegionEpochs) -> bool:
        decided = epochs.ahead or epochs.aligns or epochs.reads is not None
        return not decided and epochs.batch.closed and self._is_overtaken(epochs) is True

    def _next(self) -> RegionEpochs | None:
        """Returns the epochs to run next, or None if they cannot begin yet."""
        waiting = self._first(RegionStage.WAITING)
        if waiting is not None and waiting.ahead:
            return waiting
        blocked = self._first(RegionStage.PASSING) is not None or self._unsettled is not None
        if waiting is not None and not blocked and self._is_ready(waiting):
            return waiting
        if not self._permit or self._result is not None or (waiting is not None and waiting.first < self._permit):
            return None
        batch = EpochBatch(EpochKind.READ, [self._permit], closed=True, ends=False)
        now_ms, found = self._turn.now_ms, self._in_flight
        epochs = RegionEpochs(batch, since_ms=now_ms, found=found, reads=[found], ahead=True)
        self._note_begun(epochs)
        return epochs

    def _is_ready(self, epochs: RegionEpochs) -> bool:
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

    def _note_begun(self, epochs: RegionEpochs) -> None:
        for outputs in (outputs for inputs in epochs.reads or () for outputs in inputs):
            for uid, sink in self.planner.edge_sources.items():
                if sink in outputs:
                    self.begun[uid] = max(self.begun.get(uid, 0), outputs[sink].checkpoint_id)

    def _written(self, epochs: RegionEpochs) -> bool:
        """Returns whether the regions before have acknowledged epochs."""
        return all(each.acknowledged >= epochs.last for each in self.before)

    def _is_overtaken(self, epochs: RegionEpochs) -> bool | None:
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
        return self._turn.now_ms > epochs.since_ms + timeout_ms if self._written(epochs) else None

    def _input(self, checkpoint_id: int) -> EdgeInputs:
        """Returns what the regions before have written that belongs to a checkpoint, and to none before it."""
        return [outputs for region in self.before for outputs in region.outputs[checkpoint_id] if outputs]

    # --- what the lane has done --------------------------------------------------------------------------------------

    def on_looked(self, *, found: bool) -> None:
        """Notes whether input is assigned to the next epoch."""
        if self.phase is Phase.LOOKING:
            self._to(Phase.IDLE)
        self.found = found

    def on_planned(self, epoch: EpochInput) -> None:
        """Adds a planned epoch."""
        epochs = self._at_hand
        epochs.planned.append(epoch)
        if not epochs.ahead:
            self.planner.ended[epoch.checkpoint_id] = self.planner.splits.ends(epoch)
        if self.canceling:
            self.put_back()
        else:
            self._to(Phase.DEPLOYED)

    def close(self, following: int | None) -> None:
        """Lets the barrier follow in the epoch that is open.

        Args:
            following: The checkpoint of the epoch that the sources then read; None if they wait.
        """
        if self.phase is Phase.RUNNING:
            self._tell(CloseEpoch(self.number, following))

    def on_given(self, given: EpochInput) -> None:
        """Notes what the sources have read, or would have to read again, of an epoch that was open."""
        epochs = self._at_hand
        epochs.planned, epochs.read = [replace(given, open=False)], True
        self.planner.ended[given.checkpoint_id] = self.planner.splits.ends(given)

    def on_input_ended(self) -> None:
        """Notes that nothing more follows in the epoch that is open."""
        if (current := self._current) is not None and current.batch.open:
            current.at_end = True

    @property
    def at_end(self) -> bool:
        """Whether nothing more follows in the epoch that is open."""
        return (current := self._current) is not None and current.at_end

    def on_canceled(self, ended: RegionEnded) -> None:
        """Notes that a Spark job has ended whose epochs run again."""
        self._at_hand.read |= ended.error is None
        self.put_back()

    def on_failed(self) -> None:
        """Forgets the epochs at hand: their Spark job has failed, or they could not be planned."""
        self._put_down(None)

    def on_read_ahead(self, ended: RegionEnded) -> None:
        """Lets the next epoch start from the state of a Spark job that no checkpoint has waited for."""
        epochs = self._at_hand
        self._in_flight = self._in_flight[len(epochs.found) :]
        self._advance(epochs, ended)
        self._result = ended
        self._put_down(None)

    def on_acknowledged(self, ended: RegionEnded) -> list[Acknowledged]:
        """Lets the next epoch start from the state that all tasks have acknowledged, and offers the outputs.

        Returns:
            What the tasks have acknowledged, by checkpoint.
        """
        epochs = self._at_hand
        epochs.read, epochs.before = True, self.acknowledged
        epochs.carried, self._result = self._result, None
        epochs.settled = not self.before
        if self.before and epochs.reads is None:
            epochs.found = self._in_flight
        self._put_down(RegionStage.ACKNOWLEDGED)
        self.acknowledged = ended.checkpoint_ids[-1]
        self.has_read = any(state.splits for state in ended.results.states.values())
        self.input_ended = self.planner.ended[self.acknowledged]
        self._advance(epochs, ended)
        found: list[Acknowledged] = []
        for number, states in sorted(ended.results.acknowledged.items()):
            job = epochs.carried if not found else None
            own = [ended.outputs[number]] if number in ended.outputs else []
            self.outputs[number] = [*(job.outputs.values() if job is not None else ()), *own]
            failure = ended.results.declined.get(number)
            found.append(Acknowledged(number, states, failure).after(job))
        return found

    def _advance(self, epochs: RegionEpochs, ended: RegionEnded) -> None:
        self._state = ended.checkpoint_ids[-1]
        ends = self.planner.splits.ends(epochs.planned[-1]) if epochs.planned else None
        self.planner.advance(self._state, ended.results, ended=ends)

    # --- barriers at blocking edges ----------------------------------------------------------------------------------

    def overtake(self, passes: Callable[[EpochBatch], bool]) -> list[Acknowledged]:
        """Acknowledges checkpoints whose barriers overtake what the region reads, if those before it have done so.

        Args:
            passes: Returns whether the checkpoints of a batch need not wait for the Spark job of the region.
        """
        epochs = self._first(RegionStage.PASSING)
        if epochs is None or self._unsettled is not None or not self._written(epochs):
            return []
        earlier = self._current or self._first(RegionStage.WAITING)
        if earlier is not None and not earlier.ahead and earlier.first < epochs.first:
            return []
        works = (earlier is not None and earlier.ahead) or (self._permit > 0 and self._result is None)
        if not passes(epochs.batch):
            if works:
                return []
            self._permit = 0  # the last checkpoint of a request: no other one would have the results
        epochs.stage, epochs.start = RegionStage.PASSED, self._state
        return [self._acknowledge_in_flight(number) for number in epochs.batch.checkpoint_ids]

    def _acknowledge_in_flight(self, checkpoint_id: int) -> Acknowledged:
        job, self._result = self._result, None
        results, self.outputs[checkpoint_id] = self.planner.repeat(checkpoint_id), []
        states, failure = results.states, results.declined.get(checkpoint_id)
        if job is not None:
            states, self.outputs[checkpoint_id] = job.results.states, [*job.outputs.values()]
            self.planner.acknowledged_with(self._state, checkpoint_id)
        self._in_flight = [*self._in_flight, *self._input(checkpoint_id)]
        self.acknowledged = checkpoint_id
        in_flight = stored_outputs(self._in_flight, self.planner.edge_sources)
        return Acknowledged(checkpoint_id, states, failure, job, in_flight)

    def settle(self) -> list[tuple[int, str, list[Json]]]:
        """Returns what was in flight at the barriers of acknowledged epochs, once the regions before have written it.

        For the metadata: checkpoint, uid of the source that reads the edge, and what it has not read.
        """
        epochs = self._unsettled
        if epochs is None or not self._written(epochs):
            return []
        epochs.settled = True
        told: list[tuple[int, str, list[Json]]] = []
        outputs, read = [*epochs.found], 0
        for position, number in enumerate(epochs.batch.checkpoint_ids):
            outputs.extend(self._input(number))
            read += len(epochs.reads[position]) if epochs.reads is not None else 0
            told += [(number, *each) for each in stored_outputs(outputs[read:], self.planner.edge_sources)]
        self._in_flight = outputs[read:]
        return told

    # --- restarts, and the end of a checkpoint -----------------------------------------------------------------------

    def rewind(self, checkpoint_id: int, *, rewritten: bool) -> None:
        """Lets the epoch of a checkpoint and all later ones run again, once the region has restarted.

        Sources read the same splits. What the region's lane is doing does not count.

        Args:
            checkpoint_id: The checkpoint.
            rewritten: Whether regions before this one run again, too.
        """
        again = self._done_from(checkpoint_id)
        for each in again:
            each.stage = RegionStage.WAITING
            for number in each.batch.checkpoint_ids:
                self.outputs.pop(number, None)
        if again:
            first = again[0]
            self._in_flight, self._result = first.found, first.carried
            self._state, self.acknowledged = first.start, first.before
        for epochs in self._epochs:
            # What is in flight to Spark jobs ahead was not rewritten. Others may be being planned now.
            if rewritten and epochs.stage in (RegionStage.CURRENT, RegionStage.WAITING) and not epochs.ahead:
                epochs.stale, epochs.reads = True, None
                self.begun = {uid: min(number, self.acknowledged) for uid, number in self.begun.items()}
        if self.canceling:
            self._tell(InterruptRegion(self.number))
        elif self._current is not None:
            self.put_back()

    def put_back(self) -> None:
        """Lets the epochs at hand wait for their turn again."""
        self._put_down(RegionStage.WAITING)

    def on_completed(self, checkpoint_id: int) -> dict[str, set[int]]:
        """Forgets what is only needed until a checkpoint is complete, and tells the sources when they can take it.

        Returns:
            The epochs whose segments are in the checkpoint, or were read before it, by uid of the sink.
        """
        written: dict[str, set[int]] = {}
        for uid, output in ((u, o) for outputs in self.outputs.pop(checkpoint_id, ()) for u, o in outputs.items()):
            written.setdefault(uid, set()).add(output.checkpoint_id)
        passed = (
            e.start for e in self._epochs if e.stage is RegionStage.PASSED and checkpoint_id in e.batch.checkpoint_ids
        )
        self.planner.forget_before(next(passed, checkpoint_id))
        done = (RegionStage.PASSED, RegionStage.ACKNOWLEDGED)
        self._epochs = [each for each in self._epochs if each.stage not in done or each.last > checkpoint_id]
        del self.planner.ended[checkpoint_id]
        self._to_notify.append(checkpoint_id)
        return written


_TRANSITIONS: Mapping[tuple[Phase, Phase], Callable[[RegionState], None]] = {
    (Phase.IDLE, Phase.LOOKING): lambda region: region._tell(LookForInput(region.number)),
    (Phase.LOOKING, Phase.IDLE): lambda region: None,
    (Phase.IDLE, Phase.DEPLOYED): RegionState._deploy,
    (Phase.DEPLOYED, Phase.PLANNING): RegionState._plan,
    (Phase.PLANNING, Phase.DEPLOYED): lambda region: None,
    (Phase.DEPLOYED, Phase.RUNNING): RegionState._run,
    (Phase.DEPLOYED, Phase.IDLE): lambda region: None,
    (Phase.PLANNING, Phase.IDLE): lambda region: None,
    (Phase.RUNNING, Phase.IDLE): lambda region: None,
}
"""What belongs to each transition."""
