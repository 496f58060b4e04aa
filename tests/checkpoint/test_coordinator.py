"""Triggering: one test per rule, on the pure core, without Spark, store or clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.decider import MAX_QUEUED_REQUESTS
from dagster_flinkpy.checkpoint.coordinator.instructions import (
    ArmPeriodic,
    ArmTimeout,
    AssignCheckpointId,
    DropSubsumed,
    EmitBarriers,
    FailJob,
    Instruction,
    Rejected,
    ReplaceHead,
    SnapshotCoordinators,
    TriggerMasterHooks,
    WriteMetadata,
)
from dagster_flinkpy.checkpoint.coordinator.messages import (
    CheckpointFailureReason,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatus
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    CheckpointIdAssigned,
    CommitFinished,
    CoordinatorSnapshotted,
    HeadReplaced,
    JobStatusChanged,
    MasterHookFailed,
    MasterStateCollected,
    MetadataWritten,
    PeriodicTick,
    Shutdown,
    TasksRestarted,
    TimerFired,
    TriggerFailed,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.errors import CheckpointError
from tests.checkpoint.coordination import (
    COUNTS,
    JOB,
    PLAN,
    REASON,
    SOURCE,
    TOKEN,
    ack,
    acknowledge_all,
    complete,
    notify_aborted,
    notify_complete,
    notify_subsumed,
    only,
    running,
    state,
    trigger,
)
from tests.checkpoint.samples import metadata

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


def test_tasks_that_run_again_acknowledge_once_more() -> None:
    it = running()
    trigger(it, 0, 1)
    it.handle(ack(1, 1, SOURCE, "old"))
    it.handle(ack(1, 1, COUNTS[0], "counts"))
    assert it.collecting == (1,)
    assert it.handle(TasksRestarted(2, (1,), (SOURCE, COUNTS[1]))) == []
    assert it.handle(ack(3, 1, COUNTS[1], "counts")) == []
    assert it.handle(ack(3, 1, COUNTS[0], "again")) == [], "it has not been withdrawn"
    write = only(it.handle(ack(4, 1, SOURCE, "new")), WriteMetadata)
    assert write.states == {"flights": (state(SOURCE, "new"),), "count": tuple(state(t, "counts") for t in COUNTS)}
    assert it.collecting == ()
    with pytest.raises(CheckpointError, match="checkpoint 1 is WRITING_METADATA, not COLLECTING"):
        it.handle(TasksRestarted(5, (1,), (SOURCE,)))
    for stimulus in (MetadataWritten(6, 1), HeadReplaced(7, 1), CommitFinished(8, 1)):
        it.handle(stimulus)
    (stats,) = it.statistics.history
    assert stats.state_bytes == sum(each.state_bytes for states in write.states.values() for each in states) > 0


def test_completed_checkpoints_over_the_retained_number_are_dropped() -> None:
    coordinator = running(num_retained=2)
    assert complete(coordinator, 10, 1) == []
    assert complete(coordinator, 20, 2) == []
    assert complete(coordinator, 30, 3) == [notify_subsumed(1), DropSubsumed((1,))]


def test_what_was_retained_before_a_restore_is_dropped_too() -> None:
    coordinator = CheckpointCoordinator(
        JOB, TOKEN, PLAN, CoordinatorConfig(num_retained=1), restored=metadata(8), retained=(7, 8)
    )
    assert coordinator.statistics.counts.restored == 1
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
    coordinator = CheckpointCoordinator(JOB, TOKEN, PLAN, CoordinatorConfig())
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
    coordinator = CheckpointCoordinator(JOB, TOKEN, PLAN, CoordinatorConfig(interval=timedelta(seconds=5)))
    assert only(coordinator.handle(JobStatusChanged(1000, True)), ArmPeriodic).at_ms <= 6000
    assert coordinator.handle(JobStatusChanged(2000, True)) == []
    assert coordinator.handle(PeriodicTick(6000)) == [ArmPeriodic(11000), AssignCheckpointId("periodic")]


def test_the_first_periodic_checkpoint_comes_between_the_pause_and_the_interval() -> None:
    config = CoordinatorConfig(interval=timedelta(seconds=60), min_pause=timedelta(seconds=20))
    delays = set()
    for job in range(200):
        for _ in range(2):  # the same for one job and attempt
            coordinator = CheckpointCoordinator(f"job-{job}", TOKEN, PLAN, config)
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
    # The periodic request makes room for a person's. After that, no periodic request is left to make room.
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
    [(SOURCE, "triggering"), (COUNTS[1], "acknowledging"), (Subtask("sink", 0), "committing")],
    ids=["source", "other", "sink"],
)
def test_all_tasks_have_to_run(task: Subtask, purpose: str) -> None:
    coordinator = running(CheckpointPlan((SOURCE,), (SOURCE, *COUNTS), (Subtask("sink", 0),)))
    coordinator.handle(JobStatusChanged(1, True, frozenset({task})))
    rejected = only(coordinator.handle(TriggerRequested(2)), Rejected)
    assert rejected.reason is REASON.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert rejected.message == f"{purpose} task {task.uid}[{task.subtask}] is not running"


def test_before_the_job_runs_nothing_is_triggered() -> None:
    coordinator = CheckpointCoordinator(JOB, TOKEN, PLAN, CoordinatorConfig())
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
        Rejected("a", reason, "timed out", tolerated=True),
        AssignCheckpointId("b"),
    ]
    assert coordinator.handle(TriggerFailed(3, "timed out")) == [
        Rejected("b", reason, "timed out"),
        FailJob(None, reason, "no id is available for a checkpoint: timed out (more than 1 in a row)"),
    ]
    assert coordinator.statistics.counts.failed == 2
    with pytest.raises(CheckpointError, match="nothing asked for one"):
        coordinator.handle(TriggerFailed(4, "timed out"))


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
    coordinator = running(HOOKED, tolerable_failed=1)
    trigger(coordinator, 1, 1)
    coordinator.handle(TriggerRequested(2, request_id="queued"))
    assert coordinator.handle(MasterHookFailed(3, 1, "topic", "no such topic")) == [
        notify_aborted(1, REASON.TRIGGER_CHECKPOINT_FAILURE, tolerated=True),
        AssignCheckpointId("queued"),
    ]
    coordinator.handle(CheckpointIdAssigned(3, 2))
    assert coordinator.handle(MasterHookFailed(3, 2, "topic", "no such topic")) == [
        notify_aborted(2, REASON.TRIGGER_CHECKPOINT_FAILURE),
        FailJob(
            2,
            REASON.TRIGGER_CHECKPOINT_FAILURE,
            "checkpoint 2 failed: master hook 'topic': no such topic (more than 1 in a row)",
        ),
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
        tolerated = reason is REASON.CHECKPOINT_EXPIRED
        assert coordinator.handle(stimulus) == [notify_aborted(1, reason, tolerated=tolerated)]


def test_nothing_is_triggered_while_master_hooks_run() -> None:
    coordinator = running(HOOKED, max_concurrent=2)
    trigger(coordinator, 1, 1)
    assert coordinator.handle(TriggerRequested(2, request_id="b")) == []
    coordinator.handle(MasterStateCollected(3, 1, "topic", None))
    assert coordinator.handle(MasterStateCollected(3, 1, "ledger", None))[-1] == AssignCheckpointId("b")
