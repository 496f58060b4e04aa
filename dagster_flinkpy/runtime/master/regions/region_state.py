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
from dagster_flinkpy.runtime.master.epoch_request import EpochKind, JobEpoch
from dagster_flinkpy.runtime.master.epochs.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.job_messages import (
    BeginEpoch,
    CloseEpoch,
    InterruptRegion,
    LookForInput,
    NotifySources,
    PlanEpoch,
    RepeatState,
    RunEpoch,
)
from dagster_flinkpy.runtime.master.regions.region_epoch import Acknowledged, Phase, RegionEpoch, RegionStage, Turn
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded

__all__ = ["RegionState"]


class RegionState:
    """The epochs of a region: which ones wait, which one runs, and what the last one has left."""

    def __init__(self, planner: EpochPlanner, before: Sequence[RegionState], graph: ExecutionGraph, turn: Turn) -> None:
        self.planner, self.before, self.number = planner, tuple(before), planner.number
        self._graph, self._turn = graph, turn
        self._executions_before = graph.attempt(self.number)
        """How many executions of earlier attempts each subtask has had."""
        self.phase = Phase.IDLE
        self._epochs: list[RegionEpoch] = []
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
        """The epoch whose state the next one starts from; 0 for the start of the attempt."""
        self._in_flight: EdgeInputs = planner.in_flight
        """What the regions before it have written and it has not read, the oldest first."""
        self._permit = 0
        """The name of the next Spark job that no checkpoint waits for, or 0 if there is to be none yet."""
        self._result: RegionEnded | None = None
        """The Spark job that has ended, and whose results no checkpoint has; or None."""
        self._to_notify: list[int] = []
        """Complete checkpoints that the sources have not been notified of."""

    # --- what is known -----------------------------------------------------------------------------------------------

    def _first(self, stage: RegionStage) -> RegionEpoch | None:
        return next((each for each in self._epochs if each.stage is stage), None)

    @property
    def _current(self) -> RegionEpoch | None:
        return self._first(RegionStage.CURRENT)

    @property
    def _unsettled(self) -> RegionEpoch | None:
        """An acknowledged epoch of which it is not known yet what was in flight at its barrier."""
        return next((e for e in self._epochs if e.stage is RegionStage.ACKNOWLEDGED and not e.settled), None)

    @property
    def epoch(self) -> JobEpoch | None:
        """The epoch that is planned or run."""
        return None if (current := self._current) is None else current.shared

    @property
    def planned(self) -> EpochInput | None:
        """What it reads in that epoch, once it is planned."""
        return None if (current := self._current) is None else current.planned

    @property
    def at_work(self) -> bool:
        """Whether its lane looks for input, plans, or runs a Spark job."""
        return self.phase in (Phase.LOOKING, Phase.PLANNING, Phase.RUNNING)

    @property
    def executing(self) -> bool:
        """Whether its lane does something for an epoch."""
        return self.phase in (Phase.PLANNING, Phase.RUNNING)

    @property
    def canceling(self) -> bool:
        """Whether what its lane does for an epoch does not count, because it runs again, or nobody needs it."""
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
    def working_for(self) -> int | None:
        """The checkpoint that waits for what it runs, or None."""
        current = self._current
        return None if current is None or current.ahead or current.shared.open else current.checkpoint_id

    @property
    def restarts(self) -> int:
        """How often it has restarted in this execution attempt."""
        return self._graph.attempt(self.number) - self._executions_before

    def has_before(self, checkpoint_id: int) -> bool:
        """Returns whether it runs an epoch that is older than a checkpoint, or such an epoch waits."""
        to_run = (RegionStage.WAITING, RegionStage.PASSING, RegionStage.CURRENT)
        return any(e.stage in to_run and not e.ahead and e.checkpoint_id < checkpoint_id for e in self._epochs)

    @property
    def next_to_acknowledge(self) -> int:
        """The next checkpoint that it acknowledges, or a number below it."""
        waiting = (RegionStage.WAITING, RegionStage.PASSING)
        ids = (e.checkpoint_id for e in self._epochs if e.stage in waiting and not e.ahead)
        return min(ids, default=self.acknowledged + 1)

    def acknowledged_from(self, checkpoint_id: int) -> list[int]:
        """Returns the checkpoints that it must give up to run the epoch of a checkpoint and all later ones again."""
        return [each.checkpoint_id for each in self._done_from(checkpoint_id)]

    def _done_from(self, checkpoint_id: int) -> list[RegionEpoch]:
        return [e for e in self._epochs if e.stage is RegionStage.ACKNOWLEDGED and e.checkpoint_id >= checkpoint_id]

    def unwritten_before(self, checkpoint_id: int) -> FlinkPyError | None:
        """Returns why part of the state is not in the store from which the epoch of a checkpoint would run again."""
        again = self._done_from(checkpoint_id)
        failure = self.planner.unwritten_at(again[0].start if again else self._state)
        return None if failure is None else failure.error

    def overtaken_from(self, checkpoint_id: int) -> list[int]:
        """Returns the incomplete checkpoints from one on whose barriers overtake what the region reads."""
        passing = (e for stage in (RegionStage.PASSED, RegionStage.PASSING) for e in self._epochs if e.stage is stage)
        return [each.checkpoint_id for each in passing if each.checkpoint_id >= checkpoint_id]

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
                outputs = [outputs[sink] for outputs in reads or () if sink in outputs]
                epochs = [o.checkpoint_id for o in outputs if any(s["key"] == lost.key for s in o.segments)]
                found |= {uid: epochs} if epochs else {}
        return found

    # --- the phases of its lane --------------------------------------------------------------------------------------

    def _to(self, phase: Phase) -> None:
        """Goes to another phase, with what belongs to the transition."""
        if (transition := _TRANSITIONS.get((self.phase, phase))) is None:
            raise IllegalStateTransitionError(
                f"region {self.number} cannot go from {self.phase.name} to {phase.name}; its epochs: "
                + (", ".join(f"{each.checkpoint_id} {each.stage.name}" for each in self._epochs) or "none")
            )
        self.phase = phase
        transition(self)

    def _tell(self, instruction: Instruction) -> None:
        self._turn.instructions.append(instruction)

    def _deploy(self) -> None:
        epoch = self._at_hand
        self.found &= epoch.planned is not None
        epoch.start = self._state
        self.planner.rewind(self._state)
        self._graph.schedule(self.number)
        self._graph.deploy(self.number)
        self._tell(BeginEpoch(self.number, epoch.checkpoint_id))

    def _plan(self) -> None:
        epoch = self._at_hand
        drain = epoch.shared.kind is EpochKind.DRAIN
        self._tell(PlanEpoch(self.number, epoch.checkpoint_id, epoch.reads or (), drain))

    def _run(self) -> None:
        epoch, shared = self._at_hand, self._at_hand.shared
        if not shared.live:  # otherwise they say when they run
            self._graph.switch_to_running(self.number)
        if shared.kind is EpochKind.REPEAT:
            self._tell(RepeatState(self.number, epoch.checkpoint_id, self.restarts))
            return
        epoch.planned = epoch.planned or EpochInput(epoch.checkpoint_id, {})
        rewritten = epoch.reads if epoch.stale else None
        planned = replace(epoch.planned, open=shared.live)
        self._tell(RunEpoch(self.number, planned, self.restarts, rewritten, epoch.read))
        if shared.live and not shared.open:
            self.close(None)

    @property
    def _at_hand(self) -> RegionEpoch:
        current = self._current
        assert current is not None, f"region {self.number} has no epoch at hand"
        return current

    def _put_down(self, stage: RegionStage | None) -> None:
        """Has no epoch at hand any more; it is in another stage, or forgotten."""
        if self.phase is not Phase.IDLE:
            self._to(Phase.IDLE)
        if (current := self._current) is not None:
            if stage is None:
                self._epochs.remove(current)
            else:
                current.stage = stage

    # --- epochs begin ------------------------------------------------------------------------------------------------

    def enqueue(self, epoch: JobEpoch) -> None:
        """Adds an epoch to run when the current one has ended and the input is there."""
        self._add(RegionEpoch(epoch, since_ms=self._turn.now_ms))

    def _add(self, epoch: RegionEpoch) -> None:
        self._epochs.append(epoch)
        self._epochs.sort(key=lambda each: each.checkpoint_id)

    def drop_from(self, checkpoint_id: int) -> None:
        """Forgets epochs that do not run yet, unless they are older than a checkpoint.

        The attempt fails, so nobody needs the results of a Spark job that no checkpoint waits for.
        """
        if (current := self._current) is not None:
            if (current.ahead or current.shared.open) and self.executing:
                self._tell(InterruptRegion(self.number))
            if not self.executing and (current.ahead or current.checkpoint_id >= checkpoint_id):
                self._put_down(None)
        waiting = (RegionStage.WAITING, RegionStage.PASSING)
        self._epochs = [
            e for e in self._epochs if e.stage not in waiting or (not e.ahead and e.checkpoint_id < checkpoint_id)
        ]
        self._permit = 0

    def look(self) -> None:
        """Looks for input, without an epoch."""
        self._to(Phase.LOOKING)

    def proceed(self) -> None:
        """Goes on to the next phase, if it can."""
        self._let_pass()
        if self.phase is Phase.RUNNING and self._at_hand.shared.live:
            self._notify()  # its epoch tells the sources between two parts of the input
        if self.at_work or self.number in self._graph.waiting:
            return
        if self.phase is Phase.IDLE:
            waiting = self._first(RegionStage.WAITING)
            # Between two epochs: what an enumerator has planned is not read yet.
            if not self.found and (waiting is None or waiting.planned is None):
                self._notify()
            if (epoch := self._next()) is None:
                return
            if epoch is not waiting:
                self._add(epoch)
            epoch.stage, self._permit = RegionStage.CURRENT, 0
            self._to(Phase.DEPLOYED)
        epoch = self._at_hand
        ready = epoch.shared.kind is EpochKind.REPEAT or epoch.shared.live or epoch.planned is not None
        self._to(Phase.RUNNING if ready else Phase.PLANNING)

    def _notify(self) -> None:
        while self._to_notify:
            self._tell(NotifySources(self.number, self._to_notify.pop(0)))

    def _let_pass(self) -> None:
        """Lets barriers pass that need not wait for what the region is reading."""
        reads_only_edges = bool(self.before) and not self.planner.splits.uids
        while reads_only_edges and (epoch := self._first(RegionStage.WAITING)) is not None and self._overtakes(epoch):
            epoch.stage, self._permit = RegionStage.PASSING, epoch.checkpoint_id

    def _overtakes(self, epoch: RegionEpoch) -> bool:
        decided = epoch.ahead or epoch.aligns or epoch.reads is not None
        return not decided and self._is_overtaken(epoch) is True

    def _next(self) -> RegionEpoch | None:
        """Returns the epoch to run next, or None if it cannot begin yet."""
        waiting = self._first(RegionStage.WAITING)
        if waiting is not None and waiting.ahead:
            return waiting
        blocked = self._first(RegionStage.PASSING) is not None or self._unsettled is not None
        if waiting is not None and not blocked and self._is_ready(waiting):
            return waiting
        if (
            not self._permit
            or self._result is not None
            or (waiting is not None and waiting.checkpoint_id < self._permit)
        ):
            return None
        shared, found = JobEpoch(EpochKind.READ, self._permit, ends=False), self._in_flight
        epoch = RegionEpoch(shared, since_ms=self._turn.now_ms, found=found, reads=found, ahead=True)
        self._note_begun(epoch)
        return epoch

    def _is_ready(self, epoch: RegionEpoch) -> bool:
        """Decides what an epoch reads of blocking edges. Returns False if that is not there yet."""
        if epoch.shared.kind is EpochKind.REPEAT or not self.before or epoch.reads is not None:
            return True
        overtaken = False if epoch.aligns else self._is_overtaken(epoch)
        if overtaken is True:
            epoch.reads = self._in_flight
        elif overtaken is False and self._written(epoch):
            epoch.reads, epoch.aligns = [*self._in_flight, *self._input(epoch.checkpoint_id)], True
        else:
            return False
        epoch.found = self._in_flight
        self._note_begun(epoch)
        return True

    def _note_begun(self, epoch: RegionEpoch) -> None:
        for outputs in epoch.reads or ():
            for uid, sink in self.planner.edge_sources.items():
                if sink in outputs:
                    self.begun[uid] = max(self.begun.get(uid, 0), outputs[sink].checkpoint_id)

    def _written(self, epoch: RegionEpoch) -> bool:
        """Returns whether the regions before have acknowledged an epoch."""
        return all(each.acknowledged >= epoch.checkpoint_id for each in self.before)

    def _is_overtaken(self, epoch: RegionEpoch) -> bool | None:
        """Returns whether the barrier overtakes what the regions before write in an epoch; None if not known yet.

        An unaligned barrier aligns if no later epoch could read what it overtakes.
        """
        checkpointing, shared = self.planner.config.checkpointing, epoch.shared
        if not checkpointing.unaligned or shared.kind is not EpochKind.READ or self.planner.partition is not None:
            return False
        if shared.ends is not False:
            return None if shared.ends is None else False
        timeout_ms = to_millis(checkpointing.aligned_timeout)
        if timeout_ms == 0:
            return True
        return self._turn.now_ms > epoch.since_ms + timeout_ms if self._written(epoch) else None

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
        """Notes what the epoch at hand reads."""
        current = self._at_hand
        current.planned = epoch
        if not current.ahead:
            self.planner.ended[epoch.checkpoint_id] = self.planner.splits.ends(epoch)
        if self.canceling:
            self._put_down(RegionStage.WAITING)
        else:
            self._to(Phase.DEPLOYED)

    def close(self, following: int | None) -> None:
        """Lets the barrier follow in the epoch that is open."""
        if self.phase is Phase.RUNNING:
            self._tell(CloseEpoch(self.number, following))

    def on_given(self, given: EpochInput) -> None:
        """Notes what the sources have read, or would have to read again, of an epoch that was open."""
        epoch = self._at_hand
        epoch.planned, epoch.read = replace(given, open=False), True
        self.planner.ended[given.checkpoint_id] = self.planner.splits.ends(given)

    def on_input_ended(self) -> None:
        """Notes that nothing more follows in the epoch that is open."""
        if (current := self._current) is not None and current.shared.open:
            current.at_end = True

    @property
    def at_end(self) -> bool:
        """Whether nothing more follows in the epoch that is open."""
        return (current := self._current) is not None and current.at_end

    def on_canceled(self, ended: RegionEnded) -> None:
        """Notes that a Spark job has ended whose epoch runs again."""
        self._at_hand.read |= ended.error is None
        self._put_down(RegionStage.WAITING)

    def on_failed(self) -> None:
        """Forgets the epoch at hand: its Spark job has failed, or it could not be planned."""
        self._put_down(None)

    def on_read_ahead(self, ended: RegionEnded) -> None:
        """Lets the next epoch start from the state of a Spark job that no checkpoint has waited for."""
        epoch = self._at_hand
        self._in_flight = self._in_flight[len(epoch.found) :]
        self._advance(epoch, ended)
        self._result = ended
        self._put_down(None)

    def on_acknowledged(self, ended: RegionEnded) -> Acknowledged:
        """Lets the next epoch start from the state that all tasks have acknowledged, and offers the outputs.

        Returns:
            What the tasks have acknowledged.
        """
        epoch, job, number = self._at_hand, self._result, ended.checkpoint_id
        epoch.read, epoch.before = True, self.acknowledged
        epoch.carried, self._result = job, None
        epoch.settled = not self.before
        if self.before and epoch.reads is None:
            epoch.found = self._in_flight
        self._put_down(RegionStage.ACKNOWLEDGED)
        self.acknowledged = number
        self.has_read = any(state.splits for state in ended.results.states.values())
        self.input_ended = self.planner.ended[number]
        self._advance(epoch, ended)
        results, states = ended.results, dict(ended.results.states)
        if job is None:
            self.outputs[number] = [ended.outputs]
            return Acknowledged(number, states, results.declined, [results])
        self.outputs[number] = [job.outputs, ended.outputs]
        for task, before in job.results.states.items():  # what it has prepared
            states[task] = replace(states[task], committables=before.committables + states[task].committables)
        return Acknowledged(number, states, results.declined, [job.results, results])

    def _advance(self, epoch: RegionEpoch, ended: RegionEnded) -> None:
        self._state = ended.checkpoint_id
        ends = None if epoch.planned is None else self.planner.splits.ends(epoch.planned)
        self.planner.advance(self._state, ended.results, ended=ends)

    # --- barriers at blocking edges ----------------------------------------------------------------------------------

    def overtake(self, passes: Callable[[JobEpoch], bool]) -> Acknowledged | None:
        """Acknowledges a checkpoint whose barrier overtakes what the region reads, if those before it have done so.

        Args:
            passes: Returns whether the checkpoint of an epoch need not wait for the Spark job of the region.

        Returns:
            What it acknowledges; None if there is no such checkpoint.
        """
        epoch = self._first(RegionStage.PASSING)
        if epoch is None or self._unsettled is not None or not self._written(epoch):
            return None
        earlier = self._current or self._first(RegionStage.WAITING)
        if earlier is not None and not earlier.ahead and earlier.checkpoint_id < epoch.checkpoint_id:
            return None
        works = (earlier is not None and earlier.ahead) or (self._permit > 0 and self._result is None)
        if not passes(epoch.shared):
            if works:
                return None
            self._permit = 0  # the last checkpoint of a request: no other one would have the results
        epoch.stage, epoch.start = RegionStage.PASSED, self._state
        return self._acknowledge_in_flight(epoch.checkpoint_id)

    def _acknowledge_in_flight(self, checkpoint_id: int) -> Acknowledged:
        job, self._result = self._result, None
        repeated, self.outputs[checkpoint_id] = self.planner.overtake(checkpoint_id), []
        if job is not None:
            self.outputs[checkpoint_id] = [job.outputs]
            self.planner.acknowledged_with(self._state, checkpoint_id)
        self._in_flight = [*self._in_flight, *self._input(checkpoint_id)]
        self.acknowledged = checkpoint_id
        in_flight = stored_outputs(self._in_flight, self.planner.edge_sources)
        results = repeated if job is None else job.results
        return Acknowledged(checkpoint_id, results.states, repeated.declined, [results], in_flight)

    def settle(self) -> list[tuple[int, str, list[Json]]]:
        """Returns what was in flight at the barrier of an acknowledged epoch, once the regions before have written it.

        For the metadata: checkpoint, uid of the source that reads the edge, and what it has not read.
        """
        epoch = self._unsettled
        if epoch is None or not self._written(epoch):
            return []
        epoch.settled = True
        self._in_flight = [*epoch.found, *self._input(epoch.checkpoint_id)][len(epoch.reads or ()) :]
        in_flight = stored_outputs(self._in_flight, self.planner.edge_sources)
        return [(epoch.checkpoint_id, uid, outputs) for uid, outputs in in_flight]

    # --- restarts, and the end of a checkpoint -----------------------------------------------------------------------

    def rewind(self, checkpoint_id: int, *, rewritten: bool) -> None:
        """Lets the epoch of a checkpoint and all later ones run again, once the region has restarted.

        Sources read the same splits. What the region's lane is doing does not count. If regions before this one run
        again, too, what they write is read anew.
        """
        again = self._done_from(checkpoint_id)
        for each in again:
            each.stage = RegionStage.WAITING
            self.outputs.pop(each.checkpoint_id, None)
        if again:
            first = again[0]
            self._in_flight, self._result = first.found, first.carried
            self._state, self.acknowledged = first.start, first.before
        for each in self._epochs:
            # What is in flight to Spark jobs ahead was not rewritten. Others may be being planned now.
            if rewritten and each.stage in (RegionStage.CURRENT, RegionStage.WAITING) and not each.ahead:
                each.stale, each.reads = True, None
                self.begun = {uid: min(number, self.acknowledged) for uid, number in self.begun.items()}
        if self.canceling:
            self._tell(InterruptRegion(self.number))
        elif self._current is not None:
            self._put_down(RegionStage.WAITING)

    def on_completed(self, checkpoint_id: int) -> dict[str, set[int]]:
        """Forgets what is only needed until a checkpoint is complete, and tells the sources when they can take it.

        Returns:
            The epochs whose segments are in the checkpoint, or were read before it, by uid of the sink.
        """
        written: dict[str, set[int]] = {}
        for uid, output in ((u, o) for outputs in self.outputs.pop(checkpoint_id, ()) for u, o in outputs.items()):
            written.setdefault(uid, set()).add(output.checkpoint_id)
        passed = (e.start for e in self._epochs if e.stage is RegionStage.PASSED and e.checkpoint_id == checkpoint_id)
        self.planner.forget_before(next(passed, checkpoint_id))
        done = (RegionStage.PASSED, RegionStage.ACKNOWLEDGED)
        self._epochs = [each for each in self._epochs if each.stage not in done or each.checkpoint_id > checkpoint_id]
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
