"""Fields that are no times, and inputs that hold event time back for ever, are found before a program runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Duration, Types, WatermarkStrategy
from dagster_flinkpy.common.type_information import TypeInformation
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import (
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.event_time import EventTimeStall, find_stalls
from dagster_flinkpy.datastream.window import (
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.errors import JobGraphError, StalledEventTimeWarning
from dagster_flinkpy.orchestration.flink_job import flink_job

ROW = Types.ROW_NAMED(["key", "at"], [Types.STRING(), Types.LONG()])
WITH_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
SILENT = WatermarkStrategy.no_watermarks()
IDLE = SILENT.with_idleness(Duration.of_minutes(1))


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Any:
        yield value


class Timers(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None: ...

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None: ...

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), timestamp


Build = Callable[[DataStream, DataStream], object]


def united(orders: DataStream, dimension: DataStream) -> None:
    keyed = orders.union(dimension).key_by("key")
    keyed.window(TumblingEventTimeWindows(1000)).reduce(lambda a, b: a).uid("windows")


def connected(orders: DataStream, dimension: DataStream) -> None:
    both = orders.connect(dimension).process(Both(), ROW).uid("both")
    both.key_by("key").window(TumblingEventTimeWindows(1000)).reduce(lambda a, b: a).uid("windows")


def with_timers(orders: DataStream, dimension: DataStream) -> None:
    orders.key_by("key").connect(dimension.key_by("key")).process(Timers(), ROW).uid("timers")


def static(orders: DataStream, dimension: DataStream) -> None:
    connected(orders, dimension.static())


def by_processing_time(orders: DataStream, dimension: DataStream) -> None:
    keyed = orders.union(dimension).key_by("key")
    keyed.window(TumblingProcessingTimeWindows(1000)).reduce(lambda a, b: a).uid("windows")


def timestamped(orders: DataStream, dimension: DataStream) -> None:
    united(orders, dimension.assign_timestamps_and_watermarks(WITH_TIME).uid("timestamps"))


def program(
    build: Build, folder: Path, strategy: WatermarkStrategy, *, bounded: bool | None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    for name in ("orders", "dimension"):
        (folder / name).mkdir(exist_ok=True)
    orders = env.from_source(
        ParquetSource(str(folder / "orders"), row_type=ROW, bounded=False), WITH_TIME, "orders"
    ).uid("orders")
    source = ParquetSource(str(folder / "dimension"), row_type=ROW, bounded=bounded)
    build(orders, env.from_source(source, strategy, "dimension").uid("dimension"))
    return env


@pytest.mark.parametrize(
    ("build", "at", "waiting"),
    [(united, "windows", "windows"), (connected, "both", "windows"), (with_timers, "timers", "timers")],
)
def test_an_input_that_holds_event_time_back_is_named(build: Build, at: str, waiting: str, tmp_path: Path) -> None:
    graph = program(build, tmp_path, SILENT, bounded=False).get_job_graph()
    assert find_stalls(graph) == [EventTimeStall(at, ("dimension",), (waiting,))]


@pytest.mark.parametrize(
    ("build", "strategy", "bounded"),
    [
        (united, WITH_TIME, False),
        (united, IDLE, False),
        (united, SILENT, True),
        (by_processing_time, SILENT, False),
        (timestamped, SILENT, False),
        (static, SILENT, False),
    ],
    ids=["watermarks", "idle", "bounded", "processing time", "timestamps later", "static"],
)
def test_others_are_not(build: Build, strategy: WatermarkStrategy, bounded: bool, tmp_path: Path) -> None:
    assert find_stalls(program(build, tmp_path, strategy, bounded=bounded).get_job_graph()) == []


@pytest.mark.parametrize(
    ("strategy", "trigger", "bounded", "stalls"),
    [
        (SILENT, None, False, True),
        (IDLE, PurgingTrigger.of(EventTimeTrigger()), False, True),
        (SILENT, None, True, False),
        (SILENT, CountTrigger.of(2), False, False),
        (WITH_TIME, None, False, False),
    ],
    ids=["no watermarks", "idle", "bounded", "by count", "watermarks"],
)
def test_windows_without_any_watermark_are_named(
    strategy: WatermarkStrategy, trigger: Any, bounded: bool, stalls: bool, tmp_path: Path
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ParquetSource(str(tmp_path), row_type=ROW, bounded=bounded)
    keyed = env.from_source(source, strategy.with_timestamp_assigner("at"), "orders").uid("orders").key_by("key")
    windows = keyed.window(TumblingEventTimeWindows(1000))
    (windows.trigger(trigger) if trigger else windows).reduce(lambda a, b: a).uid("windows")
    found = find_stalls(env.get_job_graph())
    assert found == [EventTimeStall("windows", ("orders",), ("windows",), others=False)] * stalls
    if found:
        assert "source 'orders' gives no watermarks and does not end" in str(found[0])
        assert "idleness" not in str(found[0])


def test_a_source_that_dagster_reads_without_end_is_warned_of(tmp_path: Path) -> None:
    """As a script reads it, it ends."""
    env = program(united, tmp_path, SILENT, bounded=None)
    assert find_stalls(env.get_job_graph()) == []
    with pytest.warns(StalledEventTimeWarning, match="operator 'windows': source 'dimension' gives no watermarks"):
        flink_job(env, "job")


def test_a_script_is_warned_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def executor() -> Any:
        raise RuntimeError("nothing runs")

    monkeypatch.setattr("dagster_flinkpy.datastream.program.program.get_executor", executor)
    env = program(united, tmp_path, SILENT, bounded=False)
    with pytest.warns(StalledEventTimeWarning) as warned, pytest.raises(RuntimeError, match="nothing runs"):
        env.execute("job")
    assert [each.filename for each in warned] == [__file__]


def test_without_a_stall_there_is_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StalledEventTimeWarning)
        flink_job(program(united, tmp_path, IDLE, bounded=None), "job")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (Types.ROW_NAMED(["key", "time"], [Types.STRING(), Types.LONG()]), r"no such field; .*'key', 'time'"),
        (Types.ROW_NAMED(["at"], [Types.STRING()]), r"the field is Types\.STRING\(\); .*map\(\)"),
        (Types.ROW_NAMED(["at"], [Types.SQL_DATE()]), r"the field is Types\.SQL_DATE\(\); .*map\(\)"),
        (Types.PICKLED_BYTE_ARRAY(), "needs records with fields"),
    ],
)
def test_a_field_that_is_no_time_is_refused_where_it_is_declared(record: TypeInformation, problem: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(JobGraphError, match=rf"with_timestamp_assigner\('at'\).*{problem}"):
        env.from_source(CollectionSource([], record), WITH_TIME, "records")
    with pytest.raises(JobGraphError, match=problem):
        env.from_collection([], record).assign_timestamps_and_watermarks(WITH_TIME)


@pytest.mark.parametrize("kind", ["SHORT", "LONG", "SQL_TIMESTAMP", "INSTANT"])
def test_a_field_of_times_is_taken(kind: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(CollectionSource([], Types.ROW_NAMED(["at"], [getattr(Types, kind)()])), WITH_TIME, "records")
    pairs = env.from_collection([], Types.TUPLE([Types.STRING(), Types.LONG()]))
    pairs.assign_timestamps_and_watermarks(WITH_TIME.with_timestamp_assigner("f1"))


@pytest.mark.parametrize(
    ("strategy", "also_read", "expected"),
    [(SILENT, False, 1), (SILENT, True, 1), (WITH_TIME, False, 1), (WITH_TIME, True, None)],
)
def test_a_source_takes_the_idle_timeout_of_who_assigns_event_time_unless_others_heed_its_own_watermarks(
    strategy: WatermarkStrategy, also_read: bool, expected: int | None
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(CollectionSource([], ROW), strategy, "source").uid("source").filter(lambda row: True)
    stream.assign_timestamps_and_watermarks(WITH_TIME.with_idleness(Duration.of_minutes(1))).uid("times")
    if also_read:
        stream.key_by("key").count().uid("count")
    timeout = env.get_job_graph().vertex("source").spec.watermark_strategy.idle_timeout
    assert timeout == (None if expected is None else Duration.of_minutes(expected))
