"""`from_spark`: DataFrames run on a real Spark, other operators usually in the harness."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.time import Instant, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import TumblingEventTimeWindows
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    FlinkPyError,
    InputTypeError,
    StorageError,
    ThrowableType,
    UserFunctionError,
)
from dagster_flinkpy.runtime.blocking import segments
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.runtime.throwables import throwable_type
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation
from tests.pyspark_versions import since
from tests.runtime.blocking.dataframes import COUNTED_LONGS, ID, RECORDS, Where, fail_once, fails, parts, run
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, run_rows
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, event_time, events
from tests.waiting import LIMIT

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]

COLUMNS = [
    "id",
    "int(id) i",
    "float(id) / 2 f",
    "id % 2 = 0 even",
    "string(id) s",
    "binary(string(id)) bytes",
    "decimal(id) / 4 dec",
    "date'2024-02-29' day",
    "time'12:30:00' clock",
    "timestamp'2024-01-01 00:00:00.25Z' at",
    "timestamp_ntz'2024-01-01 00:00:00' local",
    "array(id, null) list",
    "map('k', id) map",
    "named_struct('x', id, 'y', array(named_struct('z', string(null)))) nested",
    "if(id = 1, null, id) maybe",
]
ROWS = [
    Row(
        id=i,
        i=i,
        f=i / 2,
        even=i % 2 == 0,
        s=str(i),
        bytes=str(i).encode(),
        dec=Decimal(i) / 4,
        day=date(2024, 2, 29),
        clock=time_of_day(12, 30),
        at=Instant(1704067200, 250_000_000),
        local=datetime(2024, 1, 1),
        list=[i, None],
        map={"k": i},
        nested=Row(x=i, y=[Row(z=None)]),
        maybe=None if i == 1 else i,
    )
    for i in range(3)
]


def columns(spark: Any) -> Any:
    return spark.range(0, 3, 1, 1).selectExpr(*COLUMNS)


@since("4.1", "type for times of day")
def test_columns_of_all_types_there_and_back(tmp_path: Path) -> None:
    stream = environment().from_spark(columns).uid("rows")
    same = stream.transform_spark(lambda df: df).uid("same")
    assert same.get_type() == stream.get_type()
    assert run(collect_graph(same), tmp_path) == ROWS
    assert run(collect_graph(environment().from_spark(columns).uid("rows")), tmp_path / "alone") == ROWS


@since("4.1", "type for times of day")
def test_declared_columns_are_wider(tmp_path: Path) -> None:
    type_info = Types.ROW_NAMED(["at", "id"], [Types.SQL_TIMESTAMP(), Types.DECIMAL(20, 1)])
    stream = environment().from_spark(columns, type_info=type_info).uid("rows")
    assert run(collect_graph(stream), tmp_path)[:1] == [Row(at=datetime(2024, 1, 1, 0, 0, 0, 250_000), id=Decimal(0))]


def test_a_column_may_have_any_name(tmp_path: Path) -> None:
    names = ["rowtime", "a.b", "a", "A", "`", "1"]
    columns = ", ".join(f"{i}L `{name.replace('`', '``')}`" for i, name in enumerate(names))
    stream = environment().from_spark(lambda spark: spark.sql(f"select {columns}")).uid("rows")
    assert stream.get_type() == Types.ROW_NAMED(names, [Types.LONG()] * len(names))
    assert [tuple(row) for row in run(collect_graph(stream), tmp_path)] == [tuple(range(len(names)))]


def test_runs_on_the_local_server_do_not_see_the_views_and_settings_of_each_other(
    tmp_path: Path, spark: SparkSession, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_a_run(settings: SparkSettings, *, own: bool = False) -> SparkSession:
        return get_session(spark_settings, own=own)

    def orders(session: SparkSession) -> Any:
        session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        session.range(3).createOrReplaceTempView("orders")
        with get_session(spark_settings, own=True) as other:  # another run begins meanwhile
            assert other.conf.get("spark.sql.session.timeZone") == "UTC"
            other.range(2).createOrReplaceTempView("orders")
        raise KeyError(session.table("orders").count())  # the DataFrame itself would need new workers

    monkeypatch.setattr(job_session, "get_session", of_a_run)
    graph = collect_graph(environment().from_spark(orders, type_info=ID).uid("rows"))
    with pytest.raises(UserFunctionError, match="KeyError: 3"):
        run(graph, tmp_path)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert not spark.catalog.tableExists("orders")


@pytest.mark.parametrize(("parallelism", "partitions"), [(1, 3), (2, 5), (3, 2)])
def test_the_rows_of_a_partition_stay_together_and_in_order(tmp_path: Path, parallelism: int, partitions: int) -> None:
    stream = environment(parallelism).from_spark(lambda s: s.range(0, 100, 1, partitions), type_info=ID).uid("rows")
    found = run(collect_graph(stream.process(Where(), COUNTED_LONGS)), tmp_path)
    assert sorted(v for _, v, _ in found) == list(range(100))
    bounds = [100 * i // partitions for i in range(partitions + 1)]
    for subtask in range(parallelism):
        wanted = [v for p in range(subtask, partitions, parallelism) for v in range(bounds[p], bounds[p + 1])]
        assert [v for s, v, _ in found if s == subtask] == wanted


def test_event_time_and_windows(tmp_path: Path) -> None:
    def rows(spark: Any) -> Any:
        return spark.createDataFrame(RECORDS, "key string, time bigint, value bigint")

    stream = environment(2).from_spark(rows, event_time()).uid("rows")
    sums = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10))).sum("value").uid("sums")
    found = run(collect_graph(sums), tmp_path)
    assert sorted((r.key, r.value) for r in found) == [("a", 1), ("a", 7), ("b", 1), ("b", 3), ("c", 7)]


def test_an_empty_data_frame_ends(tmp_path: Path) -> None:
    stream = environment(2).from_spark(lambda spark: spark.range(0), type_info=ID).uid("rows")
    assert run(collect_graph(stream), tmp_path) == []
    assert run(collect_graph(stream), tmp_path) == []


def test_a_task_that_is_tried_again_finds_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[list[Any]] = []

    def twice(self: HarnessAttempt, job: EpochJob) -> list[WireRow]:
        for _ in range(2):
            rows = run_rows(job)
            tries.append([bytes(r.payload) for r in rows if r.kind.name == "COLLECT"])
        return rows

    monkeypatch.setattr(HarnessAttempt, "_on_spark", twice)
    stream = environment(2).from_spark(lambda spark: spark.range(40).selectExpr("uuid() u")).uid("rows")
    found = run(collect_graph(stream), tmp_path)
    assert tries[0] == tries[1]
    assert len({r.u for r in found}) == 40


def test_a_failed_epoch_is_computed_again_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def rows(spark: Any) -> Any:
        calls.append(1)
        return spark.range(len(calls) * 10, len(calls) * 10 + 10)

    sink = FolderSink(tmp_path / "table")
    env = environment(2)
    env.from_spark(rows, type_info=ID).uid("rows").map(lambda r: (r.id,), Types.TUPLE([Types.LONG()])).sink_to(
        sink
    ).uid("s")
    graph = env.get_job_graph()
    with monkeypatch.context() as patch:
        fail_once(patch)
        with pytest.raises(StorageError):
            run(graph, tmp_path)
    assert (sink.rows(), parts(tmp_path, "rows")) == ([], ["0000000001"])
    run(graph, tmp_path)
    assert sink.rows() == [(i,) for i in range(20, 30)]
    assert parts(tmp_path, "rows") == []
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.finished
    assert len(calls) == 2


def test_what_was_read_is_not_read_again_after_a_restore_at_another_parallelism(tmp_path: Path) -> None:
    calls: list[int] = []

    def rows(spark: Any) -> Any:
        calls.append(1)
        return spark.createDataFrame(RECORDS[:3], "key string, time bigint, value bigint")

    env = environment(2)
    both = env.from_spark(rows, type_info=EVENT).uid("rows").union(events(env, RECORDS[3:], per_epoch=1))
    graph = collect_graph(both.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))
    found = run(graph, tmp_path, epochs=2)
    assert len(found) == 5
    with HarnessAttempt(graph, tmp_path, parallelism=3) as attempt:
        attempt.commit_restored()
    found += run(graph, tmp_path)
    assert Counter(found) == Counter([("a", 1, 2), ("b", 1, 3), ("a", 2, 7), ("c", 1, 7), ("b", 2, 4), ("a", 3, 8)])
    assert (len(calls), parts(tmp_path, "rows")) == (1, [])


def test_a_fenced_attempt_leaves_the_parts_of_the_newer_one(tmp_path: Path) -> None:
    graph = collect_graph(environment().from_spark(lambda spark: spark.range(3), type_info=ID).uid("rows"))
    with HarnessAttempt(graph, tmp_path) as fenced:

        class Newer(HarnessAttempt):
            def _on_spark(self, job: EpochJob) -> list[WireRow]:
                splits = fenced._deployed.regions.planners[0].splits
                splits.news.append(1)
                splits.tell_news()
                return super()._on_spark(job)

        with Newer(graph, tmp_path) as newer:
            newer.run_epoch()
            assert newer.finished


def test_the_factory_stays_on_the_driver(tmp_path: Path) -> None:
    lock = threading.Lock()  # cannot be pickled

    def rows(spark: Any) -> Any:
        with lock:
            return spark.range(2)

    assert run(collect_graph(environment().from_spark(rows, type_info=ID).uid("rows")), tmp_path) == [
        Row(id=0),
        Row(id=1),
    ]


def test_functions_of_a_module_that_workers_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        from pyspark.sql.functions import udf

        def shout(value):
            return value.upper() + "!"

        def rows(spark):
            return spark.createDataFrame([("a",)], "s string").select(udf(shout)("s").alias("s"))
    """
    (tmp_path / "flinkpy_spark_form_code.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("flinkpy_spark_form_code")
    try:
        stream = environment().from_spark(module.rows).uid("rows")
        assert run(collect_graph(stream), tmp_path) == [Row(s="A!")]
    finally:
        del sys.modules["flinkpy_spark_form_code"]


def _udf(spark: Any) -> Any:
    from pyspark.sql.functions import udf

    return spark.range(1).select(udf(lambda v: 1 // v, "bigint")("id").alias("id"))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (fails, UserFunctionError, "operator 'rows' failed: KeyError: 'no such table'"),
        (_udf, UserFunctionError, "operator 'rows' failed: PythonException"),
        (lambda spark: spark.table("nowhere"), UserFunctionError, "operator 'rows' failed: AnalysisException.*nowhere"),
        (lambda spark: spark.range(1).selectExpr("raise_error('bad') id"), UserFunctionError, "bad"),
        (
            lambda spark: 42,
            InputTypeError,
            "operator 'rows': .* must return a Spark DataFrame, not 42, which is int",
        ),
        (
            lambda spark: spark.range(1).toDF("n"),
            InputTypeError,
            "operator 'rows': .* no column 'id'; its columns are 'n'",
        ),
        (
            lambda spark: spark.range(1).selectExpr("id", "id"),
            InputTypeError,
            "operator 'rows': the DataFrame has two columns 'id'",
        ),
        (
            lambda spark: spark.readStream.format("rate").load(),
            InputTypeError,
            "operator 'rows': the DataFrame is a stream of Spark;",
        ),
        (
            lambda spark: spark.sql("select 1e30 id"),
            InputTypeError,
            r"operator 'rows', the DataFrame: column 'id' is double, which does not become Types.LONG\(\): ",
        ),
    ],
)
def test_what_is_wrong_with_a_data_frame_is_said(
    tmp_path: Path, rows: Callable[[Any], Any], error: type[FlinkPyError], message: str
) -> None:
    graph = collect_graph(environment().from_spark(rows, type_info=ID).uid("rows"))
    with pytest.raises(error, match=message) as raised:
        run(graph, tmp_path)
    if isinstance(raised.value, UserFunctionError):
        assert raised.value.operator == "rows"
        assert "Traceback" in raised.value.user_traceback
        assert raised.value.permanent == isinstance(raised.value.__cause__, AnalysisException), "Spark refuses the plan"
    else:
        assert throwable_type(raised.value) is ThrowableType.NON_RECOVERABLE_ERROR


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("interval '1' day", "column 'c' of the DataFrame is interval day, for which there is no type in Types"),
        ("interval '1' month", "column 'c' of the DataFrame is interval month, for which there is no type in Types"),
        ("null", "column 'c' of the DataFrame is void, for which there is no type in Types"),
        (
            "array(named_struct('x', null))",
            "column 'c' of the DataFrame is array<struct<x:void>>, for which there is no type in Types",
        ),
    ],
)
def test_a_column_without_a_type_is_named_when_the_program_is_declared(column: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"operator 'Spark Source': {message}"):
        environment().from_spark(lambda spark: spark.sql(f"select {column} c"))


