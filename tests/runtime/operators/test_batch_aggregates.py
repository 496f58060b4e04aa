"""Aggregations in columns that users write: the same results in each kind of window, in any number of phases."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import Aggregation, BatchAggregateFunction, ProcessWindowFunction
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.runtime.operators import local_aggregate
from dagster_flinkpy.testing import run_local
from tests.examples import examples
from tests.runtime.harness import random_order
from tests.runtime.operators.test_aggregate_operators import EVENT, RECORDS, RUNS, compare, run, source, stamped
from tests.runtime.programs import environment

FIELDS = Types.ROW_NAMED(["n", "total", "note"], [Types.LONG(), Types.LONG(), Types.STRING()])


class Summary(BatchAggregateFunction):
    """How many records there are, the sum of their values, and the last of their notes in the alphabet."""

    def get_accumulator_type(self):
        return FIELDS

    def get_result_type(self):
        return Types.ROW_NAMED(["mean", "note"], [Types.DOUBLE(), Types.STRING()])

    def lift(self, batch):
        return pa.table({"note": batch["note"], "total": batch["value"], "n": pa.repeat(1, batch.num_rows)})

    def merge(self, accumulators, groups):
        numbers = groups.to_pylist()
        assert numbers == sorted(numbers) and set(numbers) == set(range(numbers[-1] + 1))
        table = pa.table(accumulators).append_column("group", groups).group_by("group", use_threads=False)
        merged = table.aggregate([("n", "sum"), ("total", "sum"), ("note", "max")])
        return merged.drop_columns("group").rename_columns(
            {f"{n}_{f}": n for n, f in zip(FIELDS.field_names, ["sum", "sum", "max"], strict=True)}
        )

    def get_results(self, accumulators):
        mean = pc.divide(accumulators["total"].cast(pa.float64()), accumulators["n"].cast(pa.float64()))
        return pa.table({"mean": mean, "note": accumulators["note"]})


class First(ProcessWindowFunction):
    """Emits the start of the window with its only element."""

    def process(self, key, context, elements):
        (summary,) = elements
        yield context.window().start, summary.note


def expected(records: list[Any]) -> dict[Any, tuple[Any, ...]]:
    return {
        key: (sum(values) / len(values), max(each[4] for each in records if each[0] == key))
        for key in {each[0] for each in records}
        for values in [[each[2] for each in records if each[0] == key]]
    }


@settings(max_examples=examples(20))
@given(
    records=RECORDS,
    runs=RUNS,
    assigner=st.sampled_from(
        [TumblingEventTimeWindows(10), SlidingEventTimeWindows(12, 4), EventTimeSessionWindows(5)]
    ),
    trigger=st.sampled_from([None, CountTrigger.of(2)]),
    form=st.sampled_from(["agg", "aggregate", "process"]),
    lateness=st.sampled_from([0, 7]),
    seed=st.integers(0, 3),
)
def test_windows_in_columns_and_record_by_record(records, runs, assigner, trigger, form, lateness, seed):
    """Each epoch is run in columns or record by record, with the state that the other has left."""

    def program():
        windowed = source(records, 13, 5).key_by("key").window(assigner).allowed_lateness(lateness)
        if trigger is not None:
            windowed = windowed.trigger(trigger)
        if form == "agg":
            results = windowed.agg(Summary())
        else:
            types = Types.TUPLE([Types.LONG(), Types.STRING()])
            results = windowed.aggregate(Summary(), *([First(), None, types] if form == "process" else []))
        return stamped(results.uid("windows"))

    compare(program, runs, seed)


@settings(max_examples=examples(12))
@given(records=RECORDS, runs=RUNS, rows=st.sampled_from([4, 1000]), mini_batch=st.booleans())
def test_results_so_far(records, runs, rows, mini_batch):
    def program():
        env = environment(max_parallelism=16)
        env.configure(Configuration().set_boolean("table.exec.mini-batch.enabled", mini_batch))
        events = CollectionSource(records, EVENT, records_per_epoch=13, batch_size=7)
        stream = env.from_source(events, WatermarkStrategy.no_watermarks(), "events").uid("events")
        return stream.key_by("key").agg(Summary()).uid("agg")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_aggregate, "ROWS", rows)
        patch.setattr(local_aggregate, "TRIED", rows * 2)
        found = list(chain(*run(program, [replace(each, in_columns=True) for each in runs], random_order(0))))
    if mini_batch:
        assert {row[0]: tuple(row)[1:] for row in found} == expected(records)
        return
    assert len(found) == len(records)
    for key, last in expected(records).items():
        of_key = [tuple(row)[1:] for row in found if row[0] == key]
        counted = [each for each in records if each[0] == key]
        assert of_key[-1] == last and len(of_key) == len(counted)


def test_records_are_combined_before_the_shuffle():
    records = [("a", i, i, 0.0, "x") for i in range(50)]
    program = source(records, None, 0).key_by("key").window(TumblingEventTimeWindows(100)).agg(Summary())
    spec: Any = program._transformation.spec
    assert local_aggregate.local_aggregate_of(spec, "windows") is not None


class Broken(Summary):
    def __init__(self, method: str, result: Any) -> None:
        self.method, self.result = method, result

    def lift(self, batch):
        return self._broken("lift", super().lift(batch))

    def merge(self, accumulators, groups):
        return self._broken("merge", super().merge(accumulators, groups))

    def get_results(self, accumulators):
        return self._broken("get_results", super().get_results(accumulators))

    def _broken(self, method, right):
        if method != self.method:
            return right
        if isinstance(self.result, Exception):
            raise self.result
        return self.result(right)


@pytest.mark.parametrize("method", ["lift", "merge", "get_results"])
@pytest.mark.parametrize(
    ("result", "kind", "message"),
    [
        (
            ZeroDivisionError("no"),
            UserFunctionError,
            r"\(\) of Broken, operator 'windows', raised ZeroDivisionError: no",
        ),
        (lambda right: right.slice(0, right.num_rows - 1), TypeMismatchError, "it must return one for each"),
        (lambda right: right.drop_columns("note"), TypeMismatchError, "declared the fields"),
        (lambda right: None, TypeMismatchError, "returned None; it must return a record batch or a table"),
    ],
)
def test_a_broken_aggregation_is_named(method, result, kind, message):
    records = [("a", 1, 1, 0.0, "x"), ("a", 2, 1, 0.0, "x"), ("b", 2, 1, 0.0, "x")]
    events = source(records, None, 0)
    windows = events.key_by("key").window(TumblingEventTimeWindows(10)).agg(Broken(method, result)).uid("windows")
    with pytest.raises(kind, match=f"{method}.*{message}"):
        run_local(events.get_execution_environment(), windows)


def test_what_agg_takes():
    keyed = source([], None, 0).key_by("key")
    with pytest.raises(
        ConfigurationError, match="either a BatchAggregateFunction or names, not both: let Summary compute n"
    ):
        keyed.agg(Summary(), n=Aggregation.count())
    with pytest.raises(ConfigurationError, match=r"agg\(\) needs names, such as .* or a BatchAggregateFunction, not 3"):
        keyed.agg(3)
    with pytest.raises(ConfigurationError, match="takes no accumulator_type"):
        keyed.window(TumblingEventTimeWindows(10)).aggregate(Summary(), accumulator_type=Types.LONG())


@pytest.mark.parametrize("kind", [Types.LONG(), Types.ROW([Types.LONG()])])
def test_accumulators_and_results_have_names(kind):
    class Nameless(Summary):
        def get_result_type(self):
            return kind

    with pytest.raises(
        ConfigurationError, match=r"Nameless.get_result_type\(\) returned .* a row whose fields have names"
    ):
        source([], None, 0).key_by("key").agg(Nameless())
