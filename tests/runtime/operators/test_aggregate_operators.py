"""Compares the built-in aggregations in columns with the same ones record by record: results and state are equal."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction, OutputTag, ProcessFunction
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.operator_specs import ReduceSpec, WindowSpec
from dagster_flinkpy.datastream.state import AggregatingStateDescriptor
from dagster_flinkpy.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.operators import operator_factory
from dagster_flinkpy.runtime.operators.keyed_operators import ReduceOperator, RollingAggregateOperator
from dagster_flinkpy.runtime.operators.operator_factory import windower_of
from dagster_flinkpy.runtime.operators.windows.window_operator import WindowOperator
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_all, collect_graph, collected, random_order
from tests.runtime.programs import environment

EVENT = Types.ROW_NAMED(
    ["key", "time", "value", "amount", "note"],
    [Types.STRING(), Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.STRING()],
)


class Stamped(ProcessFunction):
    """Emits each record with its timestamp."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield repr(value), ctx.timestamp()


def stamped(stream: Any) -> Any:
    return stream.process(Stamped(), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("stamped")


@contextmanager
def one_phase():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.runtime.task.outputs.local_aggregate_of", lambda *_: None)
        yield


def in_python(context: Any, spec: WindowSpec) -> WindowOperator:
    """Creates an operator that calls the functions of the windows for each record."""
    return WindowOperator(context, spec, windower_of(spec))


@contextmanager
def per_record():
    with one_phase(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(operator_factory._OPERATORS, ReduceSpec, ReduceOperator)
        patch.setitem(operator_factory._OPERATORS, WindowSpec, in_python)
        yield


@dataclass(frozen=True)
class Run:
    """How an attempt runs."""

    parallelism: int
    in_columns: bool
    lives: bool = False
    """Whether its tasks live, for three epochs. Only a single subtask does, because the order of others varies."""


def run(program: Callable[[], Any], runs: list[Run], order: Any) -> list[list[Any]]:
    """Runs attempt after attempt until the input has ended. The last entry of ``runs`` is repeated."""
    graph, jobs = collect_graph(program()), []
    with tempfile.TemporaryDirectory() as folder:
        finished = False
        while not finished:
            now = runs[min(len(jobs), len(runs) - 1)]
            lives = now.lives and now.parallelism == 1
            how = {"order": order, "live": lives, "parallelism": now.parallelism}
            with HarnessAttempt(graph, Path(folder), **how) as attempt:
                if attempt.restored is not None:
                    attempt.commit_restored()
                if attempt.finished:
                    break
                with nullcontext() if now.in_columns else per_record():
                    for _ in attempt.run_epochs(3 if lives else 1):
                        jobs.append(collected(attempt.graph, attempt.collected))
                finished = attempt.finished
    return jobs


def some_records(seed: int) -> list[tuple[Any, ...]]:
    # Not drawn one by one, because most lists that hypothesis draws are too short for a late record.
    draw = random.Random(seed)
    drift = draw.choice([0, 1, 3])
    return [
        (
            draw.choice("abcd"),
            draw.randint(0, 40) + i * drift,
            draw.randint(-100, 100),
            draw.choice([draw.uniform(-1e6, 1e6), 0.0, -0.0, 1e300, 0.1]),
            draw.choice(["", "x", "yy"]),
        )
        for i in range(draw.randint(1, 60))
    ]


RECORDS = st.integers(0, 10**9).map(some_records)
RUNS = st.lists(st.builds(Run, st.integers(1, 3), st.booleans(), st.booleans()), min_size=1, max_size=5)


def source(records: list[Any], per_epoch: int | None, out_of_order: int) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(out_of_order))
    env = environment(max_parallelism=16)
    events = CollectionSource(records, EVENT, records_per_epoch=per_epoch, batch_size=7)
    return env.from_source(events, strategy.with_timestamp_assigner("time"), "events").uid("events")


def compare(program: Callable[[], Any], runs: list[Run], seed: int) -> None:
    order = random_order(seed)
    with one_phase():  # the order of channels is that of their rows
        mixed = run(program, runs, order)
    order = random_order(seed)
    expected = run(program, [replace(each, in_columns=False) for each in runs], order)
    assert mixed == expected


@settings(max_examples=examples(25))
@given(
    records=RECORDS,
    runs=RUNS,
    fold=st.sampled_from(["sum", "min", "max"]),
    field=st.sampled_from(["value", "amount", 2]),
    key=st.sampled_from(["key", ("key", "value")]),
    per_epoch=st.sampled_from([5, 13]),
    seed=st.integers(0, 3),
)
def test_rolling(records, runs, fold, field, key, per_epoch, seed):
    def program():
        keyed = source(records, per_epoch, 5).key_by(key)
        return stamped(getattr(keyed, fold)(field).uid("rolling"))

    compare(program, runs, seed)


class RollingByRecord(KeyedProcessFunction):
    """Computes count or mean per key."""

    def __init__(self, aggregate: Any) -> None:
        self.aggregate = aggregate

    def open(self, runtime_context: Any) -> None:
        descriptor = AggregatingStateDescriptor("state", self.aggregate, self.aggregate.accumulator_type)
        self.state = runtime_context.get_aggregating_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.state.add(value)
        key = ctx.get_current_key()
        yield (*(key if isinstance(key, tuple) else (key,)), self.state.get())


@settings(max_examples=examples(15))
@given(
    records=RECORDS, runs=RUNS, what=st.sampled_from(["count", "mean"]), key=st.sampled_from(["key", ("key", "note")])
)
def test_rolling_count_and_mean(records, runs, what, key):
    def rows(by_record: bool) -> list[Any]:
        def program():
            keyed = source(records, 11, 5).key_by(key)
            built_in = keyed.count() if what == "count" else keyed.mean("amount")
            spec: Any = built_in._transformation.spec
            if not by_record:
                return built_in.uid("rolling")
            keyed = source(records, 11, 5).key_by(key)
            return keyed.process(RollingByRecord(spec.aggregate), built_in.get_type()).uid("rolling")

        return run(program, runs, random_order(1))

    assert rows(by_record=False) == rows(by_record=True)


ASSIGNERS = st.one_of(
    st.builds(TumblingEventTimeWindows, st.integers(1, 20)),
    st.builds(SlidingEventTimeWindows, st.integers(1, 20), st.integers(1, 20)),
)


@settings(max_examples=examples(40))
@given(
    records=RECORDS,
    runs=RUNS,
    assigner=ASSIGNERS,
    fold=st.sampled_from(["sum", "min", "max", "count", "mean"]),
    field=st.sampled_from(["value", "amount"]),
    lateness=st.sampled_from([0, 7]),
    out_of_order=st.sampled_from([0, 10]),
    side=st.booleans(),
    key=st.sampled_from(["key", ("key", "note")]),
    seed=st.integers(0, 3),
)
def test_windows(records, runs, assigner, fold, field, lateness, out_of_order, side, key, seed):
    def program():
        windowed = source(records, 13, out_of_order).key_by(key).window(assigner).allowed_lateness(lateness)
        tag = OutputTag("late", EVENT)
        if side:
            windowed = windowed.side_output_late_data(tag)
        stream = (windowed.count() if fold == "count" else getattr(windowed, fold)(field)).uid("windows")
        if side:
            return stamped(stream.get_side_output(tag))
        return stamped(stream)

    compare(program, runs, seed)


@settings(max_examples=examples(8))
@given(
    records=RECORDS,
    runs=RUNS,
    assigner=ASSIGNERS,
    fold=st.sampled_from(["sum", "min", "max", "count", "mean"]),
    lateness=st.sampled_from([0, 7]),
    seed=st.integers(0, 3),
)
def test_windows_of_a_stream_without_keys(records, runs, assigner, fold, lateness, seed):
    def program():
        windowed = source(records, 13, 10).window_all(assigner).allowed_lateness(lateness)
        return stamped((windowed.count() if fold == "count" else getattr(windowed, fold)("amount")).uid("windows"))

    compare(program, runs, seed)


@settings(max_examples=examples(10))
@given(records=RECORDS, runs=RUNS)
def test_state_that_does_not_fit_in_memory(records, runs):
    def program():
        windowed = source(records, 13, 10).key_by("key").window(TumblingEventTimeWindows(9)).allowed_lateness(3)
        return stamped(windowed.sum("value").uid("windows"))

    expected = run(program, [replace(each, in_columns=False) for each in runs], random_order(0))
    with one_phase(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.state.backend.ColumnarKeyedStateBackend.make_room", lambda self: self.flush())
        assert run(program, runs, random_order(0)) == expected


# --- which operator, and errors ---------------------------------------------------------------------------------------


def operator_of(stream: Any, folder: Path) -> type:
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for spec, factory in list(operator_factory._OPERATORS.items()):

            def make(context: Any, spec: Any, factory: Any = factory) -> Any:
                made.append(factory(context, spec))
                return made[-1]

            patch.setitem(operator_factory._OPERATORS, spec, make)
        collect_all(stream, folder)
    return next(o for o in made if o.context.vertex.uid == "op")


ONE = [("a", 1, 2, 0.5, "x")]


def test_what_runs_in_columns(tmp_path):
    keyed = source(ONE, None, 0).key_by("key")
    assert type(operator_of(keyed.sum("value").uid("op"), tmp_path / "1")) is RollingAggregateOperator
    windows = source(ONE, None, 0).key_by("key").window(TumblingEventTimeWindows(10))
    assert operator_of(windows.max("value").uid("op"), tmp_path / "2").fold is not None


def test_windows_of_all_records_are_counted_in_columns(tmp_path):
    records = [("a", 1, 2, 0.5, ""), ("b", 5, 2, 1.5, ""), ("a", 50, 2, 0.5, "")]
    counts = source(records, None, 0).window_all(TumblingEventTimeWindows(10)).count().uid("op")
    assert counts.get_type().get_field_names() == ["window_start", "window_end", "count"]
    assert [tuple(row) for row in collect_all(counts, tmp_path / "1")] == [(0, 10, 2), (50, 60, 1)]
    sums = source(records, None, 0).window_all(TumblingEventTimeWindows(10)).sum("amount").uid("op")
    assert operator_of(sums, tmp_path / "2").fold is not None
    sessions = source(records, None, 0).window_all(EventTimeSessionWindows(10)).mean("amount").uid("op")
    assert [tuple(row) for row in collect_all(sessions, tmp_path / "3")] == [(1, 15, 1.0), (50, 60, 0.5)]


def test_what_does_not(tmp_path):
    keyed = source(ONE, None, 0).key_by("key")
    assert type(operator_of(keyed.min("note").uid("op"), tmp_path / "1")) is ReduceOperator
    sessions = source(ONE, None, 0).key_by("key").window(EventTimeSessionWindows(10)).sum("value").uid("op")
    assert operator_of(sessions, tmp_path / "2").fold is None  # it shows which record came first


def test_sessions_count_with_key_and_window(tmp_path):
    records = [("a", 1, 2, 0.5, ""), ("a", 5, 2, 1.5, ""), ("a", 50, 2, 0.5, "")]
    sessions = source(records, None, 0).key_by("key").window(EventTimeSessionWindows(10))
    assert [tuple(row) for row in collect_all(sessions.mean("amount").uid("op"), tmp_path)] == [
        ("a", 1, 15, 1.0),
        ("a", 50, 60, 0.5),
    ]


@pytest.mark.parametrize("key_by", [(("key",),), (lambda value: (value[0],), Types.TUPLE([Types.STRING()]))])
@pytest.mark.parametrize("form", ["rolling", "window", "trigger"])
def test_a_key_that_is_a_tuple_of_one_field_is_a_field_of_the_result(tmp_path, key_by, form):
    keyed = source(ONE, None, 0).key_by(*key_by)
    windows = keyed.window(TumblingEventTimeWindows(10))
    forms = {"rolling": keyed, "window": windows, "trigger": windows.trigger(PurgingTrigger(EventTimeTrigger()))}
    counts = forms[form].count().uid("op")
    assert [row[0] for row in collect_all(counts, tmp_path)] == [ONE[0][0]]


@pytest.mark.parametrize("windows", [None, TumblingEventTimeWindows(10), SlidingEventTimeWindows(20, 10)])
def test_overflow_names_operator_record_and_key(tmp_path, windows):
    records = [("a", 1, 2**63 - 1, 0.0, ""), ("b", 1, 1, 0.0, ""), ("a", 2, 1, 0.0, "")]
    keyed = source(records, None, 0).key_by("key")
    stream = (keyed if windows is None else keyed.window(windows)).sum("value").uid("op")
    with pytest.raises(TypeMismatchError, match=r"'a'.* 2, .*1, .*the sum of key 'a' is out of range"):
        collect_all(stream, tmp_path)


def test_none_in_the_field(tmp_path):
    stream = source([("a", 1, None, 0.0, "")], None, 0).key_by("key").sum("value").uid("op")
    with pytest.raises(TypeMismatchError, match=r"operator 'op'.*field 'value'.*sum\(\) of None"):
        collect_all(stream, tmp_path)


def test_records_without_time(tmp_path):
    env = environment()
    stream = env.from_collection(ONE, EVENT).uid("events").key_by("key")
    with pytest.raises(Exception, match="has no event time"):
        collect_all(stream.window(TumblingEventTimeWindows(10)).count().uid("op"), tmp_path)


def test_declarations_that_cannot_work():
    keyed = source(ONE, None, 0).key_by("key")
    with pytest.raises(ConfigurationError, match="needs a number"):
        keyed.mean("note")
    with pytest.raises(ConfigurationError, match="needs a number"):
        keyed.window(TumblingEventTimeWindows(10)).mean("nothing")
    with pytest.raises(ConfigurationError, match="key_type"):
        source(ONE, None, 0).key_by(lambda event: event.key).count()
    with pytest.raises(ConfigurationError, match="start and an end"):
        keyed.count_window(3).count()
