"""The master of a job, which makes all decisions on one thread; lanes do the work (Flink: ``JobMaster``).

Every event reaches the master as a stimulus: a Spark job, a write or a commit has ended, or a timer is due. Only the
master changes the coordinator. It runs on the thread that iterates over :meth:`JobMaster.run`.

The region runs epoch n + 1 while checkpoint n is written, completed and committed. Checkpoints complete one by one, in
order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.instructions import (
    ArmPeriodic,
    ArmTimeout,
    AssignCheckpointId,
    CancelSparkJob,
    DiscardState,
    DropSubsumed,
    EmitBarriers,
    FailJob,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    NotifySubsumed,
    Rejected,
    ReplaceHead,
    SnapshotCoordinators,
    TriggerMasterHooks,
    WriteMetadata,
)
from dagster_flinkpy.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.stimuli import (
    Acknowledge,
    CommitFinished,
    CoordinatorSnapshotted,
    Decline,
    JobStatusChanged,
    MetadataWriteFailed,
    PeriodicTick,
    Stimulus,
    TimerFired,
    TriggerRequested,
)
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import CheckpointError, FlinkPyError
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.checkpoint_steps import CheckpointSteps, Outcome
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox, Work
from dagster_flinkpy.runtime.master.region_execution import EpochKind, RegionExecution
from dagster_flinkpy.runtime.master.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.request_desk import RequestDesk

__all__ = ["Completion", "EpochRequest", "JobMaster"]


@dataclass(frozen=True)
class EpochRequest:
    """A request for epochs."""

    kind: EpochKind = EpochKind.READ
    limit: int | None = 1
    """The number of epochs; fewer if the input ends. None: until the input ends or an epoch has nothing to read."""
    barriers: int = 1
    """How many epochs one Spark job reads."""
    periodic: bool = False
    """Whether each epoch waits until the next periodic checkpoint is due."""
    stop: bool = False
    """Whether the job stops with the checkpoint."""


@dataclass(frozen=True)
class Completion:
    """A checkpoint that is complete and committed."""

    metadata: CheckpointMetadata
    duration_ms: int
    """Time from the trigger to the end of the commit."""
    collected: Mapping[str, list[pa.Array]]
    """The records of collect operators, by uid. The last checkpoint of a Spark job has all of the job's records."""


