"""Delta Lake and Iceberg tables as sources."""

from __future__ import annotations

import json
import shutil
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import DeltaSource, IcebergSource, ParquetSource
from dagster_flinkpy.connectors.lake.table_source import TableSource, files_of_partition
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SplitEnumerator
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, TypeMismatchError
from dagster_flinkpy.testing import run_local
from tests.connectors.delta.actors import write_version
from tests.connectors.delta.test_sink import commit as commit_delta
from tests.connectors.delta.test_sink import opened as delta_of
from tests.connectors.delta.test_sink import stage as stage_delta
from tests.connectors.iceberg.test_sink import commit as commit_iceberg
from tests.connectors.iceberg.test_sink import opened as iceberg_of
from tests.connectors.iceberg.test_sink import sink_in
from tests.connectors.iceberg.test_sink import stage as stage_iceberg


class Target:
    """A table that is written somehow, and its source."""

    def __init__(self, kind: str, folder: Path, location: Any) -> None:
        from dagster_flinkpy.connectors import DeltaSink

        self.kind, self.location = kind, location
        self.sink: Any = (
            DeltaSink(location, partition_by=["s"])
            if kind == "delta"
            else sink_in(folder, location=location, partition_by=["s"])
        )
        self._checkpoint = 0

    def add(self, *numbers: int) -> None:
        self._checkpoint += 1
        stage, commit = (stage_delta, commit_delta) if self.kind == "delta" else (stage_iceberg, commit_iceberg)
        for number in numbers:  # a file each, because it is partitioned
            commit(self.sink, stage(self.sink, number, checkpoint_id=self._checkpoint, execution=str(number)))

    def delete(self, number: int) -> None:
        if self.kind == "delta":
            delta_of(self.sink).delete(f"n = {number}")
        else:
            iceberg_of(self.sink).delete(f"n = {number}")

    def source(self, **options: Any) -> TableSource:
        if self.kind == "delta":
            return DeltaSource(self.location, **options)
        return IcebergSource("db.t", self.location, properties=self.sink.properties, **options)


@pytest.fixture(params=["delta", "iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, tmp_path, str(tmp_path / "t"))


def take(source: TableSource, enumerator: SplitEnumerator, parallelism: int = 2) -> list[int]:
    """Reads an epoch."""
    plan, found = enumerator.plan_epoch(parallelism), []
    for split in (split for share in plan for split in share):
        for column, _ in source.read(split):
            found += column.field("n").to_pylist()
            assert column.type == source.produced_type.arrow_type
        enumerator.on_epoch_read([split.advanced(len(column), finished=True)])
    return sorted(found)


def restored(source: TableSource, enumerator: SplitEnumerator) -> SplitEnumerator:
    return source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))


def test_the_table_is_read_and_then_what_is_added(target: Target) -> None:
    target.add(1, 2, 3)
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1, 2, 3]
    assert (take(source, enumerator), enumerator.exhausted, list(enumerator.unread())) == ([], False, [])
    target.add(4, 5)
    enumerator = restored(source, enumerator)
    assert len(enumerator.unread()) == 1
    assert take(source, enumerator) == [4, 5]
    assert take(source, restored(source, enumerator)) == []


@pytest.mark.parametrize(("kind", "name"), [("delta", "a%20b"), ("iceberg", "a#b"), ("iceberg", "a?b")])
def test_a_folder_whose_name_its_library_reads_as_another_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    for place in (str(tmp_path / name), f"s3://bucket/{name}"):
        with pytest.raises(
            ConfigurationError, match=r"Sink\(\) cannot have a folder with '[%#?].*would look for the table"
        ):
            Target(kind, tmp_path, place)
        with pytest.raises(ConfigurationError, match=r"Source\(\) cannot have a folder with '[%#?]"):
            DeltaSource(place) if kind == "delta" else IcebergSource("db.t", place)


def test_a_folder_of_an_iceberg_table_is_no_url(tmp_path: Path) -> None:
    target = Target("iceberg", tmp_path, str(tmp_path / "a%20b"))
    target.add(1)
    source = target.source(bounded=True)
    assert take(source, source.create_enumerator(None)) == [1]
    assert (tmp_path / "a%20b").is_dir() and not (tmp_path / "a b").exists()


