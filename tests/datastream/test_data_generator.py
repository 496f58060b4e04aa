"""Generated records: by index, at a rate, and the same again after a failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import DataGeneratorSource, RateLimiterStrategy, data_generator
from dagster_flinkpy.datastream.connectors.base import SplitEnumerator
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.testing import run_local


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(data_generator, "steady_millis", clock)
    return clock


def source(count: int | None, rate: float | None = None, **options: Any) -> DataGeneratorSource:
    strategy = None if rate is None else RateLimiterStrategy.per_second(rate)
    return DataGeneratorSource(lambda i: f"r{i}", count, strategy, Types.STRING(), **options)


def epoch(of: DataGeneratorSource, enumerator: SplitEnumerator, parallelism: int = 2) -> list[str]:
    plan = enumerator.plan_epoch(parallelism)
    assert len(plan) == parallelism
    enumerator.on_epoch_read([replace(split, finished=True) for share in plan for split in share])
    return [row for share in plan for split in share for column, _ in of.read(split) for row in column.to_pylist()]


def test_a_count_ends(clock: Clock) -> None:
    of = source(20_000)
    enumerator = of.create_enumerator(None)
    assert epoch(of, enumerator) == [f"r{i}" for i in range(20_000)]
    assert enumerator.exhausted


def test_the_rate_holds_whenever_an_epoch_begins(clock: Clock) -> None:
    of = source(None, 2.5)
    enumerator, sizes = of.create_enumerator(None), []
    for later in (0, 400, 599, 1, 0, 10_000, -5_000, 6_000):
        clock.now += later
        sizes.append(len(epoch(of, enumerator)))
        position = json.loads(json.dumps(enumerator.snapshot_state()))
        enumerator = of.create_enumerator(position)  # a job that was stopped catches up
    assert sizes == [3, 0, 0, 2, 0, 25, 0, 3]
    assert not enumerator.exhausted


def test_an_epoch_ends_at_its_limit_and_the_rest_is_the_lag(clock: Clock) -> None:
    of = source(25, 10, max_records_per_epoch=8)
    enumerator = of.create_enumerator(None)
    clock.now += 1
    assert epoch(of, enumerator) == [f"r{i}" for i in range(8)]
    clock.now += 60_000
    lags = []
    while not enumerator.exhausted:
        epoch(of, enumerator)
        lag = enumerator.lag()
        lags.append(lag and lag.records)
    assert lags == [9, 1, 0]
    endless = source(None, max_records_per_epoch=3)
    enumerator = endless.create_enumerator(None)
    assert [epoch(endless, enumerator) for _ in range(2)] == [["r0", "r1", "r2"], ["r3", "r4", "r5"]]


def test_a_replay_gives_the_same_records(clock: Clock) -> None:
    of = source(None, 7)
    enumerator = of.create_enumerator(None)
    epoch(of, enumerator)
    position = json.loads(json.dumps(enumerator.snapshot_state()))
    clock.now += 3_000
    plan = enumerator.plan_epoch(2)
    again = of.create_enumerator(position).plan_epoch(2)
    assert again == plan
    [[first, *_], _] = again
    assert next(iter(of.read(first.advanced(first.offset + 4, finished=False))))[0].to_pylist()[0] == "r11"


def test_what_was_planned_and_not_read_is_planned_again(clock: Clock) -> None:
    of = source(5, 3)
    enumerator = of.create_enumerator(None)
    assert [split.split_id for share in enumerator.plan_epoch(1) for split in share] == ["0-3"]
    restored = of.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    clock.now += 1_000
    assert [split.split_id for share in restored.plan_epoch(1) for split in share] == ["0-5"]
    assert enumerator.plan_epoch(1) == restored.plan_epoch(1)
    assert restored.exhausted
    assert restored.snapshot_state()["ended"] is False
    restored.on_epoch_read([replace(split, finished=True) for split in restored.plan_epoch(1)[0]])
    assert restored.snapshot_state()["ended"] is True


def test_records_after_the_end_are_named(clock: Clock) -> None:
    of = source(5)
    enumerator = of.create_enumerator(None)
    epoch(of, enumerator)
    restored = source(8).create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    assert restored.exhausted
    assert restored.unread() == ["3 record(s) of the collection"]


def test_a_slice_that_was_planned_and_not_read_is_planned_again() -> None:
    numbers = CollectionSource(list(range(5)), Types.LONG(), records_per_epoch=3)
    enumerator = numbers.create_enumerator(None)
    [[split]] = enumerator.plan_epoch(1)
    assert split.split_id == "0-3"
    restored = numbers.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
    assert restored.plan_epoch(1) == [[split]]


def test_a_job_at_a_rate_waits_for_its_records() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = DataGeneratorSource(lambda i: i, 300, RateLimiterStrategy.per_second(200), Types.LONG())
    stream = env.from_source(numbers, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    assert run_local(env, stream) == [list(range(300))]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: source(0), "count=0"),
        (lambda: source(None), "would never end its first epoch"),
        (lambda: source(1, 0), "must be positive"),
        (lambda: source(1, max_records_per_epoch=0), "max_records_per_epoch=0"),
        (lambda: DataGeneratorSource("x", 1, None, Types.LONG()), "needs a function"),  # type: ignore[arg-type]
        (lambda: DataGeneratorSource(lambda i: i, 1), "type_info of DataGeneratorSource"),
        (lambda: DataGeneratorSource(lambda i: i, 1, 5, Types.LONG()), "rate_limiter"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()
