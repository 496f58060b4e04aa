from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.statistics import (
    CheckpointStatistics,
    CheckpointStats,
    CheckpointStatus,
    Summary,
)
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

DONE = CheckpointStats(
    checkpoint_id=1,
    kind=CheckpointKind.CHECKPOINT,
    status=CheckpointStatus.COMPLETED,
    trigger_ms=1000,
    duration_ms=20,
    acknowledged=3,
    tasks=3,
    state_bytes=500,
    alignment_ms=4,
)
PHASES = CheckpointPhases(3, 5, 400, 7, 9, 20, 10, 40, 500, 600, 650)
FAILED = replace(DONE, status=CheckpointStatus.FAILED, reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)


def test_counts_and_history() -> None:
    statistics = CheckpointStatistics()
    statistics.record_restore()
    statistics.record(replace(DONE, status=CheckpointStatus.IN_PROGRESS))
    assert [s.status for s in statistics.history] == [CheckpointStatus.IN_PROGRESS]
    statistics.record(DONE)
    statistics.record(replace(FAILED, checkpoint_id=2))
    statistics.record_failure()
    assert (statistics.counts.completed, statistics.counts.failed, statistics.counts.restored) == (1, 2, 1)
    assert [s.checkpoint_id for s in statistics.history] == [1, 2]


def test_a_summary_is_of_what_completed() -> None:
    statistics = CheckpointStatistics()
    assert statistics.summary("duration_ms") is None
    statistics.record(replace(FAILED, duration_ms=9999))
    for number in (30, 10, 20):
        statistics.record(replace(DONE, duration_ms=number, state_bytes=number * 2, alignment_ms=number // 10))
    assert statistics.summary("duration_ms") == Summary(last=20, minimum=10, maximum=30, p50=20, p99=30)
    assert statistics.summary("state_bytes") == Summary(last=40, minimum=20, maximum=60, p50=40, p99=60)
    assert statistics.summary("alignment_ms") == Summary(last=2, minimum=1, maximum=3, p50=2, p99=3)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_percentiles_are_the_least_values_that_enough_do_not_exceed(values: list[int]) -> None:
    summary = Summary.of(values)
    for share, found in ((50, summary.p50), (99, summary.p99)):
        assert found in values
        assert sum(value <= found for value in values) >= ceil(len(values) * share / 100)
        assert sum(value < found for value in values) < len(values) * share / 100
    assert (summary.last, summary.minimum, summary.maximum) == (values[-1], min(values), max(values))


def test_the_next_attempt_goes_on_with_them() -> None:
    statistics = CheckpointStatistics()
    for checkpoint_id in range(1, 150):
        statistics.record(replace(DONE, checkpoint_id=checkpoint_id))
    statistics.record_phases(149, PHASES)
    statistics.record_phases(9, PHASES)  # it is no longer in the history
    statistics.record(replace(FAILED, checkpoint_id=150))
    statistics.record(replace(DONE, checkpoint_id=151, status=CheckpointStatus.IN_PROGRESS))
    again = CheckpointStatistics.from_json(json.loads(json.dumps(statistics.to_json())))
    assert again.counts == statistics.counts
    assert again.history == statistics.history[:-1]
    assert len(again.history) == 100
    assert [s.checkpoint_id for s in again.history if s.phases == PHASES] == [149]


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        {},
        {"version": 2},
        {"version": 1, "counts": {"x": 1}, "history": []},
        {"version": 1, "counts": {}, "history": [{}]},
    ],
)
def test_damaged_statistics_are_forgotten(damaged: object) -> None:
    assert CheckpointStatistics.from_json(damaged).history == ()
