"""The snapshots of an Iceberg table, for the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import DataScan, FileScanTask, IncrementalAppendScan, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import micros_to_timestamp
from sqlalchemy.exc import SQLAlchemyError

from dagster_flinkpy.connectors.iceberg.source import IcebergSource
from dagster_flinkpy.connectors.iceberg.table import file_properties, folder_of, mapped_ids, open_catalog
from dagster_flinkpy.connectors.lake.table_source import TableLog, window_at
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import InputChangedError, SourceReadError, StorageError

__all__ = ["IcebergLog"]

_PLAIN = (BooleanType, DoubleType, FloatType, IntegerType, LongType, StringType)
_UNITS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
"""The format in which pyiceberg shows the values of each unit of time by which a table can be partitioned."""


class IcebergLog(TableLog):
    """Reads the snapshots of a table. Their ids are the versions."""

    def __init__(self, source: IcebergSource) -> None:
        self._source, self._name = source, f"Iceberg table {source.table!r}"
        self._loaded: Table | None = None
        self._names: Json | None = None

    def latest(self) -> int | None:
        current = self._current()
        return None if current is None else int(current.snapshot_id)

    def after(self, version: int) -> int | None:
        following = self._following(version)
        return following[-1] if following else None

    def count_after(self, version: int) -> int:
        return len(self._following(version))

    def _following(self, version: int) -> list[int]:
        """Returns the snapshots after one, the latest first. That one may have expired: it is named as a parent."""
        table, current, following = self._load(), self._current(), list[int]()
        found = None if current is None else current.snapshot_id
        while found != version:
            snapshot = None if found is None else table.snapshot_by_id(found)
            if snapshot is None:
                raise self._gone(version, "up to which it was read")
            following.append(snapshot.snapshot_id)
            found = snapshot.parent_snapshot_id
        return following

    def _gone(self, version: int, which: str) -> InputChangedError:
        return InputChangedError(
            f"snapshot {version} of {self._name}, {which}, is no longer one of its history: it, or one after it, has "
            "expired, or the table was rolled back or made anew. Put it back; or keep snapshots longer, and start from "
            "empty state to read the table as it is now"
        )

    def _snapshot(self, version: int) -> Snapshot:
        """Returns a snapshot that was not read to its end."""
        if (snapshot := self._load().snapshot_by_id(version)) is None:
            raise self._gone(version, "which was not read to its end")
        return snapshot

    def _current(self) -> Snapshot | None:
        table, branch = self._load(), self._source.branch
        if branch not in (MAIN_BRANCH, *table.refs()):
            raise InputChangedError(f"{self._name} has no branch {branch!r}. Was it removed? Create it again")
        return table.snapshot_by_name(branch)

    def all_files(self, version: int) -> list[Json]:
        with self._reading():
            return self._files(self._load().scan(snapshot_id=self._snapshot(version).snapshot_id))

    def added_files(self, version: int) -> list[Json]:
        with self._reading():
            snapshot = self._snapshot(version)
            operation = None if snapshot.summary is None else snapshot.summary.operation
            if operation == Operation.APPEND:
                scan = self._load().incremental_append_scan(
                    from_snapshot_id_exclusive=snapshot.parent_snapshot_id, to_snapshot_id_inclusive=version
                )
                return self._files(scan)
        if operation == Operation.REPLACE or self._source.skip_changes:
            return []
        raise InputChangedError(
            f"snapshot {version} of {self._name} deletes or overwrites rows, but the source reads what is appended. "
            "Give it skip_changes=True to leave out such snapshots, or start from empty state to read the table as it "
            "is now"
        )

    def mark(self, version: int) -> str | None:
        """Returns the ids of the columns, as JSON."""
        return json.dumps({field.name: field.field_id for field in self._load().schema().fields})

    def check_history(self, version: int, mark: str) -> None:
        before, now = json.loads(mark), {field.name: field.field_id for field in self._load().schema().fields}
        for name in self._source.table_type.field_names:
            if name in before and name in now and before[name] != now[name]:
                raise InputChangedError(
                    f"column {name!r} of {self._name} is not the one that the source has read: that one was renamed or "
                    "dropped, and another one has its name now. Put the column back, or start from empty state to read "
                    "the table as it is now"
                )

    def schema(self) -> pa.Schema:
        with self._reading():
            return schema_to_pyarrow(self._load().schema(), include_field_ids=False)

    def _files(self, scan: DataScan | IncrementalAppendScan) -> list[Json]:
        try:
            tasks = list(scan.plan_files())
        except (NotImplementedError, ValueError) as error:  # such as equality deletes
            raise InputChangedError(f"cannot read {self._name}: {error}. Rewrite the files of the table") from error
        defaults = self._defaults()
        return sorted((self._file(task, defaults) for task in tasks), key=lambda file: str(file["path"]))

    def _file(self, task: FileScanTask, defaults: dict[str | None, Any]) -> Json:
        table, file, folder = self._load(), task.file, folder_of(self._source.location)
        if task.delete_files:
            raise InputChangedError(f"{self._name} has delete files, which the source cannot read: rewrite its files")
        if file.file_format != FileFormat.PARQUET or not file.file_path.startswith(f"{folder}/"):
            raise InputChangedError(f"{self._name} has the file {file.file_path}, which is not Parquet in {folder}")
        values = dict(defaults)
        for position, field in enumerate(table.specs()[file.spec_id].fields):
            name = table.schema().find_column_name(field.source_id)
            if isinstance(field.transform, IdentityTransform) and name is not None:
                values[name] = _constant(table.schema().find_type(field.source_id), file.partition[position])
        return {
            **self._window(file),
            "path": file.file_path[len(folder) + 1 :],
            "size": file.file_size_in_bytes,
            "values": {name: value for name, value in values.items() if name is not None},
            "ids": {field.name: field.field_id for field in table.schema().fields},
            **self._former_names(),
        }

    def _defaults(self) -> dict[str | None, Any]:
        """Returns what columns have in files that are older than they are, if that is not null."""
        schema, found = self._load().schema(), dict[str | None, Any]()
        for field_id in schema.field_ids:
            field, name = schema.find_field(field_id), str(schema.find_column_name(field_id))
            if field.initial_default is None or name.partition(".")[0] not in self._source.table_type.field_names:
                continue
            if "." in name or not isinstance(field.field_type, _PLAIN):
                raise InputChangedError(
                    f"column {name!r} of {self._name} has a default value of the type {field.field_type}, which the "
                    "source cannot read: declare a row_type without it"
                )
            found[name] = field.initial_default
        return found

    def _former_names(self) -> Json:
        """Returns what columns were called in older files, and which fields of columns are others now.

        ``names`` are those that a column has in files without ids, if it has others than its own. ``changed`` has the
        full names of fields in columns, in any schema, with the id that each of them has now, if that is another one.
        """
        if self._names is None:
            table, now = self._load(), self._load().schema()
            mapping = table.name_mapping()
            known = mapped_ids([] if mapping is None else mapping)
            names = dict[str, list[str]]()
            for field in now.fields:
                of_field = [name for name, field_id in known.items() if field_id == field.field_id and "." not in name]
                if of_field != [field.name] and known:
                    names[field.name] = of_field or ([] if field.name in known else [field.name])
            ids = {now.find_column_name(field_id): field_id for field_id in now.field_ids}
            changed = dict[str, int | None]()
            for schema in table.schemas().values():
                for field_id in schema.field_ids:
                    name = schema.find_column_name(field_id)
                    if name is None or "." not in name or ids.get(name) == field_id:
                        continue
                    if name in ids or field_id in ids.values():
                        changed[name] = ids.get(name)
            self._names = {key: found for key, found in (("names", names), ("changed", changed)) if found}
        return self._names

    def _window(self, file: DataFile) -> Json:
        """Returns the value by which time partitions find the file, and the unit of time if it is one."""
        table, found = self._load(), dict[str, Any]()
        for position, field in enumerate(table.specs()[file.spec_id].fields):
            value, unit = file.partition[position], _UNITS.get(str(field.transform))
            if table.schema().find_column_name(field.source_id) != self._source.partition_column:
                continue
            kind = table.schema().find_type(field.source_id)
            shown = None if value is None else field.transform.to_human_string(kind, value)
            if isinstance(field.transform, IdentityTransform):
                is_moment = value is not None and isinstance(kind, (TimestampType, TimestamptzType))
                return window_at(micros_to_timestamp(value)) if is_moment else {"window": shown}
            if unit is not None:
                found = {"window": shown, "unit": unit}
        return found

    def _load(self) -> Table:
        with self._reading():
            if self._loaded is None:
                given = {**file_properties(self._source.location), **self._source.properties}
                catalog = open_catalog(self._source.catalog, given)
                try:
                    self._loaded = catalog.load_table(self._source.table)
                except FileNotFoundError as error:
                    raise InputChangedError(
                        f"the metadata of {self._name} was deleted or moved: {error}. Put it back"
                    ) from error
            return self._loaded

    def refresh(self) -> None:
        self._loaded = self._names = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except NoSuchTableError as error:
            raise InputChangedError(
                f"cannot read {self._name} of catalog {self._source.catalog!r}: it does not exist. Was it dropped or "
                "renamed? Put it back, or create it"
            ) from error
        except (RESTError, SQLAlchemyError, OSError, StorageError) as error:
            raise SourceReadError(f"cannot read {self._name} of catalog {self._source.catalog!r}: {error}") from error


def _constant(kind: IcebergType, value: Any) -> Any:
    """Returns a partition value as splits have it: as text if JSON has no such value, and bytes in hex."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if value is None or (isinstance(value, (str, int)) and not isinstance(kind, DateType)):
        return value
    return IdentityTransform().to_human_string(kind, value)
