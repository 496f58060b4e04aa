"""Compares sessions of built-in aggregations with the same ones record by record, and those in two phases with one."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import Aggregation, OutputTag
from dagster_flinkpy.datastream.window import EventTimeSessionWindows, ProcessingTimeSessionWindows
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators import local_aggregate
from dagster_flinkpy.runtime.operators.local_aggregate import LocalAggregate, local_aggregate_of
from dagster_flinkpy.runtime.operators.windows.window_operator import WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from tests.examples import examples
from tests.runtime.harness import collect_all, random_order
from tests.runtime.operators.test_aggregate_operators import (
    EVENT,
    RECORDS,
    RUNS,
    Run,
    compare,
    one_phase,
    run,
    source,
    stamped,
)

FOLDS = st.sampled_from(["count", "mean", "agg"])
SEVERAL = {
    "rows": Aggregation.count(),
    "total": Aggregation.sum("value"),
    "least": Aggregation.min("value"),
    "mid": Aggregation.mean("value"),
}
NEVER_LATE = 41
"""No record of RECORDS is this much older than an earlier one."""


def folded(windowed: Any, fold: str) -> Any:
    if fold == "agg":
        return windowed.agg(**SEVERAL)
    return windowed.count() if fold == "count" else windowed.mean("value")  # The sums of means are exact.


def sessions(stream: Any, gap: int, fold: str, lateness: int = 0, side: bool = False, key: Any = "key") -> Any:
    tag = OutputTag("late", EVENT)
    windowed = stream.key_by(key).window(EventTimeSessionWindows(gap)).allowed_lateness(lateness)
    results = folded(windowed.side_output_late_data(tag), fold).uid("windows")
    return stamped(results.get_side_output(tag) if side else results)


@settings(max_examples=examples(20))
@given(
    records=RECORDS,
    runs=RUNS,
    gap=st.integers(1, 12),
    fold=FOLDS,
    lateness=st.sampled_from([0, 7]),
    out_of_order=st.sampled_from([0, 5, NEVER_LATE]),
    key=st.sampled_from(["key", ("key", "note")]),
    side=st.booleans(),
    spread=st.booleans(),
    seed=st.integers(0, 3),
)
def test_in_columns(records, runs, gap, fold, lateness, out_of_order, key, side, spread, seed):
    """Each epoch is run in columns or record by record, with the state that the other has left."""

    def program():
        stream = source(records, 13, out_of_order)
        if spread:
            stream = stream.rebalance().map_batch(lambda batch: batch, EVENT).uid("spread")
        return sessions(stream, gap, fold, lateness, side, key)

    compare(program, runs, seed)


@settings(max_examples=examples(15))
@given(
    records=RECORDS,
    epochs=st.integers(1, 5),
    gap=st.integers(1, 12),
    fold=FOLDS,
    lateness=st.sampled_from([0, 7]),
    out_of_order=st.sampled_from([0, 5, NEVER_LATE]),
    side=st.booleans(),
    rows=st.sampled_from([4, 1000]),
)
def test_one_channel_in_two_phases(records, epochs, gap, fold, lateness, out_of_order, side, rows):
    """With one channel, all is equal: which records are late, and which sessions fire again, and when."""

    def program():
        return sessions(source(records, 13, out_of_order), gap, fold, lateness, side)

    runs = [Run(1, True)] * epochs
    with one_phase():
        expected = run(program, runs, random_order(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_aggregate, "ROWS", rows)
        patch.setattr(local_aggregate, "TRIED", rows * 2)
        found = run(program, runs, random_order(0))
    assert [sorted(each) for each in found] == [sorted(each) for each in expected]


@settings(max_examples=examples(15))
@given(
    records=RECORDS,
    runs=RUNS,
    gap=st.integers(1, 12),
    fold=FOLDS,
    key=st.sampled_from(["key", ("key", "note"), "value"]),
    order=st.integers(0, 3),
)
def test_several_channels_in_two_phases(records, runs, gap, fold, key, order):
    """Whatever the order of channels, and however often the parallelism changes, sessions are those of all records."""

    def program():
        spread = source(records, 13, NEVER_LATE).rebalance().map_batch(lambda batch: batch, EVENT).uid("spread")
        return sessions(spread, gap, fold, key=key)

    with one_phase():
        expected = run(program, [Run(1, False)], random_order(0))
    found = run(program, [replace(each, in_columns=True) for each in runs], random_order(order))
    assert sorted(chain.from_iterable(found)) == sorted(chain.from_iterable(expected))


def local(gap: int) -> LocalAggregate:
    windowed = source([], None, 0).key_by("key").window(EventTimeSessionWindows(gap))
    found = local_aggregate_of(windowed.count()._transformation.spec)
    assert found is not None
    return found


def add(combining: LocalAggregate, keys: list[str], times: list[int]) -> list[StreamBatch]:
    records = [(key, time, 1, 0.5, "") for key, time in zip(keys, times, strict=True)]
    batch = StreamBatch(EVENT, np.array(times), column=EVENT.to_arrow(records))
    return combining.add(Types.STRING(), pa.array(keys), batch)


def runs_of(batches: list[StreamBatch]) -> list[tuple[str, int, int, int]]:
    found = []
    for each in batches:
        assert each.combined and each.keys is not None
        rows = zip(each.keys.column.to_pylist(), each.timestamps.tolist(), each.values, strict=True)
        found += [(key, time, last, count) for key, time, (count, last) in rows]
    return found


@settings(max_examples=examples(100))
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-50, 50)), min_size=1, max_size=40),
    gap=st.integers(1, 9),
    cut=st.integers(0, 40),
)
def test_runs(records, gap, cut):
    """Records of a key that are not further apart than the gap become one row, also with those combined before."""
    combining = local(gap)
    for part in (records[:cut], records[cut:]):
        if part:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(local_aggregate, "ROWS", 10)
                if sent := add(combining, *map(list, zip(*part, strict=True))):
                    assert sum(count for *_, count in runs_of(sent)) <= len(records)
                    return
    expected = []
    for key in "ab":
        times = sorted(time for each, time in records if each == key)
        starts = [i for i in range(len(times)) if i == 0 or times[i] - times[i - 1] > gap]
        stops = [*starts[1:], len(times)] if times else []
        expected += [(key, times[i], times[stop - 1], stop - i) for i, stop in zip(starts, stops, strict=True)]
    assert combining.closes == min(time for _, time in records) - 1
    assert sorted(runs_of(combining.take())) == expected


def test_times_far_apart_are_not_combined():
    combining = local(5)
    add(combining, ["a", "b", "a"], [-(2**61), 0, 2**61])
    assert [run for *run, _ in runs_of(combining.take())] == [
        ["a", -(2**61), -(2**61)],
        ["b", 0, 0],
        ["a", 2**61, 2**61],
    ]


def test_what_is_not_combined():
    def windowed(assigner: Any) -> Any:
        return source([], None, 0).key_by("key").window(assigner)

    by_time = windowed(EventTimeSessionWindows(5))
    assert local_aggregate_of(by_time.sum("value")._transformation.spec) is None  # it shows which record came first
    assert local_aggregate_of(by_time.agg(low=Aggregation.min("amount"))._transformation.spec) is None  # NaN
    assert local_aggregate_of(windowed(ProcessingTimeSessionWindows(5)).count()._transformation.spec) is None
    assert not local(5).takes(StreamBatch(EVENT, np.array([NO_TIMESTAMP]), values=[("a", 1, 1, 0.5, "")]))


def test_fewer_rows_are_sent(tmp_path):
    records = [("ab"[i % 2], i, 1, 0.5, "") for i in range(100)]
    stream = source(records, None, 1000).key_by("key").window(EventTimeSessionWindows(5)).count().uid("op")
    sent = []
    real = WindowOperator.process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowOperator, "process", lambda self, i, b: (sent.append(len(b)), real(self, i, b))[1])
        rows = collect_all(stream, tmp_path)
    assert sorted(tuple(row) for row in rows) == [("a", 0, 103, 50), ("b", 1, 104, 50)]
    assert sum(sent) == 2


@pytest.mark.parametrize("per_epoch", [1, None])
def test_a_sum_out_of_range_names_a_record(per_epoch):
    """Also if it is one that makes two sessions merge."""
    records = [("a", time, value, 0.5, "") for time, value in ((0, 2**62), (10, 2**62), (5, 0))]

    def program():
        windowed = source(records, per_epoch, 1000).key_by("key").window(EventTimeSessionWindows(5))
        return windowed.agg(total=Aggregation.sum("value")).uid("op")

    with pytest.raises(TypeMismatchError, match=r"operator 'op'.*'total': \d+.*of key 'a' is out of range"):
        run(program, [Run(1, True)], random_order(0))