def test_some_files_at_a_time_from_any_state(target: Target) -> None:
    target.add(1, 2, 3)
    source = target.source(bounded=True, max_files_per_epoch=2)
    enumerator = source.create_enumerator(None)
    found = take(source, enumerator)
    assert (len(found), enumerator.exhausted) == (2, False)
    target.add(4)
    while not enumerator.exhausted:
        enumerator = restored(source, enumerator)
        found += take(source, enumerator)
    assert sorted(found) == [1, 2, 3, 4]


def test_a_split_is_read_from_any_row(tmp_path: Path) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    commit_delta(target.sink, stage_delta(target.sink, 7))
    write_deltalake(
        str(tmp_path / "t"), pa.table({"n": list(range(10)), "s": ["a b/ü"] * 10}), mode="append", partition_by=["s"]
    )
    source = target.source(batch_rows=3)
    [[*splits]] = source.create_enumerator(None).plan_epoch(1)
    [split] = [split for split in splits if "7" not in split.split_id.split("/")[0]]
    for offset in range(10):
        parts = list(source.read(split.advanced(offset, finished=False)))
        assert [n for column, _ in parts for n in column.field("n").to_pylist()] == list(range(offset, 10))
        assert {s for column, _ in parts for s in column.field("s").to_pylist()} == {"a b/ü"}
        assert parts[-1][1] == 10


def test_deleted_rows_are_an_error_or_skipped(target: Target) -> None:
    target.add(1, 2)
    source, skipping = target.source().continuous(), target.source(bounded=False, skip_changes=True)
    enumerator = source.create_enumerator(None)
    take(source, enumerator)
    target.delete(1)
    target.add(3)
    other = restored(skipping, enumerator)
    with pytest.raises(InputChangedError, match=r"skip_changes=True to leave out such"):
        enumerator.plan_epoch(1)
    assert take(skipping, other) == [3]


def test_another_table_in_the_same_place_is_an_error(tmp_path: Path) -> None:
    """Versions count from 0 in each Delta table, so those of another table would be taken for the next ones."""
    folder = tmp_path / "t"
    target = Target("delta", tmp_path, str(folder))
    target.add(1, 2)
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1, 2]
    backup = shutil.copytree(folder, tmp_path / "backup")
    target.add(3)
    assert take(source, enumerator) == [3]
    former = folder.rename(tmp_path / "former")
    backup.rename(folder)
    for after in (4, 5, 6):  # fewer versions, as many, more
        with pytest.raises(InputChangedError, match=r"dropped and made anew, or restored from a backup. Put it back"):
            take(source, restored(source, enumerator))
        target.add(after)
    folder.rename(tmp_path / "other")
    former.rename(folder)
    target.add(7)
    assert take(source, restored(source, enumerator)) == [7]


def test_a_position_of_an_earlier_release_has_no_mark(tmp_path: Path) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    target.add(1)
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    take(source, enumerator)
    position = enumerator.snapshot_state()
    del position["mark"]
    target.add(2)
    assert take(source, source.create_enumerator(position)) == [2]


@pytest.mark.parametrize("number", ["1", -1, None])
def test_a_split_without_a_number_is_refused(tmp_path: Path, number: Any) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    target.add(1)
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    enumerator.plan_epoch(1)
    position = enumerator.snapshot_state()
    position["open"][0]["properties"]["number"] = number
    with pytest.raises(ValueError, match=r"'number' is .*, but must be of type int"):
        source.create_enumerator(position)


def test_an_empty_table_that_is_restored_has_no_new_rows(tmp_path: Path) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    target.add(1)
    source, skipping = target.source().continuous(), target.source(bounded=False, skip_changes=True)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    version = delta_of(target.sink).version()
    target.delete(1)
    enumerator = restored(skipping, enumerator)
    assert take(skipping, enumerator) == []
    delta_of(target.sink).restore(version)
    with pytest.raises(InputChangedError, match=r"deletes or changes rows.*skip_changes=True"):
        take(source, restored(source, enumerator))
    assert take(skipping, restored(skipping, enumerator)) == []