def test_a_data_frame_that_takes_too_long_frees_spark(tmp_path: Path) -> None:
    release = tmp_path / "release"

    def waits(spark: Any) -> Any:
        from pyspark.sql.functions import udf

        def wait(value: Any) -> Any:
            while not release.exists():
                time.sleep(0.01)
            return value

        return spark.range(0, 2, 1, 2).select(udf(wait, "bigint")("id").alias("id"))

    graph = collect_graph(environment().from_spark(waits, type_info=ID).uid("rows"))
    config = {"checkpointing": CoordinatorConfig(timeout=timedelta(seconds=5))}

    class Threaded(HarnessAttempt):
        _create_mailbox = JobAttempt._create_mailbox

    with (
        pytest.raises(CheckpointError, match="tasks answered in 0:00:05"),
        Threaded(graph, tmp_path, config=config) as attempt,
    ):
        attempt._watchdog.timeout = timedelta(seconds=LIMIT)  # or it may be first, and leaves all as it is
        attempt.run_epoch()
    # Both slots of the Spark server are free again, although nothing was released.
    stream = environment().from_spark(lambda spark: spark.range(0, 4, 1, 4), type_info=ID).uid("rows")
    assert len(run(collect_graph(stream), tmp_path / "other")) == 4
    release.touch()


