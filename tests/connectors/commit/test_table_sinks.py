"""Parquet, CSV and JSON lines: partitions, sizes, order and compression of files."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import CsvSink, JsonLinesSink, ParquetSink
from dagster_flinkpy.connectors.columns.record_formats import to_json_lines, to_json_text
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.connectors.files.parquet_table import ParquetTable, table_schema
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import ConfigurationError, StorageError, TypeMismatchError
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import environment, events

ROW = Types.ROW_NAMED(["country", "day", "n"], [Types.STRING(), Types.SQL_DATE(), Types.LONG()])
CONTEXT = WriterInitContext("job", "table", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")
SINKS: list[Callable[..., TableSink]] = [ParquetSink, CsvSink, JsonLinesSink]
FIRST, SECOND = date(2026, 1, 1), date(2026, 1, 2)


def commit(sink: TableSink, batches: list[list[Any]], type_info: TypeInformation = ROW, **changes: Any) -> list[str]:
    """Writes and commits an epoch, and returns the names of the files."""
    writer = sink.create_writer(replace(CONTEXT, **changes), type_info)
    for records in batches:
        writer.write(type_info.to_arrow(records))
    requests = [CommitRequest(1, 0, json.loads(json.dumps(c))) for c in writer.prepare_commit()]
    committer = sink.create_committer(CommitterInitContext("job", "table", 1))
    commit_requests(committer, requests, "table")
    assert committer.lingering([]) == 0
    return [request.committable["key"] for request in requests]


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file."""
    name, data = path.name, path.read_bytes()
    if name.endswith(".parquet"):
        rows: list[dict[str, Any]] = pq.ParquetFile(io.BytesIO(data)).read().to_pylist()
        return rows
    for suffix, codec in ((".gz", "gzip"), (".zst", "zstd")):
        if name.endswith(suffix):
            data = pa.CompressedInputStream(io.BytesIO(data), codec).read()
    if ".csv" in name:
        options = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        return csv.read_csv(io.BytesIO(data), convert_options=options).to_pylist()
    return [json.loads(line) for line in data.decode().splitlines()]


def all_rows(folder: Path) -> list[int]:
    return sorted(row["n"] for path in folder.rglob("*job.table.*") if path.is_file() for row in read(path))


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINKS)
def test_values_of_columns_become_folders(tmp_path: Path, kind: Callable[..., TableSink]) -> None:
    sink = kind(str(tmp_path), partition_by=["country", "day"])
    records = [("DE", FIRST, 1), ("FR", FIRST, 2), ("DE", SECOND, 3), ("DE", FIRST, 4), (None, FIRST, 5)]
    keys = commit(sink, [records[:3], records[3:]])
    suffix = sink.suffix
    assert keys == [
        f"country=DE/day=2026-01-01/job.table.0000000001.00000.1-e{suffix}",
        f"country=DE/day=2026-01-02/job.table.0000000001.00000.1-e-1{suffix}",
        f"country=FR/day=2026-01-01/job.table.0000000001.00000.1-e-2{suffix}",
        f"country=__HIVE_DEFAULT_PARTITION__/day=2026-01-01/job.table.0000000001.00000.1-e-3{suffix}",
    ]
    assert [read(tmp_path / key) for key in keys] == [
        [{"n": 1}, {"n": 4}],
        [{"n": 3}],
        [{"n": 2}],
        [{"n": 5}],
    ]


@pytest.mark.parametrize("kind", SINKS)
def test_a_job_whose_files_no_reader_would_see_is_refused(tmp_path: Path, kind: Callable[..., TableSink]) -> None:
    with pytest.raises(ConfigurationError, match=r"the files of job '_job' in .* ignore files that begin with '_'"):
        kind(str(tmp_path)).create_committer(CommitterInitContext("_job", "table", 1))
    kind(str(tmp_path)).create_committer(CommitterInitContext("job", "_table", 1))


VALUES = [
    (Types.STRING(), ["a/b=c", "ü %", "..", "x" * 50, "東京😀"]),
    (Types.LONG(), [-(2**63), 0]),
    (Types.BOOLEAN(), [True, False]),
    (Types.SQL_DATE(), [FIRST]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_folders_are_read_back(tmp_path: Path, kind: TypeInformation, values: list[Any]) -> None:
    row = Types.ROW_NAMED(["p", "n"], [kind, Types.LONG()])
    sink = ParquetSink(str(tmp_path), partition_by=["p"])
    records = [(value, i) for i, value in enumerate([*values, None])]
    keys = commit(sink, [records], row)
    # Spark and Hive take each %XX for a letter, PyArrow and DuckDB for a byte.
    names = [re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), key.partition("/")[0]) for key in keys]
    shown = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    assert {*names} == {f"p={value}" for value in [*shown, "__HIVE_DEFAULT_PARTITION__"]}
    table = ParquetTable(sink.location, table_schema(row)).to_arrow()
    assert sorted(zip(*table.to_pydict().values(), strict=True), key=lambda r: r[1]) == records
    found = duckdb.sql(
        "SELECT nullif(p::text, '__HIVE_DEFAULT_PARTITION__') "  # DuckDB 1.2 does not know this name
        f"FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true) ORDER BY n"
    )
    assert found.fetchall() == [(None if value is None else str(value).lower(),) for value, _ in records]


