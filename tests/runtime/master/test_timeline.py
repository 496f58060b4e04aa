from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases, CheckpointTimeline
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.errors import StorageError
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

IN_TURN = ("trigger_ms", "plan_ms", "spark_ms", "metadata_ms", "head_ms", "commit_ms")


class Clock:
    ms = 1_000

    def __call__(self) -> int:
        return self.ms


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=6, max_size=6))
def test_phases_and_waiting_add_up_to_the_whole(life: list[tuple[int, int]]) -> None:
    clock = Clock()
    timeline = CheckpointTimeline(clock)
    expected, waiting = dict[str, int](), 0
    for i, (phase, (before, during)) in enumerate(zip(IN_TURN, life, strict=True)):
        clock.ms += before
        waiting += before if i else 0
        with timeline.measured(phase, 7):
            clock.ms += during
        expected[phase] = during
    phases = timeline.committed(7)
    assert {name: getattr(phases, name) for name in IN_TURN} == expected
    assert (phases.waiting_ms, phases.total_ms) == (waiting, waiting + sum(expected.values()))


def test_the_longest_snapshot_counts_and_regions_are_added_up() -> None:
    clock = Clock()
    timeline = CheckpointTimeline(clock)
    for sync_us, async_us in ((2_000, 30_000), (4_000, 10_000)):
        with timeline.measured("spark_ms", 2):
            clock.ms += 100
        state = SubtaskState(0, metrics={"sync_us": sync_us, "async_us": async_us})
        timeline.acknowledged(2, [state, SubtaskState(1)])
    assert timeline.committed(2) == CheckpointPhases(spark_ms=200, sync_ms=4, async_ms=30, total_ms=200)


def test_the_latency_is_from_the_source_to_the_commit() -> None:
    clock = Clock()
    timeline = CheckpointTimeline(clock)
    timeline.add("trigger_ms", 1, clock())
    for first in (0, 50):  # of two sinks
        timeline.marked(1, range(first + 1, first + 51))
    clock.ms = 1_100
    phases = timeline.committed(1)
    assert (phases.latency_ms_p50, phases.latency_ms_p99) == (1_049, 1_098)
    assert timeline.committed(1).latency_ms_p50 is None


def test_a_phase_that_fails_has_taken_its_time_and_a_clock_that_is_set_back_takes_none() -> None:
    clock = Clock()
    timeline = CheckpointTimeline(clock)
    with pytest.raises(StorageError), timeline.measured("metadata_ms", 1):
        clock.ms += 7
        raise StorageError("the store is away")
    with timeline.measured("head_ms", 1):
        clock.ms -= 500
    assert timeline.committed(1) == CheckpointPhases(metadata_ms=7)


def test_each_checkpoint_of_a_job_has_its_phases(tmp_path: Path) -> None:
    records = [(f"k{i}", i, i) for i in range(8)]
    graph = collect_graph(events(environment(), records, per_epoch=2).key_by("key").process(CountPerKey(), COUNTED))
    with HarnessAttempt(graph, tmp_path, require_uids=False) as attempt:
        epoch = list(attempt.run_epochs(3))[-1]
    phases = [stats.phases for stats in epoch.statistics.history]
    assert len(phases) == 3
    for each in phases:
        assert each is not None
        assert each.total_ms >= each.spark_ms > 0
    assert epoch.metrics.job["lastCheckpointSparkDuration"] == phases[-1].spark_ms
    assert epoch.metrics is epoch.metrics, "computed once: each asset of the job asks for them"
