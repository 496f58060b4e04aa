"""One test per rule, on the pure core: no Spark, no store, no clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.config import CheckpointConfig
from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.decider import MAX_QUEUED_REQUESTS
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
    Task,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, SubtaskState
from dagster_flinkpy.checkpoint.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.statistics import CheckpointStatus
from dagster_flinkpy.checkpoint.stimuli import (
    Acknowledge,
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
    TimerFired,
    TriggerFailed,
    TriggerRequested,
)
from dagster_flinkpy.errors import CheckpointError
from tests.checkpoint.samples import keyed, metadata, operator

JOB = "flights"
ATTEMPT = 4
SOURCE = Task("flights", 0)
COUNTS = (Task("count", 0), Task("count", 1))
PLAN = CheckpointPlan((SOURCE,), (SOURCE, *COUNTS), COUNTS)
REASON = CheckpointFailureReason


def state(task: Task, name: str = "") -> SubtaskState:
    names = (name,) if name else ()
    return SubtaskState(task.subtask, keyed=keyed(*names, index=task.subtask) if names else None)


def files(*names: str, index: int = 0) -> frozenset[str]:
    return frozenset(keyed(*names, index=index).files())


def ack(
    now: int, checkpoint_id: int, task: Task, name: str = "", *, job: str = JOB, attempt: int = ATTEMPT
) -> Acknowledge:
    return Acknowledge(
        now, AcknowledgeCheckpoint(job, checkpoint_id, attempt, task.uid, task.subtask, state(task, name))
    )


def decline(
    now: int,
    checkpoint_id: int,
    task: Task = SOURCE,
    reason: CheckpointFailureReason = REASON.CHECKPOINT_DECLINED,
    *,
    attempt: int = ATTEMPT,
) -> Decline:
    cause = {"message": "division by zero"}
    return Decline(now, DeclineCheckpoint(JOB, checkpoint_id, attempt, task.uid, task.subtask, reason, cause))


def notify_complete(checkpoint_id: int) -> NotifyComplete:
    return NotifyComplete(JOB, checkpoint_id, ATTEMPT, COUNTS)


def notify_aborted(checkpoint_id: int, reason: CheckpointFailureReason) -> NotifyAborted:
    return NotifyAborted(JOB, checkpoint_id, ATTEMPT, reason)


def notify_subsumed(checkpoint_id: int) -> NotifySubsumed:
    return NotifySubsumed(JOB, checkpoint_id, ATTEMPT, COUNTS)


def running(plan: CheckpointPlan = PLAN, **config: Any) -> CheckpointCoordinator:
    """A coordinator of a job that runs since 0; five failures are tolerated unless said otherwise."""
    coordinator = CheckpointCoordinator(JOB, ATTEMPT, plan, CheckpointConfig(**{"tolerable_failed": 5, **config}))
    coordinator.handle(JobStatusChanged(0, True))
    return coordinator


def trigger(coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, **request: Any) -> list[Instruction]:
    assert AssignCheckpointId("") in coordinator.handle(TriggerRequested(now, **request))
    return coordinator.handle(CheckpointIdAssigned(now, checkpoint_id))


def acknowledge_all(
    coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, name: str = ""
) -> list[Instruction]:
    for task in (SOURCE, COUNTS[0]):
        assert coordinator.handle(ack(now, checkpoint_id, task, name and f"{name}-{task.uid}-{task.subtask}")) == []
    return coordinator.handle(ack(now, checkpoint_id, COUNTS[1], name and f"{name}-count-1"))


def complete(coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, name: str = "") -> list[Instruction]:
    """From the trigger to the end of the commit."""
    trigger(coordinator, now, checkpoint_id)
    acknowledge_all(coordinator, now, checkpoint_id, name)
    coordinator.handle(MetadataWritten(now, checkpoint_id))
    coordinator.handle(HeadReplaced(now, checkpoint_id))
    return coordinator.handle(CommitFinished(now, checkpoint_id))


def only(instructions: list[Instruction], kind: type[Any]) -> Any:
    found = [instruction for instruction in instructions if isinstance(instruction, kind)]
    assert len(found) == 1, instructions
    return found[0]


# --- the straight path ------------------------------------------------------------------------------------------------


def test_a_checkpoint_from_trigger_to_commit() -> None:
    coordinator = running()
    assert coordinator.handle(TriggerRequested(10, request_id="r")) == [AssignCheckpointId("r")]
    assert coordinator.handle(CheckpointIdAssigned(11, 1)) == [ArmTimeout(1, 11 + 600_000), EmitBarriers(1, (SOURCE,))]
    assert coordinator.handle(ack(12, 1, COUNTS[1])) == []
    assert coordinator.handle(ack(13, 1, SOURCE)) == []
    assert coordinator.handle(ack(14, 1, COUNTS[0])) == [
        WriteMetadata(
            1,
            CheckpointKind.CHECKPOINT,
            11,
            {"count": (state(COUNTS[0]), state(COUNTS[1])), "flights": (state(SOURCE),)},
            {},
            {},
        )
    ]
    assert coordinator.handle(MetadataWritten(15, 1)) == [ReplaceHead(1)]
    assert coordinator.pending == (1,)
    assert coordinator.handle(HeadReplaced(16, 1)) == [notify_complete(1)]
    assert coordinator.pending == ()
    assert coordinator.handle(CommitFinished(17, 1)) == []


def test_coordinators_are_waited_for_before_or_after_the_tasks() -> None:
    plan = CheckpointPlan(PLAN.tasks_to_trigger, PLAN.tasks_to_wait_for, PLAN.tasks_to_commit, ("flights", "weather"))
    coordinator = running(plan)
    assert trigger(coordinator, 1, 1)[1] == SnapshotCoordinators(1, ("flights", "weather"))
    assert coordinator.handle(CoordinatorSnapshotted(2, 1, "weather", {"at": 2})) == []
    assert acknowledge_all(coordinator, 3, 1) == []
    assert coordinator.handle(CoordinatorSnapshotted(3, 1, "weather", {"at": 9})) == []
    written = only(coordinator.handle(CoordinatorSnapshotted(4, 1, "flights", {"at": 1})), WriteMetadata)
    assert written.coordinator_states == {"flights": {"at": 1}, "weather": {"at": 2}}


def test_completed_checkpoints_over_the_retained_number_are_dropped() -> None:
    coordinator = running(num_retained=2)
    assert complete(coordinator, 10, 1) == []
    assert complete(coordinator, 20, 2) == []
    assert complete(coordinator, 30, 3) == [notify_subsumed(1), DropSubsumed((1,))]


def test_what_was_retained_before_a_restore_is_dropped_too() -> None:
    coordinator = CheckpointCoordinator(
        JOB, ATTEMPT, PLAN, CheckpointConfig(num_retained=1), restored=metadata(8), retained=(7, 8)
    )
    coordinator.handle(JobStatusChanged(0, True))
    assert complete(coordinator, 10, 9) == [notify_subsumed(8), DropSubsumed((7, 8))]


def test_head_waits_for_the_commit_of_the_checkpoint_before() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1)
    coordinator.handle(MetadataWritten(3, 1))
    coordinator.handle(HeadReplaced(4, 1))
    trigger(coordinator, 5, 2)
    acknowledge_all(coordinator, 6, 2)
    assert coordinator.handle(MetadataWritten(7, 2)) == []
    assert coordinator.handle(CommitFinished(8, 1)) == [ReplaceHead(2)]
    assert coordinator.handle(HeadReplaced(9, 2)) == [notify_complete(2)]


def test_a_plain_savepoint_is_neither_stored_nor_notified() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT)
    assert only(acknowledge_all(coordinator, 2, 1), WriteMetadata).kind is CheckpointKind.SAVEPOINT
    assert coordinator.handle(MetadataWritten(3, 1)) == []
    assert coordinator.pending == ()
    assert coordinator.statistics.history[0].status is CheckpointStatus.COMPLETED


def test_a_stop_with_savepoint_is_both() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT, stop=True)
    acknowledge_all(coordinator, 2, 1)
    assert coordinator.handle(MetadataWritten(3, 1)) == [ReplaceHead(1)]
    assert coordinator.handle(HeadReplaced(4, 1)) == [notify_complete(1)]


# --- the decider, in Flink's order ------------------------------------------------------------------------------------


def rejection(instructions: list[Instruction]) -> CheckpointFailureReason:
    return only(instructions, Rejected).reason


def test_after_shutdown_everything_is_rejected() -> None:
    coordinator = running()
    coordinator.handle(Shutdown(1))
    assert rejection(coordinator.handle(TriggerRequested(2, forced=True))) is REASON.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert rejection(coordinator.handle(PeriodicTick(2))) is REASON.CHECKPOINT_COORDINATOR_SHUTDOWN


def test_shutdown_comes_before_the_periodic_scheduler() -> None:
    coordinator = CheckpointCoordinator(JOB, ATTEMPT, PLAN, CheckpointConfig())
    assert rejection(coordinator.handle(PeriodicTick(1))) is REASON.PERIODIC_SCHEDULER_SHUTDOWN
    coordinator.handle(Shutdown(2))
    assert rejection(coordinator.handle(PeriodicTick(3))) is REASON.CHECKPOINT_COORDINATOR_SHUTDOWN


def test_periodic_requests_need_an_interval_and_a_running_job() -> None:
    assert rejection(running().handle(PeriodicTick(1))) is REASON.PERIODIC_SCHEDULER_SHUTDOWN
    coordinator = running(interval=timedelta(seconds=1))
    coordinator.handle(JobStatusChanged(1, False))
    assert coordinator.handle(PeriodicTick(2)) == [
        Rejected("periodic", REASON.PERIODIC_SCHEDULER_SHUTDOWN, REASON.PERIODIC_SCHEDULER_SHUTDOWN.value)
    ]


def test_the_job_status_starts_the_periodic_trigger_once() -> None:
    coordinator = CheckpointCoordinator(JOB, ATTEMPT, PLAN, CheckpointConfig(interval=timedelta(seconds=5)))
    assert only(coordinator.handle(JobStatusChanged(1000, True)), ArmPeriodic).at_ms <= 6000
    assert coordinator.handle(JobStatusChanged(2000, True)) == []
    assert coordinator.handle(PeriodicTick(6000)) == [ArmPeriodic(11000), AssignCheckpointId("periodic")]


def test_the_first_periodic_checkpoint_comes_between_the_pause_and_the_interval() -> None:
    config = CheckpointConfig(interval=timedelta(seconds=60), min_pause=timedelta(seconds=20))
    delays = set()
    for job in range(200):
        for _ in range(2):  # of one job and attempt it is always the same
            coordinator = CheckpointCoordinator(f"job-{job}", ATTEMPT, PLAN, config)
            delays.add(only(coordinator.handle(JobStatusChanged(0, True)), ArmPeriodic).at_ms)
    assert 190 < len(delays) <= 200
    assert 20_000 <= min(delays) < 25_000
    assert 55_000 < max(delays) <= 60_000


def test_the_interval_is_at_least_the_pause() -> None:
    coordinator = running(interval=timedelta(seconds=1), min_pause=timedelta(seconds=10))
    assert coordinator.handle(PeriodicTick(1000))[0] == ArmPeriodic(11_000)


def test_the_queue_is_bounded_and_keeps_what_people_asked_for() -> None:
    coordinator = running(interval=timedelta(hours=1))
    trigger(coordinator, 1, 1)
    for number in range(MAX_QUEUED_REQUESTS - 1):
        assert coordinator.handle(TriggerRequested(2, request_id=str(number))) == []
    assert [type(i) for i in coordinator.handle(PeriodicTick(3))] == [ArmPeriodic]
    # The periodic one makes room for a person's, and then there is none to make room.
    assert coordinator.handle(TriggerRequested(4, request_id="last")) == [
        Rejected("periodic", REASON.TOO_MANY_CHECKPOINT_REQUESTS, "1000 requests are queued")
    ]
    savepoint = TriggerRequested(5, kind=CheckpointKind.SAVEPOINT, request_id="more")
    assert only(coordinator.handle(savepoint), Rejected).request_id == "more"


def test_one_periodic_request_waits_at_most() -> None:
    coordinator = running(interval=timedelta(seconds=1))
    trigger(coordinator, 1, 1)
    assert coordinator.handle(PeriodicTick(1000)) == [ArmPeriodic(2000)]
    assert rejection(coordinator.handle(PeriodicTick(2000))) is REASON.TOO_MANY_CHECKPOINT_REQUESTS


def test_no_more_than_max_concurrent_are_pending_and_a_free_slot_promotes_one_request() -> None:
    coordinator = running(max_concurrent=2)
    trigger(coordinator, 1, 1)
    trigger(coordinator, 2, 2)
    assert coordinator.handle(TriggerRequested(3, request_id="a")) == []
    assert coordinator.handle(TriggerRequested(3, request_id="b")) == []
    acknowledge_all(coordinator, 4, 1)
    coordinator.handle(MetadataWritten(5, 1))
    assert coordinator.handle(HeadReplaced(6, 1)) == [notify_complete(1), AssignCheckpointId("a")]


def test_a_forced_request_does_not_wait_for_a_slot() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    assert coordinator.handle(TriggerRequested(2, forced=True)) == [AssignCheckpointId("")]


def test_a_request_waits_while_an_id_is_fetched() -> None:
    coordinator = running(max_concurrent=2)
    coordinator.handle(TriggerRequested(1, request_id="a"))
    assert coordinator.handle(TriggerRequested(2, request_id="b")) == []
    assert coordinator.handle(CheckpointIdAssigned(3, 1))[-1] == AssignCheckpointId("b")


def test_min_pause_counts_from_the_last_completion_and_reschedules() -> None:
    coordinator = running(interval=timedelta(seconds=1), min_pause=timedelta(seconds=10))
    complete(coordinator, 5_000, 1)
    ticked = coordinator.handle(PeriodicTick(6_000))
    assert rejection(ticked) is REASON.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert ticked[-1] == ArmPeriodic(15_000)
    assert AssignCheckpointId("periodic") in coordinator.handle(PeriodicTick(15_000))


def test_min_pause_counts_from_a_savepoint_too() -> None:
    coordinator = running(interval=timedelta(seconds=10), min_pause=timedelta(seconds=10))
    trigger(coordinator, 1000, 1, kind=CheckpointKind.SAVEPOINT)
    acknowledge_all(coordinator, 2000, 1)
    coordinator.handle(MetadataWritten(3000, 1))
    assert rejection(coordinator.handle(PeriodicTick(10_000))) is REASON.MINIMUM_TIME_BETWEEN_CHECKPOINTS


def test_min_pause_does_not_hold_back_what_people_ask_for() -> None:
    coordinator = running(interval=timedelta(seconds=1), min_pause=timedelta(seconds=10))
    complete(coordinator, 5_000, 1)
    assert coordinator.handle(TriggerRequested(5_001)) == [AssignCheckpointId("")]


@pytest.mark.parametrize(
    ("task", "purpose"),
    [(SOURCE, "triggering"), (COUNTS[1], "acknowledging"), (Task("sink", 0), "committing")],
    ids=["source", "other", "sink"],
)
def test_all_tasks_have_to_run(task: Task, purpose: str) -> None:
    coordinator = running(CheckpointPlan((SOURCE,), (SOURCE, *COUNTS), (Task("sink", 0),)))
    coordinator.handle(JobStatusChanged(1, True, frozenset({task})))
    rejected = only(coordinator.handle(TriggerRequested(2)), Rejected)
    assert rejected.reason is REASON.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert rejected.message == f"{purpose} task {task.uid}[{task.subtask}] is not running"


def test_before_the_job_runs_nothing_is_triggered() -> None:
    coordinator = CheckpointCoordinator(JOB, ATTEMPT, PLAN, CheckpointConfig())
    assert rejection(coordinator.handle(TriggerRequested(1))) is REASON.NOT_ALL_REQUIRED_TASKS_RUNNING


def test_there_is_a_second_look_after_the_id_was_fetched() -> None:
    coordinator = running()
    coordinator.handle(TriggerRequested(1))
    coordinator.handle(JobStatusChanged(2, True, frozenset({SOURCE})))
    assert rejection(coordinator.handle(CheckpointIdAssigned(3, 1))) is REASON.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert coordinator.pending == ()


def test_an_id_that_comes_after_shutdown_is_used_up() -> None:
    coordinator = running()
    coordinator.handle(TriggerRequested(1, request_id="r"))
    assert only(coordinator.handle(Shutdown(2)), Rejected).request_id == "r"
    assert coordinator.handle(CheckpointIdAssigned(3, 1)) == []
    assert coordinator.pending == ()


def test_a_request_without_an_id_is_rejected_and_the_next_one_tried() -> None:
    coordinator = running(tolerable_failed=1)
    for request_id in "abc":
        coordinator.handle(TriggerRequested(1, request_id=request_id))
    reason = REASON.IO_EXCEPTION
    assert coordinator.handle(TriggerFailed(2, "timed out")) == [
        Rejected("a", reason, "timed out"),
        AssignCheckpointId("b"),
    ]
    assert coordinator.handle(TriggerFailed(3, "timed out")) == [
        Rejected("b", reason, "timed out"),
        FailJob(None, reason, "there is no id for a checkpoint: timed out (more than 1 in a row)"),
    ]
    assert coordinator.statistics.counts.failed == 2


def test_an_id_that_cannot_be_had_after_shutdown_changes_nothing() -> None:
    coordinator = running()
    coordinator.handle(TriggerRequested(1))
    coordinator.handle(Shutdown(2))
    assert coordinator.handle(TriggerFailed(3, "timed out")) == []


# --- master hooks -----------------------------------------------------------------------------------------------------

HOOKED = CheckpointPlan(PLAN.tasks_to_trigger, PLAN.tasks_to_wait_for, PLAN.tasks_to_commit, (), ("ledger", "topic"))


def test_barriers_go_out_when_all_master_hooks_have_answered() -> None:
    coordinator = running(HOOKED)
    assert trigger(coordinator, 1, 1) == [ArmTimeout(1, 600_001), TriggerMasterHooks(1, 1, ("ledger", "topic"))]
    assert coordinator.handle(MasterStateCollected(2, 1, "topic", {"at": 7})) == []
    assert coordinator.handle(MasterStateCollected(3, 1, "ledger", None)) == [EmitBarriers(1, (SOURCE,))]
    assert only(acknowledge_all(coordinator, 4, 1), WriteMetadata).master_states == {"topic": {"at": 7}}


def test_a_master_hook_answers_once_and_strangers_are_not_heard() -> None:
    coordinator = running(HOOKED)
    trigger(coordinator, 1, 1)
    coordinator.handle(MasterStateCollected(2, 1, "topic", 1))
    assert coordinator.handle(MasterStateCollected(3, 1, "topic", 2)) == []
    assert coordinator.story[-1] == "  DUPLICATE"
    assert coordinator.handle(MasterStateCollected(4, 1, "stranger", 3)) == []
    assert coordinator.story[-1] == "  UNKNOWN"
    assert coordinator.handle(MasterStateCollected(5, 9, "ledger", 4)) == []
    coordinator.handle(MasterStateCollected(6, 1, "ledger", 5))
    assert coordinator.handle(MasterStateCollected(7, 1, "ledger", 6)) == []
    assert only(acknowledge_all(coordinator, 8, 1), WriteMetadata).master_states == {"topic": 1, "ledger": 5}


def test_a_master_hook_that_fails_aborts_the_checkpoint_before_anything_is_sent() -> None:
    coordinator = running(HOOKED, tolerable_failed=0)
    trigger(coordinator, 1, 1)
    coordinator.handle(TriggerRequested(2, request_id="queued"))
    assert coordinator.handle(MasterHookFailed(3, 1, "topic", "no such topic")) == [
        notify_aborted(1, REASON.TRIGGER_CHECKPOINT_FAILURE),
        AssignCheckpointId("queued"),
    ]
    assert coordinator.handle(MasterStateCollected(4, 1, "ledger", None)) == []
    assert coordinator.handle(MasterHookFailed(4, 1, "ledger", "late")) == []


def test_there_is_a_second_look_after_the_master_hooks() -> None:
    coordinator = running(HOOKED)
    trigger(coordinator, 1, 1)
    coordinator.handle(MasterStateCollected(2, 1, "topic", None))
    coordinator.handle(JobStatusChanged(3, True, frozenset({COUNTS[0]})))
    assert coordinator.handle(MasterStateCollected(4, 1, "ledger", None)) == [
        notify_aborted(1, REASON.NOT_ALL_REQUIRED_TASKS_RUNNING)
    ]


def test_a_timeout_or_shutdown_while_master_hooks_run_cancels_no_spark_job() -> None:
    for stimulus, reason in (
        (TimerFired(600_001, 1), REASON.CHECKPOINT_EXPIRED),
        (Shutdown(2), REASON.CHECKPOINT_COORDINATOR_SHUTDOWN),
    ):
        coordinator = running(HOOKED)
        trigger(coordinator, 1, 1)
        assert coordinator.handle(stimulus) == [notify_aborted(1, reason)]


def test_nothing_is_triggered_while_master_hooks_run() -> None:
    coordinator = running(HOOKED, max_concurrent=2)
    trigger(coordinator, 1, 1)
    assert coordinator.handle(TriggerRequested(2, request_id="b")) == []
    coordinator.handle(MasterStateCollected(3, 1, "topic", None))
    assert coordinator.handle(MasterStateCollected(3, 1, "ledger", None))[-1] == AssignCheckpointId("b")


# --- acknowledging ----------------------------------------------------------------------------------------------------


def test_a_duplicate_acknowledgement_changes_nothing() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    coordinator.handle(ack(2, 1, SOURCE, "one"))
    assert coordinator.handle(ack(3, 1, SOURCE, "two")) == []
    assert coordinator.story[-1] == "  DUPLICATE"
    coordinator.handle(ack(4, 1, COUNTS[0]))
    written = only(coordinator.handle(ack(5, 1, COUNTS[1])), WriteMetadata)
    assert written.states["flights"] == (state(SOURCE, "one"),)


def test_a_task_that_is_not_waited_for_is_unknown_and_its_files_are_discarded() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    assert coordinator.handle(ack(2, 1, Task("other", 0), "theirs")) == []
    assert coordinator.story[-1] == "  UNKNOWN"
    assert DiscardState(files("theirs")) in coordinator.handle(Shutdown(3))


def test_an_unknown_checkpoint_is_told_from_a_late_one() -> None:
    coordinator = running(tolerable_failed=0)
    assert coordinator.handle(ack(1, 99, SOURCE, "x")) == [DiscardState(files("x"))]
    assert coordinator.story[-1] == "  UNKNOWN"
    trigger(coordinator, 2, 100)
    coordinator.handle(decline(3, 100))
    assert coordinator.handle(ack(4, 100, SOURCE, "y")) == [DiscardState(files("y"))]
    assert coordinator.story[-1] == "  DISCARDED"


def test_the_files_of_an_aborted_checkpoint_are_discarded() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1)
    coordinator.handle(ack(2, 1, COUNTS[0], "zero"))
    coordinator.handle(ack(2, 1, COUNTS[1], "one"))
    discarded = only(coordinator.handle(decline(3, 1)), DiscardState).files
    assert discarded == files("zero") | files("one", index=1)


def test_files_that_the_last_completed_checkpoint_names_are_never_discarded() -> None:
    coordinator = running()
    complete(coordinator, 1, 1, "base")
    assert coordinator.handle(ack(2, 1, COUNTS[0], "base-count-0")) == []
    trigger(coordinator, 3, 2)
    coordinator.handle(ack(4, 2, COUNTS[0], "base-count-0"))
    coordinator.handle(ack(4, 2, COUNTS[1], "new"))
    assert only(coordinator.handle(Shutdown(5)), DiscardState).files == files("new", index=1)


def test_files_of_the_restored_checkpoint_are_never_discarded() -> None:
    restored = metadata(3, operator())
    coordinator = CheckpointCoordinator(JOB, ATTEMPT, PLAN, CheckpointConfig(), restored=restored)
    for task in COUNTS:
        assert coordinator.handle(ack(1, 2, task, f"count-{task.subtask}")) == []


def test_files_wait_for_a_moment_without_pending_checkpoints() -> None:
    """A pending checkpoint may come to name a file with the same content."""
    coordinator = running()
    trigger(coordinator, 1, 1)
    coordinator.handle(decline(2, 1))  # triggers again
    coordinator.handle(CheckpointIdAssigned(2, 2))
    assert coordinator.handle(ack(3, 1, COUNTS[0], "same")) == []
    assert coordinator.handle(ack(3, 1, COUNTS[1], "late")) == []
    for task in (SOURCE, COUNTS[1]):
        coordinator.handle(ack(4, 2, task))
    coordinator.handle(ack(5, 2, COUNTS[0], "same"))
    coordinator.handle(MetadataWritten(6, 2))
    assert coordinator.handle(HeadReplaced(7, 2)) == [notify_complete(2), DiscardState(files("late", index=1))]


@pytest.mark.parametrize("message", [ack(2, 1, SOURCE, "x", job="other"), ack(2, 1, SOURCE, "x", attempt=3)])
def test_messages_of_another_job_or_attempt_are_ignored(message: Acknowledge) -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    assert coordinator.handle(message) == []
    assert coordinator.statistics.history[0].acknowledged == 0
    assert coordinator.handle(decline(3, 1, attempt=3)) == []
    assert coordinator.pending == (1,)


def test_a_task_cannot_acknowledge_for_another_subtask() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    message = AcknowledgeCheckpoint(JOB, 1, ATTEMPT, "count", 0, SubtaskState(1))
    with pytest.raises(CheckpointError, match=r"count\[0\] sent the state of subtask 1"):
        coordinator.handle(Acknowledge(2, message))


# --- declining: the seed's three cases --------------------------------------------------------------------------------


def test_a_declined_checkpoint_is_discarded_and_triggered_again() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    assert coordinator.handle(decline(2, 1)) == [
        CancelSparkJob(1),
        notify_aborted(1, REASON.CHECKPOINT_DECLINED),
        AssignCheckpointId(""),
    ]
    assert coordinator.pending == ()


def test_a_decline_promotes_the_queued_request_instead() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    coordinator.handle(TriggerRequested(2, request_id="queued"))
    assert coordinator.handle(decline(3, 1))[-1] == AssignCheckpointId("queued")


def test_a_decline_triggers_nothing_while_a_more_recent_one_is_pending() -> None:
    coordinator = running(max_concurrent=2)
    trigger(coordinator, 1, 1)
    trigger(coordinator, 2, 2)
    assert coordinator.handle(decline(3, 1)) == [CancelSparkJob(1), notify_aborted(1, REASON.CHECKPOINT_DECLINED)]


def test_a_declined_savepoint_is_not_triggered_again() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT)
    assert coordinator.handle(decline(2, 1)) == [CancelSparkJob(1), notify_aborted(1, REASON.CHECKPOINT_DECLINED)]


def test_a_decline_after_all_acknowledged_is_an_error_that_tells_the_story() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1)
    with pytest.raises(CheckpointError, match=r"flights\[0\] declined checkpoint 1, which all had ack") as caught:
        coordinator.handle(decline(3, 1))
    story = str(caught.value)
    assert "1 CheckpointIdAssigned checkpoint_id=1" in story
    assert "2 Acknowledge checkpoint_id=1 count[1]" in story
    assert "3 Decline checkpoint_id=1 flights[0]" in story


def test_a_late_or_foreign_decline_does_nothing() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1)
    coordinator.handle(decline(2, 1))
    assert coordinator.handle(decline(3, 1, COUNTS[0])) == []
    assert coordinator.story[-1] == "  late"
    assert coordinator.handle(decline(3, 77)) == []
    assert coordinator.story[-1] == "  unknown"


# --- failing ----------------------------------------------------------------------------------------------------------


def test_a_timeout_cancels_the_spark_job_and_frees_the_slot() -> None:
    coordinator = running(timeout=timedelta(seconds=30))
    assert ArmTimeout(1, 31_000) in trigger(coordinator, 1000, 1)
    coordinator.handle(TriggerRequested(2000, request_id="queued"))
    coordinator.handle(ack(3000, 1, SOURCE))
    assert coordinator.handle(TimerFired(31_000, 1)) == [
        CancelSparkJob(1),
        notify_aborted(1, REASON.CHECKPOINT_EXPIRED),
        AssignCheckpointId("queued"),
    ]
    assert coordinator.handle(TimerFired(31_001, 1)) == []


def test_the_timeout_does_not_touch_a_checkpoint_that_is_being_written() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1)
    assert coordinator.handle(TimerFired(600_001, 1)) == []
    assert coordinator.handle(MetadataWritten(600_002, 1)) == [ReplaceHead(1)]


def test_state_is_discarded_if_the_metadata_certainly_was_not_written() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    failed = coordinator.handle(MetadataWriteFailed(3, 1, unknown_outcome=False))
    assert failed[0] == notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE)
    assert len(only(failed, DiscardState).files) == 3


def test_state_is_kept_if_the_outcome_of_writing_the_metadata_is_unknown() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    failed = coordinator.handle(MetadataWriteFailed(4, 1, unknown_outcome=True))
    assert failed == [notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE)]
    assert coordinator.handle(Shutdown(5)) == []


def test_if_nobody_knows_whether_head_moved_the_job_fails_and_nothing_is_aborted() -> None:
    coordinator = running(tolerable_failed=5)
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    coordinator.handle(MetadataWritten(3, 1))
    assert coordinator.handle(MetadataWriteFailed(4, 1, unknown_outcome=True, cause="timed out")) == [
        FailJob(1, REASON.FINALIZE_CHECKPOINT_FAILURE, "whether checkpoint 1 is complete is unknown: timed out")
    ]
    assert coordinator.handle(Shutdown(5)) == []


def test_one_checkpoint_is_completed_at_a_time_and_the_oldest_first() -> None:
    coordinator = running(max_concurrent=3)
    for checkpoint_id in (1, 2, 3):
        trigger(coordinator, checkpoint_id, checkpoint_id)
    for checkpoint_id in (1, 3, 2):
        acknowledge_all(coordinator, 4, checkpoint_id)
    assert coordinator.handle(MetadataWritten(5, 1)) == [ReplaceHead(1)]
    assert coordinator.handle(MetadataWritten(5, 3)) == []
    assert coordinator.handle(MetadataWritten(5, 2)) == []
    failed = coordinator.handle(MetadataWriteFailed(6, 1, unknown_outcome=False))
    assert failed == [notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE), ReplaceHead(2)]
    assert coordinator.handle(HeadReplaced(7, 2)) == [notify_complete(2)]
    assert coordinator.handle(CommitFinished(8, 2)) == [ReplaceHead(3)]


def test_the_first_failure_fails_the_job_by_default() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1)
    failed = only(coordinator.handle(decline(2, 1, COUNTS[1])), FailJob)
    assert failed == FailJob(1, REASON.CHECKPOINT_DECLINED, "checkpoint 1 failed: count[1]: division by zero")


def test_failures_in_a_row_are_counted_once_each_and_a_success_resets() -> None:
    coordinator = running(tolerable_failed=1)
    for checkpoint_id in (1, 3):
        trigger(coordinator, 1, checkpoint_id)
        assert not any(isinstance(i, FailJob) for i in coordinator.handle(TimerFired(600_001, checkpoint_id)))
        complete(coordinator, 600_002, checkpoint_id + 1)
    trigger(coordinator, 4, 5, kind=CheckpointKind.SAVEPOINT)
    coordinator.handle(decline(5, 5))
    trigger(coordinator, 6, 6)
    assert only(coordinator.handle(TimerFired(7, 6)), FailJob).message.endswith("(more than 1 in a row)")
    trigger(coordinator, 8, 7)  # the count started over
    assert not any(isinstance(i, FailJob) for i in coordinator.handle(TimerFired(9, 7)))


def test_a_savepoint_that_the_driver_could_not_take_is_not_counted() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT)
    assert coordinator.handle(TimerFired(2, 1)) == [CancelSparkJob(1), notify_aborted(1, REASON.CHECKPOINT_EXPIRED)]
    trigger(coordinator, 3, 2, kind=CheckpointKind.SAVEPOINT)
    acknowledge_all(coordinator, 4, 2)
    assert not any(isinstance(i, FailJob) for i in coordinator.handle(MetadataWriteFailed(5, 2, False)))


def test_a_stop_with_savepoint_that_a_task_declines_fails_the_job() -> None:
    coordinator = running(tolerable_failed=5)
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT, stop=True)
    declined = coordinator.handle(decline(2, 1, reason=REASON.CHECKPOINT_DECLINED_TASK_NOT_READY))
    assert only(declined, FailJob).checkpoint_id == 1


def test_a_failure_before_the_last_success_is_not_counted() -> None:
    coordinator = running(max_concurrent=2, tolerable_failed=0)
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT)
    complete(coordinator, 2, 2)
    assert coordinator.handle(decline(3, 1)) == [CancelSparkJob(1), notify_aborted(1, REASON.CHECKPOINT_DECLINED)]


def test_what_flink_does_not_count_never_fails_the_job() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1)
    declined = coordinator.handle(decline(2, 1, reason=REASON.CHECKPOINT_DECLINED_TASK_NOT_READY))
    assert declined[-1] == AssignCheckpointId("")


def test_older_pending_checkpoints_are_subsumed_and_savepoints_are_not() -> None:
    coordinator = running(max_concurrent=3)
    trigger(coordinator, 1, 1)
    trigger(coordinator, 2, 2, kind=CheckpointKind.SAVEPOINT)
    trigger(coordinator, 3, 3)
    acknowledge_all(coordinator, 4, 1)  # its metadata is on the way
    acknowledge_all(coordinator, 4, 3)
    coordinator.handle(MetadataWritten(5, 3))
    assert coordinator.handle(HeadReplaced(6, 3)) == [
        notify_aborted(1, REASON.CHECKPOINT_SUBSUMED),
        notify_complete(3),
    ]
    assert coordinator.pending == (2,)
    assert coordinator.handle(MetadataWritten(7, 1)) == []  # HEAD never goes back


def test_a_job_that_stops_running_suspends_its_checkpoints() -> None:
    coordinator = running(max_concurrent=1)
    trigger(coordinator, 1, 1)
    coordinator.handle(TriggerRequested(2, request_id="queued"))
    assert coordinator.handle(JobStatusChanged(3, False)) == [
        Rejected("queued", REASON.CHECKPOINT_COORDINATOR_SUSPEND, REASON.CHECKPOINT_COORDINATOR_SUSPEND.value),
        CancelSparkJob(1),
        notify_aborted(1, REASON.CHECKPOINT_COORDINATOR_SUSPEND),
    ]


def test_shutdown_aborts_what_collects_and_leaves_what_is_being_written() -> None:
    coordinator = running(max_concurrent=2)
    trigger(coordinator, 1, 1)
    trigger(coordinator, 2, 2)
    acknowledge_all(coordinator, 3, 1, "n")
    assert coordinator.handle(Shutdown(4)) == [
        CancelSparkJob(2),
        notify_aborted(2, REASON.CHECKPOINT_COORDINATOR_SHUTDOWN),
    ]
    assert coordinator.handle(MetadataWritten(5, 1)) == [ReplaceHead(1)]


@pytest.mark.parametrize(
    "stimulus",
    [CheckpointIdAssigned(1, 5), MetadataWritten(1, 5), HeadReplaced(1, 5), CommitFinished(1, 5)],
    ids=lambda stimulus: type(stimulus).__name__,
)
def test_answers_that_nobody_asked_for_are_errors(stimulus: Any) -> None:
    with pytest.raises(CheckpointError, match="Last events of job 'flights'"):
        running().handle(stimulus)


def test_ids_have_to_grow() -> None:
    coordinator = running()
    complete(coordinator, 1, 4)
    coordinator.handle(TriggerRequested(2))
    with pytest.raises(CheckpointError, match="id 4 was assigned after 4"):
        coordinator.handle(CheckpointIdAssigned(3, 4))


# --- telling ----------------------------------------------------------------------------------------------------------


def test_statistics() -> None:
    coordinator = running()
    trigger(coordinator, 100, 1)
    coordinator.handle(ack(150, 1, SOURCE, "n"))
    size = keyed("n").bytes
    stats = coordinator.statistics.history[0]
    assert (stats.checkpoint_id, stats.status, stats.trigger_ms) == (1, CheckpointStatus.IN_PROGRESS, 100)
    assert (stats.duration_ms, stats.acknowledged, stats.tasks, stats.state_bytes) == (50, 1, 3, size)
    coordinator.handle(decline(160, 1))
    stats = coordinator.statistics.history[0]
    assert (stats.status, stats.reason, stats.duration_ms) == (CheckpointStatus.FAILED, REASON.CHECKPOINT_DECLINED, 60)


def test_story_and_history_are_bounded() -> None:
    coordinator = running()
    for checkpoint_id in range(1, 200):
        complete(coordinator, checkpoint_id, checkpoint_id)
    assert len(coordinator.story) == 50
    assert [s.checkpoint_id for s in coordinator.statistics.history] == list(range(100, 200))
    assert coordinator.statistics.counts.completed == 199
