"""The table behind the Iceberg sink, and its branch: opening and checking them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import tenacity
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, NotInstalledError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import index_name_by_id
from pyiceberg.table import Table, Transaction
from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform, VoidTransform
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError

from dagster_flinkpy.connectors.files.parquet_table import table_schema
from dagster_flinkpy.connectors.iceberg.commit_log import CommitLog
from dagster_flinkpy.connectors.iceberg.sink import IcebergSink
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import ConfigurationError, StorageError
from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "NAME_MAPPING",
    "IcebergTarget",
    "check_file_schema",
    "column_ids",
    "file_properties",
    "folder_of",
    "mapped_ids",
    "name_mapping",
    "open_catalog",
    "partition_fields",
    "row_count",
]

NAME_MAPPING = "schema.name-mapping.default"
"""Tells readers which column of a file is which column of the table; the files have names only."""
_TRIES = 5


class IcebergTarget(CommitLog):
    """The table of a sink, and its branch."""

    def __init__(self, sink: IcebergSink, context: CommitterInitContext) -> None:
        super().__init__(context, sink)
        self._what = f"Iceberg table {sink.table!r}"
        self._found: Table | None = None
        """The table as it was found or created. It can be another one later."""

    @cached_property
    def catalog(self) -> Catalog:
        given = {**file_properties(self._sink.location), **self._sink.properties}
        return open_catalog(self._sink.catalog, given)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are written."""
        assert self._context.type_info is not None
        return table_schema(self._sink.row_type(self._context.type_info))

    @property
    def folder(self) -> str:
        """The folder of the table, as Iceberg names it."""
        return folder_of(self._sink.location)

    @property
    def found(self) -> bool:
        return self._found is not None

    def open(self, *, create: bool) -> Table:
        first = self._context.type_info is not None and self._found is None
        for _ in range(_TRIES):
            try:
                return self._with_branch(self._load_or_create()) if first and create else self._load()
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"the metadata of {self._what} was deleted or moved: {error}. Put it back"
                ) from error
            except (CommitFailedException, TableAlreadyExistsError, IntegrityError):  # somebody else was faster
                continue
        raise StorageError(f"{self._what} changes faster than it can be opened")

    def check(self, table: Table) -> Table:
        self._check_branch(table)
        if self._context.type_info is None:
            return table
        for _ in range(_TRIES):
            self._check(table)
            if self._found is not None:
                return table
            with suppress(CommitFailedException):  # somebody else was faster
                if not self._add_columns(table):
                    self._found = table
                    return table
            table = self._load()
        raise StorageError(f"{self._what} changes faster than it can be opened")

    def _load(self) -> Table:
        try:
            return self.catalog.load_table(self._sink.table)
        except NoSuchTableError as error:
            raise ConfigurationError(
                f"{self._what} of catalog {self._sink.catalog!r} does not exist any more: it was dropped or renamed. "
                "Put it back"
            ) from error

    def try_open(self) -> Table | None:
        try:
            if not self.catalog.table_exists(self._sink.table):
                return None
        except FileNotFoundError:
            pass
        return self.open(create=False)

    def _load_or_create(self) -> Table:
        try:
            return self.catalog.load_table(self._sink.table)
        except NoSuchTableError:
            self.catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        creation = self.catalog.create_table_transaction(self._sink.table, self.schema, location=self.folder)
        with creation as transaction:
            if self._sink.files.partition_by:
                with transaction.update_spec() as spec:
                    for name in self._sink.files.partition_by:
                        spec.add_identity(name)
            mapping = transaction.table_metadata.schema().name_mapping
            transaction.set_properties({NAME_MAPPING: mapping.model_dump_json()})
        return self.catalog.load_table(self._sink.table)

    def _with_branch(self, table: Table) -> Table:
        """Returns the table with the branch. A new one begins where ``main`` is, or was when the job was forked."""
        branch, refs = self._sink.branch, table.refs()
        if branch in (MAIN_BRANCH, *refs):
            return table
        transaction, start = Transaction(table), self.start(table)
        if MAIN_BRANCH not in refs:  # a branch needs a snapshot
            with transaction.update_snapshot().fast_append():
                pass
        self.forget(transaction)
        if start is None:
            start = transaction.table_metadata.refs[MAIN_BRANCH].snapshot_id
        creation = SetSnapshotRefUpdate(ref_name=branch, type=SnapshotRefType.BRANCH, snapshot_id=start)
        # pyiceberg has no requirements for other branches of a table without snapshots, and there are none.
        new = [ref for ref in (MAIN_BRANCH, branch) if ref not in refs] if table.snapshots() else [MAIN_BRANCH]
        requirements = [AssertRefSnapshotId(ref=ref, snapshot_id=None) for ref in new]
        table.catalog.commit_table(
            table, (*requirements, AssertTableUUID(uuid=table.metadata.table_uuid)), (*transaction._updates, creation)
        )
        return self._load()

    def _check_branch(self, table: Table) -> None:
        ref = table.refs().get(self._sink.branch)
        if ref is None and self._sink.branch != MAIN_BRANCH:
            last = self.last_snapshot(table)
            at = "" if last is None else f" at its last snapshot, {last[0]} or one after it"
            raise ConfigurationError(
                f"{self._sink.what} does not exist any more: it was removed, or has expired. Create it again{at}"
            )
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            raise ConfigurationError(f"{self._sink.branch!r} is a tag of {self._what}: give IcebergSink a branch")

    def _check(self, table: Table) -> None:
        what = self._what
        if self._found is not None and table.metadata.table_uuid != self._found.metadata.table_uuid:
            raise ConfigurationError(
                f"{what} was dropped and made anew since it was opened. Running again adds the rows to the new table, "
                "if they were not deleted with the old one"
            )
        # Iceberg takes paths as they are, so they are no URLs with quotes.
        there = folder_of(StorageLocation(table.location().rstrip("/").removeprefix("file://")))
        if there != self.folder:
            raise ConfigurationError(f"{what} is at {there}, not at {self.folder}: give IcebergSink that location")
        if table.format_version > 2:
            raise ConfigurationError(
                f"{what} has format version {table.format_version}, which pyiceberg does not write: write to a table "
                "of version 2"
            )
        if "encryption.key-id" in table.properties:
            raise ConfigurationError(f"{what} is encrypted, which IcebergSink does not do: write to another table")
        self._check_columns(table)
        self._check_partitions(table)
        name_mapping(table, self.schema.names)

    def _check_columns(self, table: Table) -> None:
        what = self._what
        self._check_ids(table)
        for field, kind in _differing(table, self.schema):
            if kind is not None:
                raise ConfigurationError(
                    f"column {field.name!r} of {what} must be {field.type}, but is {kind}: change the records or the "
                    "table"
                )
            if not self._sink.merge_schema:
                raise ConfigurationError(
                    f"{what} has no column {field.name!r}: add it as {field.type}, or give IcebergSink "
                    "merge_schema=True"
                )
        for column in table.schema().fields:
            if column.required:
                raise ConfigurationError(f"column {column.name!r} of {what} must be optional: records may have nulls")
            if column.write_default is not None and column.name not in self.schema.names:
                raise ConfigurationError(
                    f"column {column.name!r} of {what} has the default value {column.write_default!r}, which "
                    "IcebergSink does not write: add it to the records"
                )

    def _check_ids(self, table: Table) -> None:
        """Checks that the columns are the ones that were written before: files have their names only."""
        known = self.columns(table)
        if self._found is not None:
            known = known | column_ids(self._found, self.schema.names)
        now = {field_id: table.schema().find_column_name(field_id) for field_id in known.values()}
        ids = column_ids(table, self.schema.names)
        for name, field_id in known.items():
            if name.partition(".")[0] not in self.schema.names or ids.get(name) == field_id:
                continue
            if now[field_id] is not None:
                raise ConfigurationError(
                    f"column {name!r} of {self._what} was renamed to {now[field_id]!r}: rename it back, or rename the "
                    "field of the records"
                )
            raise ConfigurationError(
                f"column {name!r} of {self._what} was dropped{' and added again' if name in ids else ''}, but files "
                "that are there have values under this name: make the former schema the current one, or write to "
                "another table"
            )

    def _check_partitions(self, table: Table) -> None:
        what, columns = self._what, []
        for field in partition_fields(table):
            name = table.schema().find_field(field.source_id).name
            if not isinstance(field.transform, IdentityTransform):
                raise ConfigurationError(
                    f"{what} is partitioned by {field.transform} of {name!r}, but IcebergSink writes files by the "
                    "values of columns only: partition the table by a column that has them, which map() can add"
                )
            columns.append(name)
        if sorted(columns) != sorted(self._sink.files.partition_by):
            raise ConfigurationError(
                f"{what} is partitioned by {columns}, not by {list(self._sink.files.partition_by)}: change "
                "partition_by of the sink, or write the table again"
            )

    def _add_columns(self, table: Table) -> bool:
        """Adds the columns that are missing. Returns whether any were."""
        names = {field.name for field in table.schema().fields}
        missing = pa.schema([field for field in self.schema if field.name not in names])
        if not len(missing):
            return False
        with table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(missing)
            mapping = transaction.table_metadata.schema().name_mapping
            transaction.set_properties({NAME_MAPPING: mapping.model_dump_json()})
        return True


