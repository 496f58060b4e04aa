from __future__ import annotations

import json
from collections.abc import Iterable

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
    assert group.values() == {
        "size.count": 3,
        "size.sum": 9,
        "size.min": 1,
        "size.max": 5,
        "size.mean": 3.0,
        "size.p50": 3,
        "size.p95": 5,
        "size.p99": 5,
    }


def test_a_metric_that_is_asked_for_again_goes_on() -> None:
    group = MetricGroup()
    for value in (1, 2):
        group.counter("seen").inc()
        group.add_group("sizes").meter("events").mark_event(value)
        group.add_group("sizes").distribution("size").update(value)
    values = group.values()
    assert (values["seen"], values["sizes.events"], values["sizes.size.sum"]) == (2, 3, 3)


def test_a_gauge_that_fails_is_named() -> None:
    group = MetricGroup()
    group.gauge("open", lambda: 1 // 0)
    with pytest.raises(TypeMismatchError, match="gauge 'open' raised ZeroDivisionError"):
        group.take()


def test_values_are_taken_once() -> None:
    group = MetricGroup()
    counter, distribution = group.counter("seen"), group.add_group("types").distribution("size")
    group.gauge("open", lambda: 7)
    group.gauge("rate", lambda: float("nan"))
    counter.inc(2)
    distribution.update(3)
    taken = group.take()
    (bucket,) = (name for name in taken if name.startswith("user_bucket."))
    assert taken.pop(bucket) == 1
    assert taken == {
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


def stored(values: Iterable[float], name: str = "size") -> dict[str, int | float]:
    """What a checkpoint stores of a subtask; it has been through JSON."""
    group = MetricGroup()
    distribution, counter = group.distribution(name), group.counter("least.min")
    for value in values:
        distribution.update(value)  # type: ignore[arg-type]
        counter.inc(int(value))
    found: dict[str, int | float] = json.loads(json.dumps({"records_in": 1, **group.take()}))
    return found


NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=8), min_size=1, max_size=4), st.booleans())
def test_distributions_of_subtasks_are_one(subtasks: list[list[int]], nested: bool) -> None:
    name = "a.b" if nested else "max"
    together = [value for values in subtasks for value in values]
    assert user_metrics(stored(values, name) for values in subtasks) == user_metrics([stored(together, name)])


@given(st.lists(NUMBERS, min_size=1, max_size=200))
def test_percentiles_are_at_most_so_much_off(values: list[int | float]) -> None:
    found, ordered = user_metrics([stored(values)]), sorted(values)
    assert (found["size.count"], found["size.min"], found["size.max"]) == (len(values), ordered[0], ordered[-1])
    for percentile in (50, 95, 99):
        exact = ordered[-(-percentile * len(values) // 100) - 1]
        assert abs(found[f"size.p{percentile}"] - exact) <= abs(exact) * 0.032


def test_percentiles_of_many_numbers() -> None:
    group = MetricGroup()
    distribution = group.distribution("ms")
    for value in range(10_000):
        distribution.update(value)
    found = group.values()
    assert (found["ms.count"], found["ms.sum"], found["ms.mean"]) == (10_000, 49_995_000, 4_999.5)
    assert found["ms.p50"] == pytest.approx(4_999, rel=0.032)
    assert found["ms.p99"] == pytest.approx(9_899, rel=0.032)
    assert len(group.take()) < 200, "what is stored does not grow with the numbers"


@given(st.lists(st.integers(-31, 31), min_size=1))
def test_percentiles_of_small_integers_are_exact(values: list[int]) -> None:
    ordered = sorted(values)
    assert user_metrics([stored(values)])["size.p95"] == ordered[-(-95 * len(values) // 100) - 1]


def test_checkpoints_of_earlier_releases_have_no_percentiles() -> None:
    former = {"user.size.count": 2, "user.size.sum": 5, "user_min.size.min": 1, "user_max.size.max": 4}
    assert user_metrics([former]) == {"size.count": 2, "size.sum": 5, "size.min": 1, "size.max": 4}


@pytest.mark.parametrize("value", [None, "7", float("nan"), float("inf")])
def test_a_distribution_takes_finite_numbers(value: object) -> None:
    group = MetricGroup()
    with pytest.raises(TypeMismatchError, match="finite numbers, not"):
        group.distribution("size").update(value)  # type: ignore[arg-type]
    assert group.values()["size.count"] == 0


def test_a_distribution_of_numbers_of_numpy() -> None:
    group = MetricGroup()
    distribution = group.distribution("size")
    distribution.update(np.int64(7))  # type: ignore[arg-type]
    assert json.loads(json.dumps(group.take()))["user.size.sum"] == 7
