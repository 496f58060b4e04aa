"""The outcomes of a triggered checkpoint: one test per rule, on the pure core."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import (
    ArmTimeout,
    AssignCheckpointId,
    CancelSparkJob,
    DiscardState,
    FailJob,
    HandOver,
    Instruction,
    Rejected,
    ReplaceHead,
    WriteMetadata,
)
from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatus
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    Acknowledge,
    AcknowledgedLate,
    CheckpointIdAssigned,
    CommitFinished,
    HeadReplaced,
    JobStatusChanged,
    MetadataWriteFailed,
    MetadataWritten,
    Shutdown,
    TasksRestarted,
    TimerFired,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
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
    decline,
    files,
    notify_aborted,
    notify_complete,
    only,
    running,
    state,
    trigger,
)
from tests.checkpoint.samples import keyed, metadata, operator

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
    assert coordinator.handle(ack(2, 1, Subtask("other", 0), "theirs")) == []
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


def test_what_is_stored_for_no_checkpoint_any_more_is_discarded_unless_another_one_names_it() -> None:
    coordinator = running()
    complete(coordinator, 1, 1, "base")
    trigger(coordinator, 2, 2)
    late = files("base-count-0") | files("late")
    assert coordinator.handle(AcknowledgedLate(3, late)) == [], "checkpoint 2 may name it"
    assert only(coordinator.handle(Shutdown(4)), DiscardState).files == files("late")


def test_a_checkpoint_that_a_task_could_not_store_is_taken_over() -> None:
    coordinator = running(tolerable_failed=1)
    for number in (1, 2):
        trigger(coordinator, number, number)
        acknowledge_all(coordinator, number, number, f"n{number}")
        declined = MetadataWriteFailed(number, number, False, "503", REASON.CHECKPOINT_ASYNC_EXCEPTION)
        told = coordinator.handle(declined)
        assert told[0] == notify_aborted(number, REASON.CHECKPOINT_ASYNC_EXCEPTION, tolerated=number == 1)
    assert only(told, FailJob).message == "checkpoint 2 failed: 503 (more than 1 in a row)"
    second = only(told, DiscardState).files
    assert len(second) == 3
    first = only(coordinator.handle(Shutdown(3)), DiscardState).files
    assert len(first - second) == 3, "nothing takes them over any more"


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
    coordinator = CheckpointCoordinator(JOB, TOKEN, PLAN, CoordinatorConfig(), restored=restored)
    for task in COUNTS:
        assert coordinator.handle(ack(1, 2, task, f"count-{task.subtask}")) == []


def test_files_wait_for_a_moment_without_pending_checkpoints() -> None:
    """A pending checkpoint may still name a file with the same content."""
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


@pytest.mark.parametrize("message", [ack(2, 1, SOURCE, "x", job="other"), ack(2, 1, SOURCE, "x", fencing_token=3)])
def test_messages_of_another_job_or_attempt_are_ignored(message: Acknowledge) -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    assert coordinator.handle(message) == []
    assert coordinator.statistics.history[0].acknowledged == 0
    assert coordinator.handle(decline(3, 1, fencing_token=3)) == []
    assert coordinator.pending == (1,)


def test_a_task_cannot_acknowledge_for_another_subtask() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    message = AcknowledgeCheckpoint(JOB, 1, TOKEN, "count", 0, SubtaskState(1))
    with pytest.raises(CheckpointError, match=r"count\[0\] sent the state of subtask 1"):
        coordinator.handle(Acknowledge(2, message))


# --- declining: the three cases --------------------------------------------------------------------------------------


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
    with pytest.raises(CheckpointError, match=r"flights\[0\] declined checkpoint 1, which all tasks had ack") as caught:
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


ADVICE = ": give epochs less input, or raise the checkpoint timeout"


def test_a_timeout_that_is_not_tolerated_cancels_the_tasks_and_fails_the_job() -> None:
    coordinator = running(timeout=timedelta(seconds=30), tolerable_failed=0)
    trigger(coordinator, 1000, 1)
    coordinator.handle(ack(3000, 1, SOURCE))
    assert coordinator.handle(TimerFired(31_000, 1)) == [
        CancelSparkJob(1),
        notify_aborted(1, REASON.CHECKPOINT_EXPIRED),
        FailJob(1, REASON.CHECKPOINT_EXPIRED, f"checkpoint 1 failed: 1 of 3 tasks answered in 0:00:30{ADVICE}"),
    ]


def test_after_a_timeout_that_is_tolerated_the_tasks_go_on_and_the_next_request_follows() -> None:
    coordinator = running(timeout=timedelta(seconds=30))
    assert ArmTimeout(1, 31_000) in trigger(coordinator, 1000, 1)
    coordinator.handle(TriggerRequested(2000, request_id="queued"))
    coordinator.handle(ack(3000, 1, SOURCE))
    assert coordinator.handle(TimerFired(31_000, 1)) == [
        notify_aborted(1, REASON.CHECKPOINT_EXPIRED, tolerated=True),
        AssignCheckpointId("queued"),
    ]
    assert (coordinator.pending, coordinator.incomplete, coordinator.collecting) == ((), (), (1,))


def expired(**config: Any) -> CheckpointCoordinator:
    """Checkpoint 1 has expired after one of three tasks has acknowledged it."""
    coordinator = running(**config)
    trigger(coordinator, 1, 1)
    coordinator.handle(ack(2, 1, SOURCE, "first"))
    assert coordinator.handle(TimerFired(3, 1)) == [notify_aborted(1, REASON.CHECKPOINT_EXPIRED, tolerated=True)]
    return coordinator


def test_the_next_checkpoint_takes_over_when_all_have_acknowledged_one_that_has_expired() -> None:
    coordinator = expired()
    assert coordinator.handle(ack(4, 1, COUNTS[0], "late")) == []
    (handed_over,) = coordinator.handle(ack(5, 1, COUNTS[1]))
    assert isinstance(handed_over, HandOver)
    assert {uid: len(states) for uid, states in handed_over.states.items()} == {"flights": 1, "count": 2}
    assert coordinator.collecting == ()
    assert coordinator.handle(ack(6, 1, COUNTS[1], "again")) == [DiscardState(files("again", index=1))]
    trigger(coordinator, 7, 2)
    coordinator.handle(ack(8, 2, SOURCE))
    coordinator.handle(ack(8, 2, COUNTS[0], "late"))
    coordinator.handle(ack(8, 2, COUNTS[1]))
    coordinator.handle(MetadataWritten(9, 2))
    discarded = only(coordinator.handle(HeadReplaced(10, 2)), DiscardState)
    assert discarded.files == files("first"), "checkpoint 2 names the others"


def test_what_was_acknowledged_of_an_expired_checkpoint_is_kept_while_one_before_it_completes() -> None:
    coordinator = running(max_concurrent=2)
    trigger(coordinator, 1, 1)
    trigger(coordinator, 1, 2)
    acknowledge_all(coordinator, 2, 1)
    coordinator.handle(MetadataWritten(2, 1))
    coordinator.handle(TimerFired(3, 2))
    acknowledge_all(coordinator, 4, 2, "n")
    assert coordinator.handle(HeadReplaced(5, 1)) == [notify_complete(1)]
    assert coordinator.handle(CommitFinished(6, 1)) == []


def test_tasks_that_hang_behind_an_expired_checkpoint_fail_the_job_after_more_timeouts() -> None:
    coordinator = expired(tolerable_failed=2)
    assert coordinator.handle(TimerFired(4, 1)) == []
    assert coordinator.statistics.counts.failed == 2, "none could be triggered, either"
    cancelled, failed = coordinator.handle(TimerFired(5, 1))
    assert cancelled == CancelSparkJob(1)
    assert isinstance(failed, FailJob)
    assert failed.message == (
        "no checkpoint is possible: 1 of 3 tasks answered checkpoint 1, which has expired (more than 2 in a row)"
    )


def test_tasks_that_hang_are_cancelled_whichever_of_the_expired_checkpoints_they_work_for() -> None:
    coordinator = expired(tolerable_failed=2)
    trigger(coordinator, 4, 2)
    coordinator.handle(TimerFired(5, 2))
    *cancelled, failed = coordinator.handle(TimerFired(6, 2))
    assert cancelled == [CancelSparkJob(1), CancelSparkJob(2)]
    assert isinstance(failed, FailJob)
    assert (failed.checkpoint_id, "checkpoint 1, which has expired" in failed.message) == (1, True)


def test_a_later_checkpoint_that_is_pending_expires_by_itself() -> None:
    coordinator = expired(tolerable_failed=1)
    trigger(coordinator, 4, 2)
    assert coordinator.handle(TimerFired(5, 1)) == []
    *_, cancelled, failed = coordinator.handle(TimerFired(6, 2))
    assert cancelled == CancelSparkJob(1), "nothing takes over from it"
    assert isinstance(failed, FailJob)


def test_tasks_that_start_again_acknowledge_an_expired_checkpoint_again() -> None:
    coordinator = expired()
    coordinator.handle(TasksRestarted(4, (1,), (SOURCE,)))
    assert coordinator.handle(ack(5, 1, COUNTS[0])) == coordinator.handle(ack(5, 1, COUNTS[1])) == []
    assert isinstance(coordinator.handle(ack(6, 1, SOURCE))[0], HandOver)


def test_nothing_takes_over_from_an_expired_checkpoint_once_the_job_fails() -> None:
    coordinator = expired()
    cancelled, discarded = coordinator.handle(JobStatusChanged(4, running=False))
    assert cancelled == CancelSparkJob(1)
    assert discarded == DiscardState(files("first"))


def test_the_timeout_does_not_touch_a_checkpoint_that_is_being_written() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1)
    assert coordinator.handle(TimerFired(600_001, 1)) == []
    assert coordinator.handle(MetadataWritten(600_002, 1)) == [ReplaceHead(1)]


def test_state_is_discarded_if_the_metadata_certainly_was_not_written_and_the_job_fails() -> None:
    coordinator = running(tolerable_failed=0)
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    failed = coordinator.handle(MetadataWriteFailed(3, 1, unknown_outcome=False))
    assert failed[0] == notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE)
    assert len(only(failed, DiscardState).files) == 3


def fail_to_write(coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, *names: str) -> list[Instruction]:
    """Takes a checkpoint up to its metadata, which cannot be written. The state of each task has some files."""
    trigger(coordinator, now, checkpoint_id)
    for task in (SOURCE, *COUNTS):
        state = SubtaskState(task.subtask, keyed=keyed(*names, index=task.subtask))
        message = AcknowledgeCheckpoint(JOB, checkpoint_id, TOKEN, task.uid, task.subtask, state)
        coordinator.handle(Acknowledge(now, message))
    return coordinator.handle(MetadataWriteFailed(now, checkpoint_id, unknown_outcome=False))


def test_state_that_the_next_checkpoint_continues_from_is_kept_until_that_one_is_complete() -> None:
    coordinator = running(num_retained=2)
    coordinator.handle(JobStatusChanged(0, True))
    trigger(coordinator, 1, 1)
    for task in (SOURCE, *COUNTS):
        coordinator.handle(ack(1, 1, task, "first"))
    coordinator.handle(MetadataWritten(1, 1))
    coordinator.handle(HeadReplaced(1, 1))
    coordinator.handle(CommitFinished(1, 1))
    tolerated = notify_aborted(2, REASON.FINALIZE_CHECKPOINT_FAILURE, tolerated=True)
    assert fail_to_write(coordinator, 2, 2, "first", "second", "third") == [tolerated]
    trigger(coordinator, 3, 3)
    for task in (SOURCE, *COUNTS):
        coordinator.handle(ack(3, 3, task, "second"))
    coordinator.handle(MetadataWritten(3, 3))
    replaced = coordinator.handle(HeadReplaced(3, 3))
    third = frozenset(path for i in (0, 1) for path in keyed("third", index=i).files())
    assert only(replaced, DiscardState).files == third, "checkpoint 1 is retained, and names the first file"


def test_failures_that_lose_nothing_are_tolerated_as_often_as_the_job_says() -> None:
    coordinator = running(tolerable_failed=1)
    (aborted,) = fail_to_write(coordinator, 1, 1)
    assert aborted == notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE, tolerated=True)
    assert complete(coordinator, 2, 2) == []
    fail_to_write(coordinator, 3, 3)
    failed = fail_to_write(coordinator, 4, 4)
    assert failed[0] == notify_aborted(4, REASON.FINALIZE_CHECKPOINT_FAILURE)
    assert only(failed, FailJob).message.endswith("(more than 1 in a row)")


def test_a_checkpoint_that_the_job_stops_with_is_not_taken_over() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1, kind=CheckpointKind.SAVEPOINT, stop=True)
    acknowledge_all(coordinator, 2, 1)
    failed = coordinator.handle(MetadataWriteFailed(3, 1, unknown_outcome=False))
    assert failed == [notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE)]


def test_state_is_kept_if_the_outcome_of_writing_the_metadata_is_unknown() -> None:
    coordinator = running()
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    failed = coordinator.handle(MetadataWriteFailed(4, 1, unknown_outcome=True))
    assert failed == [notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE, tolerated=True)]
    complete(coordinator, 5, 2)
    assert coordinator.handle(Shutdown(5)) == []


def test_if_nobody_knows_whether_head_moved_the_job_fails_and_nothing_is_aborted() -> None:
    coordinator = running(tolerable_failed=5)
    trigger(coordinator, 1, 1)
    acknowledge_all(coordinator, 2, 1, "n")
    coordinator.handle(MetadataWritten(3, 1))
    assert coordinator.handle(MetadataWriteFailed(4, 1, unknown_outcome=True, cause="timed out")) == [
        FailJob(1, REASON.FINALIZE_CHECKPOINT_FAILURE, "it is unknown whether checkpoint 1 is complete: timed out")
    ]
    assert coordinator.statistics.counts.failed == 1
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
    assert failed == [notify_aborted(1, REASON.FINALIZE_CHECKPOINT_FAILURE, tolerated=True), ReplaceHead(2)]
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
    acknowledge_all(coordinator, 4, 1)  # its metadata is being written
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


@pytest.mark.parametrize(("barriers", "delays"), [((130, 120), [30, 20]), ((130, 90), [30, 0])])
def test_the_start_delay_is_the_time_until_a_task_sees_the_barrier(
    barriers: tuple[int, int], delays: list[int]
) -> None:
    """The clock of another machine may be late."""
    coordinator = running(CheckpointPlan((SOURCE,), COUNTS, COUNTS))
    trigger(coordinator, 100, 1)
    told = list[Any]()
    for task, barrier_ms in zip(COUNTS, barriers, strict=True):
        state = SubtaskState(task.subtask, metrics={"records_in": 1, "barrier_ms": barrier_ms})
        told += coordinator.handle(
            Acknowledge(150, AcknowledgeCheckpoint(JOB, 1, TOKEN, task.uid, task.subtask, state))
        )
    [written] = told
    metrics = [each.metrics for each in written.states[COUNTS[0].uid]]
    assert metrics == [{"records_in": 1, "start_delay_ms": delay} for delay in delays]
    assert coordinator.statistics.history[0].start_delay_ms == max(delays)


def test_story_and_history_are_bounded() -> None:
    coordinator = running()
    for checkpoint_id in range(1, 200):
        complete(coordinator, checkpoint_id, checkpoint_id)
    assert len(coordinator.story) == 50
    assert [s.checkpoint_id for s in coordinator.statistics.history] == list(range(100, 200))
    assert coordinator.statistics.counts.completed == 199