def row_count(sink: IcebergSink) -> int | None:
    """Returns the number of rows of a sink's table, or None if the latest snapshot does not tell it."""
    table = IcebergTarget(sink, CommitterInitContext("", "", fencing_token=0)).open(create=False)
    snapshot = table.snapshot_by_name(sink.branch)
    if snapshot is None:
        return 0
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    deleted = [int(summary.get(f"total-{kind}-deletes", 0)) for kind in ("position", "equality")]
    return None if any(deleted) or "total-records" not in summary else int(summary["total-records"])


def partition_fields(table: Table) -> list[PartitionField]:
    """Returns by what a table is partitioned, without what was removed: format version 1 keeps that as ``void``."""
    return [field for field in table.spec().fields if not isinstance(field.transform, VoidTransform)]


def column_ids(table: Table, names: Collection[str]) -> dict[str, int]:
    """Returns the ids of columns, and of the fields in them, by their full names."""
    found = index_name_by_id(table.schema())
    return {name: field_id for field_id, name in found.items() if name.partition(".")[0] in names}


def name_mapping(table: Table, names: Collection[str]) -> str | None:
    """Returns the name mapping that a table needs so that files with these columns are read, or None if it has it."""
    text = table.properties.get(NAME_MAPPING)
    if text is None:
        return str(table.schema().name_mapping.model_dump_json())
    what = f"property {NAME_MAPPING!r} of Iceberg table {'.'.join(table.name())!r}"
    try:
        mapping = parse_mapping_from_json(text)
    except ValueError as error:
        raise ConfigurationError(f"{what} is no name mapping: {text:.200}") from error
    known, missing = mapped_ids(mapping), list[MappedField]()
    for name, field_id in column_ids(table, names).items():
        there = known.get(name)
        if there == field_id or any(name.startswith(f"{added.names[0]}.") for added in missing):
            continue
        if there is not None or "." in name or any(each.field_id == field_id for each in mapping):
            raise ConfigurationError(
                f"{what} does not say that {name!r} is field {field_id}, so that readers would not find it in files: "
                "add that name to it"
            )
        missing.append(next(each for each in table.schema().name_mapping if each.field_id == field_id))
    return None if not missing else str(NameMapping([*mapping, *missing]).model_dump_json())


