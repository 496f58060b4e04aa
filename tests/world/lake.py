"""Tables of Delta Lake and Iceberg that a job reads or writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import LessThan
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import DeltaSink, DeltaSource, IcebergSink, IcebergSource
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.errors import (
    CommitRefusedError,
    ConfigurationError,
    SinkCommitError,
    SourceReadError,
    TypeMismatchError,
)
from tests.world.stage import EVENT, Act, Record, Sink, Source, System, Undo, nothing

__all__ = ["SYSTEMS"]

_SCHEMA = pa.schema(list(EVENT.arrow_type))


def _rows(table: pa.Table) -> list[Record]:
    return [(row["key"], row["time"], row["value"]) for row in table.to_pylist()]


def _table(records: Sequence[Record]) -> pa.Table:
    return pa.Table.from_struct_array(EVENT.to_arrow(list(records)))


# --- Delta Lake -------------------------------------------------------------------------------------------------------


class _Delta(System):
    @property
    def there(self) -> bool:
        return DeltaTable.is_deltatable(str(self.folder))

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))


class DeltaAppend(_Delta, Sink):
    title = "Delta Lake table as a sink"
    options: ClassVar[dict[str, Any]] = {}
    hooks = (
        ("deltalake:DeltaTable", "create_write_transaction", False),
        ("deltalake:DeltaTable", "create_write_transaction", True),
        ("dagster_flinkpy.storage.local:LocalObjectStore", "complete_upload", True),
    )

    def sink(self) -> TwoPhaseCommittingSink:
        return DeltaSink(str(self.folder), **self.options)

    def rows(self) -> Sequence[Record]:
        return _rows(self.table.to_pyarrow_table()) if self.there else []


class DeltaMerge(DeltaAppend):
    title = "Delta Lake table as a sink, with a key"
    options: ClassVar[dict[str, Any]] = {"key": ["value"]}


class DeltaRows(_Delta, Source):
    title, patient = "Delta Lake table as a source", True

    def begin(self) -> None:
        DeltaTable.create(str(self.folder), _SCHEMA)

    def put(self, records: Sequence[Record]) -> None:
        write_deltalake(str(self.folder), _table(records), mode="append", schema_mode="merge")

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = DeltaSource(str(self.folder), row_type=EVENT, bounded=False)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "delta").uid("delta")


def _copied(system: _Delta, change: Callable[[], object]) -> Undo | None:
    """Changes a table, and puts back the folder as it was if the job has failed."""
    if not system.there:
        return None
    kept = system.place.folder / "kept-table"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(system.folder, kept)
    change()

    def undo(failed: bool) -> None:
        if failed or isinstance(system, Source):
            _keep_staged(system, kept)
            shutil.rmtree(system.folder)
            kept.rename(system.folder)

    return undo


def _rewrite(system: _Delta, **columns: Any) -> None:
    """Overwrites the table with other columns, as a careless ALTER of other tools does."""
    table = system.table.to_pyarrow_table()
    names = [columns.get(name, name) for name in table.column_names]
    write_deltalake(str(system.folder), table.rename_columns(names), mode="overwrite", schema_mode="overwrite")


def delta_renames(system: _Delta) -> Undo | None:
    return _copied(system, lambda: _rewrite(system, time="then"))


def delta_retypes(system: _Delta) -> Undo | None:
    def change() -> None:
        table = system.table.to_pyarrow_table()
        text = table.set_column(1, "time", table["time"].cast(pa.string()))
        write_deltalake(str(system.folder), text, mode="overwrite", schema_mode="overwrite")

    return _copied(system, change)


def delta_partitions(system: _Delta) -> Undo | None:
    def change() -> None:
        rows = system.table.to_pyarrow_table()
        write_deltalake(str(system.folder), rows, mode="overwrite", schema_mode="overwrite", partition_by=["key"])

    return _copied(system, change)


def delta_checks(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    most = len(system.rows())  # type: ignore[attr-defined]
    system.table.alter.add_constraint({"small": f"value < {most}"})
    return lambda failed: system.table.alter.drop_constraint("small")


def delta_adds_column(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    rows = _table([]).append_column("more", pa.array([], pa.string()))
    write_deltalake(str(system.folder), rows, mode="append", schema_mode="merge")
    return nothing


def delta_append_only(system: _Delta) -> Undo | None:
    return _copied(system, lambda: system.table.alter.set_table_properties({"delta.appendOnly": "true"}))


def delta_compacts(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    system.table.optimize.compact()
    return nothing


def delta_vacuums(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    system.table.optimize.compact()
    system.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    return nothing


def delta_checkpoints(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    system.table.create_checkpoint()
    system.table.cleanup_metadata()
    return nothing


def delta_deletes(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    rows = system.table.to_pyarrow_table()
    system.table.delete()
    return lambda failed: write_deltalake(str(system.folder), rows, mode="append", schema_mode="merge")


def delta_moves(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    kept = system.place.folder / "kept-table"
    system.folder.rename(kept)

    def undo(failed: bool) -> Undo:
        if system.there:
            write_deltalake(str(kept), system.table.to_pyarrow_table(), mode="append", schema_mode="merge")
        _keep_staged(system, kept)
        shutil.rmtree(system.folder, ignore_errors=True)
        kept.rename(system.folder)
        return nothing

    return undo


def _keep_staged(system: _Delta, kept: Path) -> None:
    """Copies what is staged into the folder that takes the place of this one."""
    for path in system.folder.rglob("*"):
        if path.is_file() and {".flinkpy", "_flinkpy_staged"} & set(path.parts):
            to = kept / path.relative_to(system.folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to)


def delta_loses_log(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    kept = system.place.folder / "kept-log"
    (system.folder / "_delta_log").rename(kept)

    def undo(failed: bool) -> Undo:
        rows = system.table.to_pyarrow_table() if system.there else None
        shutil.rmtree(system.folder / "_delta_log", ignore_errors=True)
        kept.rename(system.folder / "_delta_log")
        if rows is not None:
            write_deltalake(str(system.folder), rows, mode="append", schema_mode="merge")
        return nothing

    return undo


def delta_restores(system: _Delta) -> Undo | None:
    """RESTORE to the version before."""
    if not system.there or system.table.version() < 2:
        return None
    rows = system.table.to_pyarrow_table()
    kept = {row["value"] for row in rows.to_pylist()}
    system.table.restore(system.table.version() - 1)
    left = {row["value"] for row in system.table.to_pyarrow_table().to_pylist()}
    lost = [row for row in rows.to_pylist() if row["value"] in kept - left]

    def undo(failed: bool) -> None:
        now = {row["value"] for row in system.table.to_pyarrow_table().to_pylist()}
        again = [row for row in lost if row["value"] not in now]
        write_deltalake(str(system.folder), pa.Table.from_pylist(again, _SCHEMA), mode="append", schema_mode="merge")

    return undo


def delta_backup(system: _Delta) -> Undo | None:
    """The folder of an earlier version is put in its place."""
    if not system.there or system.table.version() < 2:
        return None

    def change() -> None:
        last = system.table.version()
        (system.folder / "_delta_log" / f"{last:020}.json").unlink()

    return _copied(system, change)


def delta_anew(system: _Delta) -> Undo | None:
    if not system.there:
        return None
    rows = system.table.to_pyarrow_table()
    kept = system.place.folder / "kept-table"
    system.folder.rename(kept)
    system.folder.mkdir()
    for path in kept.iterdir():  # only the table is dropped, not what is staged for it
        if path.name in (".flinkpy", "_flinkpy_staged"):
            shutil.copytree(path, system.folder / path.name)
        elif path.is_file():
            shutil.copy2(path, system.folder)
    DeltaTable.create(str(system.folder), _SCHEMA)

    def undo(failed: bool) -> None:
        if system.table.version():  # another run has gone on in the new table
            write_deltalake(str(system.folder), rows, mode="append")
        else:
            _keep_staged(system, kept)
            shutil.rmtree(system.folder)
            kept.rename(system.folder)

    return undo


_COMMIT = (CommitRefusedError, ConfigurationError)
DeltaAppend.acts = DeltaMerge.acts = (
    Act("overwrites the table with a column renamed", delta_renames, _COMMIT),
    Act("overwrites the table with a column of another type", delta_retypes, _COMMIT),
    Act("overwrites the table with other partitions", delta_partitions, _COMMIT),
    Act("adds a CHECK that the rows break", delta_checks, _COMMIT),
    Act("adds a column", delta_adds_column),
    Act("sets delta.appendOnly", delta_append_only, _COMMIT),
    Act("compacts the table", delta_compacts),
    Act("compacts the table, and VACUUM with no retention", delta_vacuums),
    Act("writes a checkpoint, and cleans the log up", delta_checkpoints),
    Act("deletes all rows", delta_deletes),
    Act("moves the table away, and back later", delta_moves, _COMMIT),
    Act("moves _delta_log away, and back later", delta_loses_log, _COMMIT),
    Act("restores the version before, by RESTORE", delta_restores),
    Act("restores a backup of the folder", delta_backup, _COMMIT),
    Act("drops the table, and makes it anew, empty", delta_anew, _COMMIT),
)
_READ = (SourceReadError,)
DeltaRows.acts = (
    Act("overwrites the table with a column renamed", delta_renames, _READ),
    Act("overwrites the table with a column of another type", delta_retypes, (TypeMismatchError, *_READ)),
    Act("adds a column", delta_adds_column),
    Act("compacts the table", delta_compacts),
    Act("writes a checkpoint, and cleans the log up", delta_checkpoints),
    Act("moves the table away, and back later", delta_moves, _READ),
    Act("moves _delta_log away, and back later", delta_loses_log, _READ),
    Act("restores a backup of the folder", delta_backup, _READ),
)


# --- Iceberg ----------------------------------------------------------------------------------------------------------


class _Iceberg(System):
    name = "db.t"

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.place.folder}/catalog.db"}

    @property
    def catalog(self) -> Any:
        return load_catalog("default", **self.properties)

    @property
    def there(self) -> bool:
        try:
            return bool(self.catalog.table_exists(self.name))
        except Exception:  # there is no catalog yet
            return False

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.name)


class IcebergAppend(_Iceberg, Sink):
    title = "Iceberg table as a sink"
    options: ClassVar[dict[str, Any]] = {}
    hooks = (
        ("pyiceberg.catalog.sql:SqlCatalog", "commit_table", False),
        ("pyiceberg.catalog.sql:SqlCatalog", "commit_table", True),
        ("dagster_flinkpy.storage.local:LocalObjectStore", "complete_upload", True),
    )

    def sink(self) -> TwoPhaseCommittingSink:
        return IcebergSink(self.name, str(self.folder), properties=self.properties, **self.options)

    def rows(self) -> Sequence[Record]:
        return _rows(self.table.scan().to_arrow()) if self.there else []


class IcebergUpsert(IcebergAppend):
    title = "Iceberg table as a sink, with a key"
    options: ClassVar[dict[str, Any]] = {"key": ["value"]}


class IcebergRows(_Iceberg, Source):
    title, patient = "Iceberg table as a source", True

    def begin(self) -> None:
        self.catalog.create_namespace("db")
        self.catalog.create_table(self.name, _SCHEMA, location=self.folder.as_uri())

    def put(self, records: Sequence[Record]) -> None:
        if records:
            self.table.append(_table(records))

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = IcebergSource(self.name, str(self.folder), properties=self.properties, row_type=EVENT, bounded=False)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "iceberg").uid("iceberg")


def _registered(change: Callable[[_Iceberg], object]) -> Callable[[_Iceberg], Undo | None]:
    """Changes a table, and registers its metadata as they were if the job has failed."""

    def act(system: _Iceberg) -> Undo | None:
        if not system.there:
            return None
        before = system.table.metadata_location
        change(system)

        def undo(failed: bool) -> None:
            if failed or isinstance(system, Source):
                if system.there:
                    system.catalog.drop_table(system.name)
                system.catalog.register_table(system.name, before)

        return undo

    return act


def _if_there(change: Callable[[_Iceberg], object]) -> Callable[[_Iceberg], Undo | None]:
    def act(system: _Iceberg) -> Undo | None:
        if not system.there:
            return None
        change(system)
        return nothing

    return act


def _iceberg_renames(system: _Iceberg) -> None:
    with system.table.update_schema() as update:
        update.rename_column("time", "then")


def _iceberg_drops_column(system: _Iceberg) -> None:
    with system.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("time")


def _iceberg_drops_and_adds(system: _Iceberg) -> None:
    _iceberg_drops_column(system)
    with system.table.update_schema() as update:
        update.add_column("time", LongType())


def _iceberg_requires(system: _Iceberg) -> None:
    with system.table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("more", LongType(), required=True)


def _iceberg_adds(system: _Iceberg) -> None:
    with system.table.update_schema() as update:
        update.add_column("more", StringType())


def _iceberg_partitions(system: _Iceberg) -> None:
    with system.table.update_spec() as spec:
        spec.add_field("key", IdentityTransform(), "by_key")


def _iceberg_sorts(system: _Iceberg) -> None:
    with system.table.update_sort_order() as order:
        order.asc("value", IdentityTransform())


def _iceberg_expires(system: _Iceberg) -> None:
    snapshots = [each.snapshot_id for each in system.table.snapshots()][:-1]
    if snapshots:
        system.table.maintenance.expire_snapshots().by_ids(snapshots).commit()


def iceberg_deletes(system: _Iceberg) -> Undo | None:
    if not system.there:
        return None
    rows = system.table.scan().to_arrow()
    system.table.delete(LessThan("value", 10**9))
    return lambda failed: system.table.append(rows)


def iceberg_renames_table(system: _Iceberg) -> Undo | None:
    if not system.there:
        return None
    system.catalog.rename_table(system.name, "db.u")

    def undo(failed: bool) -> Undo:
        anew = system.table.scan().to_arrow() if system.there else None
        if anew is not None:
            system.catalog.drop_table(system.name)
        system.catalog.rename_table("db.u", system.name)
        if anew is not None:
            system.table.append(anew)
        return nothing

    return undo


def _anew(elsewhere: bool) -> Callable[[_Iceberg], Undo | None]:
    def act(system: _Iceberg) -> Undo | None:
        if not system.there:
            return None
        before = system.table
        rows, schema = before.scan().to_arrow(), before.schema()
        location = before.location() + ("-2" if elsewhere else "")
        system.catalog.drop_table(system.name)
        system.catalog.create_table(system.name, schema, location=location)

        def undo(failed: bool) -> None:
            if system.table.snapshots():  # another run has gone on in the new table
                system.table.append(rows)
            else:
                system.catalog.drop_table(system.name)
                system.catalog.register_table(system.name, before.metadata_location)

        return undo

    return act


def iceberg_backup(system: _Iceberg) -> Undo | None:
    """The catalog names the metadata of the snapshot before."""
    if not system.there or not system.table.metadata.metadata_log:
        return None
    now, before = system.table.metadata_location, system.table.metadata.metadata_log[-1].metadata_file
    system.catalog.drop_table(system.name)
    system.catalog.register_table(system.name, before)

    def undo(failed: bool) -> None:
        if failed:
            system.catalog.drop_table(system.name)
            system.catalog.register_table(system.name, now)
        else:  # there was nothing of the job in it
            system.gone |= set(system.visible) - {value for _, _, value in _rows(system.table.scan().to_arrow())}

    return undo


def iceberg_loses_catalog(system: _Iceberg) -> Undo | None:
    database = system.place.folder / "catalog.db"
    if not system.there:
        return None
    kept = system.place.folder / "kept.db"
    database.rename(kept)

    def undo(failed: bool) -> Undo:
        anew = system.table.scan().to_arrow() if system.there else None
        kept.replace(database)
        if anew is not None:
            system.table.append(anew)
        return nothing

    return undo


IcebergAppend.acts = IcebergUpsert.acts = (
    Act("renames a column", _registered(_iceberg_renames), _COMMIT),
    Act("drops a column", _registered(_iceberg_drops_column), _COMMIT),
    Act("drops a column, and adds one of its name", _registered(_iceberg_drops_and_adds), _COMMIT),
    Act("adds a column that is required", _registered(_iceberg_requires), _COMMIT),
    Act("adds a column", _if_there(_iceberg_adds)),
    Act("changes the partitions", _registered(_iceberg_partitions), _COMMIT),
    Act("changes the sort order", _if_there(_iceberg_sorts)),
    Act("expires all snapshots but the last", _if_there(_iceberg_expires)),
    Act("deletes all rows", iceberg_deletes),
    Act("renames the table for a while", iceberg_renames_table, _COMMIT),
    Act("drops the table, and makes it anew in its place", _anew(False), _COMMIT),
    Act("drops the table, and makes it anew elsewhere", _anew(True), _COMMIT),
    Act("restores a backup of the table's metadata", iceberg_backup, _COMMIT),
    Act("moves the catalog away, and back later", iceberg_loses_catalog, (SinkCommitError, *_COMMIT)),
)
IcebergRows.acts = (
    Act("renames a column", _registered(_iceberg_renames), _READ),
    Act("drops a column", _registered(_iceberg_drops_column), _READ),
    Act("adds a column", _if_there(_iceberg_adds)),
    Act("changes the partitions", _if_there(_iceberg_partitions)),
    Act("expires snapshots that were not read", _if_there(_iceberg_expires), _READ, ends=True),
    Act("renames the table for a while", iceberg_renames_table, _READ),
    Act("moves the catalog away, and back later", iceberg_loses_catalog, _READ),
)

SYSTEMS = (DeltaAppend, DeltaMerge, DeltaRows, IcebergAppend, IcebergUpsert, IcebergRows)
