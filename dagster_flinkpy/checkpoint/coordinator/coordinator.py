"""The checkpoint coordinator as pure transitions: stimulus in, instructions out (Flink: ``CheckpointCoordinator``).

It has no clock, does no I/O and holds no lock, so each of its rules is tested without Spark, a store or sleeping. The
path of a checkpoint, with the stimuli in brackets:

    [trigger] -> AssignCheckpointId -> [id] -> ArmTimeout, SnapshotCoordinators, TriggerMasterHooks -> [master states]
    -> EmitBarriers -> [acknowledgements] -> WriteMetadata -> [written] -> ReplaceHead -> [replaced] -> NotifyComplete
    -> [committed] -> NotifySubsumed, DropSubsumed

The preconditions are checked again when the id has been assigned, and when the hooks have answered.

HEAD advances only when the previous checkpoint has been committed, so a restore from HEAD never loses a committable. A
plain savepoint ends when its metadata is written: it neither becomes the latest checkpoint nor commits anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatchmethod

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.decider import CheckpointRequestDecider, Dropped
from dagster_flinkpy.checkpoint.coordinator.failures import LOSES_NOTHING, CheckpointFailureManager, DiscardedFiles
from dagster_flinkpy.checkpoint.coordinator.instructions import (
    ArmPeriodic,
    ArmTimeout,
    AssignCheckpointId,
    CancelSparkJob,
    DiscardState,
    DropSubsumed,
    EmitBarriers,
    FailJob,
    HandOver,
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
from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.pending import AcknowledgeResult, CheckpointPlan, PendingCheckpoint, Stage
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStatus
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    Acknowledge,
    AcknowledgedLate,
    CheckpointIdAssigned,
    CommitFinished,
    CoordinatorSnapshotted,
    Decline,
    HeadReplaced,
    JobStatusChanged,
    MasterHookFailed,
    MasterStateCollected,
    MetadataWriteFailed,
    MetadataWritten,
    PeriodicTick,
    Shutdown,
    Stimulus,
    TasksRestarted,
    TimerFired,
    TriggerFailed,
    TriggerRequested,
    describe,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import CheckpointError

__all__ = ["CheckpointCoordinator"]

_RECENT_IDS = 16  # Flink: NUM_GHOST_CHECKPOINT_IDS
_STORY_LENGTH = 50
_FAILED_BEFORE_ID = (CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, CheckpointFailureReason.IO_EXCEPTION)
"""Requests that were chosen but could not be carried out count as failed checkpoints."""


class CheckpointCoordinator:
    """Takes the checkpoints of one execution attempt.

    Args:
        job_id: Id of the job. Messages of other jobs are ignored.
        fencing_token: Fencing token of the execution attempt. Messages of other attempts are ignored.
        plan: Which subtasks, coordinators and hooks take part.
        config: When checkpoints are taken.
        restored: The checkpoint that the attempt started from. Its files are never discarded.
        retained: Ids of the completed checkpoints in the store.
        statistics: The statistics of earlier attempts, which this attempt continues. Default: none.
    """

    def __init__(
        self,
        job_id: str,
        fencing_token: int,
        plan: CheckpointPlan,
        config: CoordinatorConfig,
        *,
        restored: CheckpointMetadata | None = None,
        retained: Sequence[int] = (),
        statistics: CheckpointStatistics | None = None,
    ) -> None:
        self._job_id = job_id
        self._fencing_token = fencing_token
        self._plan = plan
        self._config = config
        self._decider = CheckpointRequestDecider(config.max_concurrent, to_millis(config.min_pause))
        self._failures = CheckpointFailureManager(config.tolerable_failed)
        self._running = False
        self._not_running: frozenset[Subtask] = frozenset()
        self._shut_down: CheckpointFailureReason | None = None
        self._triggering: TriggerRequested | None = None
        self._ids_asked_for = 0
        self._pending: dict[int, PendingCheckpoint] = {}
        self._late: dict[int, PendingCheckpoint] = {}
        """Those that have expired, which the job tolerates. The next one takes over when all have acknowledged them."""
        self._committing: int | None = None
        self._completed = deque(retained)
        self._files = DiscardedFiles(restored.files() if restored else ())
        self._last_id = restored.checkpoint_id if restored else 0
        self._last_completion_ms: int | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT_IDS)
        self._story: deque[str] = deque(maxlen=_STORY_LENGTH)
        # Flink: the interval is at least the pause.
        self._interval_ms = None if config.interval is None else to_millis(max(config.interval, config.min_pause))
        self.statistics = statistics or CheckpointStatistics()
        """Statistics of all checkpoints of the job."""
        if restored is not None:
            self.statistics.record_restore()

    @property
    def pending(self) -> tuple[int, ...]:
        """Ids of the checkpoints that are neither complete nor aborted."""
        return tuple(self._pending)

    @property
    def collecting(self) -> tuple[int, ...]:
        """Ids of the checkpoints that lack acknowledgements: pending ones, and those that have expired."""
        collecting = (number for number, pending in self._pending.items() if pending.stage is Stage.COLLECTING)
        return (*self._late, *collecting)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ids of the checkpoints whose barriers were emitted, and that are neither aborted nor committed."""
        emitted = (number for number, pending in self._pending.items() if pending.stage is not Stage.TRIGGERING)
        return (*emitted, *(() if self._committing is None else (self._committing,)))

    @property
    def triggering(self) -> bool:
        """Whether the next checkpoint is getting its id, or its hooks are being called."""
        return self._triggering is not None or any(p.stage is Stage.TRIGGERING for p in self._pending.values())

    @property
    def running(self) -> bool:
        """Whether the job is running, as far as the coordinator was told."""
        return self._running

    @property
    def story(self) -> tuple[str, ...]:
        """The last events, oldest first."""
        return tuple(self._story)

    def handle(self, stimulus: Stimulus) -> list[Instruction]:
        """Makes the transition for one stimulus.

        Raises:
            CheckpointError: The stimulus is impossible in this state; the message lists the last events.
        """
        self._story.append(describe(stimulus))
        instructions = self._handle(stimulus)
        if not self._pending and not self._late and self._triggering is None and (files := self._files.take()):
            instructions.append(DiscardState(files))
        return instructions

    @singledispatchmethod
    def _handle(self, stimulus: Stimulus) -> list[Instruction]:
        raise self._error(f"unknown stimulus {stimulus!r}")

    # --- triggering ---------------------------------------------------------------------------------------------------

    @_handle.register
    def _(self, stimulus: TriggerRequested) -> list[Instruction]:
        if refusal := self._refusal(stimulus):
            return [self._reject(refusal)]
        rejected: list[Instruction] = [self._reject(dropped) for dropped in self._decider.submit(stimulus)]
        return rejected + self._next_request(stimulus.now_ms)

    @_handle.register
    def _(self, stimulus: PeriodicTick) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self._interval_ms is not None and self._running and self._shut_down is None:
            instructions.append(ArmPeriodic(stimulus.now_ms + self._interval_ms))
        return instructions + self._handle(TriggerRequested(stimulus.now_ms, periodic=True, request_id="periodic"))

    @_handle.register
    def _(self, stimulus: CheckpointIdAssigned) -> list[Instruction]:
        if not self._ids_asked_for:
            raise self._error(f"id {stimulus.checkpoint_id} was assigned, but nothing asked for one")
        if stimulus.checkpoint_id <= self._last_id:
            raise self._error(f"id {stimulus.checkpoint_id} was assigned after {self._last_id}")
        self._ids_asked_for -= 1
        self._last_id = stimulus.checkpoint_id
        request, self._triggering = self._triggering, None
        if request is None:
            return []  # the request was rejected in the meantime
        if refusal := self._refusal(request) or self._tasks_missing(request):
            return [self._reject(refusal), *self._next_request(stimulus.now_ms)]
        pending = PendingCheckpoint(stimulus.checkpoint_id, request, stimulus.now_ms, self._plan)
        self._pending[pending.checkpoint_id] = pending
        self.statistics.record(pending.stats(stimulus.now_ms, CheckpointStatus.IN_PROGRESS))
        expires_ms = stimulus.now_ms + to_millis(self._config.timeout)
        instructions: list[Instruction] = [ArmTimeout(pending.checkpoint_id, expires_ms)]
        if self._plan.coordinators:
            instructions.append(SnapshotCoordinators(pending.checkpoint_id, self._plan.coordinators))
        if pending.stage is Stage.TRIGGERING:
            hooks = self._plan.master_hooks
            return [*instructions, TriggerMasterHooks(pending.checkpoint_id, pending.trigger_ms, hooks)]
        instructions.append(EmitBarriers(pending.checkpoint_id, self._plan.tasks_to_trigger))
        return instructions + self._next_request(stimulus.now_ms)

    @_handle.register
    def _(self, stimulus: TriggerFailed) -> list[Instruction]:
        if not self._ids_asked_for:
            raise self._error("no id was available, but nothing asked for one")
        self._ids_asked_for -= 1
        request, self._triggering = self._triggering, None
        if request is None:
            return []
        reason = CheckpointFailureReason.IO_EXCEPTION
        rejected = self._reject(Dropped(request, reason, stimulus.cause))
        if self._failures.failed(None, request, reason):
            message = f"no id is available for a checkpoint: {stimulus.cause}{self._tolerance}"
            return [rejected, FailJob(None, reason, message)]
        rejected = replace(rejected, tolerated=request.kind is CheckpointKind.CHECKPOINT)
        return [rejected, *self._next_request(stimulus.now_ms)]

    @_handle.register
    def _(self, stimulus: MasterStateCollected) -> list[Instruction]:
        pending = self._pending.get(stimulus.checkpoint_id)
        if pending is None:
            return []
        result = pending.acknowledge_master(stimulus.identifier, stimulus.state)
        self._story.append(f"  {result.value}")
        if pending.stage is not Stage.TRIGGERING or not pending.masters_acknowledged:
            return []
        if refusal := self._refusal(pending.request) or self._tasks_missing(pending.request):
            return self._abort(pending, stimulus.now_ms, refusal.reason, refusal.message)
        pending.stage = Stage.COLLECTING
        emit = EmitBarriers(pending.checkpoint_id, self._plan.tasks_to_trigger)
        return [emit, *self._next_request(stimulus.now_ms)]

    @_handle.register
    def _(self, stimulus: MasterHookFailed) -> list[Instruction]:
        pending = self._pending.get(stimulus.checkpoint_id)
        if pending is None or pending.stage is not Stage.TRIGGERING:
            return []
        detail = f"master hook {stimulus.identifier!r}: {stimulus.cause}"
        return self._abort(pending, stimulus.now_ms, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, detail)

    def _next_request(self, now_ms: int) -> list[Instruction]:
        """Starts the first queued request that can be started."""
        instructions: list[Instruction] = []
        while chosen := self._decider.choose(
            now_ms, pending=len(self._pending), triggering=self.triggering, last_completion_ms=self._last_completion_ms
        ):
            if isinstance(chosen, Dropped):
                instructions.append(self._reject(chosen))
                if chosen.retry_ms is not None and self._interval_ms is not None:
                    instructions.append(ArmPeriodic(chosen.retry_ms))
            elif refusal := self._refusal(chosen) or self._tasks_missing(chosen):
                instructions.append(self._reject(refusal))
            else:
                self._triggering = chosen
                self._ids_asked_for += 1
                instructions.append(AssignCheckpointId(chosen.request_id))
        return instructions

    def _refusal(self, request: TriggerRequested) -> Dropped | None:
        """Flink: ``CheckpointCoordinator.preCheckGlobalState``."""
        if self._shut_down is not None:
            return Dropped(request, self._shut_down, self._shut_down.value)
        if request.periodic and not (self._running and self._interval_ms is not None):
            reason = CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
            return Dropped(request, reason, reason.value)
        return None

    def _tasks_missing(self, request: TriggerRequested) -> Dropped | None:
        """Flink: ``DefaultCheckpointPlanCalculator.checkAllTasksInitiated`` and similar checks."""
        reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        if not self._running:
            return Dropped(request, reason, "the job is not running")
        missing = self._plan.first_of(self._not_running)
        return None if missing is None else Dropped(request, reason, f"{missing} is not running")

    # --- the job ------------------------------------------------------------------------------------------------------

    @_handle.register
    def _(self, stimulus: JobStatusChanged) -> list[Instruction]:
        was_running, self._running = self._running, stimulus.running
        self._not_running = stimulus.not_running
        if stimulus.running:
            if was_running or self._interval_ms is None:
                return []
            delay_ms = self._config.initial_delay_ms(self._interval_ms, f"{self._job_id}/{self._fencing_token}")
            return [ArmPeriodic(stimulus.now_ms + delay_ms)]
        return self._abort_all(stimulus.now_ms, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    @_handle.register
    def _(self, stimulus: Shutdown) -> list[Instruction]:
        self._shut_down = stimulus.reason
        return self._abort_all(stimulus.now_ms, stimulus.reason)

    def _abort_all(self, now_ms: int, reason: CheckpointFailureReason) -> list[Instruction]:
        requests = self._decider.abort_all()
        if self._triggering is not None:
            requests.insert(0, self._triggering)
            self._triggering = None
        instructions: list[Instruction] = [Rejected(r.request_id, reason, reason.value) for r in requests]
        for pending in list(self._pending.values()):
            # A checkpoint that is being written may still complete, so it is not aborted, and its files are kept.
            if pending.can_abort:
                instructions += self._abort(pending, now_ms, reason, promote=False)
        self._files.give_up()
        for late in self._late.values():
            self._files.discard(late.files())
        instructions += map(CancelSparkJob, self._late)
        self._late.clear()
        return instructions

    # --- acknowledging ------------------------------------------------------------------------------------------------

    @_handle.register
    def _(self, stimulus: Acknowledge) -> list[Instruction]:
        message = stimulus.message
        if (message.job_id, message.fencing_token) != (self._job_id, self._fencing_token):
            self._story.append(f"  ignored: job {message.job_id!r}, fencing token {message.fencing_token}")
            return []
        if message.subtask != message.state.index:
            raise self._error(f"{_task(message)} sent the state of subtask {message.state.index}")
        pending = self._awaited(message.checkpoint_id)
        if pending is None:
            known = message.checkpoint_id in self._recent
            result = AcknowledgeResult.DISCARDED if known else AcknowledgeResult.UNKNOWN
        else:
            result = pending.acknowledge(Subtask(message.uid, message.subtask), message.state)
        self._story.append(f"  {result.value}")
        if result in (AcknowledgeResult.DISCARDED, AcknowledgeResult.UNKNOWN):
            self._files.discard(message.state.files())
        if pending is None or result is not AcknowledgeResult.SUCCESS:
            return []
        if pending.checkpoint_id in self._pending:
            self.statistics.record(pending.stats(stimulus.now_ms, CheckpointStatus.IN_PROGRESS))
        return self._write_if_acknowledged(pending)

    @_handle.register
    def _(self, stimulus: CoordinatorSnapshotted) -> list[Instruction]:
        pending = self._awaited(stimulus.checkpoint_id)
        if pending is None:
            return []
        result = pending.acknowledge_coordinator(stimulus.uid, stimulus.state)
        self._story.append(f"  {result.value}")
        return self._write_if_acknowledged(pending) if result is AcknowledgeResult.SUCCESS else []

    def _write_if_acknowledged(self, pending: PendingCheckpoint) -> list[Instruction]:
        if not pending.fully_acknowledged:
            return []
        follows: type[WriteMetadata] = WriteMetadata
        if self._late.pop(pending.checkpoint_id, None) is not None:
            follows = HandOver
            self._files.hand_over(pending.checkpoint_id, pending.files())
        pending.stage = Stage.WRITING_METADATA
        states = pending.states(), pending.coordinator_states(), pending.master_states()
        return [follows(pending.checkpoint_id, pending.request.kind, pending.trigger_ms, *states)]

    @_handle.register
    def _(self, stimulus: Decline) -> list[Instruction]:
        message = stimulus.message
        if (message.job_id, message.fencing_token) != (self._job_id, self._fencing_token):
            self._story.append(f"  ignored: job {message.job_id!r}, fencing token {message.fencing_token}")
            return []
        pending = self._pending.get(message.checkpoint_id)
        if pending is None:
            self._story.append("  late" if message.checkpoint_id in self._recent else "  unknown")
            return []
        if not pending.can_abort:
            raise self._error(
                f"{_task(message)} declined checkpoint {message.checkpoint_id}, which all tasks had acknowledged"
            )
        detail = message.cause.get("message", message.reason.value)
        return self._abort(pending, stimulus.now_ms, message.reason, f"{_task(message)}: {detail}", by_task=True)

    @_handle.register
    def _(self, stimulus: AcknowledgedLate) -> list[Instruction]:
        self._files.discard(stimulus.files)
        return []

    @_handle.register
    def _(self, stimulus: TasksRestarted) -> list[Instruction]:
        for checkpoint_id in stimulus.checkpoint_ids:
            late = self._late.get(checkpoint_id)
            (late or self._in_stage(checkpoint_id, Stage.COLLECTING)).withdraw(stimulus.tasks)
        return []

    @_handle.register
    def _(self, stimulus: TimerFired) -> list[Instruction]:
        if stimulus.checkpoint_id in self._late:
            return self._count_missed(self._late[stimulus.checkpoint_id])
        pending = self._pending.get(stimulus.checkpoint_id)
        if pending is None or not pending.can_abort:
            return []
        detail = f"{pending.answers} in {self._config.timeout}: give epochs less input, or raise the checkpoint timeout"
        return self._abort(pending, stimulus.now_ms, CheckpointFailureReason.CHECKPOINT_EXPIRED, detail)

    def _count_missed(self, late: PendingCheckpoint) -> list[Instruction]:
        """Counts another failure, because none could be triggered behind a checkpoint that has expired.

        Tasks acknowledge in order. If they hang, no later checkpoint would ever expire.
        """
        if self._pending:
            return []  # it has a timeout of its own
        self.statistics.record_failure()
        if not self._failures.failed(None, late.request, CheckpointFailureReason.CHECKPOINT_EXPIRED):
            return []
        n = min(self._late)
        message = (
            f"no checkpoint is possible: {self._late[n].answers} checkpoint {n}, which has expired{self._tolerance}"
        )
        return [*map(CancelSparkJob, self._late), FailJob(n, CheckpointFailureReason.CHECKPOINT_EXPIRED, message)]

    # --- completing ---------------------------------------------------------------------------------------------------

    @_handle.register
    def _(self, stimulus: MetadataWritten) -> list[Instruction]:
        if stimulus.checkpoint_id in self._recent:
            return []  # it was subsumed in the meantime
        pending = self._in_stage(stimulus.checkpoint_id, Stage.WRITING_METADATA)
        if pending.request.kind is CheckpointKind.SAVEPOINT and not pending.request.stop:
            self._succeeded(pending, stimulus.now_ms)
            return self._next_request(stimulus.now_ms)
        pending.stage = Stage.AWAITING_HEAD
        return self._move_head()

    @_handle.register
    def _(self, stimulus: MetadataWriteFailed) -> list[Instruction]:
        if stimulus.checkpoint_id in self._recent:
            return []
        pending = self._in_stage(stimulus.checkpoint_id, Stage.WRITING_METADATA, Stage.REPLACING_HEAD)
        reason = stimulus.reason
        if pending.stage is Stage.REPLACING_HEAD and stimulus.unknown_outcome:
            # It may be complete, so nothing that its tasks prepared may be aborted. The next attempt finds out.
            self._remove(pending)
            self._files.keep(pending.files())
            self.statistics.record(pending.stats(stimulus.now_ms, CheckpointStatus.FAILED, reason))
            message = f"it is unknown whether checkpoint {pending.checkpoint_id} is complete: {stimulus.cause}"
            return [FailJob(pending.checkpoint_id, reason, message)]
        instructions = self._abort(
            pending, stimulus.now_ms, reason, stimulus.cause, discard=not stimulus.unknown_outcome
        )
        return instructions + self._move_head()

    @_handle.register
    def _(self, stimulus: HeadReplaced) -> list[Instruction]:
        pending = self._in_stage(stimulus.checkpoint_id, Stage.REPLACING_HEAD)
        self._succeeded(pending, stimulus.now_ms)
        self._files.completed(pending.checkpoint_id, pending.files())
        self._completed.append(pending.checkpoint_id)
        self._committing = pending.checkpoint_id
        instructions: list[Instruction] = []
        # Flink: dropSubsumedCheckpoints
        for older in list(self._pending.values()):
            if older.checkpoint_id < pending.checkpoint_id and older.request.kind is CheckpointKind.CHECKPOINT:
                instructions += self._abort(
                    older,
                    stimulus.now_ms,
                    CheckpointFailureReason.CHECKPOINT_SUBSUMED,
                    discard=older.can_abort,
                    promote=False,
                )
        instructions.append(
            NotifyComplete(self._job_id, pending.checkpoint_id, self._fencing_token, self._plan.tasks_to_commit)
        )
        return instructions + self._next_request(stimulus.now_ms)

    @_handle.register
    def _(self, stimulus: CommitFinished) -> list[Instruction]:
        if stimulus.checkpoint_id != self._committing:
            raise self._error(f"the commit of checkpoint {stimulus.checkpoint_id} finished, but it was not under way")
        self._committing = None
        self.statistics.record_phases(stimulus.checkpoint_id, stimulus.phases)
        instructions: list[Instruction] = []
        dropped = [self._completed.popleft() for _ in range(len(self._completed) - self._config.num_retained)]
        if dropped:
            subsumed = NotifySubsumed(self._job_id, dropped[-1], self._fencing_token, self._plan.tasks_to_commit)
            instructions += [subsumed, DropSubsumed(tuple(dropped))]
        return instructions + self._move_head()

    def _move_head(self) -> list[Instruction]:
        """Completes the oldest written checkpoint, unless another one is being completed or committed."""
        if self._committing is not None or any(p.stage is Stage.REPLACING_HEAD for p in self._pending.values()):
            return []
        if not (waiting := [p for p in self._pending.values() if p.stage is Stage.AWAITING_HEAD]):
            return []
        oldest = min(waiting, key=lambda pending: pending.checkpoint_id)
        oldest.stage = Stage.REPLACING_HEAD
        return [ReplaceHead(oldest.checkpoint_id)]

    # --- shared -------------------------------------------------------------------------------------------------------

    def _succeeded(self, pending: PendingCheckpoint, now_ms: int) -> None:
        self._remove(pending)
        self._failures.succeeded(pending.checkpoint_id)
        self.statistics.record(pending.stats(now_ms, CheckpointStatus.COMPLETED))
        self._last_completion_ms = now_ms

    def _abort(
        self,
        pending: PendingCheckpoint,
        now_ms: int,
        reason: CheckpointFailureReason,
        detail: str = "",
        *,
        discard: bool = True,
        promote: bool = True,
        by_task: bool = False,
    ) -> list[Instruction]:
        """Aborts a checkpoint. Its files go only if nothing else names them; one that a task declined is retried."""
        self._remove(pending)
        failed = self._failures.failed(pending.checkpoint_id, pending.request, reason, by_task=by_task)
        tolerated = not failed and reason in LOSES_NOTHING and pending.request.kind is CheckpointKind.CHECKPOINT
        collecting = pending.stage is Stage.COLLECTING
        if goes_on := tolerated and collecting and reason is CheckpointFailureReason.CHECKPOINT_EXPIRED:
            self._late[pending.checkpoint_id] = pending
        elif tolerated and not discard:
            self._files.keep(pending.files())
        elif tolerated:
            self._files.hand_over(pending.checkpoint_id, pending.files())
        elif discard:
            self._files.discard(pending.files())
        self.statistics.record(pending.stats(now_ms, CheckpointStatus.FAILED, reason))
        instructions: list[Instruction] = []
        if collecting and not goes_on and reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED:
            instructions.append(CancelSparkJob(pending.checkpoint_id))
        instructions.append(NotifyAborted(self._job_id, pending.checkpoint_id, self._fencing_token, reason, tolerated))
        if failed:
            message = f"checkpoint {pending.checkpoint_id} failed: {detail or reason.value}{self._tolerance}"
            instructions += [] if self._pending else map(CancelSparkJob, self._late)  # nothing takes over from them
            return [*instructions, FailJob(pending.checkpoint_id, reason, message)]
        if not promote:
            return instructions
        more_recent = any(other.trigger_ms >= pending.trigger_ms for other in self._pending.values())
        if by_task and not more_recent and not self._decider.queued and self._triggering is None:
            if pending.request.kind is CheckpointKind.CHECKPOINT:
                instructions += self._handle(replace(pending.request, now_ms=now_ms))
            return instructions
        return instructions + self._next_request(now_ms)

    @property
    def _tolerance(self) -> str:
        return f" (more than {n} in a row)" if (n := self._config.tolerable_failed) else ""

    def _awaited(self, checkpoint_id: int) -> PendingCheckpoint | None:
        """Returns a checkpoint for which acknowledgements count, or None."""
        return self._pending.get(checkpoint_id) or self._late.get(checkpoint_id)

    def _remove(self, pending: PendingCheckpoint) -> None:
        del self._pending[pending.checkpoint_id]
        self._recent.append(pending.checkpoint_id)

    def _in_stage(self, checkpoint_id: int, *stages: Stage) -> PendingCheckpoint:
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.stage not in stages:
            now = f"is {pending.stage.name}" if pending else "is not pending"
            raise self._error(f"checkpoint {checkpoint_id} {now}, not {' or '.join(stage.name for stage in stages)}")
        return pending

    def _reject(self, dropped: Dropped) -> Rejected:
        self._story.append(f"  {dropped.reason.name}: {dropped.message}")
        if dropped.reason in _FAILED_BEFORE_ID:
            self.statistics.record_failure()
        return Rejected(dropped.request.request_id, dropped.reason, dropped.message)

    def _error(self, message: str) -> CheckpointError:
        story = "\n    ".join(self._story)
        return CheckpointError(f"{message}\n  Last events of job {self._job_id!r}:\n    {story}")


def _task(message: AcknowledgeCheckpoint | DeclineCheckpoint) -> str:
    return f"{message.uid}[{message.subtask}]"