class JobMaster:
    """Drives the coordinator of an execution attempt, and has its instructions carried out.

    Args:
        coordinator: Decides when checkpoints are taken and completed.
        regions: The regions of the job.
        failover: Decides what restarts after a failure.
        steps: Carry out the steps of checkpoints.
        mailbox: Runs the lanes.
        requests: Serves requests to the job.
        create_metadata: Returns the metadata of a checkpoint that all have acknowledged.
        on_completed: Called with each checkpoint once HEAD names it.
        abort_lingering: Aborts open transactions that no checkpoint names.
        max_ahead: How many checkpoints may be under completion while the region runs the next epoch.
        owner: Who asks for checkpoints, in words for people.
        now: Tells milliseconds since 1970.
        progress: Takes one-line progress messages.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        regions: Sequence[RegionExecution],
        failover: JobFailover,
        steps: CheckpointSteps,
        mailbox: Mailbox,
        requests: RequestDesk,
        *,
        create_metadata: Callable[[WriteMetadata], CheckpointMetadata],
        on_completed: Callable[[CheckpointMetadata], object],
        abort_lingering: Callable[[], object],
        max_ahead: int,
        owner: str,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self.coordinator = coordinator
        self.error: BaseException | None = None
        """The first error of the attempt, or None."""
        self._regions, self._failover, self._steps, self._mailbox = tuple(regions), failover, steps, mailbox
        (self._region,) = self._regions
        self._requests = requests
        self._create_metadata, self._on_completed = create_metadata, on_completed
        self._abort_lingering = abort_lingering
        self._max_ahead, self._owner, self._now, self._progress = max_ahead, owner, now, progress
        # What was asked for.
        self._request: EpochRequest | None = None
        self._taken = 0
        self._enough = True
        self._triggering = False
        """Whether the next checkpoint is getting its id, or its hooks are being called."""
        self._coordinators: dict[int, tuple[str, ...]] = {}
        """The operators whose coordinators take part, by checkpoint."""
        # Timers.
        self._due_ms = 0
        """The time of the next periodic checkpoint, in milliseconds since 1970."""
        self._timeouts: dict[int, int] = {}
        """When each pending checkpoint expires, in milliseconds since 1970."""
        # Completing.
        self._to_complete: deque[WriteMetadata] = deque()
        self._completing: CheckpointMetadata | None = None
        self._completion_step: Work | None = None
        """The current or last step of completing a checkpoint."""
        self._replacing_head = False
        self._chain_broken = False
        """Whether an acknowledged checkpoint will not complete. Later ones must not complete either."""
        self._outcome_unknown = False
        """Whether HEAD may name a checkpoint without this attempt knowing it."""
        self._subsumed: list[int] = []
        self._to_notify: list[int] = []
        """Complete checkpoints that the sources have not been notified of."""
        self._abort_due = False
        self._failing = self._reported = False
        self._causes: dict[int | None, FlinkPyError] = {}
        self._triggered: dict[int, float] = {}
        self._printed: dict[int, list[str]] = {}
        self._collected: dict[int, Mapping[str, list[pa.Array]]] = {}
        self._completed: deque[Completion] = deque()

    # --- what callers do ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules all regions, and tells the coordinator that the job is running."""
        for index in range(len(self._regions)):
            self._failover.graph.schedule(index)
        self._drive(JobStatusChanged(self._now(), running=True))

    def run(self, request: EpochRequest) -> Iterator[Completion]:
        """Runs epochs and yields their checkpoints, each when it is committed.

        If the caller ends the iteration early, the current epoch still runs to its end; :meth:`settle` waits for it.

        Raises:
            CheckpointError: A checkpoint was not completed.
            FlinkPyError: The attempt has failed for another reason.
        """
        self.settle()
        self._request, self._taken, self._enough = request, 0, self._requests.ending
        try:
            while not self._quiet():
                while self._completed:
                    yield self._completed.popleft()
                self._step()
            while self._completed:
                yield self._completed.popleft()
        finally:
            self._enough = True  # an epoch that is under way is still that of the request
        self._report()

    def settle(self) -> None:
        """Waits until nothing is running, without starting another epoch.

        Raises:
            FlinkPyError: The attempt has failed meanwhile.
        """
        while not self._quiet():
            self._step()
        self._completed.clear()
        self._report()

    def _report(self) -> None:
        if self.error is not None and not self._reported:
            self._reported = True
            raise self.error

    def pause(self, until_ms: int) -> None:
        """Waits until a time, in milliseconds since 1970, unless the run is terminated. Nothing is running."""
        while self._now() < until_ms:
            if (told := self._mailbox.termination) is not None:
                raise told
            self._mailbox.take(until_ms)

    def recovered(self, metadata: CheckpointMetadata) -> Completion | None:
        """Returns a checkpoint that was complete when the attempt failed, and that the next attempt has committed.

        Returns None if this attempt has committed it and handed it to the caller.
        """
        return self._completion(metadata) if metadata.checkpoint_id in self._triggered else None

    def interrupt(self) -> None:
        """Ends what is running, because the caller has failed or was interrupted."""
        self._enough = True
        self._interrupt_regions()
        self._steps.watchdog.interrupt()
        for lane in (Lane.TRIGGER, Lane.STORE, Lane.REQUESTS):
            self._mailbox.drain(lane)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Starts all that can be started. Returns True if nothing is running or waits to be started."""
        try:
            self._advance()
        except BaseException as error:  # an impossible stimulus; nothing must come after it
            self.error, self._reported = self.error or error, True
            raise
        waits = self._iterating
        busy = self._mailbox.busy
        # A run that is terminated does not wait for Spark, nor for a region that is stuck.
        working = busy.total() if self._mailbox.termination is None else busy[Lane.STORE] + busy[Lane.TRIGGER]
        under_way = self._completing is not None or working > 0 or self._failover.restarting
        return not (waits or under_way or (self.error is None and self._requests.serve_rest()))

    def _advance(self) -> None:
        if (told := self._mailbox.termination) is not None and self.error is None:
            self._fail(told)
            self._interrupt_regions()
        if self.error is not None and not self._failing:
            self._failing = True
            self._failover.job_failed(self.error, canceled=told is not None)
            self._drive(JobStatusChanged(self._now(), running=False))
        if self._to_notify and self._region.idle:
            # Between two epochs: what an enumerator has planned is not read yet.
            for number in self._to_notify:
                self._region.notify_complete(number)
            self._to_notify.clear()
        if self._iterating:
            self._requests.look()
        self._trigger_next()
        if self._completing is None and self._to_complete:
            self._completing = metadata = self._create_metadata(self._to_complete.popleft())
            self._complete_by(partial(self._steps.write_metadata, metadata))
        if self._completing is not None or self._to_complete:
            return
        if self._subsumed and self.error is None and not self._requests.writing:
            # State files are named by content: one that an old checkpoint names and the first of a Spark job does not
            # may be named by the second again. So old checkpoints go when all of the Spark job are complete.
            self._mailbox.submit(Lane.STORE, partial(self._steps.subsume, tuple(self._subsumed)))
            self._subsumed.clear()
        if self._abort_due and not self._region.running:
            # What is open may be of an epoch that is running, or of a checkpoint that is being completed.
            self._abort_due = False
            if not self._outcome_unknown:
                self._mailbox.submit(Lane.STORE, self._abort_lingering)

    def _trigger_next(self) -> None:
        request = self._request
        if request is None or not self._iterating or self._busy:
            return
        if len(self._to_complete) + (self._completing is not None) > self._max_ahead:
            return
        if not request.periodic or (self._requests.waiting and not self.coordinator.pending):
            self._trigger(request)
        elif self._due_ms <= self._now():
            self._drive(PeriodicTick(self._now()))

    @property
    def _iterating(self) -> bool:
        """Whether another epoch is to follow."""
        return self._request is not None and not self._enough and self.error is None

    def _trigger(self, request: EpochRequest) -> None:
        kind = CheckpointKind.SAVEPOINT if request.stop else CheckpointKind.CHECKPOINT
        self._drive(TriggerRequested(self._now(), kind, forced=True, stop=request.stop, request_id=self._owner))

    def _step(self) -> None:
        """Handles the next event."""
        try:
            done = self._mailbox.take(self._next_timer())
            if done is None:
                self._fire_timeouts()
            else:
                self._handle(done)
            for index in self._failover.restart_due():
                self._restart(index)
        except BaseException as error:
            self.error, self._reported = self.error or error, True
            raise

    def _next_timer(self) -> int | None:
        timers = list(self._timeouts.values())
        if self._request is not None and self._request.periodic and self._iterating and not self._busy:
            timers.append(self._due_ms)
        if self._iterating and (due_ms := self._requests.due_ms) is not None:
            timers.append(due_ms)
        if (restart_ms := self._failover.next_restart()) is not None:
            timers.append(restart_ms)
        return min(timers, default=None)

    def _fire_timeouts(self) -> None:
        now = self._now()
        for checkpoint_id in [each for each, at_ms in self._timeouts.items() if at_ms <= now]:
            del self._timeouts[checkpoint_id]
            self._drive(TimerFired(now, checkpoint_id))

    def _handle(self, done: Done) -> None:
        if done.lane in (Lane.REQUESTS, Lane.SAVEPOINT):
            if (error := self._requests.handle(done)) is not None:
                self._fail(error)
            self._enough |= self._requests.ending
        elif done.error is not None:
            if (region := self._region_of(done)) is not None:
                region.ended()
            elif done.work is self._completion_step:
                self._break_chain()
            self._fail(done.error)
        elif isinstance(done.result, Outcome):
            self._on_outcome(done.result)
        elif (region := self._region_of(done)) is not None:
            if isinstance(done.result, Epoch):
                self._on_planned(region, done.result)
            elif isinstance(done.result, RegionEnded):
                self._on_region_ended(region, done.result)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._enough = True

    def _break_chain(self) -> None:
        self._chain_broken = True
        self._completing = None
        self._to_complete.clear()

    # --- the region --------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Whether the next epoch cannot be triggered yet."""
        return self._triggering or not self._region.idle

    def _region_of(self, done: Done) -> RegionExecution | None:
        return next((region for region in self._regions if region.lane == done.lane), None)

    def _interrupt_regions(self) -> None:
        for region in self._regions:
            region.runner.session.interrupt()

    def _on_planned(self, region: RegionExecution, epoch: Epoch) -> None:
        region.planned(epoch)
        request, planned = self._request, len(region.epochs)
        if self.error is not None:
            return
        more = (
            self._iterating
            and request is not None
            and planned < request.barriers
            and not region.planner.ended[epoch.checkpoint_id]
        )
        if more and request is not None and (request.limit is None or self._taken + planned < request.limit):
            self._trigger(request)
            return
        self._run(region)

    def _run(self, region: RegionExecution) -> None:
        self._failover.graph.switch_to_running(self._regions.index(region))
        region.run()

    def _on_region_failed(self, region: RegionExecution, ended: RegionEnded, error: FlinkPyError) -> None:
        index, first, last = self._regions.index(region), ended.checkpoint_ids[0], ended.checkpoint_ids[-1]
        if self._failover.region_failed(index, first, {index: last}, error, ended.task):
            region.failed()
            for checkpoint_id in ended.checkpoint_ids:
                self._timeouts.pop(checkpoint_id, None)  # they begin anew with the restart
            return
        region.ended()
        self._causes[first] = error
        self._drive(self._decline(region, first, ended.task, error))
        self._fail(error)

    def _restart(self, index: int) -> None:
        region = self._regions[index]
        for epoch in region.epochs:
            self._timeouts[epoch.checkpoint_id] = self._now() + to_millis(self._steps.watchdog.timeout)
        self._failover.deploy(index)
        self._failover.graph.switch_to_running(index)
        if len(self._regions) == 1 and self._completing is None and not self._to_complete:
            # Nothing else has anything open. Otherwise the attempt tidies up when it ends.
            self._mailbox.submit(region.lane, self._abort_lingering)
        region.restart()

    def _on_region_ended(self, region: RegionExecution, ended: RegionEnded) -> None:
        index = self._regions.index(region)
        if self.error is not None:
            region.ended()
            self._failover.graph.ended(index)
            return
        if ended.error is not None:
            self._on_region_failed(region, ended, ended.error)
            return
        region.ended()
        self._failover.acknowledged(index)
        results, last = ended.results, ended.checkpoint_ids[-1]
        self._requests.epoch_ended(last)
        self._taken += len(ended.checkpoint_ids)
        self._enough |= self._has_enough(region, last, results.states)
        region.acknowledged(last, results.states)
        self._collected[last] = results.collected
        for position, checkpoint_id in enumerate(ended.checkpoint_ids):
            self._printed[checkpoint_id] = results.printed.get(position, [])
        for checkpoint_id, states in sorted(results.acknowledged.items()):
            self._acknowledge(region, checkpoint_id, states)

    def _has_enough(self, region: RegionExecution, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> bool:
        request = self._request
        if request is None or request.kind is not EpochKind.READ or region.planner.ended[checkpoint_id]:
            return True
        if request.limit is not None:
            return self._taken >= request.limit
        return not request.periodic and not any(state.splits for state in states.values())

    def _acknowledge(self, region: RegionExecution, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Passes the acknowledgements of all tasks and enumerators to the coordinator."""
        job_id, token = region.planner.config.job_id, region.planner.fencing_token
        for task, state in states.items():
            message = AcknowledgeCheckpoint(job_id, checkpoint_id, token, task.uid, task.subtask, state)
            self._drive(Acknowledge(self._now(), message))
        positions = region.planner.splits.take_states(checkpoint_id)
        for uid in self._coordinators.pop(checkpoint_id, ()):
            self._drive(CoordinatorSnapshotted(self._now(), checkpoint_id, uid, positions[uid]))

    def _decline(
        self, region: RegionExecution, checkpoint_id: int, task: Subtask | None, error: FlinkPyError
    ) -> Decline:
        where = task or region.runner.tasks[0]
        cause = {"type": type(error).__name__, "message": str(error.args[0] if error.args else error)}
        reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
        if task is not None:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        job_id, token = region.planner.config.job_id, region.planner.fencing_token
        message = DeclineCheckpoint(job_id, checkpoint_id, token, where.uid, where.subtask, reason, cause)
        return Decline(self._now(), message)

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def _on_outcome(self, outcome: Outcome) -> None:
        stimulus = outcome.stimulus
        if outcome.error is not None:
            self._causes[getattr(stimulus, "checkpoint_id", None)] = outcome.error
        if isinstance(stimulus, MetadataWriteFailed):
            self._outcome_unknown |= stimulus.unknown_outcome and self._replacing_head
            self._break_chain()
        self._drive(stimulus)
        if isinstance(stimulus, CommitFinished):
            self._finish()

    def _drive(self, stimulus: Stimulus) -> None:
        """Gives the coordinator a stimulus and carries out its instructions, without waiting or calling it again."""
        aborted = None
        for instruction in self.coordinator.handle(stimulus):
            self._perform(instruction)
            if isinstance(instruction, NotifyAborted):
                aborted = instruction
        if aborted is not None and aborted.reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED:
            cause = self._causes.get(aborted.checkpoint_id)
            self._fail(cause or CheckpointError(f"checkpoint {aborted.checkpoint_id} was aborted"))

    def _perform(self, instruction: Instruction) -> None:
        submit = partial(self._mailbox.submit, Lane.STORE)
        match instruction:
            case AssignCheckpointId():
                self._triggering = True
                self._mailbox.submit(Lane.TRIGGER, self._steps.assign_checkpoint_id)
            case ArmTimeout(checkpoint_id=checkpoint_id, at_ms=at_ms):
                self._timeouts[checkpoint_id] = at_ms
                self._triggered[checkpoint_id] = time.monotonic()
            case SnapshotCoordinators(checkpoint_id=checkpoint_id, uids=uids):
                self._coordinators[checkpoint_id] = uids
            case TriggerMasterHooks(checkpoint_id=checkpoint_id, timestamp_ms=timestamp, identifiers=identifiers):
                for identifier in identifiers:
                    hook = partial(self._steps.trigger_hook, identifier, checkpoint_id, timestamp)
                    self._mailbox.submit(Lane.TRIGGER, hook)
            case EmitBarriers(checkpoint_id=checkpoint_id):
                assert self._request is not None
                self._triggering = False
                self._failover.deploy(0)
                if self._request.kind is not EpochKind.READ:  # there is nothing to plan
                    self._failover.graph.switch_to_running(0)
                self._region.deploy(checkpoint_id, self._request.kind)
            case CancelSparkJob():
                self._interrupt_regions()
            case WriteMetadata() if not self._chain_broken:
                self._to_complete.append(instruction)
            case WriteMetadata():
                pass
            case ReplaceHead():
                self._replacing_head = True
                metadata = self._under_completion(instruction.checkpoint_id)
                partition = self._region.planner.partition_end(metadata, self._steps.attempt.head.partitions)
                self._complete_by(partial(self._steps.replace_head, metadata, partition))
            case NotifyComplete():
                metadata = self._under_completion(instruction.checkpoint_id)
                self._on_completed(metadata)
                self._complete_by(partial(self._steps.commit_checkpoint, metadata))
            case NotifySubsumed(checkpoint_id=checkpoint_id):
                submit(partial(self._steps.tell, "notify_checkpoint_subsumed", checkpoint_id))
            case DropSubsumed(checkpoint_ids=checkpoint_ids):
                self._subsumed += checkpoint_ids
            case DiscardState(files=files):
                submit(partial(self._steps.discard, files))
            case NotifyAborted(checkpoint_id=checkpoint_id, reason=reason):
                self._timeouts.pop(checkpoint_id, None)
                self._progress(f"checkpoint {checkpoint_id} was aborted: {reason.value}")
                self._abort_due = True
                submit(partial(self._steps.tell_aborted, checkpoint_id))
            case FailJob(checkpoint_id=checkpoint_id, message=message):
                self._fail(self._causes.get(checkpoint_id) or CheckpointError(message))
            case ArmPeriodic(at_ms=at_ms):
                self._due_ms = at_ms
            case Rejected(reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS, message=message):
                self._progress(message)  # it is due again when the pause is over
            case Rejected(reason=CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS):
                pass  # the interval is shorter than the completion of a checkpoint; one is queued already
            case Rejected(message=message):
                self._fail(self._causes.get(None) or CheckpointError(f"no checkpoint was taken: {message}"))
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _complete_by(self, step: Work) -> None:
        self._completion_step = step
        self._mailbox.submit(Lane.STORE, step)

    def _under_completion(self, checkpoint_id: int) -> CheckpointMetadata:
        metadata = self._completing
        assert metadata is not None and metadata.checkpoint_id == checkpoint_id, "checkpoints complete in their order"
        return metadata

    def _finish(self) -> None:
        """Hands a committed checkpoint to the caller."""
        assert self._completing is not None
        metadata, self._completing, self._replacing_head = self._completing, None, False
        self._timeouts.pop(metadata.checkpoint_id, None)
        self._completed.append(self._completion(metadata))
        self._to_notify.append(metadata.checkpoint_id)
        self._requests.completed(metadata)

    def _completion(self, metadata: CheckpointMetadata) -> Completion:
        number = metadata.checkpoint_id
        for line in self._printed.pop(number, ()):
            print(line)
        duration_ms = round((time.monotonic() - self._triggered.pop(number)) * 1000)
        return Completion(metadata, duration_ms, self._collected.pop(number, {}))