def test_a_column_that_the_table_does_not_have_is_an_error(target: Target) -> None:
    """Otherwise all of its values would be null, as in files from before a column was added."""
    target.add(1)
    source = target.source(row_type=Types.ROW_NAMED(["n", "more"], [Types.LONG(), Types.LONG()]))
    with pytest.raises(InputChangedError, match=r"has no column 'more', only \['n', 's'\].*Declare a row_type"):
        source.create_enumerator(None).plan_epoch(1)


def test_a_field_in_a_column_that_a_file_does_not_have_is_null(tmp_path: Path) -> None:
    """The file is older than the field."""
    path = str(tmp_path / "t")
    for number, more in enumerate(({}, {"y": "b"})):
        point = {"x": number, **more}
        fields = pa.struct([(name, pa.scalar(value).type) for name, value in point.items()])
        maps = pa.array([[("k", point), ("n", None)], None], pa.map_(pa.string(), fields))
        rows = pa.table({"p": [point, None], "l": [[point], [None, point]], "m": maps})
        write_deltalake(path, rows, mode="append", schema_mode="merge")
    source = DeltaSource(path)
    [splits] = source.create_enumerator(None).plan_epoch(1)
    found = [row for split in splits for column, _ in source.read(split) for row in column.to_pylist()]
    old, new = {"x": 0, "y": None}, {"x": 1, "y": "b"}
    expected = [
        row
        for each in (old, new)
        for row in (
            {"p": each, "l": [each], "m": [("k", each), ("n", None)]},
            {"p": None, "l": [None, each], "m": None},
        )
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_a_file_that_was_deleted_before_it_was_read_is_an_error(target: Target, tmp_path: Path) -> None:
    target.add(1)
    source = target.source()
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    (tmp_path / "t" / split.properties["path"]).unlink()
    with pytest.raises(InputChangedError, match=r"is gone.*VACUUM.*Put it back.*start from empty state"):
        list(source.read(split))


def test_a_history_that_does_not_reach_back_is_an_error(target: Target) -> None:
    target.add(1)
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    take(source, enumerator)
    target.add(2, 3)
    if target.kind == "delta":
        table = delta_of(target.sink)
        table.create_checkpoint()
        for version in range(3):
            (Path(target.location) / "_delta_log" / f"{version:020d}.json").unlink()
    else:
        table = iceberg_of(target.sink)
        table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:2]]).commit()
    with pytest.raises(InputChangedError, match="start from empty state to read the table as it is now"):
        enumerator.plan_epoch(1)


def test_a_version_that_was_cleaned_up_before_all_of_it_was_read_is_named(tmp_path: Path) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    target.add(1, 2)
    source = target.source(max_files_per_epoch=1).continuous()
    enumerator = source.create_enumerator(None)
    take(source, enumerator)
    target.add(3)
    delta_of(target.sink).create_checkpoint()
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InputChangedError, match=r"version 2 .* was not read, and is no longer in the log"):
        enumerator.plan_epoch(1)


def test_rewritten_files_are_not_read_again(tmp_path: Path) -> None:
    target = Target("delta", tmp_path, str(tmp_path / "t"))
    commit_delta(target.sink, stage_delta(target.sink, 1), stage_delta(target.sink, 1, subtask=1))
    source = target.source().continuous()
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1, 1]
    assert DeltaTable(target.location).optimize.compact()["numFilesAdded"] == 1
    assert take(source, enumerator) == []


