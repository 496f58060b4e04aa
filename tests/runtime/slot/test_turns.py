"""Turns: how the tasks of a slot share its time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.slot import deployment
from dagster_flinkpy.runtime.slot.deployment import _TURN_SECONDS, Turns
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph
from tests.runtime.programs import EVENT, CollectionSource, environment

COSTS = st.lists(st.sampled_from([0.0, 0.001, 0.05, 0.3, 0.9]), min_size=1, max_size=5)


def rounds(turns: Turns, tasks: list[Any], costs: list[float], number: int) -> list[list[int]]:
    """Returns the tasks that have run in each of some rounds. All have something to do."""
    ran = list[list[int]]()
    for _ in range(number):
        turns.next_round()
        ran.append([])
        for i, (task, cost) in enumerate(zip(tasks, costs, strict=True)):
            if turns.has_turn(task):
                ran[-1].append(i)
                turns.took(task, cost)
        assert turns.any_ready
    return ran


@given(COSTS)
def test_tasks_that_always_have_something_to_do_get_the_same_time(costs: list[float]) -> None:
    turns, tasks = Turns(), [SimpleNamespace(seconds_had=0.0) for _ in costs]
    ran = rounds(turns, tasks, costs, 3000)
    assert all(ran[i] or ran[i + 1] for i in range(len(ran) - 1))
    had = [cost * sum(i in each for each in ran) for i, cost in enumerate(costs)]
    assert max(had) - min(had) <= max(costs) + 2 * _TURN_SECONDS


@given(COSTS, st.integers(20, 60))
def test_time_without_anything_to_do_is_not_made_up_for(costs: list[float], before: int) -> None:
    turns, tasks = Turns(), [SimpleNamespace(seconds_had=0.0) for _ in costs]
    rounds(turns, tasks, costs, before)
    late = SimpleNamespace(seconds_had=0.0)
    ran = rounds(turns, [late, *tasks], [0.95, *costs], 100)
    assert not any(each == [0] and ran[i + 1] == [0] for i, each in enumerate(ran[:-1]))


def test_a_step_that_takes_very_long_is_not_paid_back_for_as_long() -> None:
    turns, tasks = Turns(), [SimpleNamespace(seconds_had=0.0) for _ in range(2)]
    rounds(turns, tasks, [3600.0, 0.01], 1)
    ran = rounds(turns, tasks, [0.0, 0.01], 100)
    assert any(0 in each for each in ran)


def test_a_slow_function_does_not_hold_up_another_pipeline_in_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slow call takes a second, and nothing else takes time."""
    calls = tmp_path / "calls"
    calls.touch()

    def note(what: str) -> None:
        with calls.open("a") as file:
            file.write(f"{what}\n")

    def slow(event: Any) -> Any:
        note("slow")
        return event

    def fast(event: Any) -> Any:
        note("fast")
        return event

    seconds = SimpleNamespace(monotonic=lambda: float(calls.read_text().count("slow")))
    monkeypatch.setattr(deployment, "time", seconds)
    monkeypatch.setattr("dagster_flinkpy.runtime.shuffle.record_writer.BUFFER_SIZE", 1)
    monkeypatch.setattr("dagster_flinkpy.runtime.task.operator_task._JOINED_SIZE", 1)
    env = environment(1)
    ends = []
    for name, function, records in (("slow", slow, 100), ("fast", fast, 200)):
        source = CollectionSource([("a", i, i) for i in range(records)], EVENT, batch_size=1)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
        ends.append(stream.rebalance().map(function, EVENT).uid(f"{name}-function").rebalance())
    graph = collect_graph(ends[0].union(ends[1]))
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
    seen = calls.read_text().split()
    assert seen.count("slow") > 2
    assert "fast" not in seen[seen.index("slow", seen.index("slow") + 1) :], "all of it has come between two slow calls"
