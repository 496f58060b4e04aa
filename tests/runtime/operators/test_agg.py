"""Compares several aggregations at once with the same ones record by record."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import Aggregation
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.operators import local_aggregate
from dagster_flinkpy.runtime.operators.local_aggregate import local_aggregate_of
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_all, collect_graph, collected, random_order
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
from tests.runtime.programs import environment

MARKED = Types.ROW_NAMED(
    ["key", "time", "value", "amount", "large"],
    [Types.STRING(), Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.BOOLEAN()],
)
ALL = {
    "rows": Aggregation.count(),
    "larges": Aggregation.count("large"),
    "total": Aggregation.sum("value"),
    "least": Aggregation.min("value"),
    "greatest": Aggregation.max("value"),
    "mid": Aggregation.mean("value"),
}
FLOATS = {
    "low": Aggregation.min("amount"),
    "high": Aggregation.max("amount"),
    "sum": Aggregation.sum("amount"),
    "middle": Aggregation.mean("amount"),
}


def _marked(batch: pa.RecordBatch) -> pa.Table:
    """Marks some records, and others with null."""
    large = pa.array([None if value % 5 == 0 else value > 0 for value in batch["value"].to_pylist()], pa.bool_())
    return pa.table({**{name: batch[name] for name in ("key", "time", "value", "amount")}, "large": large})


def marked(stream: Any) -> Any:
    return stream.map_batch(_marked, MARKED).uid("marked")


def expected(records: list[Any]) -> dict[Any, tuple[Any, ...]]:
    """Returns what ALL has for each key."""
    found = {}
    for key in {each[0] for each in records}:
        values = [each[2] for each in records if each[0] == key]
        larges = sum(value % 5 != 0 and value > 0 for value in values)
        found[key] = (len(values), larges, sum(values), min(values), max(values), sum(values) / len(values))
    return found


@settings(max_examples=examples(12))
@given(
    records=RECORDS,
    runs=RUNS,
    assigner=st.sampled_from(
        [TumblingEventTimeWindows(10), SlidingEventTimeWindows(12, 4), EventTimeSessionWindows(5)]
    ),
    which=st.sampled_from([ALL, FLOATS, ALL | FLOATS]),
    key=st.sampled_from(["key", ("key",), ("key", "value")]),
    lateness=st.sampled_from([0, 7]),
    seed=st.integers(0, 3),
)
def test_windows(records, runs, assigner, which, key, lateness, seed):
    """Each epoch is run in columns or record by record, with the state that the other has left."""

    def program():
        windowed = marked(source(records, 13, 5)).key_by(key).window(assigner).allowed_lateness(lateness)
        return stamped(windowed.agg(**which).uid("windows"))

    compare(program, runs, seed)


@settings(max_examples=examples(12))
@given(records=RECORDS, runs=RUNS, rows=st.sampled_from([4, 1000]))
def test_mini_batches_in_two_phases(records, runs, rows):
    def program():
        env = environment(max_parallelism=16)
        env.configure(Configuration().set_boolean("table.exec.mini-batch.enabled", True))
        events = CollectionSource(records, EVENT, records_per_epoch=13, batch_size=7)
        stream = env.from_source(events, WatermarkStrategy.no_watermarks(), "events").uid("events")
        return marked(stream).key_by("key").agg(**ALL).uid("agg")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_aggregate, "ROWS", rows)
        patch.setattr(local_aggregate, "TRIED", rows * 2)
        epochs = run(program, [replace(each, in_columns=True) for each in runs], random_order(0))
    last = {row[0]: tuple(row)[1:] for row in chain.from_iterable(epochs)}
    assert last == expected(records)


@settings(max_examples=examples(8))
@given(records=RECORDS)
def test_running(records):
    with one_phase():
        epochs = run(
            lambda: marked(source(records, 13, 0)).key_by("key").agg(**ALL).uid("agg"), [Run(1, True)], random_order(0)
        )
    results = list(chain.from_iterable(epochs))
    assert [tuple(row) for row in results] == [
        (each[0], *expected(records[: i + 1])[each[0]]) for i, each in enumerate(records)
    ]


def test_an_aggregation_that_is_added_later(tmp_path):
    """It covers the records that come from then on; keys without any have null."""
    records = [("a", 1, 5, 0.5, ""), ("b", 2, 6, 0.5, ""), ("a", 3, 7, 2.5, "")]
    later = {"low": Aggregation.min("value"), "n": Aggregation.count(), "mid": Aggregation.mean("value")}

    def program(**more):
        keyed = source(records, 2, 1000).key_by("key").window(TumblingEventTimeWindows(10))
        return keyed.agg(total=Aggregation.sum("value"), **more).uid("op")

    for graph in (collect_graph(program()), collect_graph(program(**later))):
        with HarnessAttempt(graph, tmp_path, order=random_order(0)) as attempt:
            attempt.run_epoch()
            rows = collected(attempt.graph, attempt.collected)
    assert sorted(tuple(row) for row in rows) == [("a", 0, 10, 12, 7, 1, 7.0), ("b", 0, 10, 6, None, None, None)]


def test_the_type_of_a_result():
    keyed = marked(source([], None, 0)).key_by("key")
    assert keyed.agg(n=Aggregation.count(), mid=Aggregation.mean("value")).get_type() == Types.ROW_NAMED(
        ["key", "n", "mid"], [Types.STRING(), Types.LONG(), Types.DOUBLE()]
    )
    windowed = keyed.window(TumblingEventTimeWindows(10)).agg(low=Aggregation.min("amount"))
    assert windowed.get_type().get_field_names() == ["key", "window_start", "window_end", "low"]


def test_plain_values_and_windows_without_keys(tmp_path):
    env = environment(1)
    numbers = env.from_source(CollectionSource([3, 1, 2], Types.LONG()), WatermarkStrategy.no_watermarks(), "numbers")
    keyed = numbers.uid("numbers").key_by(lambda number: "all", Types.STRING())
    both = keyed.agg(n=Aggregation.count(), low=Aggregation.min(), mid=Aggregation.mean()).uid("agg")
    assert tuple(list(collect_all(both, tmp_path / "a"))[-1]) == ("all", 3, 1, 2.0)
    events = source([("a", 1, 5, 0.5, ""), ("b", 2, 6, 0.5, "")], None, 0).window_all(TumblingEventTimeWindows(10))
    total = events.agg(n=Aggregation.count(), total=Aggregation.sum("value")).uid("agg")
    assert [tuple(row) for row in collect_all(total, tmp_path / "b")] == [(0, 10, 2, 11)]


@pytest.mark.parametrize(
    ("aggregations", "message"),
    [
        ({}, "agg.. needs a result"),
        ({"a": "count"}, "needs Aggregations, such as Aggregation.count.., not a='count'"),
        ({"a": Aggregation.count("value")}, r"a: count\(\) needs a boolean, but 'value' is"),
        ({"a": Aggregation.sum("key")}, "sum.. needs a number"),
        ({"a": Aggregation.max("price")}, "the records have the fields"),
        ({"key": Aggregation.count()}, "two fields key"),
        ({"a": Aggregation.mean("value"), "a_sum": Aggregation.sum("value")}, "a name repeats"),
    ],
)
def test_what_is_refused(aggregations, message):
    with pytest.raises(ConfigurationError, match=message):
        marked(source([], None, 0)).key_by("key").agg(**aggregations)


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(5)])
def test_a_sum_of_none_and_one_out_of_range(tmp_path, assigner):
    def total(records):
        windowed = source(records, None, 0).key_by("key").window(assigner)
        return windowed.agg(total=Aggregation.sum("value"), n=Aggregation.count()).uid("op")

    with pytest.raises(Exception, match=r"operator 'op'.*sum\(\) of None"):
        collect_all(total([("a", 1, 5, 0.0, ""), ("a", 2, None, 0.0, "")]), tmp_path / "a")
    with pytest.raises(TypeMismatchError, match="operator 'op'"):
        collect_all(total([("a", 1, 2**63 - 1, 0.0, ""), ("a", 2, 1, 0.0, "")]), tmp_path / "b")


def test_what_is_combined_before_the_exchange():
    windowed = marked(source([], None, 0)).key_by("key").window(TumblingEventTimeWindows(10))
    assert local_aggregate_of(windowed.agg(**ALL)._transformation.spec) is not None
    sums = windowed.agg(sum=Aggregation.sum("amount"), mid=Aggregation.mean("amount"))
    assert local_aggregate_of(sums._transformation.spec) is not None
    assert local_aggregate_of(windowed.agg(**FLOATS)._transformation.spec) is None  # the place of NaN decides