def test_renamed_and_added_columns_of_iceberg(tmp_path: Path) -> None:
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace("db")
    rows = pa.table({"n": [1], "old": ["x"]})
    table = catalog.create_table("db.t", rows.schema, location=f"file://{tmp_path}/t")
    table.append(rows)
    with table.update_schema() as update:
        update.rename_column("old", "s")
        update.add_column("more", table.schema().find_field("n").field_type)
    source = IcebergSource(
        "db.t", str(tmp_path / "t"), properties={"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    )
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    [(column, _)] = source.read(split)
    assert column.to_pylist() == [{"n": 1, "s": "x", "more": None}]


def test_a_program_on_s3(s3_location: Any, tmp_path: Path) -> None:
    for kind in ("delta", "iceberg"):
        target = Target(kind, tmp_path, s3_location.child(kind))
        target.add(1, 2)
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
        stream = env.from_source(target.source(), WatermarkStrategy.no_watermarks(), "table").uid("table")
        assert sorted(row.n for row in run_local(env, stream)[0]) == [1, 2]


def test_what_is_not_there_is_an_error(target: Target) -> None:
    with pytest.raises(InputChangedError, match="does not exist"):
        _ = target.source().produced_type
    with pytest.raises(ConfigurationError, match="max_files_per_epoch=0"):
        target.source(max_files_per_epoch=0)
    target.add(1)
    source = target.source(row_type=Types.ROW_NAMED(["n"], [Types.BIG_INT()]))
    assert take(source, source.create_enumerator(None)) == [1]
    narrow = target.source(row_type=Types.ROW_NAMED(["n"], [Types.INT()]))
    with pytest.raises(TypeMismatchError, match=r"the table in .*: column 'n' is int64, .* become Types.INT\(\)"):
        take(narrow, narrow.create_enumerator(None))


def test_partition_columns_follow_the_rule(tmp_path: Path) -> None:
    """Delta Lake has their values as text in the log, not in the files."""
    rows = pa.table({"n": [1], "day": [date(2024, 3, 1)], "flag": [True], "sum": [Decimal("1.50")], "k": [7]})
    write_deltalake(str(tmp_path), rows, partition_by=["day", "flag", "sum", "k"])
    names = ["day", "flag", "sum", "k"]
    wider = [Types.SQL_TIMESTAMP(), Types.BOOLEAN(), Types.DECIMAL(9, 3), Types.BIG_INT()]
    source = DeltaSource(str(tmp_path), row_type=Types.ROW_NAMED(names, wider))
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    [(column, _)] = source.read(split)
    assert column.to_pylist() == [{"day": datetime(2024, 3, 1), "flag": True, "sum": Decimal("1.500"), "k": Decimal(7)}]
    for name, kind in (("day", Types.STRING()), ("flag", Types.INT()), ("sum", Types.DOUBLE()), ("k", Types.STRING())):
        narrow = DeltaSource(str(tmp_path), row_type=Types.ROW_NAMED([name], [kind]))
        with pytest.raises(TypeMismatchError, match=rf"the table in .*: column '{name}' is .* does not become"):
            narrow.create_enumerator(None).plan_epoch(1)


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("string", ["x", "", None], ["x", None, None]),
        ("long", ["1", "", None], [1, None, None]),
        ("date", ["2026-01-02", ""], [date(2026, 1, 2), None]),
        ("binary", ["\x01a"], [b"\x01a"]),
        ("decimal(9,2)", ["1.50"], [Decimal("1.50")]),
        ("double", ["1e300"], [1e300]),
        ("boolean", ["true", "false"], [True, False]),
    ],
)
def test_partition_values_in_a_log_are_read_as_delta_lake_has_them(
    tmp_path: Path, kind: str, texts: list[str | None], values: list[Any]
) -> None:
    fields = [
        {"name": name, "type": each, "nullable": True, "metadata": {}} for name, each in [("n", "long"), ("p", kind)]
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    facts = {"id": "t", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
    write_version(
        tmp_path,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {**facts, "schemaString": schema, "partitionColumns": ["p"]}},
    )
    source = DeltaSource(str(tmp_path), bounded=False)
    begun = source.create_enumerator(None)
    assert begun.plan_epoch(1) == [[]]
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number]}), file)
        add = {"path": file.name, "partitionValues": {"p": text}, "size": file.stat().st_size, "modificationTime": 0}
        write_version(tmp_path, {"add": {**add, "dataChange": True}})
    for enumerator in (begun, source.create_enumerator(None)):  # what is added, and the table as it is now
        [splits] = enumerator.plan_epoch(1)
        rows = [row for split in splits for column, _ in source.read(split) for row in column.to_pylist()]
        assert [row["p"] for row in rows] == values


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.date32(), date(2026, 1, 2), 20455),
        (pa.decimal128(9, 2), Decimal("1.50"), Decimal("1.50")),
        (pa.float64(), 1.5, 1.5),
        (pa.binary(), b"\x01\xff", b"\x01\xff"),
        (pa.uuid(), str(uuid.UUID(int=5)), uuid.UUID(int=5)),
        (pa.timestamp("us"), datetime(2026, 1, 2), 1_767_312_000_000_000),
        (pa.string(), "", ""),
        (pa.int64(), None, None),
    ],
)
def test_files_of_iceberg_may_lack_the_columns_by_which_the_table_is_partitioned(
    tmp_path: Path, kind: pa.DataType, value: Any, stored: Any
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    folder = f"file://{tmp_path}/t"
    table = catalog.create_table("db.t", pa.schema([("n", pa.int64()), ("p", kind)]), location=folder)
    with table.update_spec() as spec:
        spec.add_identity("p")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t" / "f.parquet")
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/f.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(stored),
        record_count=1,
        file_size_in_bytes=(tmp_path / "t" / "f.parquet").stat().st_size,
        spec_id=table.spec().spec_id,
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)
    source = IcebergSource("db.t", f"{tmp_path}/t", properties=properties)
    [[split]] = source.create_enumerator(None).plan_epoch(1)
    assert [column.to_pylist() for column, _ in source.read(split)] == [[{"n": 1, "p": value}]]


