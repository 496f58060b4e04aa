"""Event time of operators with several inputs: what holds it back, what is idle, and where it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction
from tests.runtime.harness import collect_graph, collected, make_job, run_epoch, run_job
from tests.runtime.programs import COUNTED, EVENT, Sessions, TimerPerRecord, environment, event_time, events

TIMES = [("a", t, 0) for t in range(0, 100, 10)]


def fired_before_the_end(
    first: list[Any],
    second: list[Any],
    folder: Path,
    strategy: WatermarkStrategy | None = None,
    assigned: WatermarkStrategy | None = None,
    beside: WatermarkStrategy | None = None,
) -> list[int]:
    """Returns the timers that fire in the first epoch of two inputs that have a second epoch.

    ``strategy`` is that of the second source; ``assigned`` that of an operator behind it; ``beside`` that of an
    operator behind it from which nobody reads.
    """
    env = environment()
    more = [("a", 1000, 0)] * 10
    left = events(env, [*first, *more], uid="left", per_epoch=len(first))
    right = events(env, [*second, *more], uid="right", per_epoch=len(second), strategy=strategy)
    if beside is not None:
        right.assign_timestamps_and_watermarks(beside).uid("beside").print()
    if assigned is not None:
        right = right.filter(lambda event: True).uid("all").assign_timestamps_and_watermarks(assigned).uid("times")
    stream = left.connect(right).key_by("key", "key").process(TimerPerRecord(), COUNTED).uid("both")
    graph = collect_graph(stream)
    results = run_epoch(make_job(graph, folder))
    assert results.failure is None
    return [timestamp for _, timestamp, _ in collected(graph, results.collected)]


def test_event_time_of_two_inputs_is_the_lesser_one(tmp_path: Path) -> None:
    assert fired_before_the_end(TIMES, TIMES[:6], tmp_path) == sorted([0, 10, 20, 30, 40])


def test_a_source_without_input_holds_the_other_back(tmp_path: Path) -> None:
    assert fired_before_the_end(TIMES, [], tmp_path) == []


def test_an_idle_source_does_not_hold_the_other_back(tmp_path: Path) -> None:
    idle = event_time().with_idleness(Duration.of_minutes(1))
    assert fired_before_the_end(TIMES, [], tmp_path, idle) == list(range(0, 90, 10))


def test_an_operator_that_assigns_event_time_and_is_idle_does_not_hold_the_other_back(tmp_path: Path) -> None:
    silent, idle = WatermarkStrategy.no_watermarks(), event_time().with_idleness(Duration.of_minutes(1))
    assert fired_before_the_end(TIMES, [], tmp_path / "idle", silent, idle) == list(range(0, 90, 10))
    assert fired_before_the_end(TIMES, [], tmp_path / "waits", silent, event_time()) == []
    never = silent.with_idleness(Duration.of_minutes(1))
    assert fired_before_the_end(TIMES, [], tmp_path / "never", silent, never) == list(range(0, 90, 10))


def test_a_source_is_not_idle_as_soon_as_it_is_read_if_its_records_get_event_time_later(tmp_path: Path) -> None:
    idle = WatermarkStrategy.no_watermarks().with_idleness(Duration.of_minutes(1))
    assert fired_before_the_end(TIMES, TIMES[:6], tmp_path, idle, event_time()) == sorted([0, 10, 20, 30, 40])


def test_the_idle_timeout_of_one_operator_does_not_count_for_another_one_that_reads_the_same(tmp_path: Path) -> None:
    silent, idle = WatermarkStrategy.no_watermarks(), event_time().with_idleness(Duration.of_minutes(1))
    assert fired_before_the_end(TIMES, [], tmp_path / "other", silent, event_time(), idle) == []
    assert fired_before_the_end(TIMES, [], tmp_path / "source", event_time(), None, idle) == []


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_source_without_event_time_holds_the_other_back_while_it_is_read(tmp_path: Path, parallelism: int) -> None:
    """This holds with an idle timeout. Without one, it holds event time back forever, as in Flink."""
    for idle, expected in ((True, list(range(0, 90, 10))), (False, [])):
        strategy = WatermarkStrategy.no_watermarks()
        strategy = strategy.with_idleness(Duration.of_millis(1)) if idle else strategy
        env = environment(parallelism)
        left = events(env, [*TIMES, ("a", 1000, 0)], uid="left", per_epoch=len(TIMES)).set_parallelism(1)
        table = events(env, [("a", 0, 0)] * 4, uid="table", per_epoch=2, strategy=strategy)
        stream = left.connect(table).key_by("key", "key").process(TimerPerRecord(), COUNTED).uid("both")
        graph = collect_graph(stream)
        results = run_epoch(make_job(graph, tmp_path / str(idle)))
        assert results.failure is None
        assert [timestamp for _, timestamp, _ in collected(graph, results.collected)] == expected


def test_idleness_passes_through_chains_and_shuffles(tmp_path: Path) -> None:
    env = environment(2)
    # The second subtask of the source has nothing to read in the first epoch.
    stream = events(env, [("a", 10, 0), ("a", 1000, 0)], per_epoch=1).map(lambda v: v, EVENT).uid("map")
    stamped = stream.assign_timestamps_and_watermarks(event_time().with_timestamp_assigner("time")).uid("time")

    class WatermarkSeen(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(5)

        def on_timer(self, timestamp, ctx):
            yield ctx.timer_service().current_watermark()

    graph = collect_graph(stamped.key_by("key").process(WatermarkSeen(), Types.LONG()).uid("seen"))
    results = run_epoch(make_job(graph, tmp_path))
    assert collected(graph, results.collected) == [9]


def test_timers_of_an_epoch_fire_in_a_later_one_at_another_parallelism(tmp_path: Path) -> None:
    records = [(f"k{i}", i, i) for i in range(20)] + [("z", 5000, 1)] * 2
    stream = events(environment(2), records, per_epoch=20).key_by("key").process(Sessions(1000), COUNTED).uid("s")
    assert sorted(run_job(collect_graph(stream), tmp_path, rescale_at={1: 3})) == sorted(
        [(f"k{i}", 1, i) for i in range(20)] + [("z", 2, 2)]
    )


def test_an_input_that_ended_epochs_ago_does_not_hold_the_other_back(tmp_path: Path) -> None:
    env = environment()
    ended = events(env, TIMES[:3], uid="ended").map(lambda v: v, EVENT).uid("map")
    lasting = events(env, TIMES, uid="lasting", per_epoch=2)
    stream = ended.connect(lasting).key_by("key", "key").process(TimerPerRecord(), COUNTED).uid("both")
    timers = [timestamp for _, timestamp, _ in run_job(collect_graph(stream), tmp_path)]
    assert sorted(timers) == sorted({time for _, time, _ in TIMES})
