from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStats, CheckpointStatus
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.job_metrics import TIMES, job_metrics, operator_metrics, per_second
from tests.checkpoint.samples import metadata as sample

TIME = st.integers(0, 10**12)


@given(st.tuples(TIME, TIME, TIME))
def test_the_times_of_a_second_add_up(durations: tuple[int, int, int]) -> None:
    shares = per_second(durations)
    whole = sum(durations)
    assert sum(shares) == 1000
    if whole:
        assert all(abs(share - duration * 1000 / whole) < 1 for share, duration in zip(shares, durations, strict=True))


def subtask(index: int, watermark: int | None = None, **metrics: float) -> SubtaskState:
    return SubtaskState(index, watermark=watermark, metrics=metrics)


def test_an_operator_has_the_sum_the_slowest_event_time_and_the_longest_wait_of_its_subtasks() -> None:
    slow = subtask(0, 70, records_in=3, bytes_in=10, busy_us=900, idle_us=100, input_watermark=80, watermark_lag_ms=9)
    fast = subtask(
        1,
        90,
        records_in=4,
        bytes_in=20,
        busy_us=100,
        idle_us=600,
        back_pressured_us=300,
        alignment_ms=2,
        start_delay_ms=5,
    )
    found = operator_metrics(OperatorState("count", "Count", 2, 16, subtasks=(slow, fast)))
    assert found.total == {
        "numRecordsIn": 7,
        "numBytesIn": 30,
        "numRecordsInPerSecond": 7_000,
        "numBytesInPerSecond": 30_000,
        "currentInputWatermark": 80,
        "currentOutputWatermark": 70,
        "watermarkLag": 9,
        "checkpointAlignmentTime": 2_000_000,
        "checkpointStartDelayNanos": 5_000_000,
        **dict(zip(TIMES, (500, 350, 150), strict=True)),
    }
    assert [[each[name] for name in TIMES] for each in found.subtasks] == [[900, 100, 0], [100, 600, 300]]


def test_a_checkpoint_of_an_older_release_has_what_it_has() -> None:
    found = operator_metrics(OperatorState("count", "Count", 1, 16, subtasks=(subtask(0, records_in=3),)))
    assert found.total == {"numRecordsIn": 3}
    assert operator_metrics(OperatorState("count", "Count", 1, 16, ())).total == {}


def test_the_job_says_how_many_tasks_found_their_state_on_their_machine() -> None:
    stayed, moved = subtask(0, cache_hits=3, cache_misses=0), subtask(1, cache_hits=1, cache_misses=2)
    new = subtask(0, cache_hits=0, cache_misses=0)
    tasks = {"a": (stayed, moved), "b": (new, subtask(1))}
    operators = tuple(OperatorState(uid, uid, 2, 16, subtasks=each) for uid, each in tasks.items())
    found = job_metrics(replace(sample(), operators=operators), CheckpointStatistics())
    assert (found.job["localStateTasks"], found.job["localStateTaskHits"]) == (2, 1)
    totals = [(each.total.get("localStateHits"), each.total.get("localStateMisses")) for each in found.operators]
    assert totals == [(4, 2), (0, 0)]


def test_metrics_of_functions_keep_their_names() -> None:
    metrics = {"user.odd": 2, "user_max.keys": 5}
    found = operator_metrics(OperatorState("count", "Count", 1, 16, subtasks=(SubtaskState(0, metrics=metrics),)))
    assert (found.total, found.user) == ({}, {"odd": 2, "keys": 5})


def test_the_job_has_counts_and_the_last_checkpoint() -> None:
    statistics = CheckpointStatistics()
    done = CheckpointStats(7, CheckpointKind.CHECKPOINT, CheckpointStatus.COMPLETED, 0, 20, 3, 3, 500, 4)
    for checkpoint_id, duration_ms in ((6, 10), (7, 20)):
        statistics.record(replace(done, checkpoint_id=checkpoint_id, duration_ms=duration_ms))
    statistics.record_phases(7, CheckpointPhases(1, 2, 30, 4, 5, 6, 7, 8, 60, 90, 99))
    statistics.record_restarts(3, 1)
    statistics.record_failure()
    statistics.record(replace(done, checkpoint_id=8, status=CheckpointStatus.IN_PROGRESS))
    metadata = replace(sample(), checkpoint_id=7)
    found = job_metrics(metadata, statistics)
    assert (found.job_id, found.checkpoint_id) == (metadata.job_id, 7)
    assert found.job == {
        "lastCompletedCheckpointId": 7,
        "lastCheckpointSize": 0,
        "lastCheckpointFullSize": metadata.state_bytes,
        "lastCheckpointDuration": 20,
        "lastCheckpointTriggerDuration": 1,
        "lastCheckpointPlanDuration": 2,
        "lastCheckpointSparkDuration": 30,
        "lastCheckpointSnapshotDuration": 4,
        "lastCheckpointUploadDuration": 5,
        "lastCheckpointMetadataDuration": 6,
        "lastCheckpointHeadDuration": 7,
        "lastCheckpointCommitDuration": 8,
        "lastCheckpointWaitingDuration": 6,
        "sourceToCommitLatency.p50": 90,
        "sourceToCommitLatency.p99": 99,
        "numberOfCompletedCheckpoints": 2,
        "numberOfFailedCheckpoints": 1,
        "numberOfInProgressCheckpoints": 1,
        "totalNumberOfCheckpoints": 4,
        "numRestarts": 3,
        "fullRestarts": 1,
    }
