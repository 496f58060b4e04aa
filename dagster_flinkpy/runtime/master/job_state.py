"""The state of a job, as pure transitions: stimulus in, instructions out (Flink: what ``JobMaster`` decides).

Regions, epochs, executions, checkpoints, requests and restarts are one state. It has no thread, does no I/O and waits
for nothing, so that each rule can be tested with the stimuli that lead to it.
:class:`~dagster_flinkpy.runtime.master.job_master.JobMaster` carries out the instructions, in their order.

A region runs epoch n + 1 while those behind it run epoch n, and while checkpoint n - 1 is written, completed and
committed. Checkpoints complete one by one, in order (:mod:`.commits.completion_chain`). What a region does is in
:mod:`.regions.region_state`, what restarts in :mod:`.job_failover`, what others ask for in :mod:`.requests`, when
epochs begin in :mod:`.epoch_schedule`, and when checkpoints are taken in :mod:`dagster_flinkpy.checkpoint.coordinator`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import singledispatchmethod

from dagster_flinkpy.checkpoint.coordinator import instructions, stimuli
from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.messages import AcknowledgeCheckpoint, CheckpointFailureReason
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    FencedError,
    FlinkPyError,
    JobCancelledError,
    add_note,
)
from dagster_flinkpy.runtime.master import job_messages
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import Outcome
from dagster_flinkpy.runtime.master.commits.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.epoch_request import JobEpoch
from dagster_flinkpy.runtime.master.epoch_schedule import EpochSchedule
from dagster_flinkpy.runtime.master.job_failover import AttemptFailure, JobFailover, declined, diagnosed
from dagster_flinkpy.runtime.master.regions.region_epoch import Acknowledged, Turn
from dagster_flinkpy.runtime.master.regions.region_runner import (
    EpochPlanned,
    InputEnded,
    InputLooked,
    RegionEnded,
    TasksRunning,
)
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from dagster_flinkpy.runtime.master.requests.taken_requests import TakenRequests

__all__ = ["JobState"]

_RETRY_AFTER_MS = 1000
"""How long a job waits after a tolerated failure, so that a store that is down is not asked all the time."""
_LATE_MS = 60_000
"""A timer that is noticed later than this did not pass while the job worked."""
_STORY_LENGTH = 50
_COMPLETING = (job_messages.WriteCheckpoint, job_messages.CompleteCheckpoint, job_messages.CommitCheckpoint)


class JobState:
    """All that is known about an execution attempt while it runs."""

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        regions: Sequence[RegionState],
        failover: JobFailover,
        requests: TakenRequests,
        contents: CheckpointContents,
        turn: Turn,
        schedule: EpochSchedule,
        *,
        create_metadata: Callable[[instructions.WriteMetadata], CheckpointMetadata],
    ) -> None:
        self.coordinator, self.regions, self.contents = coordinator, tuple(regions), contents
        self.failure: AttemptFailure | None = None
        self.terminated = False
        """Whether somebody outside has ended the run."""
        self.schedule, self.epochs = schedule, schedule.epochs
        self.chain = CompletionChain(turn, create_metadata)
        self.requests, self._failover, self._turn = requests, failover, turn
        self._story: deque[str] = deque(maxlen=_STORY_LENGTH)
        self._take = self._on  # each look-up of a method that dispatches makes a function
        self._read_up_to = 0
        """The last checkpoint for which all sources have been read."""
        self._timeouts: dict[int, int] = {}
        """When each checkpoint expires that lacks acknowledgements, in milliseconds since 1970."""
        self._records: dict[int, int] = {}
        """How many records tasks had read when a checkpoint was to expire, by checkpoint."""
        self._timeout_ms = to_millis(regions[0].planner.config.checkpointing.timeout)
        # After failures.
        self._outcome_unknown = False
        """Whether HEAD may name a checkpoint without this attempt knowing it."""
        self._abort_due = False
        """Whether transactions are to be aborted when nothing is running."""
        self._causes: dict[int | None, FlinkPyError] = {}
        """Why steps of checkpoints have failed."""
        self._subsumed: list[int] = []
        self._waits_for = ""
        """What was told of why no checkpoint is triggered, since the last one was completed."""

    # --- what is known -----------------------------------------------------------------------------------------------

    @property
    def error(self) -> BaseException | None:
        """Why the attempt ends, or None."""
        return None if self.failure is None else self.failure.error

    @property
    def takes_over(self) -> bool:
        """Whether the next checkpoint takes over what a failed one has prepared."""
        return self.chain.outputs.waiting and self.failure is None

    @property
    def iterating(self) -> bool:
        """Whether another epoch is to follow."""
        return self.epochs.iterating and self.failure is None

    @property
    def under_way(self) -> bool:
        """Whether something is to follow, even if nobody is carrying out an instruction."""
        completing = self.chain.current is not None
        return self.iterating or self.takes_over or completing or self._failover.restarting

    @property
    def next_timer(self) -> int | None:
        """When to come back if nothing happens, in milliseconds since 1970; None if never."""
        timers = [*self._timeouts.values(), self._failover.next_restart()]
        if self.iterating:
            timers += [self.requests.due_ms, self.schedule.next_timer]
        if self._turn.now_ms < self.schedule.retry_ms:
            timers.append(self.schedule.retry_ms)
        return min((at_ms for at_ms in timers if at_ms is not None), default=None)

    def expires(self, now_ms: int) -> bool:
        """Returns whether a checkpoint expires at this time, unless its epoch is still read."""
        return any(at_ms <= now_ms for at_ms in self._timeouts.values())

    def _is_read(self, checkpoint_id: int) -> bool:
        """Whether regions read the input of a checkpoint, which takes as long as it takes, before its barriers."""
        epochs = (region.epoch for region in self.regions)
        return any(each is not None and each.checkpoint_id == checkpoint_id and not each.live for each in epochs)

    def _may_complete(self, checkpoint_id: int) -> bool:
        return self.failure is None or checkpoint_id < self.failure.since

    # --- a stimulus --------------------------------------------------------------------------------------------------

    def handle(self, stimulus: stimuli.Stimulus) -> list[instructions.Instruction]:
        """Makes the transitions for one stimulus, and all that can follow.

        Raises:
            CheckpointError, IllegalStateTransitionError: It is impossible in this state. The last stimuli are a note.
        """
        self._story.append(stimuli.describe(stimulus))
        self._turn.now_ms, self._turn.instructions = stimulus.now_ms, []
        try:
            self._take(stimulus)
            for number in self._failover.restart_due(stimulus.now_ms):
                self._on_restart(self.regions[number])
            self._advance()
            for checkpoint_id in () if self._failover.restarting else self.coordinator.collecting:
                self._timeouts.setdefault(checkpoint_id, stimulus.now_ms + self._timeout_ms)
        except Exception as error:
            add_note(error, "\n    ".join(("Last stimuli of the job:", *self._story)))
            raise
        return self._turn.instructions

    @singledispatchmethod
    def _on(self, stimulus: stimuli.Stimulus) -> None:
        self._drive(stimulus)  # it is for the coordinator

    @_on.register
    def _(self, stimulus: job_messages.JobStarted) -> None:
        for region in self.regions:
            self._failover.graph.schedule(region.number)
        self._drive(stimuli.JobStatusChanged(stimulus.now_ms, running=True))

    @_on.register
    def _(self, stimulus: job_messages.EpochsAsked) -> None:
        self.epochs.begin(stimulus.request)

    @_on.register
    def _(self, stimulus: job_messages.Resumed) -> None:
        """What is due follows."""

    @_on.register
    def _(self, stimulus: job_messages.TimePassed) -> None:
        for checkpoint_id in [each for each, at_ms in self._timeouts.items() if at_ms <= stimulus.now_ms]:
            if stimulus.now_ms - self._timeouts.pop(checkpoint_id) > _LATE_MS:
                continue  # the machine slept, or its clock was set forward: it begins anew
            before, self._records[checkpoint_id] = self._records.get(checkpoint_id, 0), stimulus.records
            if not self._is_read(checkpoint_id) or stimulus.records == before:  # otherwise it begins anew
                self._drive(stimuli.TimerFired(stimulus.now_ms, checkpoint_id))

    @_on.register
    def _(self, stimulus: job_messages.Terminated) -> None:
        self.terminated = True
        if self.failure is None:
            self.fail(stimulus.error)
            self._tell(*(job_messages.InterruptRegion(region.number) for region in self.regions))

    @_on.register
    def _(self, stimulus: job_messages.StepFailed) -> None:
        since = 0
        if isinstance(stimulus.instruction, job_messages.RegionInstruction):
            region = self.regions[stimulus.instruction.region]
            since = region.epoch.checkpoint_id if region.epoch is not None else 0
            region.on_failed()
            self._failover.graph.ended(region.number)
        elif isinstance(stimulus.instruction, _COMPLETING):
            self.chain.end()
        elif isinstance(stimulus.instruction, job_messages.LookForRequests):
            self.requests.looked(stimulus.now_ms)
        self.fail(stimulus.error, since)

    @_on.register
    def _(self, stimulus: job_messages.RequestsTaken) -> None:
        told, cancelled = self.requests.take(stimulus)
        self._tell(*told)
        if cancelled is not None:
            self.fail(cancelled)

    @_on.register
    def _(self, stimulus: job_messages.SavepointWritten) -> None:
        self._tell(*self.requests.written(stimulus))

    @_on.register
    def _(self, stimulus: job_messages.Quieted) -> None:
        if self.failure is None:
            self._tell(*self.requests.serve_rest())

    def fail(self, error: BaseException, since: int = 0) -> None:
        """Ends the attempt. Checkpoints before ``since`` may still complete."""
        known = self.failure
        self.failure = (
            AttemptFailure(error, since) if known is None else AttemptFailure(known.error, min(since, known.since))
        )
        self.epochs.enough = True
        self.requests.given_up = True
        self._tell(job_messages.GiveUpSavepoints())
        for region in self.regions:
            region.drop_from(since)

    def _tell(self, *instructions: instructions.Instruction) -> None:
        self._turn.instructions.extend(instructions)

    # --- what follows ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begins all that can begin."""
        self._overtake()
        self._end_if_failed()
        if self.requests.ending is not None:
            self.epochs.end_early()
        if self.iterating and self.requests.look(self._turn.now_ms):
            self._tell(job_messages.LookForRequests())
        failed = self.failure is not None
        if (trigger := self.schedule.next(failed=failed, takes_over=self.takes_over)) is not None:
            self._drive(trigger)
        if self.failure is None and self.epochs.followed():
            self._tell(job_messages.ReserveCheckpointIds(1))
        overtaken = True
        while overtaken:
            for region in self.regions:
                region.proceed()
            overtaken = self._overtake()
        if (trigger := self.schedule.close_next(failed=self.failure is not None)) is not None:
            self._drive(stimuli.JobStatusChanged(self._turn.now_ms, True, self._failover.graph.not_running))
            self._drive(trigger)
        if self.chain.hand_over_expired() or self._complete_next():
            self._advance()
            return
        if not self.chain.idle:
            return
        if self._subsumed and self.failure is None and not self.requests.writing:
            # A checkpoint that waits for its commit does not wait for this, and a savepoint may still copy an old one.
            self._tell(job_messages.Subsume(tuple(self._subsumed)))
            self._subsumed.clear()
        since = 0 if self.failure is None else self.failure.since
        if self._abort_due and not (self.takes_over or any(r.at_work or r.has_before(since) for r in self.regions)):
            # What is open may be of an epoch that is running, or of a checkpoint that is being completed. The store may
            # be slow, so no epoch may begin meanwhile.
            self._abort_due = False
            if not self._outcome_unknown:
                self._tell(job_messages.AbortLingering())

    def _complete_next(self) -> bool:
        """Writes the next checkpoint that all have acknowledged. Gives it up and returns True if a task declined it."""
        if (declined := self.chain.proceed()) is None:
            return False
        self._on(declined)
        return True

    def _end_if_failed(self) -> None:
        """Decides what becomes of the job when the checkpoints that may still complete have all been acknowledged."""
        failure = self.failure
        if failure is None or not self.coordinator.running:
            return
        if any(each.has_before(failure.since) for each in self.regions):
            return
        error = diagnosed(failure.error, self.contents.parent)
        self.failure = AttemptFailure(error, failure.since)
        self._failover.job_failed(error, canceled=self.terminated or isinstance(error, JobCancelledError))
        self._drive(stimuli.JobStatusChanged(self._turn.now_ms, running=False))

    @_on.register
    def _(self, stimulus: job_messages.CheckpointIdsReserved) -> None:
        self.schedule.on_reserved(stimulus.checkpoint_ids)

    @_on.register
    def _(self, stimulus: TasksRunning) -> None:
        self._failover.graph.switch_to_running(stimulus.region)

    @_on.register
    def _(self, stimulus: InputEnded) -> None:
        self.regions[stimulus.region].on_input_ended()

    # --- the regions -------------------------------------------------------------------------------------------------

    @_on.register
    def _(self, stimulus: InputLooked) -> None:
        request = self.epochs.request
        self.regions[stimulus.region].on_looked(found=stimulus.found)
        if self.schedule.on_looked() and self.failure is None and request is not None:
            self._drive(self.schedule.trigger(request))  # even if it has enough: the input is assigned to this epoch

    @_on.register
    def _(self, stimulus: EpochPlanned) -> None:
        region = self.regions[stimulus.region]
        if region.epoch is None:  # telling it of a checkpoint has failed before it planned, so the attempt ends
            return
        canceled = region.canceling
        region.on_planned(stimulus.epoch)
        if canceled:
            self._failover.graph.ended(region.number)
        if self.failure is not None:
            region.drop_from(self.failure.since)
        elif not canceled:
            self.epochs.on_planned()

    @_on.register
    def _(self, ended: RegionEnded) -> None:
        region = self.regions[ended.region]
        if ended.given is not None:
            region.on_given(ended.given)
        if region.canceling:
            region.on_canceled(ended)
            self._failover.graph.ended(region.number)
            if self.failure is not None:
                region.drop_from(self.failure.since)
                self._discard(ended)
        elif self.failure is not None and (region.works_ahead or not self._may_complete(ended.checkpoint_id)):
            region.on_failed()
            self._failover.graph.ended(region.number)
            self._discard(ended)
        elif ended.error is not None:
            self._on_region_failed(region, ended, diagnosed(ended.error, self.contents.parent))
        elif region.works_ahead:
            region.on_read_ahead(ended)
        else:
            self._on_acknowledged(region, ended)

    def _discard(self, ended: RegionEnded) -> None:
        """The attempt fails, and no checkpoint waits for what the tasks of a region have stored."""
        paths = (path for state in ended.results.states.values() for path in state.files())
        self._drive(stimuli.AcknowledgedLate(self._turn.now_ms, frozenset(paths)))

    def _on_acknowledged(self, region: RegionState, ended: RegionEnded) -> None:
        """All tasks of a region have acknowledged its epoch."""
        number, sources = ended.checkpoint_id, self.epochs.sources
        acknowledged = region.on_acknowledged(ended)
        if region in sources and min(each.acknowledged for each in sources) >= number > self._read_up_to:
            self._read_up_to = number
            self.requests.epoch_ended(number)
            if all(each.input_ended for each in sources):
                self.epochs.following = None  # the last parts have shown it
        if self._may_complete(number):  # it may have expired just now
            self._acknowledge(region, acknowledged)
        for reader in self.regions:
            for checkpoint_id, uid, in_flight in reader.settle():
                if self._may_complete(checkpoint_id):
                    self._drive(stimuli.CoordinatorSnapshotted(self._turn.now_ms, checkpoint_id, uid, in_flight))

    def _overtake(self) -> bool:
        """Lets regions acknowledge checkpoints that do not wait for what they read. Returns whether any did.

        The last checkpoint of a request waits for Spark jobs that others pass: what these have done would be lost with
        the run, and done again by the next.
        """

        def passes(epoch: JobEpoch) -> bool:
            return self.failure is not None or epoch is not self.epochs.latest or self.epochs.is_followed(epoch)

        found = False
        for region in self.regions:
            acknowledged = region.overtake(passes)
            if acknowledged is None or not self._may_complete(acknowledged.checkpoint_id):  # it may have just expired
                continue
            self._acknowledge(region, acknowledged)
            found = True
        return found

    def _acknowledge(self, region: RegionState, acknowledged: Acknowledged) -> None:
        """Passes the acknowledgements of tasks and enumerators of a region to the coordinator, one by one."""
        self.chain.take(region.number, acknowledged)
        now, planner, checkpoint_id = self._turn.now_ms, region.planner, acknowledged.checkpoint_id
        job_id, token = planner.config.job_id, planner.fencing_token
        for task, state in acknowledged.states.items():
            message = AcknowledgeCheckpoint(job_id, checkpoint_id, token, task.uid, task.subtask, state)
            self._drive(stimuli.Acknowledge(now, message))
        for uid, position in (*planner.coordinator_states(checkpoint_id).items(), *acknowledged.in_flight):
            self._drive(stimuli.CoordinatorSnapshotted(now, checkpoint_id, uid, position))

    # --- failures and restarts ---------------------------------------------------------------------------------------

    def _on_region_failed(self, region: RegionState, ended: RegionEnded, error: FlinkPyError) -> None:
        now, coordinator = self._turn.now_ms, self.coordinator
        first = region.next_to_acknowledge if region.works_ahead else ended.checkpoint_id
        again = self._failover.region_failed(region, ended, error, self.regions, coordinator.collecting)
        if not again:
            region.on_failed()
            self._causes[first] = error
            self._drive(stimuli.Decline(now, declined(region, first, ended.task, error)))
            self.fail(error, first)
            return
        for checkpoint_id in [number for number in self._timeouts if number >= first]:
            del self._timeouts[checkpoint_id]  # they begin anew with the restart
        for number, epoch in sorted(again.items()):
            each = self.regions[number]
            if withdrawn := each.acknowledged_from(epoch):
                self._drive(stimuli.TasksRestarted(now, tuple(withdrawn), tuple(each.planner.tasks)))
            each.rewind(epoch, rewritten=any(before.number in again for before in each.before))

    def _on_restart(self, region: RegionState) -> None:
        """A region runs again."""
        if len(self.regions) == 1 and not region.idle and self.chain.idle and not self.takes_over:
            # Nothing else has anything open. Otherwise the attempt tidies up when it ends.
            self._tell(job_messages.AbortLingering(region.number))

    def _tolerate(self, checkpoint_id: int | None, error: FlinkPyError) -> bool:
        """Lets the next checkpoint take over from a failed one. Returns False if the attempt must end."""
        # Sinks replace what earlier checkpoints have committed to a partition. A step that hangs may still do harm.
        if self.contents.partition is not None or isinstance(error, FencedError | CheckpointTimeoutError):
            return False
        self._tell(job_messages.Say(f"the job tolerates the failure of a checkpoint: {error}"))
        self.schedule.retry_ms = self._turn.now_ms + _RETRY_AFTER_MS
        self.chain.hand_over(checkpoint_id)
        return True

    # --- the coordinator ---------------------------------------------------------------------------------------------

    @_on.register
    def _(self, outcome: Outcome) -> None:
        told, error = outcome.stimulus, outcome.error
        if error is not None:
            self._causes[getattr(told, "checkpoint_id", None)] = error
        if isinstance(told, stimuli.MetadataWriteFailed):
            self._outcome_unknown |= told.unknown_outcome and self.chain.replacing_head
        self._drive(told)
        if isinstance(told, stimuli.MetadataWriteFailed) and self.chain.current is not None:
            self.chain.end()  # it was not handed over
        if isinstance(told, stimuli.CommitFinished):
            self._finish()

    def _drive(self, stimulus: stimuli.Stimulus) -> None:
        """Gives the coordinator a stimulus and follows its instructions."""
        aborted = None
        for instruction in self.coordinator.handle(stimulus):
            self._follow(instruction)
            if isinstance(instruction, instructions.NotifyAborted):
                aborted = instruction
        if aborted is not None and aborted.reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED:
            number = aborted.checkpoint_id
            cause = self._causes.get(number) or CheckpointError(f"checkpoint {number} was aborted")
            if not aborted.tolerated or not self._tolerate(number, cause):
                self._abort_due = True
                self.fail(cause, number)
                self._follow(instructions.CancelSparkJob(number))

    def _follow(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.AssignCheckpointId() | instructions.TriggerMasterHooks():
                self._tell(instruction)
            case instructions.NotifySubsumed() | instructions.DiscardState():
                self._tell(instruction)
            case instructions.ArmTimeout(checkpoint_id=checkpoint_id, at_ms=at_ms):
                self._timeouts[checkpoint_id] = at_ms
                self._tell(instruction)
            case instructions.SnapshotCoordinators():
                pass  # the enumerators are asked with the tasks of their regions
            case instructions.EmitBarriers(checkpoint_id=checkpoint_id):
                if self.failure is None:
                    self.schedule.deploy(checkpoint_id, takes_over=self.chain.outputs.waiting)
            case instructions.CancelSparkJob(checkpoint_id=checkpoint_id):
                for region in self.regions:
                    if region.working_for == checkpoint_id:
                        self._tell(job_messages.InterruptRegion(region.number))
            case instructions.WriteMetadata(checkpoint_id=checkpoint_id):
                self._timeouts.pop(checkpoint_id, None)
                self.chain.add(instruction)
            case instructions.ReplaceHead(checkpoint_id=checkpoint_id):
                self.requests.completing = checkpoint_id
                self.chain.replace_head(checkpoint_id)
            case instructions.NotifyComplete(checkpoint_id=checkpoint_id):
                self.contents.parent = self.chain.commit(checkpoint_id)
            case instructions.DropSubsumed(checkpoint_ids=checkpoint_ids):
                self._subsumed += checkpoint_ids
            case instructions.NotifyAborted(checkpoint_id=checkpoint_id, reason=reason):
                self._timeouts.pop(checkpoint_id, None)
                self._abort_due |= not instruction.tolerated
                self._tell(job_messages.Say(f"checkpoint {checkpoint_id} was aborted: {reason.value}"), instruction)
            case instructions.FailJob(checkpoint_id=checkpoint_id, message=message):
                self.fail(self._causes.get(checkpoint_id) or CheckpointError(message), checkpoint_id or 0)
            case instructions.ArmPeriodic(at_ms=at_ms):
                self.schedule.due_ms = at_ms
            case instructions.Rejected():
                self._on_rejected(instruction)
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _on_rejected(self, rejected: instructions.Rejected) -> None:
        """No checkpoint is triggered."""
        match rejected.reason:
            case CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING if self.coordinator.running:
                self.schedule.retry_ms = self._turn.now_ms + _RETRY_AFTER_MS
                if rejected.message != self._waits_for:
                    self._waits_for = rejected.message
                    self._tell(job_messages.Say(f"no checkpoint is triggered yet: {rejected.message}"))
            case CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS:
                self._tell(job_messages.Say(rejected.message))  # it is due again when the pause is over
            case CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS:
                pass  # the interval is shorter than the completion of a checkpoint; one is queued already
            case _ if not (rejected.tolerated and self._tolerate(None, self._causes[None])):
                self.fail(self._causes.get(None) or CheckpointError(f"no checkpoint was taken: {rejected.message}"))

    def _finish(self) -> None:
        """A checkpoint is committed."""
        handed_out, self._waits_for = self.chain.finish(), ""
        self._failover.completed((metadata := handed_out.metadata).checkpoint_id)
        self._tell(handed_out)
        for each in handed_out.checkpoint_ids:
            written = {uid: ids for region in self.regions for uid, ids in region.on_completed(each).items()}
            if len(self.regions) > 1:
                self._tell(job_messages.DiscardRead(written, metadata.files()))
        self._tell(*self.requests.completed(metadata, handed_out.checkpoint_ids))
