"""What each target makes of each type: written, read by something else, and the same again; or refused at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dagster_flinkpy.common import Instant, Row, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import CsvSink, DeltaSink, IcebergSink, JsonLinesSink, ParquetSink
from dagster_flinkpy.connectors.columns.column_casts import type_info_of
from dagster_flinkpy.connectors.postgres.sql_types import sql_type
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitterInitContext,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.formats.json_lines import JsonLinesReaderFormat
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests
from tests.connectors.postgres.conftest import database as database  # a fixture

DOCS = Path(__file__).parents[3] / "docs/api/column-types.md"
BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
PAIR = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])

VALUES: dict[str, tuple[TypeInformation, Any]] = {
    "STRING": (Types.STRING(), 'a "b", ü\nc'),
    "CHAR": (Types.CHAR(), "x"),
    "BOOLEAN": (Types.BOOLEAN(), True),
    "BYTE": (Types.BYTE(), -128),
    "SHORT": (Types.SHORT(), -(2**15)),
    "INT": (Types.INT(), 2**31 - 1),
    "LONG": (Types.LONG(), -(2**63)),
    "FLOAT": (Types.FLOAT(), 0.5),
    "DOUBLE": (Types.DOUBLE(), 1e300),
    "BIG_INT": (Types.BIG_INT(), 10**40),
    "BIG_DEC": (Types.BIG_DEC(), Decimal("1.50")),
    "DECIMAL(p, s)": (Types.DECIMAL(38, 2), Decimal("-123456789012345678901234567890.99")),
    "DECIMAL(p > 38, s)": (Types.DECIMAL(50, 2), Decimal(10**45)),
    "SQL_DATE": (Types.SQL_DATE(), date(1969, 12, 31)),
    "SQL_TIME": (Types.SQL_TIME(), time(23, 59, 59, 999999)),
    "SQL_TIMESTAMP": (Types.SQL_TIMESTAMP(), datetime(1969, 12, 31, 23, 59, 59, 999999)),
    "INSTANT": (Types.INSTANT(), Instant.of_epoch_milli(-1)),
    "PRIMITIVE_ARRAY(BYTE())": (BYTES, b"\x00\xff"),
    "LIST, arrays": (Types.LIST(Types.STRING()), ["a", None, ""]),
    "MAP": (Types.MAP(Types.STRING(), Types.LONG()), {"a": 1}),
    "ROW, TUPLE": (PAIR, Row(a=1, b=None)),
    "ROW without fields": (Types.ROW_NAMED([], []), Row()),
    "untyped": (Types.LIST(Types.PICKLED_BYTE_ARRAY()), ["x"]),
}
DUCKDB = {
    **dict.fromkeys(("STRING", "CHAR", "BIG_INT", "BIG_DEC", "DECIMAL(p > 38, s)"), "VARCHAR"),
    "BOOLEAN": "BOOLEAN",
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INT": "INTEGER",
    "LONG": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "DECIMAL(p, s)": "DECIMAL(38, 2)",
    "SQL_DATE": "DATE",
    "SQL_TIME": "TIME",
    "SQL_TIMESTAMP": "TIMESTAMP",
    "INSTANT": "TIMESTAMPTZ",
    "LIST, arrays": "VARCHAR[]",
    "MAP": "MAP(VARCHAR, BIGINT)",
    "ROW, TUPLE": "STRUCT(a INTEGER, b VARCHAR)",
    "ROW without fields": "JSON",
}
TARGETS = ["Parquet", "CSV", "JSON lines", "Delta Lake", "Iceberg"]


def documented() -> dict[str, dict[str, str]]:
    """Returns the first table of the page: what each target makes of each type."""
    text = DOCS.read_text().partition("## Written")[2].partition("## ")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def sink_of(target: str, folder: Path) -> TwoPhaseCommittingSink:
    there = str(folder / "t")
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    makers: dict[str, Callable[[], TwoPhaseCommittingSink]] = {
        "Parquet": lambda: ParquetSink(there),
        "CSV": lambda: CsvSink(there),
        "JSON lines": lambda: JsonLinesSink(there),
        "Delta Lake": lambda: DeltaSink(there),
        "Iceberg": lambda: IcebergSink("db.t", there, properties=catalog),
    }
    return makers[target]()


def write(sink: TwoPhaseCommittingSink, row: TypeInformation, records: list[Any]) -> None:
    writer = sink.create_writer(WriterInitContext("job", "sink", 0, 1, 1, "e"), row)
    writer.write(row.to_arrow(records))
    requests = [CommitRequest(1, 0, committable) for committable in writer.prepare_commit()]
    commit_requests(sink.create_committer(CommitterInitContext("job", "sink", 1, row)), requests, "sink")


def read(target: str, names: dict[str, str], sink: Any, folder: Path) -> pa.Table:
    """Reads the table with something that is not ours."""
    if target == "Parquet":
        [file] = (folder / "t").glob("*.parquet")
        return pq.read_table(file)
    if target == "Delta Lake":
        return DeltaTable(str(folder / "t")).to_pyarrow_table().sort_by("k")
    if target == "Iceberg":
        table = sink.create_committer(CommitterInitContext("job", "sink", 1))._target.catalog.load_table("db.t")
        return table.scan().to_arrow().sort_by("k")
    columns = {"k": "INTEGER", **{name: DUCKDB[kind] for kind, name in names.items()}}
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    [file] = (folder / "t").glob("job*")
    reader = "read_csv" if target == "CSV" else "read_json"
    options = ", allow_quoted_nulls=false" if target == "CSV" else ", format='newline_delimited'"
    query = f"SELECT * FROM {reader}('{file}', columns={columns}{options}) ORDER BY k"
    return connection.sql(query).to_arrow_table()


def written(target: str, folder: Path) -> tuple[dict[str, str], pa.Table]:
    """Writes all types that a target has, and returns the names of the columns and what is read back."""
    names = {kind: f"c{i}" for i, kind in enumerate(VALUES) if documented()[kind][target] != "refused"}
    row = Types.ROW_NAMED(["k", *names.values()], [Types.INT(), *(VALUES[kind][0] for kind in names)])
    sink = sink_of(target, folder)
    write(sink, row, [Row(1, *(VALUES[kind][1] for kind in names)), Row(2, *(None for _ in names))])
    return names, read(target, names, sink, folder)


@pytest.mark.parametrize("target", TARGETS)
def test_values_come_back(target: str, tmp_path: Path) -> None:
    names, table = written(target, tmp_path)
    for kind, name in names.items():
        (type_info, value), column = VALUES[kind], table.column(name).combine_chunks()
        if pa.types.is_string(column.type) and type_info in (Types.BIG_INT(), Types.DECIMAL(50, 2)):
            assert [None if text is None else Decimal(text) for text in column.to_pylist()] == [value, None]
            continue
        if kind == "ROW without fields":  # DuckDB has no such struct
            assert column.to_pylist() == ["{}", None]
            continue
        assert list(type_info.from_arrow(column.cast(type_info.arrow_type))) == [value, None], kind


@pytest.mark.parametrize("target", ["CSV", "JSON lines"])
def test_text_that_was_written_is_read_back(target: str, tmp_path: Path) -> None:
    names, _ = written(target, tmp_path)
    kept = {kind: name for kind, name in names.items() if kind not in ("BIG_DEC", "MAP", "ROW without fields")}
    row = Types.ROW_NAMED(list(kept.values()), [VALUES[kind][0] for kind in kept])
    text: StreamFormat = (
        CsvReaderFormat.for_row_type(row, newlines_in_values=True)
        if target == "CSV"
        else JsonLinesReaderFormat.for_row_type(row)
    )
    source = FileSource.for_record_stream_format(text, str(tmp_path / "t")).build()
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    [(column, _)] = source.read(split)
    values = [tuple(found) for found in row.from_arrow(column)]
    assert values == [tuple(VALUES[kind][1] for kind in kept), (None,) * len(kept)]
    for kind in set(names) - set(kept):
        refused = Types.ROW_NAMED(["c"], [VALUES[kind][0]])
        if kind != "ROW without fields":
            with pytest.raises(ConfigurationError, match="'c'"):
                (CsvReaderFormat if target == "CSV" else JsonLinesReaderFormat).for_row_type(refused)


@pytest.mark.parametrize("target", TARGETS)
def test_what_has_no_counterpart_is_refused_when_the_program_is_built(target: str, tmp_path: Path) -> None:
    sink = sink_of(target, tmp_path)
    for kind, (type_info, _) in VALUES.items():
        row = Types.ROW_NAMED(["k", "c"], [Types.INT(), type_info])
        if documented()[kind][target] == "refused":
            with pytest.raises(ConfigurationError, match="c"):
                sink.validate(row)
        else:
            sink.validate(row)


READ_BACK: dict[Any, TypeInformation] = {
    "CHAR": Types.STRING(),
    "BIG_INT": Types.DECIMAL(76, 0),
    "INSTANT": Types.SQL_TIMESTAMP(),
    ("BYTE", "Iceberg"): Types.INT(),
    ("SHORT", "Iceberg"): Types.INT(),
}


@pytest.mark.parametrize("target", ["Parquet", "Delta Lake", "Iceberg"])
def test_the_types_of_columns_are_found_again(target: str, tmp_path: Path) -> None:
    names, table = written(target, tmp_path)
    for kind, name in names.items():
        found = type_info_of(table.schema.field(name).type, name)
        assert found == READ_BACK.get((kind, target), READ_BACK.get(kind, VALUES[kind][0])), kind


def test_postgresql(database: Any) -> None:
    made = {kind: each for kind, each in VALUES.items() if documented()[kind]["PostgreSQL"] != "refused"}
    for kind, (type_info, _) in VALUES.items():
        if kind not in made:
            with pytest.raises(ConfigurationError):
                database.sink().validate(Types.ROW_NAMED(["c"], [type_info]))
    names = {kind: f"c{number}" for number, kind in enumerate(made)}
    kinds = {kind: sql_type(kind, type_info) for kind, (type_info, _) in made.items()}
    for kind, said in kinds.items():
        assert said.partition("(")[0] in documented()[kind]["PostgreSQL"]
    database.create(", ".join(f"{names[kind]} {said}" for kind, said in kinds.items()))
    row = Types.ROW_NAMED(list(names.values()), [type_info for type_info, _ in made.values()])
    write(database.sink(), row, [Row(*(value for _, value in made.values()))])
    [found] = database.sql(f"SELECT {', '.join(names.values())} FROM {{}}.t")
    as_json = {"ROW, TUPLE": {"a": 1, "b": None}, "ROW without fields": {}}
    for kind, value in zip(made, found, strict=True):
        type_info, written = made[kind]
        if kind == "INSTANT":
            assert value.timestamp() == -0.001
        else:
            assert value == as_json.get(kind, written), kind


def test_all_types_are_documented() -> None:
    assert set(documented()) == set(VALUES)
