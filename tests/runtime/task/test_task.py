from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    CoProcessFunction,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    FlinkPyError,
    TypeMismatchError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from tests.examples import examples
from tests.runtime.harness import (
    collect_all,
    collect_graph,
    collected,
    make_job,
    payloads,
    random_order,
    run_epoch,
    run_job,
    run_rows,
)
from tests.runtime.programs import COUNTED, EVENT, Calls, FolderSink, TimerPerRecord, environment, event_time, events

LATE = OutputTag("late", EVENT)
ONE = Types.ROW_NAMED(["n"], [Types.LONG()])
TIMES = [("a", t, 0) for t in range(0, 100, 10)]


def failure_of(graph: JobGraph, folder: Path, **options: Any) -> tuple[FlinkPyError, EpochResults]:
    results = run_epoch(make_job(graph, folder), **options)
    assert results.failure is not None
    return results.failure.error, results


# --- records ----------------------------------------------------------------------------------------------------------


def test_chained_functions_and_side_outputs(tmp_path: Path) -> None:
    odd = OutputTag("odd", Types.LONG())

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield (odd, value) if value % 2 else value

    env = environment(2)
    numbers = env.from_collection(list(range(20)), Types.LONG()).map(lambda v: v * 3, Types.LONG())
    split = numbers.filter(lambda v: v > 9).process(Split(), Types.LONG())
    both = split.map(lambda v: ("even", v)).union(split.get_side_output(odd).map(lambda v: ("odd", v)))
    expected = [("odd" if v % 2 else "even", v) for v in range(12, 60, 3)]
    assert sorted(collect_all(both.flat_map(lambda v: [v]), tmp_path)) == sorted(expected)


def test_edges_past_a_stage_are_relayed(tmp_path: Path) -> None:
    class Tag(CoProcessFunction):
        def process_element1(self, value, ctx):
            yield "far", value

        def process_element2(self, value, ctx):
            yield "near", value

    env = environment(3)
    source = env.from_collection(list(range(30)), Types.LONG())
    near = source.rebalance().map(lambda v: v + 100).set_parallelism(2).rebalance().map(lambda v: v).set_parallelism(1)
    both = source.rebalance().connect(near.rebalance()).process(Tag()).set_parallelism(4)
    graph = collect_graph(both)
    assert graph.number_of_stages == 5  # collecting runs at the parallelism of the program
    got = sorted(collect_all(both, tmp_path))
    assert got == [("far", v) for v in range(30)] + [("near", v + 100) for v in range(30)]