@pytest.mark.parametrize(("zone", "kind"), [(None, None), ("UTC", None), ("UTC", Types.INSTANT())])
def test_timestamps_in_the_log_are_read_with_and_without_a_zone(tmp_path: Path, zone: str | None, kind: Any) -> None:
    moments = [datetime(2024, 3, 1), datetime(2024, 3, 1, 5, 0, 0, 500_001), None]
    rows = pa.table({"n": [0, 1, 2], "at": pa.array(moments, pa.timestamp("us", zone))})
    write_deltalake(str(tmp_path), rows, partition_by=["at"])
    source = DeltaSource(
        str(tmp_path),
        bounded=False,
        row_type=None if kind is None else Types.ROW_NAMED(["n", "at"], [Types.LONG(), kind]),
    )
    enumerator = source.create_enumerator(None)
    for _ in range(2):  # the files of a version, and those that one has added: delta-rs and the log have other text
        [splits] = enumerator.plan_epoch(1)
        columns = [column.field("at") for split in splits for column, _ in source.read(split)]
        found = pa.concat_arrays(columns).cast(pa.timestamp("us", zone))
        assert found.sort().equals(rows.column("at").combine_chunks().sort())
        enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
        write_deltalake(str(tmp_path), rows, mode="append")


# --- partitions of time and changes -----------------------------------------------------------------------------------


def window(start: datetime, hours: int = 24) -> TimePartition:
    return TimePartition(f"{start:%Y-%m-%d}", start, start + timedelta(hours=hours), 0)