def test_a_partition_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1000)
    store = StorageLocation(str(tmp_path)).open()
    writer = segments.SegmentWriter(store, "parts/7", Types.LONG())
    values = pa.array(range(2000))
    for start in range(0, 2000, 100):
        writer.write(values.slice(start, 100), values.slice(start, 100))
    written = writer.finish()
    assert len(written) > 1
    read = [b for p in written for b in segments.read_segment(store, "", p)]
    assert pa.Table.from_batches(read).column("value").to_pylist() == list(range(2000))


@pytest.mark.system
def test_on_spark_and_s3_after_a_failure(
    s3_location: StorageLocation, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = environment(2).from_spark(lambda spark: spark.range(0, 10, 1, 3), type_info=ID).uid("rows")
    graph = collect_graph(rows.transform_spark(lambda df: df.where("id % 2 = 1"), ID).uid("odd"))
    config = JobConfig("job", s3_location, spark_settings)
    with monkeypatch.context() as patch:
        fail_once(patch)
        with JobAttempt(graph, config, owner="test") as attempt, pytest.raises(StorageError):
            attempt.run_epoch()
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
        assert attempt.finished
        assert sorted(r.id for r in collected(graph, attempt.collected)) == [1, 3, 5, 7, 9]
    assert list(s3_location.child("job").child("exchange").open().list()) == []


@pytest.fixture(scope="module", autouse=True)
def same_session(spark: Any) -> Iterator[None]:
    yield