def test_what_was_emitted_does_not_change_with_the_state_it_came_from(tmp_path: Path) -> None:
    class Grow(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._row = runtime_context.get_state(ValueStateDescriptor("row", EVENT))

        def process_element(self, value, ctx):
            row = self._row.value() or Row(value.key, 0, 0)
            row[2] += value.value
            self._row.update(row)
            yield row
            yield LATE, row

    def grown() -> DataStream:
        return events(environment(), [("a", 1, 1), ("a", 2, 1), ("a", 3, 1)]).key_by("key").process(Grow(), EVENT)

    for stream in (grown(), grown().get_side_output(LATE)):
        assert [row.value for row in collect_all(stream, tmp_path)] == [1, 2, 3]


def test_timestamps_of_one_branch_are_not_those_of_another(tmp_path: Path) -> None:
    class Shift(TimestampAssigner):
        def extract_timestamp(self, value, record_timestamp):
            return record_timestamp + 1000

    class Stamp(ProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp()

    source = events(environment(), [("a", 5, 1)])
    shifted = source.assign_timestamps_and_watermarks(event_time().with_timestamp_assigner(Shift()))
    stamps = shifted.process(Stamp(), Types.LONG()).union(source.process(Stamp(), Types.LONG()))
    assert sorted(collect_all(stamps, tmp_path)) == [5, 1005]


# --- windows ----------------------------------------------------------------------------------------------------------


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Bounds(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, sum(e if isinstance(e, int) else e.value for e in elements)


LATENESS = [("a", 1, 1), ("a", 5, 1), ("a", 12, 1), ("a", 3, 1), ("a", 30, 1), ("a", 4, 1)]


def window_of(records: list[tuple[str, int, int]], assigner: Any, lateness: int = 0) -> Any:
    stream = events(environment(), records, batch_size=1).key_by("key").window(assigner)
    return stream.allowed_lateness(lateness).side_output_late_data(LATE)


@pytest.mark.parametrize(
    ("lateness", "fired", "late"),
    [
        (0, [("a", 0, 2), ("a", 10, 1), ("a", 30, 1)], [3, 4]),
        # The record at 3 arrives at watermark 11: the window has ended, but its state still exists.
        (5, [("a", 0, 2), ("a", 0, 3), ("a", 10, 1), ("a", 30, 1)], [4]),
        (100, [("a", 0, 2), ("a", 0, 3), ("a", 10, 1), ("a", 0, 4), ("a", 30, 1)], []),
    ],
)
def test_late_records_fire_again_or_go_to_the_side(
    tmp_path: Path, lateness: int, fired: list[Any], late: list[int]
) -> None:
    summed = window_of(LATENESS, TumblingEventTimeWindows(10), lateness).aggregate(
        Sum(), Bounds(), Types.LONG(), COUNTED
    )
    assert collect_all(summed, tmp_path / "main") == fired
    again = window_of(LATENESS, TumblingEventTimeWindows(10), lateness).aggregate(
        Sum(), Bounds(), Types.LONG(), COUNTED
    )
    assert [row.time for row in collect_all(again.get_side_output(LATE), tmp_path / "late")] == late


def test_late_records_that_nobody_reads_are_counted(tmp_path: Path) -> None:
    stream = events(environment(), LATENESS, batch_size=1).key_by("key").window(TumblingEventTimeWindows(10))
    graph = collect_graph(stream.reduce(lambda a, b: Row(a.key, a.time, a.value + b.value)))
    results = run_epoch(make_job(graph, tmp_path))
    assert [row.value for row in collected(graph, results.collected)] == [2, 1, 1]
    (metrics,) = (state.metrics for task, state in results.states.items() if task.uid == "window")
    assert metrics["late_records_dropped"] == 2


def test_a_record_between_sliding_windows_is_not_late(tmp_path: Path) -> None:
    records = [("a", 7, 1), ("a", 12, 1)]
    fired = window_of(records, SlidingEventTimeWindows(5, 10)).process(Bounds(), COUNTED)
    assert collect_all(fired, tmp_path / "main") == [("a", 10, 1)]
    fired = window_of(records, SlidingEventTimeWindows(5, 10)).process(Bounds(), COUNTED)
    assert collect_all(fired.get_side_output(LATE), tmp_path / "late") == []


def test_a_record_without_event_time_cannot_be_put_into_a_window(tmp_path: Path) -> None:
    stream = environment().from_collection([("a", 1, 1)], EVENT).key_by("key").window(TumblingEventTimeWindows(5))
    with pytest.raises(UserFunctionError, match="has no event time; set a watermark strategy") as raised:
        collect_all(stream.process(Bounds(), COUNTED), tmp_path)
    assert raised.value.key == "'a'"


records_in_order = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9)), max_size=25)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=records_in_order, seed=st.integers(0, 99), per_epoch=st.integers(3, 30))
def test_windows_are_those_of_a_naive_model_in_whatever_order_channels_bring_records(
    records: list[tuple[str, int, int]],
    seed: int,
    per_epoch: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    env = environment(2)
    stream = events(env, records, per_epoch=per_epoch, strategy=event_time(60)).key_by("key")
    summed = stream.window(SlidingEventTimeWindows(20, 10)).aggregate(Sum(), Bounds(), Types.LONG(), COUNTED).uid("w")
    expected: dict[tuple[str, int], int] = {}
    for key, time, value in records:
        for start in range(-10, 70, 10):
            if start <= time < start + 20:
                expected[key, start] = expected.get((key, start), 0) + value
    folder = tmp_path_factory.mktemp("windows")
    fired = run_job(collect_graph(summed), folder, order=random_order(seed))
    assert sorted(fired) == sorted((*window, total) for window, total in expected.items())


# --- time -------------------------------------------------------------------------------------------------------------


def test_event_time_goes_on_where_the_last_epoch_left_it(tmp_path: Path) -> None:
    # The second epoch has a record that is older than the watermark of the first epoch.
    records = [("a", 10, 1), ("a", 500, 1), ("a", 20, 1), ("a", 30, 1)]
    stream = events(environment(), records, per_epoch=2, batch_size=1).map(lambda v: v, EVENT).uid("map")
    late = stream.key_by("key").window(TumblingEventTimeWindows(100)).side_output_late_data(LATE)
    window = late.process(Bounds(), COUNTED).uid("window")
    assert [row.time for row in run_job(collect_graph(window.get_side_output(LATE)), tmp_path)] == [20, 30]


# --- failures ---------------------------------------------------------------------------------------------------------


def boom(value: Any) -> Any:
    raise ValueError(f"boom at {value}")


def test_an_error_in_the_midst_of_a_chain_names_its_operator(tmp_path: Path) -> None:
    env = environment(2)
    stream = (
        env.from_collection([1, 2, 3], Types.LONG()).uid("numbers").map(lambda v: v).uid("fine").map(boom).uid("it")
    )
    error, results = failure_of(collect_graph(stream.rebalance().map(lambda v: v).uid("behind")), tmp_path)
    assert isinstance(error, UserFunctionError)
    assert (error.operator, error.subtask, error.key) == ("it", 0, None)
    assert "raised ValueError: boom at 1" in str(error)
    assert 'raise ValueError(f"boom at {value}")' in error.user_traceback
    assert results.failure is not None
    assert results.failure.task == ("it", 0)


def test_a_failed_task_cancels_what_it_feeds(tmp_path: Path) -> None:
    env = environment(2)
    left = events(env, TIMES, uid="left").map(lambda v: boom(v) if v.time == 90 else v, EVENT).uid("it")
    sink = FolderSink(tmp_path)
    left.rebalance().map(lambda v: (v.key, v.time, v.value), COUNTED).uid("behind").sink_to(sink).uid("sink")
    rows = run_rows(make_job(env.get_job_graph(), tmp_path))
    results = EpochResults.of(rows, 1)
    assert [f.task for f in results.failures] == [("it", 1)]  # cancelled tasks report no failure
    assert {task for task, _ in results.states.items()} == {("left", 0), ("it", 0)}
    assert sink.staged() == []


def test_a_failure_after_much_output_still_cancels(tmp_path: Path) -> None:
    env = environment()
    source = CollectionSource(["x" * 3_000_000] * 6 + [""], Types.STRING(), batch_size=1)
    strings = env.from_source(source, event_time().no_watermarks(), "strings").uid("strings")
    sent = strings.map(lambda v: v if v else boom(v), Types.STRING()).uid("it").rebalance()
    error, results = failure_of(collect_graph(sent.map(lambda v: v).uid("behind")), tmp_path)
    assert isinstance(error, UserFunctionError)
    assert results.states == {}


def test_an_error_of_a_keyed_function_names_the_key(tmp_path: Path) -> None:
    records = [("a", 1, 1), ("b", 2, 0)]
    stream = events(environment(), records).key_by("key").process(Calls(lambda v, ctx: [1 // v.value])).uid("it")
    error, _ = failure_of(collect_graph(stream), tmp_path)
    assert isinstance(error, UserFunctionError)
    assert (error.operator, error.key) == ("it", "'b'")
    assert "process_element() of operator 'it'" in str(error)


def test_an_error_in_a_timer_names_the_key(tmp_path: Path) -> None:
    class Fails(TimerPerRecord):
        def on_timer(self, timestamp, ctx):
            raise KeyError(timestamp)

    stream = events(environment(), [("a", 1, 1)])
    both = stream.connect(stream).key_by("key", "key").process(Fails()).uid("it")
    with pytest.raises(UserFunctionError, match=r"on_timer\(\) of operator 'it'.*key 'a', raised KeyError: 1"):
        collect_all(both, tmp_path)


@pytest.mark.parametrize("method", ["open", "close"])
def test_an_error_in_open_or_close_is_the_users(tmp_path: Path, method: str) -> None:
    class Fails(MapFunction):
        def map(self, value):
            return value

    setattr(Fails, method, lambda self, *context: boom(method))
    stream = environment().from_collection([1], Types.LONG()).map(Fails()).uid("it").rebalance().map(lambda v: v)
    error, results = failure_of(collect_graph(stream), tmp_path)
    assert isinstance(error, UserFunctionError)
    assert (error.operator, results.states) == ("it", {})
    assert f"{method}() of operator 'it'" in str(error)


def test_a_record_of_another_type_than_declared_names_operator_and_field(tmp_path: Path) -> None:
    stream = events(environment(), TIMES).map(lambda v: Row(v.key, "late", 1), EVENT).uid("it").rebalance()
    with pytest.raises(TypeMismatchError, match=r"operator 'it': field 'time'.*'late'"):
        collect_all(stream.map(lambda v: v), tmp_path)


CHAINED = {
    "map": lambda stream: stream.map(str, Types.STRING()),
    "filter": lambda stream: stream.filter(bool),
    "flat_map": lambda stream: stream.flat_map(lambda v: [v], Types.LONG()),
    "process": lambda stream: stream.process(Each(), Types.LONG()),
    "timestamps": lambda stream: stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    ),
    "print": lambda stream: stream,
}


class Itself(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value


class Each(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


@pytest.mark.parametrize("following", CHAINED)
def test_a_record_of_another_type_is_found_between_chained_functions(tmp_path: Path, following: str) -> None:
    wrong = environment().from_collection([1, 2]).map(lambda v: "two" if v == 2 else v, Types.LONG()).uid("it")
    stream = CHAINED[following](wrong)
    stream.print()
    with pytest.raises(TypeMismatchError, match=r"^operator 'it': declared LONG, .*'two' is str$"):
        collect_all(stream, tmp_path)


def test_a_misfit_that_a_filter_has_dropped_is_one_still(tmp_path: Path) -> None:
    rows = environment().from_collection([1, 2]).map(lambda v: Row("x" if v == 2 else v), ONE).uid("it")
    with pytest.raises(TypeMismatchError, match=r"^operator 'it': field 'n': declared LONG, .*'x' is str$"):
        collect_all(rows.filter(lambda v: v.n == 1).map(lambda v: v.n, Types.LONG()), tmp_path)


def test_chained_functions_hand_on_what_they_made(tmp_path: Path) -> None:
    numbers = environment().from_collection([1]).map(lambda v: v, Types.DOUBLE())
    assert collect_all(numbers.map(lambda v: type(v).__name__, Types.STRING()), tmp_path) == ["int"]


def test_keyed_state_without_key_is_refused(tmp_path: Path) -> None:
    class Asks(MapFunction):
        def open(self, runtime_context):
            runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))

        def map(self, value):
            return value

    stream = environment().from_collection([1], Types.LONG()).map(Asks()).uid("it")
    with pytest.raises(ConfigurationError, match=r"'it' asks for keyed state 'list'.*call key_by"):
        collect_all(stream, tmp_path)


def test_timers_without_key_are_refused(tmp_path: Path) -> None:
    class Registers(ProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(1)

    stream = environment().from_collection([1], Types.LONG()).process(Registers()).uid("it")
    with pytest.raises(ConfigurationError, match="'it' registers a timer"):
        collect_all(stream, tmp_path)


def test_the_writer_of_a_failed_sink_is_aborted(tmp_path: Path) -> None:
    env = environment()
    sink = FolderSink(tmp_path)
    stream = events(env, TIMES).map(lambda v: (v.key, v.time, 1), COUNTED).uid("map")
    stream.sink_to(sink).uid("sink")
    stream.map(lambda v: boom(v) if v[1] == 90 else v).uid("it")
    error, _ = failure_of(env.get_job_graph(), tmp_path)
    assert isinstance(error, UserFunctionError)
    assert sink.staged() == []


def test_a_failed_store_ends_the_task_and_aborts_its_writers(tmp_path: Path) -> None:
    env = environment()
    sink = FolderSink(tmp_path, fail_on=("a", 90, 1))
    events(env, TIMES).map(lambda v: (v.key, v.time, 1), COUNTED).uid("map").sink_to(sink).uid("sink")
    with pytest.raises(FlinkPyError, match="the disk is full"):  # for Spark, which may try the task again
        run_rows(make_job(env.get_job_graph(), tmp_path))
    assert sink.staged() == []


# --- barriers ---------------------------------------------------------------------------------------------------------


def rebalanced(folder: Path) -> JobGraph:
    numbers = environment(2).from_collection(list(range(50)), Types.LONG()).set_parallelism(2)
    stream = numbers.uid("numbers").rebalance()
    return collect_graph(stream.map(lambda v: v, Types.LONG()).uid("it"))


def test_every_task_acknowledges_once(tmp_path: Path) -> None:
    rows = run_rows(make_job(rebalanced(tmp_path), tmp_path))
    acks = sorted((a["uid"], a["state"]["index"]) for a in (json.loads(p) for p in payloads(rows, Kind.ACK)))
    assert acks == [(uid, i) for uid in ("collect", "it", "numbers") for i in range(2)]


def test_a_barrier_that_is_missing_declines(tmp_path: Path) -> None:
    def lose_one(stage: int, rows: list[WireRow]) -> list[WireRow]:
        return [row for row in rows if (row.kind, row.target, row.channel) != (Kind.BARRIER, 1, 0)]

    error, _ = failure_of(rebalanced(tmp_path), tmp_path, corrupt=lose_one)
    assert isinstance(error, CheckpointError)
    assert "operator 'it', subtask 1: barrier 1 did not arrive from 1 of its channels" in str(error)


def test_a_task_that_got_nothing_declines(tmp_path: Path) -> None:
    def lose_all(stage: int, rows: list[WireRow]) -> list[WireRow]:
        return [row for row in rows if row.target != 1]

    error, _ = failure_of(rebalanced(tmp_path), tmp_path, corrupt=lose_all)
    assert isinstance(error, CheckpointError)
    assert "2 of its channels" in str(error)


def test_the_barrier_of_another_attempt_is_found_out(tmp_path: Path) -> None:
    def of_another(stage: int, rows: list[WireRow]) -> list[WireRow]:
        def changed(row: WireRow) -> WireRow:
            payload = json.dumps({**json.loads(bytes(row.payload)), "digest": "00000000"}).encode()
            return replace(row, payload=pa.py_buffer(payload))

        barrier = (Kind.BARRIER, 1, 0)
        return [changed(row) if (row.kind, row.channel, row.target) == barrier else row for row in rows]

    results = run_epoch(make_job(rebalanced(tmp_path), tmp_path), corrupt=of_another)
    assert results.failure is None
    with pytest.raises(CheckpointError, match="task it/0 consumed an output of task numbers/1 that"):
        results.check_consistent()


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999), parallelism=st.integers(1, 4))
def test_the_order_of_channels_changes_no_result(
    seed: int, parallelism: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records = [(f"k{i % 5}", i, i) for i in range(60)]
    stream = events(environment(parallelism), records).rebalance().map(lambda v: v, EVENT).key_by("key")
    summed = stream.window(TumblingEventTimeWindows(20)).aggregate(Sum(), Bounds(), Types.LONG(), COUNTED)
    # The watermark of each channel is right for its records, so none is late in any order.
    fired = collect_all(summed, tmp_path_factory.mktemp("order"), random_order(seed))
    expected = [
        (f"k{k}", s, sum(i for i in range(s, s + 20) if i % 5 == k)) for k in range(5) for s in range(0, 60, 20)
    ]
    assert sorted(fired) == sorted(expected)