def test_the_folder_of_a_dagster_partition_comes_first_and_is_replaced(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path), partition_by=["country"])
    [old] = commit(sink, [[("DE", FIRST, 1)]], partition="2026-01-01")
    assert old.startswith("partition=2026-01-01/country=DE/job.table.")
    commit(sink, [[("FR", FIRST, 2)]], partition="2026-01-01", checkpoint_id=2)
    assert sink.create_committer(CommitterInitContext("job", "table", 1)).replace_partition("2026-01-01", 2) == 1
    assert all_rows(tmp_path) == [2]


# --- size, order, compression -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("sort_by", [[], ["n"]])
def test_a_full_file_is_followed_by_another(tmp_path: Path, kind: Callable[..., TableSink], sort_by: list[str]) -> None:
    sink = kind(str(tmp_path), max_file_bytes=2000, sort_by=sort_by)
    keys = commit(sink, [[("DE", FIRST, n) for n in range(start, start + 500)] for start in range(0, 5000, 500)])
    assert len(keys) >= 2
    assert all_rows(tmp_path) == list(range(5000))


@pytest.mark.parametrize("kind", SINKS)
def test_the_rows_of_a_file_are_sorted(tmp_path: Path, kind: Callable[..., TableSink]) -> None:
    sink = kind(str(tmp_path), sort_by=["day", "n"], partition_by=["country"])
    records = [("DE", SECOND, 1), ("FR", FIRST, 7), ("DE", FIRST, 3), ("DE", None, 0), ("DE", FIRST, 2)]
    first, _ = commit(sink, [records[:2], records[2:]])
    assert [row["n"] for row in read(tmp_path / first)] == [2, 3, 1, 0]


@pytest.mark.parametrize("kind", SINKS)
def test_compressions_hold_the_same_rows(tmp_path: Path, kind: Any) -> None:
    records = [("DE", FIRST, n) for n in range(100)]
    for compression, suffix in kind.compressions.items():
        sink = kind(str(tmp_path / compression), compression=compression)
        [key] = commit(sink, [records])
        assert key.endswith(f".{kind.file_format}{suffix}")
        assert all_rows(tmp_path / compression) == list(range(100))
        if kind is ParquetSink:
            column = pq.ParquetFile(tmp_path / compression / key).metadata.row_group(0).column(0)
            assert column.compression.lower() == {"none": "uncompressed"}.get(compression, compression)


def test_memory_is_limited_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.connectors.commit.table_writer._BUFFER_BYTES", 1000)
    for sort_by in ([], ["n"]):
        sink = ParquetSink(str(tmp_path / str(len(sort_by))), partition_by=["country"], sort_by=sort_by)
        writer = TableWriter(sink, CONTEXT, ROW)
        for start in range(0, 200, 20):
            writer.write(ROW.to_arrow([(f"c{n % 5}", FIRST, n) for n in range(start, start + 20)]))
            assert sum(file.group_bytes for file in writer._open.values()) <= 1000
        writer.abort()


def test_equal_parts_but_the_last(s3_location: StorageLocation) -> None:
    sink = CsvSink(s3_location)
    writer = TableWriter(sink, CONTEXT, Types.STRING(), part_bytes=5 << 20)
    writer.write(pa.array(["x" * 1000] * 12_000))
    [committable] = writer.prepare_commit()
    store = s3_location.open()
    [upload] = store.list_uploads()
    assert list(store.list()) == []
    assert len(committable["parts"]) == 3
    commit_requests(
        sink.create_committer(CommitterInitContext("job", "table", 1)), [CommitRequest(1, 0, committable)], "table"
    )
    data, _ = store.get(upload.key)
    assert len(data) == committable["bytes"] == len('"value"\n') + 12_000 * 1003


