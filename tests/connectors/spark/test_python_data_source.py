"""Python data sources of Spark as sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, PythonDataSource
from dagster_flinkpy.connectors.spark.python_data_reader import _goes_back, parse_ddl
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Json, SplitEnumerator
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.testing import run_local


class Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class NumbersReader(DataSourceStreamReader, DataSourceReader):
    """As many numbers as the file ``end`` says, in partitions of ten."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        end = int((self.folder / "end").read_text())
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["next"] + limit.max_rows)
        else:
            assert isinstance(limit, ReadAllAvailable)
        return {"next": end}

    def partitions(self, start: Any = None, end: Any = None) -> list[Range]:
        first, last = (0, 25) if start is None else (start["next"], end["next"])
        return [Range(i, min(i + 10, last)) for i in range(first, last, 10)]

    def read(self, partition: Range) -> Iterator[tuple[int, str]]:
        return iter([(i, f"n{i}") for i in range(partition.start, partition.end)])

    def commit(self, end: dict[str, int]) -> None:
        with (self.folder / "committed").open("a") as file:
            file.write(f"{end['next']}\n")


class Numbers(DataSource):
    def schema(self) -> str:
        return "n bigint, name string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return NumbersReader(self.options["folder"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        assert schema.names == ["n", "name"]
        return NumbersReader(self.options["folder"])


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([]), {"next": min(start["next"] + 3, 6)}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        yield pa.record_batch({"more": ["x", "y", "z"], "n": pa.array(range(start["next"], end["next"]), pa.int32())})


class Simple(DataSource):
    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "end").write_text("25")
    return tmp_path


def numbers(folder: Path, **options: Any) -> PythonDataSource:
    return PythonDataSource(Numbers({"folder": str(folder)}), **options)


def epoch(source: PythonDataSource, enumerator: SplitEnumerator) -> list[Any]:
    plan = enumerator.plan_epoch(2)
    rows = [row for share in plan for split in share for column, _ in source.read(split) for row in column.to_pylist()]
    enumerator.on_epoch_read([split.advanced(9, finished=True) for share in plan for split in share])
    return sorted(row["n"] for row in rows)


def restored(source: PythonDataSource, enumerator: SplitEnumerator) -> SplitEnumerator:
    return source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))


def test_offsets_are_the_position_and_are_committed_after_the_checkpoint(folder: Path) -> None:
    source = numbers(folder).continuous()
    assert source.produced_type == Types.ROW_NAMED(["n", "name"], [Types.LONG(), Types.STRING()])
    enumerator = source.create_enumerator(None)
    plan = enumerator.plan_epoch(2)
    assert [[s.attachment.start for s in share] for share in plan] == [[0, 20], [10]]
    assert "attachment" not in plan[0][0].to_json()
    assert epoch(source, restored(source, enumerator)) == list(range(25)), "it was planned and not read"
    assert epoch(source, enumerator) == list(range(25))
    enumerator.on_snapshot(1)
    (folder / "end").write_text("31")
    assert epoch(source, enumerator) == list(range(25, 31))
    enumerator.on_snapshot(2)
    assert not (folder / "committed").exists()
    enumerator.notify_checkpoint_complete(1)
    enumerator.notify_checkpoint_complete(2)
    assert (folder / "committed").read_text() == "25\n31\n"
    enumerator = restored(source, enumerator)
    assert epoch(source, enumerator) == []
    assert not enumerator.exhausted


def test_a_limit_is_given_to_the_reader(folder: Path) -> None:
    source = numbers(folder, max_records_per_epoch=12)
    enumerator, epochs = source.create_enumerator(None), []
    while not enumerator.exhausted:
        epochs.append(epoch(source, enumerator))
        enumerator = restored(source, enumerator)
    assert epochs == [list(range(12)), list(range(12, 24)), [24], []]


def test_an_offset_that_goes_back_is_refused(folder: Path) -> None:
    source = numbers(folder).continuous()
    enumerator = source.create_enumerator(None)
    assert epoch(source, enumerator) == list(range(25))
    (folder / "end").write_text("20")
    with pytest.raises(InputChangedError, match=r"up to offset {'next': 25}, but .* is {'next': 20} now"):
        restored(source, enumerator).plan_epoch(1)
    (folder / "end").write_text("26")
    assert epoch(source, restored(source, enumerator)) == [25]