def mapped_ids(fields: Iterable[MappedField], prefix: str = "") -> dict[str, int | None]:
    """Returns the ids of a name mapping by the full names that columns may have in files."""
    found = dict[str, int | None]()
    for field in fields:
        for name in field.names:
            found[f"{prefix}{name}"] = field.field_id
            found |= mapped_ids(field.fields, f"{prefix}{name}.")
    return found


def check_file_schema(table: Table, schema: pa.Schema, file: str) -> None:
    """Checks that a table has the columns of a file that an older program has staged."""
    for field, kind in _differing(table, schema):
        raise ConfigurationError(
            f"column {field.name!r} of Iceberg table {'.'.join(table.name())!r} must be {field.type}, as in {file}, "
            f"but is {kind or 'not there'}"
        )


def _differing(table: Table, schema: pa.Schema) -> Iterator[tuple[pa.Field, pa.DataType | None]]:
    """Yields the fields, as Iceberg has them, that a table does not have so, each with the type that it has there."""
    found = {field.name: field for field in table.schema().fields}
    for field in schema_to_pyarrow(_pyarrow_to_schema_without_ids(schema), include_field_ids=False):
        column = found.get(field.name)
        kind = None if column is None else schema_to_pyarrow(column.field_type, include_field_ids=False)
        if kind != field.type:
            yield field, kind


@tenacity.retry(
    retry=tenacity.retry_if_exception_type((OperationalError, ProgrammingError, IntegrityError)),
    stop=tenacity.stop_after_attempt(_TRIES),
    reraise=True,
)
def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Opens a catalog. A new SQL catalog gets its tables, which another process may make at the same time.

    Raises:
        ConfigurationError: The settings name no catalog that there can be.
    """
    try:
        return load_catalog(name, **properties)
    except OSError:  # of requests; some of them are a ValueError, too
        raise
    except (ValueError, ImportError, NotInstalledError, ArgumentError) as error:
        raise ConfigurationError(
            f"Iceberg catalog {name!r} cannot be opened: {error}. Correct properties=..., ~/.pyiceberg.yaml or the "
            "variables PYICEBERG_CATALOG__*. PostgreSQL is postgresql+psycopg://..."
        ) from error


def folder_of(location: StorageLocation) -> str:
    """Returns a folder as Iceberg names it."""
    if not location.url.startswith("file:"):
        return location.url
    return f"file://{unquote(urlsplit(location.url).path)}"  # Iceberg takes paths as they are


def file_properties(location: StorageLocation) -> dict[str, str]:
    """Returns the settings of a location as pyiceberg names them. What is missing it finds in the environment."""
    given = {
        "s3.endpoint": location.endpoint_url,
        "s3.region": location.region,
        "s3.access-key-id": location.access_key_id,
        "s3.secret-access-key": location.secret_access_key,
        "s3.force-virtual-addressing": "true" if location.addressing_style == "virtual" else None,
    }
    return {name: value for name, value in given.items() if value is not None}
