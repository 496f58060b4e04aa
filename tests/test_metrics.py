from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.metrics import MetricGroup, user_metrics


def test_values_are_named_by_their_groups() -> None:
    group = MetricGroup()
    counter = group.counter("seen")
    counter.inc(5)
    counter.dec()
    inner = group.add_group("types", "late")
    meter = inner.meter("events")
    meter.mark_event()
    meter.mark_event(2)
    size = [1]
    inner.gauge("size", lambda: size[0])
    size[0] = 9
    assert (counter.get_count(), meter.get_count()) == (4, 3)
    assert group.values() == {"seen": 4, "types.late.events": 3, "types.late.size": 9}
    assert group.add_group("types") is group.add_group("types")


def test_a_distribution_without_numbers_has_no_least_one() -> None:
    group = MetricGroup()
    distribution = group.distribution("size")
    assert group.values() == {"size.count": 0, "size.sum": 0}
    for value in (3, 1, 5):
        distribution.update(value)
    assert group.values() == {"size.count": 3, "size.sum": 9, "size.min": 1, "size.max": 5}


def test_values_are_taken_once() -> None:
    group = MetricGroup()
    counter, distribution = group.counter("seen"), group.add_group("types").distribution("size")
    group.gauge("open", lambda: 7)
    group.gauge("rate", lambda: float("nan"))
    counter.inc(2)
    distribution.update(3)
    assert group.take() == {
        "user.seen": 2,
        "user_max.open": 7,
        "user.types.size.count": 1,
        "user.types.size.sum": 3,
        "user_min.types.size.min": 3,
        "user_max.types.size.max": 3,
    }
    assert group.take() == {
        "user.seen": 0,
        "user_max.open": 7,
        "user.types.size.count": 0,
        "user.types.size.sum": 0,
    }


@pytest.mark.parametrize("value", [None, "7"])
def test_a_gauge_returns_a_number(value: object) -> None:
    group = MetricGroup()
    group.gauge("open", lambda: value)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeMismatchError, match="gauge 'open' returned"):
        group.take()


def test_numbers_of_numpy_are_plain_ones() -> None:
    group = MetricGroup()
    group.gauge("open", lambda: np.int64(7))
    group.gauge("rate", lambda: np.float32(0.5))
    assert json.dumps(group.take()) == '{"user_max.open": 7, "user_max.rate": 0.5}'


@given(
    st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=8), min_size=1, max_size=4),
    st.sampled_from(["max", "a.b"]),
)
def test_distributions_of_subtasks_are_one(subtasks: list[list[int]], name: str) -> None:
    def taken(values: list[int]) -> dict[str, int | float]:
        group = MetricGroup()
        distribution, counter = group.distribution("size"), group.counter("least.min")
        for value in values:
            distribution.update(value)
            counter.inc(value)
        return {"records_in": 1, **group.take()}

    together = [value for values in subtasks for value in values]
    assert user_metrics(map(taken, subtasks)) == user_metrics([taken(together)])