@pytest.mark.parametrize(
    ("start", "end", "back"),
    [
        ({"a": 3}, {"a": 2}, True),
        ({"a": 3}, {"a": 3}, False),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 1}}, True),
        ({"day": 3, "page": 7}, {"day": 4, "page": 0}, False),
        ({"a": 3}, {"b": 2}, False),
        ({"at": "2024-01-02T00:00:00Z"}, {"at": "2024-01-01T23:00:00Z"}, True),
        ({"at": "2024-01-02T00:00:00Z"}, {"at": "2024-01-01"}, False),
        ({"n": "10"}, {"n": "9"}, True),
        ({"n": "9"}, {"n": "10"}, False),
        ({"cursor": "zb1"}, {"cursor": "a07"}, False),
        ({"flag": True}, {"flag": False}, False),
    ],
)
def test_what_goes_back(start: Json, end: Json, back: bool) -> None:
    assert _goes_back(start, end) is back


def test_a_batch_reader_is_read_once(folder: Path) -> None:
    source = numbers(folder, batch=True)
    enumerator = source.create_enumerator(None)
    assert epoch(source, restored(source, enumerator)) == list(range(25))
    assert epoch(source, enumerator) == list(range(25))
    assert enumerator.exhausted
    again = restored(source, enumerator)
    assert epoch(source, again) == []
    assert again.exhausted


@pytest.mark.parametrize("batch", [False, True])
def test_a_stream_is_asked_again_before_the_barrier(folder: Path, batch: bool) -> None:
    source = numbers(folder, batch=batch).continuous()
    enumerator = source.create_enumerator(None)
    assert not enumerator.assigns_late, "no reader has been asked"
    enumerator.plan_epoch(1)
    assert enumerator.assigns_late is not batch


def test_a_simple_reader_is_read_between_offsets() -> None:
    source = PythonDataSource(Simple({})).continuous()
    enumerator = source.create_enumerator(None)
    assert [epoch(source, enumerator) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], []]
    with pytest.raises(ConfigurationError, match="Simple cannot limit an epoch"):
        PythonDataSource(Simple({}), max_records_per_epoch=1).create_enumerator(None).plan_epoch(1)