MARCH_1 = datetime(2024, 3, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("kind", [pa.string(), pa.date32()])
def test_a_partition_reads_the_files_of_its_window(tmp_path: Path, kind: pa.DataType) -> None:
    days = ["2024-02-29", "2024-03-01", "2024-03-01", "2024-03-02", None]
    column = pa.array([None if d is None else date.fromisoformat(d) for d in days]).cast(kind)
    rows = pa.table({"n": list(range(5)), "day": column})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["day"])
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(rows)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    sources: list[TableSource] = [
        DeltaSource(str(tmp_path / "t"), partition_column="day", max_records_per_epoch=1),
        IcebergSource("db.t", table.location(), properties=properties, partition_column="day"),
    ]
    for source in sources:
        for part in (source.for_partition(window(MARCH_1)), source.for_partition(window(MARCH_1))):
            enumerator = part.create_enumerator(None)
            assert (take(part, enumerator), enumerator.exhausted) == ([1, 2], True)
        two = source.for_partition(window(MARCH_1, 48))
        assert take(two, two.create_enumerator(None)) == [1, 2, 3]
        none = source.for_partition(window(MARCH_1, 24 * 365 * 2)).for_partition(window(MARCH_1.replace(year=2030)))
        assert take(none, none.create_enumerator(None)) == []
        with pytest.raises(ConfigurationError, match="must be as fine as the partitions"):
            source.for_partition(window(MARCH_1, 1)).create_enumerator(None).plan_epoch(1)
    other = DeltaSource(str(tmp_path / "t"), partition_column="n").for_partition(window(MARCH_1))
    with pytest.raises(InputChangedError, match="is not partitioned by 'n'"):
        other.create_enumerator(None).plan_epoch(1)
    with pytest.raises(ConfigurationError, match="give it partition_column"):
        DeltaSource(str(tmp_path / "t")).for_partition(window(MARCH_1))


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("given", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"])
def test_a_partition_of_moments_is_found_in_utc_whatever_the_format(
    tmp_path: Path, zone: str | None, given: str
) -> None:
    start = datetime(2024, 3, 1)
    inside = [start, start + timedelta(hours=5, microseconds=1), start + timedelta(hours=21, milliseconds=500)]
    moments = [start - timedelta(seconds=1), *inside, start + timedelta(hours=24), None]
    rows = pa.table({"n": list(range(6)), "at": pa.array(moments, pa.timestamp("us", zone))})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["at"])
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("at")
    table.append(rows)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    options: dict[str, Any] = {"partition_column": "at", "partition_format": given}
    options["row_type"] = Types.ROW_NAMED(["n"], [Types.LONG()])
    sources: list[TableSource] = [
        DeltaSource(str(tmp_path / "t"), **options),
        IcebergSource("db.t", table.location(), properties=properties, **options),
    ]
    for source in sources:
        for hours, found in ((24, [1, 2, 3]), (12, [1, 2]), (5, [1])):
            part = source.for_partition(window(MARCH_1, hours))
            assert take(part, part.create_enumerator(None)) == found
        shifted = source.for_partition(window(MARCH_1.replace(tzinfo=timezone(timedelta(hours=3)))))  # till 21 o'clock
        assert take(shifted, shifted.create_enumerator(None)) == [0, 1, 2]
    # The log has other text than the summary of a version.
    write_deltalake(str(tmp_path / "t"), rows.slice(0, 3), mode="append")
    added = sources[0].log().added_files(1)
    assert [len(files_of_partition(sources[0], window(MARCH_1, hours), added)) for hours in (5, 12)] == [1, 2]