@pytest.mark.parametrize("kind", SINKS)
def test_parts_have_the_same_size_however_rows_come(tmp_path: Path, kind: Callable[..., TableSink]) -> None:
    writer = TableWriter(kind(str(tmp_path), compression="none"), CONTEXT, Types.STRING(), part_bytes=1000)
    for rows in (1, 400, 3, 0, 90):
        writer.write(pa.array(["x" * 30] * rows, pa.string()))
    [committable] = writer.prepare_commit()
    sizes = [int(etag.split("-")[1]) for _, etag in committable["parts"]]  # of a local folder
    assert sum(sizes) == committable["bytes"]
    assert set(sizes[:-1]) <= {1000}
    assert 0 < sizes[-1] <= 1000
    assert kind is ParquetSink or len(sizes) > 10


def test_a_part_that_cannot_be_sent_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalObjectStore.upload_part

    def upload_part(store: Any, key: str, upload_id: str, number: int, data: bytes, **digest: Any) -> Any:
        if number == 2:
            raise StorageError("503")
        return real(store, key, upload_id, number, data, **digest)

    monkeypatch.setattr(LocalObjectStore, "upload_part", upload_part)
    sink = CsvSink(str(tmp_path))
    writer = TableWriter(sink, CONTEXT, Types.STRING(), part_bytes=1000)
    with pytest.raises(StorageError, match="503"):
        for _ in range(2):  # parts are sent beside: the error comes with the next one, or at the end
            writer.write(pa.array(["x" * 30] * 100))
        writer.prepare_commit()
    writer.abort()
    assert sink.create_committer(CommitterInitContext("job", "table", 1)).lingering([]) == 0


@pytest.mark.parametrize("kind", SINKS)
def test_folders_sizes_order_and_compression_together(tmp_path: Path, kind: Callable[..., TableSink]) -> None:
    sink = kind(str(tmp_path), partition_by=["country"], sort_by=["n"], max_file_bytes=3000, compression="gzip")
    batches = [
        [("DE" if n % 3 else "FR", FIRST, n) for n in range(start + 49, start - 1, -1)] for start in range(0, 900, 50)
    ]
    keys = commit(sink, batches)
    folders = Counter(key.partition("/")[0] for key in keys)
    assert set(folders) == {"country=DE", "country=FR"}
    assert min(folders.values()) > 1
    for key in keys:
        numbers = [row["n"] for row in read(tmp_path / key)]
        assert numbers == sorted(numbers)
        assert {n % 3 == 0 for n in numbers} == {key.startswith("country=FR/")}
    assert all_rows(tmp_path) == list(range(900))


# --- values -----------------------------------------------------------------------------------------------------------


def test_csv_tells_null_from_empty_text(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(["s", "n"], [Types.STRING(), Types.DECIMAL(40, 2)])
    [key] = commit(CsvSink(str(tmp_path)), [[("", Decimal("1.5")), (None, None), ('a"b,\n', Decimal(2))]], row)
    assert (tmp_path / key).read_text() == '"s","n"\n"",1.50\n,\n"a""b,\n",2.00\n'


@pytest.mark.parametrize("partition_by", [[], ["country"]])
def test_a_null_in_the_only_column_of_csv_is_refused(tmp_path: Path, partition_by: list[str]) -> None:
    """Its line was empty, and readers skip empty lines: the row was not in the table."""
    names = [*partition_by, "n"]
    row = Types.ROW_NAMED(names, [Types.STRING()] * len(names))
    commit(CsvSink(str(tmp_path), partition_by=partition_by), [[("",) * len(names), ("a",) * len(names)]], row)
    with pytest.raises(TypeMismatchError, match=r"column 'n' is the only one .* filter\(\)"):
        commit(CsvSink(str(tmp_path), partition_by=partition_by), [[("a",) * len(partition_by) + (None,)]], row)


def test_json_lines_have_an_object_for_each_record(tmp_path: Path) -> None:
    inner = Types.ROW_NAMED(["at", "price"], [Types.SQL_TIMESTAMP(), Types.DECIMAL(5, 1)])
    row = Types.ROW_NAMED(
        ["list", "map", "time"], [Types.LIST(inner), Types.MAP(Types.BOOLEAN(), Types.DOUBLE()), Types.SQL_TIME()]
    )
    records = [Row([Row(datetime(2026, 1, 2, 3), Decimal("1.5")), None], {True: 0.5}, None), Row([], {}, None)]
    [key] = commit(JsonLinesSink(str(tmp_path), compression="gzip"), [records], row)
    lines = gzip.decompress((tmp_path / key).read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"list": [{"at": "2026-01-02T03:00:00", "price": "1.5"}, None], "map": {"true": 0.5}, "time": None},
        {"list": [], "map": {}, "time": None},
    ]