def test_a_job_reads_it_in_this_process(folder: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    stream = env.from_source(numbers(folder), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    [rows] = run_local(env, stream)
    assert sorted(tuple(row) for row in rows) == sorted((i, f"n{i}") for i in range(25))
    assert (folder / "committed").read_text() == "25\n"


@pytest.mark.spark
def test_a_job_reads_it_on_spark(folder: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    stream = env.from_source(numbers(folder), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    stream.sink_to(ParquetSink(str(folder / "out"))).uid("out")
    env.execute("numbers")
    assert sorted(pq.read_table(folder / "out")["n"].to_pylist()) == list(range(25))


class Given(DataSource, DataSourceReader):
    """Rows as they are given."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__({})
        self.rows = rows

    def schema(self) -> str:
        return "low bigint, high bigint, at timestamp"

    def reader(self, schema: StructType) -> Any:
        return self

    def read(self, partition: None) -> Iterator[Any]:
        return iter(self.rows)


def read_given(*rows: Any, row_type: RowTypeInfo | None = None) -> list[Any]:
    source = PythonDataSource(Given(list(rows)), batch=True, row_type=row_type)
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    return [tuple(row.values()) for column, _ in source.read(split) for row in column.to_pylist()]


AT = datetime(2024, 1, 1)


def test_values_of_rows_are_found_by_their_names_and_others_by_their_places_in_the_schema() -> None:
    rows = ((1, 2, None), [1, 2, None], SparkRow(high=2, at=None, low=1), SparkRow(1, 2, None))
    assert read_given(*rows) == [(1, 2, None)] * 4
    declared = Types.ROW_NAMED(["high", "low"], [Types.LONG()] * 2)
    assert read_given(*rows, row_type=declared) == [(2, 1)] * 4


def test_a_timestamp_is_an_instant_and_without_a_zone_one_of_the_machine() -> None:
    east = timezone(timedelta(hours=2))
    utc = AT.replace(tzinfo=timezone.utc)
    rows = [(1, 2, at) for at in (utc.astimezone(east), utc.astimezone().replace(tzinfo=None), None)]
    assert [at for _, _, at in read_given(*rows)] == [AT, AT, None]
    declared = Types.ROW_NAMED(["at"], [Types.INSTANT()])
    assert read_given(*rows, row_type=declared) == [(utc,), (utc,), (None,)]


def test_batches_of_arrow_are_read_one_by_one() -> None:
    """They may be large: thousands were in memory at once."""
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(3):
            taken.append(n)
            yield pa.RecordBatch.from_pylist([{"low": n, "high": n, "at": AT}])

    source = PythonDataSource(Given([]), batch=True)
    source.data_source.read = lambda partition: batches()  # type: ignore[attr-defined]
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    assert [(column.field("low").to_pylist(), [*taken]) for column, _ in source.read(split)] == [
        ([0], [0]),
        ([1], [0, 1]),
        ([2], [0, 1, 2]),
    ]


class Nested(Given):
    """Times inside of other values."""

    def schema(self) -> str:
        return "a array<struct<at timestamp, n int>>, m map<timestamp, timestamp>, local array<timestamp_ntz>"


@pytest.mark.parametrize("kind", [Types.SQL_TIMESTAMP(), Types.INSTANT()])
def test_a_timestamp_inside_of_another_value_is_an_instant_too(kind: TypeInformation) -> None:
    utc = AT.replace(tzinfo=timezone.utc)
    times = utc.astimezone(timezone(timedelta(hours=2))), utc.astimezone(timezone(timedelta(hours=9))).astimezone()
    rows = [([{"at": at, "n": 1}, (at, 1), None], {at: None}, [AT]) for at in (*times, times[1].replace(tzinfo=None))]
    part = Types.ROW_NAMED(["at", "n"], [kind, Types.INT()])
    parts = [Types.LIST(part), Types.MAP(kind, kind), Types.LIST(Types.SQL_TIMESTAMP())]
    source = PythonDataSource(Nested(rows), batch=True, row_type=Types.ROW_NAMED(["a", "m", "local"], parts))
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    [(column, _)] = source.read(split)
    at = utc if kind == Types.INSTANT() else AT
    assert column.to_pylist() == [{"a": [{"at": at, "n": 1}] * 2 + [None], "m": [(at, None)], "local": [AT]}] * 3


@pytest.mark.parametrize("row", [(1, 2), {"low": 1, "high": 2, "at": AT}, SparkRow(low=1, top=2, at=AT), 5])
def test_a_row_that_does_not_fit_the_schema_is_refused(row: Any) -> None:
    with pytest.raises(SourceReadError, match=r"read\(\) of data source Given returned .*'high'"):
        read_given(row)


class Bad(Numbers):
    def streamReader(self, schema: StructType) -> Any:
        return BadReader(self.options["folder"])


class BadReader(NumbersReader):
    def latestOffset(self, start: Any, limit: Any) -> Any:
        return {"at": date(2024, 1, 1)} if limit.max_rows == 1 else {"next": 5}

    def read(self, partition: Any) -> Any:
        raise KeyError("x")


def test_errors_name_the_data_source(folder: Path) -> None:
    options = {"folder": str(folder)}
    with pytest.raises(SourceReadError, match=r"latestOffset\(\) of data source Bad"):
        PythonDataSource(Bad(options), max_records_per_epoch=1).create_enumerator(None).plan_epoch(1)
    source = PythonDataSource(Bad(options), max_records_per_epoch=2)
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    with pytest.raises(SourceReadError, match=r"read\(\) of data source Bad raised KeyError: 'x'"):
        list(source.read(split))
    with pytest.raises(ConfigurationError, match=r"Simple has no reader\(\)"):
        PythonDataSource(Simple({}), batch=True).create_enumerator(None).plan_epoch(1)
    with pytest.raises(ConfigurationError, match="an instance of a pyspark"):
        PythonDataSource("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="leave out the limits"):
        numbers(folder, batch=True, max_records_per_epoch=1)
    with pytest.raises(ConfigurationError, match="one limit"):
        numbers(folder, max_bytes_per_epoch=1, max_records_per_epoch=1)


def test_schemas_are_read_without_spark() -> None:
    text = "id: BIGINT NOT NULL, `a ``b` decimal(10, 2), m map<string, array<struct<x: int, y timestamp_ntz>>>, d dec"
    schema = parse_ddl(text)
    assert schema.simpleString() == (
        "struct<id:bigint,a `b:decimal(10,2),m:map<string,array<struct<x:int,y:timestamp_ntz>>>,d:decimal(10,0)>"
    )
    assert [field.nullable for field in schema] == [False, True, True, True]
    assert parse_ddl("a string") == StructType([StructField("a", StringType())])
    for wrong in ("a", "a foo", "a array<int", "a int,", "a int b int", "a int;", "a decimal(x)", "a int not"):
        with pytest.raises(ConfigurationError, match="cannot be read at"):
            parse_ddl(wrong)