@pytest.mark.parametrize(("unit", "hours"), [("hour", 1), ("day", 24), ("month", 31 * 24), ("year", 366 * 24)])
def test_a_partition_of_units_of_time(tmp_path: Path, unit: str, hours: int) -> None:
    start = datetime(2024, 1, 1)
    moments = [start - timedelta(seconds=1), start, start + timedelta(hours=hours, seconds=-1)]
    rows = pa.table({"n": list(range(4)), "at": pa.array([*moments, start + timedelta(hours=hours)])})
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows.schema)
    with table.update_spec() as spec:
        spec.add_field("at", unit)
    folder = Path(table.location().removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(4):  # a file each: pyiceberg cannot divide rows by units of time without another package
        pq.write_table(rows.slice(n, 1), folder / f"{n}.parquet")
        table.add_files([f"file://{folder}/{n}.parquet"])
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    source = IcebergSource("db.t", table.location(), properties=properties, partition_column="at")
    part = source.for_partition(window(start.replace(tzinfo=timezone.utc), hours))
    assert take(part, part.create_enumerator(None)) == [1, 2]
    shifted = window(start.replace(tzinfo=timezone(timedelta(minutes=30))), hours)
    with pytest.raises(ConfigurationError, match="whole units of time in UTC"):
        source.for_partition(shifted).create_enumerator(None).plan_epoch(1)


def changes(source: DeltaSource, enumerator: SplitEnumerator) -> list[str]:
    """Reads an epoch, in order."""
    plan, found = enumerator.plan_epoch(2), list[str]()
    assert plan[1] == [], "one subtask reads"
    for split in plan[0]:
        for column, _ in source.read(split):
            assert column.type == source.produced_type.arrow_type
            found += [" ".join(map(str, row.values())) for row in column.to_pylist()]
        enumerator.on_epoch_read([split.advanced(split.offset, finished=True)])
    return found


@pytest.mark.parametrize("enabled", [True, False])
def test_the_changes_of_a_table(tmp_path: Path, enabled: bool) -> None:
    path, columns = str(tmp_path / "t"), ("n", "p", "s")

    def rows(*values: tuple[int, str, str]) -> pa.Table:
        return pa.table({name: [v[i] for v in values] for i, name in enumerate(columns)})

    options = {"delta.enableChangeDataFeed": "true"} if enabled else {}
    write_deltalake(path, rows((1, "x", "a"), (2, "y", "b")), partition_by=["p"], configuration=options)
    source = DeltaSource(path, change_feed=True, bounded=False, max_records_per_epoch=2)
    enumerator = source.create_enumerator(None)
    assert changes(source, enumerator) == ["1 x a +I 0", "2 y b +I 0"]
    write_deltalake(path, rows((3, "x", "c")), mode="append")
    DeltaTable(path).update(predicate="n = 1", updates={"s": "'z'"})
    DeltaTable(path).delete("n = 2")
    DeltaTable(path).optimize.compact()
    new, table = rows((1, "x", "m"), (4, "y", "d")), DeltaTable(path)
    merge = table.merge(new, "t.n = s.n and t.p = s.p", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(path, rows((9, "x", "e")), mode="overwrite")
    found = list[str]()
    for _ in range(20):
        enumerator = restored(source, enumerator)
        found += changes(source, enumerator)
    state: dict[str, str] = {"1": "x a", "2": "y b"}
    for change in found:  # applied in order, they make the table: each delete finds its row
        n, p, s, kind, _ = change.split(" ")
        if kind in ("-D", "-U"):
            assert state.pop(n) == f"{p} {s}"
        else:
            assert n not in state
            state[n] = f"{p} {s}"
    assert state == {"9": "x e"}
    versions = [int(change.split(" ")[4]) for change in found]
    assert versions == sorted(versions)
    if enabled:
        assert found[:4] == ["3 x c +I 1", "1 x a -U 2", "1 x z +U 2", "2 y b -D 3"]
        assert {"1 x z -U 5", "1 x m +U 5", "4 y d +I 5"} <= set(found)


def test_change_feeds_that_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"row_kind": ["a"], "n": [1]}))
    with pytest.raises(ConfigurationError, match="adds a column 'row_kind'"):
        DeltaSource(path, change_feed=True).produced_type  # noqa: B018
    with pytest.raises(ConfigurationError, match="leave out skip_changes"):
        DeltaSource(path, change_feed=True, skip_changes=True)
    row_type = Types.ROW_NAMED(["n"], [Types.LONG()])
    source = DeltaSource(path, change_feed=True, bounded=False, row_type=row_type)
    enumerator = source.create_enumerator(None)
    assert changes(source, enumerator) == ["1 +I 0"]
    DeltaTable(path).delete()
    removed = list((tmp_path / "t").glob("*.parquet"))
    assert changes(source, restored(source, enumerator)) == ["1 -D 1"]
    removed[0].unlink()
    with pytest.raises(InputChangedError):
        changes(source, enumerator)


def test_uuids_are_text(tmp_path: Path) -> None:
    value = uuid.uuid4()
    rows = pa.table({"n": [1, 2], "u": pa.array([value.bytes, None], pa.uuid())})
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows.schema)
    table.append(rows)
    (tmp_path / "p").mkdir()
    pq.write_table(rows, tmp_path / "p" / "a.parquet")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"}
    iceberg = IcebergSource("db.t", table.location(), properties=properties)
    for source in (iceberg, ParquetSource(str(tmp_path / "p"))):
        assert source.produced_type.field_types[1] == Types.STRING()
        [[split]] = source.create_enumerator(None).plan_epoch(1)
        [(column, _)] = source.read(split)
        assert column.to_pylist() == [{"n": 1, "u": str(value)}, {"n": 2, "u": None}]