def test_json_lines_are_what_the_standard_library_writes() -> None:
    types = {
        'a "%s"': Types.STRING(),
        "n": Types.LONG(),
        "b": Types.BOOLEAN(),
        "d": Types.DOUBLE(),
        "f": Types.FLOAT(),
        "day": Types.SQL_DATE(),
        "at": Types.SQL_TIMESTAMP(),
        "list": Types.LIST(Types.LONG()),
    }
    rows = [
        ('quote " \\ \n\x01 \u2028 ä 😀', -(2**63), True, 1e300, 0.1, FIRST, datetime(2026, 1, 2, 3, 4, 5, 6), [1]),
        ("", 0, False, -0.0, 2.0, date(1, 1, 1), datetime(2026, 1, 2), []),
        (None,) * len(types),
    ]
    columns = [
        kind.to_arrow(list(values)) for kind, values in zip(types.values(), zip(*rows, strict=True), strict=True)
    ]
    table = pa.table(columns, names=list(types))
    whole = Types.ROW_NAMED(list(types), list(types.values()))
    expected = "".join(to_json_text("record", whole, row) + "\n" for row in table.to_pylist())
    assert to_json_lines(types, table) == expected


def test_json_lines_refuse_nan_when_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeMismatchError, match="NaN or infinity"):
        commit(JsonLinesSink(str(tmp_path)), [[float("nan")]], Types.DOUBLE())


def test_empty_batches_write_nothing(tmp_path: Path) -> None:
    for kind in SINKS:
        assert commit(kind(str(tmp_path)), [[], []]) == []


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (ParquetSink, {"partition_by": "day"}, r"a list of columns as partition_by, such as \['day'\]"),
        (ParquetSink, {"partition_by": ["day", "day"]}, r"has a column twice in partition_by"),  # Spark cannot read it
        (CsvSink, {"max_file_bytes": 0}, "positive max_file_bytes"),
        (CsvSink, {"compression": "snappy"}, r"must be one of \['none', 'gzip', 'zstd'\]"),
        (JsonLinesSink, {"partition_by": ["partition"]}, "Dagster's partitions have folders of that name"),
    ],
)
def test_settings_that_cannot_work(tmp_path: Path, kind: Any, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kind(str(tmp_path), **options)


@pytest.mark.parametrize(
    ("kind", "options", "type_info", "said"),
    [
        (ParquetSink, {"sort_by": ["x"]}, ROW, r"no column 'x': the records have \['country'"),
        (ParquetSink, {"partition_by": ["value"]}, Types.DOUBLE(), "cannot partition by 'value'"),
        (ParquetSink, {"partition_by": ["value"]}, Types.LONG(), "partitions by all columns"),
        (ParquetSink, {"sort_by": ["value"]}, Types.LIST(Types.LONG()), "cannot sort by 'value'"),
        (CsvSink, {}, Types.LIST(Types.LONG()), r"CSV cannot contain: map\(\) it to text"),
        (JsonLinesSink, {}, Types.PRIMITIVE_ARRAY(Types.BYTE()), "JSON cannot contain"),
        (CsvSink, {}, None, "declare output_type="),
    ],
)
def test_records_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, kind: Any, options: Any, type_info: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kind(str(tmp_path), **options).validate(type_info)


# --- whole jobs -------------------------------------------------------------------------------------------------------

STEPS: list[tuple[Any, str]] = [
    (LocalObjectStore, "create_upload"),
    (LocalObjectStore, "upload_part"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "abort_upload"),
    (LocalObjectStore, "put"),
    (TableWriter, "write"),
    (TableWriter, "prepare_commit"),
]


@settings(max_examples=examples(40))
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    kind=st.sampled_from(SINKS),
    options=st.sampled_from([{}, {"partition_by": ["key"]}, {"sort_by": ["time"], "max_file_bytes": 100}]),
    parallelism=st.integers(1, 2),
)
def test_every_record_is_in_a_file_once_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    kind: Callable[..., TableSink],
    options: dict[str, Any],
    parallelism: int,
) -> None:
    folder = tmp_path_factory.mktemp("job")
    sink = kind(str(folder / "table"), **options)
    records = [(f"k{i % 3}", i, i) for i in range(9)]
    finished = False
    with dying(step, when, numbers):
        for _ in range(12):
            env = environment(parallelism)
            events(env, records, per_epoch=3).rebalance().sink_to(sink).uid("table")
            try:
                with HarnessAttempt(env.get_job_graph(), folder / "checkpoints") as attempt:
                    while not attempt.finished:
                        attempt.run_epoch()
                finished = True
                break
            except Crash:
                pass
    assert finished
    sink.create_committer(CommitterInitContext("job", "table", 2**62)).abort_lingering([])
    store = sink.location.open()
    assert list(store.list_uploads()) == []
    found = Counter(
        row["value"] for info in store.list() if "job.table." in info.key for row in read(folder / "table" / info.key)
    )
    assert found == Counter(range(9))
