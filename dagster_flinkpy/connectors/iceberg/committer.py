"""The committers of the Iceberg sink.

The library must not delete what it has written if a commit fails, because a lost answer may have been a success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError, NoSuchTableError, RESTError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual, Or
from pyiceberg.expressions.literals import literal
from pyiceberg.expressions.visitors import IN_PREDICATE_LIMIT
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _dataframe_to_data_files,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from sqlalchemy.exc import SQLAlchemyError

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.checkpoint_committer import StagedCheckpoint
from dagster_flinkpy.connectors.commit.staged_files import partition_values
from dagster_flinkpy.connectors.commit.staged_rows import RowFile
from dagster_flinkpy.connectors.iceberg.sink import IcebergSink
from dagster_flinkpy.connectors.iceberg.table import (
    NAME_MAPPING,
    IcebergTarget,
    check_file_schema,
    column_ids,
    name_mapping,
    partition_fields,
)
from dagster_flinkpy.connectors.lake.committer import LakeCommitter, PartitionReplacement, without
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import ConfigurationError, SinkCommitError

__all__ = ["IcebergCommitter", "IcebergPartitionCommitter", "IcebergUpsertCommitter", "to_data_file"]

_RETENTION = ("min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms")


@dataclass(frozen=True)
class _Change:
    """What a commit does to the table."""

    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)


class IcebergCommitter(LakeCommitter[Table]):
    """Appends the staged files of a checkpoint."""

    _client_errors = (RESTError, SQLAlchemyError, OSError)
    _refusals = (ConfigurationError, ForbiddenError, BadRequestError)
    _races = (CommitFailedException, NoSuchTableError)  # the next look tells which
    _advice: ClassVar[str] = ". Check the settings of the catalog."

    def __init__(self, sink: IcebergSink, context: CommitterInitContext) -> None:
        self._sink, self._table = sink, IcebergTarget(sink, context)
        super().__init__(sink, context, self._table)
        self._is_branch = sink.branch != MAIN_BRANCH
        self._latest: tuple[int, str, int] | None = None
        """The checkpoint that was committed last, as this attempt knows, its digest, and a time before."""

    def _checked(self, table: Table) -> Table:
        table = super()._checked(table)
        if self._latest is None:
            self._latest = self._table.latest(table)
        elif not self._table.has_recently(table, *self._latest[1:]):
            raise ConfigurationError(
                f"{self._what} does not have the rows of checkpoint {self._latest[0]} any more: it was restored from a "
                "backup, rolled back or made anew. Running again adds rows to what is there now"
            )
        return table

    def _change(self, table: Table, checkpoint: StagedCheckpoint) -> _Change:
        files = [file for file in checkpoint.files if file.key]
        added = []
        for file, footer in self._footers(files):
            if not self._names.of_this_attempt(file.key):
                check_file_schema(table, footer.schema.to_arrow_schema(), file.key)
            added.append(to_data_file(table, footer, file))
        return _Change(added, self._replaced(table, checkpoint))

    def _files_of_epochs(self, table: Table, after: int, before: int) -> list[DataFile]:
        found: list[FileScanTask] = super()._files_of_epochs(table, after, before)
        for task in found:
            if task.delete_files:
                raise ConfigurationError(
                    f"{self._what} has delete files: somebody has deleted or changed rows of {task.file.file_path} in "
                    "place. Rewrite the data files of the table"
                )
        return [task.file for task in found]

    def _files_in(self, table: Table) -> list[tuple[str, FileScanTask]]:
        return [(task.file.file_path, task) for task in _tasks(table, self._head(table), AlwaysTrue())]

    def _head(self, table: Table) -> Snapshot | None:
        """Returns the latest snapshot of the branch, or that of ``main`` with which it will begin."""
        branch = self._sink.branch
        if branch in (MAIN_BRANCH, *table.refs()):
            return table.snapshot_by_name(branch)
        start = self._table.start(table)
        return table.current_snapshot() if start is None else table.snapshot_by_id(start)

    def _remove(self, table: Table, files: Sequence[DataFile], checkpoint_id: int) -> None:
        self._add(table, _Change(removed=list(files)), checkpoint_id, f"{checkpoint_id}-replaced", [])

    def _swap(self, table: Table, change: _Change, checkpoint: StagedCheckpoint) -> None:
        latest = checkpoint.checkpoint_id, checkpoint.digest, current_millis()
        self._add(table, change, *latest[:2], list(checkpoint.by_partition))
        self._latest = latest

    def _add(
        self, table: Table, change: _Change, checkpoint_id: int, digest: str, partitions: Sequence[str | None]
    ) -> None:
        transaction, written, branch = Transaction(table), self._written(), self._sink.branch
        if change.added or change.removed:
            update = transaction.update_snapshot(self._table.summary(checkpoint_id, digest), branch=branch)
            with update.overwrite() if change.removed else update.merge_append() as producer:
                # One for each manifest: pyiceberg shares one among threads, which then misses files that are removed.
                build = producer._build_manifest_evaluator
                producer._build_manifest_evaluator = lambda spec: lambda manifest: build(spec)(manifest)
                for file in change.removed:
                    producer.delete_data_file(file)
                for file in change.added:
                    producer.append_data_file(file)
        head, ids = transaction.table_metadata.snapshot_by_name(branch), column_ids(table, written)
        mine = sum(self._names.checkpoint(file.file_path) is not None for file in change.removed)
        files = len(change.added) - mine
        properties = self._table.properties(table, checkpoint_id, digest, list(partitions), ids, head, files)
        if (mapping := name_mapping(table, written)) is not None:
            properties[NAME_MAPPING] = mapping
        transaction.set_properties(properties)
        requirements = transaction._requirements
        if not (change.added or change.removed):  # the property is as important as a snapshot
            requirements = (AssertRefSnapshotId(ref=branch, snapshot_id=None if head is None else head.snapshot_id),)
        requirements = (
            *requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        updates = tuple(_with_retention(table, update) for update in transaction._updates)
        table.catalog.commit_table(table, requirements, updates)

    def _written(self) -> list[str]:
        return [] if self._context.type_info is None else self._table.schema.names

    def _is_newest(self, table: Table) -> bool:
        return bool(self._table.open(create=False).metadata_location == table.metadata_location)

    def _gone(self, error: Exception) -> Exception:
        if not isinstance(error, FileNotFoundError):
            return error
        return ConfigurationError(
            f"{self._what} has lost a file: {error}. Put it back, or roll back to a snapshot without it"
        )


class IcebergPartitionCommitter(IcebergCommitter, PartitionReplacement[Table]):
    """Replaces the files of partitions in the snapshot that adds the new ones."""

    def _change(self, table: Table, checkpoint: StagedCheckpoint) -> _Change:
        return _Change(super()._change(table, checkpoint).added, self._files_of(table, list(checkpoint.by_partition)))

    def _files_of(self, table: Table, partitions: Sequence[str | None]) -> list[DataFile]:
        assert self._sink.filled is not None
        names, wanted = self._sink.filled.replaced_by_any(partitions)
        # One scan for all: each of them reads all manifests.
        these = [_any_of(name, [dict(values)[name] for values in wanted]) for name in names]
        found: list[DataFile] = []
        for task in _tasks(table, self._head(table), reduce(And, these, AlwaysTrue())) if wanted else ():
            values = _identities(table, task.file)
            replaced = tuple((name, values.get(name)) for name in names)
            if replaced not in wanted:
                raise SinkCommitError(
                    f"cannot replace rows by {names} in {self._what}: {task.file.file_path} was written when the table "
                    "was partitioned otherwise, and may have other rows. Rewrite the table."
                )
            self._check_own(wanted[replaced], [task.file.file_path])
            found.append(task.file)
        return found

    def _replaced_by(self, table: Table, partition: str | None, checkpoint_id: int, since_ms: int) -> int | None:
        return self._table.replaced_by(table, partition, checkpoint_id, since_ms)

    def _empty(self, table: Table, partition: str | None, checkpoint_id: int) -> int:
        self._table.check_reaches_back(table, self._since_ms)
        removed = self._files_of(table, [partition])
        if removed:
            self._add(table, _Change(removed=removed), checkpoint_id, f"{checkpoint_id}-{partition}", [partition])
        return len(removed)


class IcebergUpsertCommitter(IcebergCommitter):
    """Writes the rows of a checkpoint in one snapshot, in place of those with the same keys (copy on write)."""

    def _change(self, table: Table, checkpoint: StagedCheckpoint) -> _Change:
        rows = self._last_rows(checkpoint, partial(check_file_schema, table))
        kinds = {field.name: field for field in self._table.schema}
        rows = rows.cast(pa.schema([kinds.get(field.name, field) for field in rows.schema]))
        parts, removed = [rows], []
        for task in _tasks(table, self._head(table), _range(rows, self._key[0])):
            there = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
            kept = without(there, rows, self._key)
            if kept.num_rows < there.num_rows:
                removed.append(task.file)
                parts.append(kept)
        both = pa.concat_tables(parts, promote_options="permissive")
        properties = {**table.properties, "write.format.default": "parquet"}  # as the other files of the sink are
        metadata = table.metadata.model_copy(update={"properties": properties})
        try:
            added = list(_dataframe_to_data_files(metadata, both, table.io))
        except (ValueError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"pyiceberg cannot write files for {self._what}: {error}. Change the 'write' properties of the table"
            ) from error
        return _Change(added, removed)


def to_data_file(table: Table, footer: pq.FileMetaData, file: RowFile) -> DataFile:
    """Returns a staged file as an entry of a manifest."""
    schema, metadata = table.schema(), table.metadata
    path = f"{table.location().rstrip('/')}/{file.key}"
    ids = parquet_path_to_id_mapping(schema)
    columns = [footer.schema.column(i).path for i in range(footer.num_columns)]
    if missing := [column for column in columns if column not in ids]:
        raise ConfigurationError(
            f"Iceberg table {'.'.join(table.name())!r} no longer has column {missing[0]!r}, which {path} has"
        )
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, metadata.properties), ids
    )
    values, fields = partition_values(file.key), table.spec().fields
    by = [schema.find_field(field.source_id).name for field in partition_fields(table)]
    if set(by) != set(values):
        raise ConfigurationError(
            f"Iceberg table {'.'.join(table.name())!r} is partitioned by {by}, not by {list(values)}, as {path} is"
        )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(table, field, values) for field in fields)),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition_value(table: Table, field: PartitionField, values: dict[str, str | None]) -> Any:
    if isinstance(field.transform, VoidTransform):
        return None
    column = table.schema().find_field(field.source_id)
    text = values[column.name]
    return None if text is None else literal(text).to(column.field_type).value


def _range(rows: pa.Table, column: str) -> BooleanExpression:
    """Returns which rows may have one of the keys. Files without such rows are not read."""
    values = rows.column(column)
    if pa.types.is_boolean(values.type) or not rows.num_rows:
        return AlwaysTrue()
    ordered = values.combine_chunks().sort()
    return And(GreaterThanOrEqual(column, ordered[0].as_py()), LessThanOrEqual(column, ordered[-1].as_py()))


def _with_retention(table: Table, update: TableUpdate) -> TableUpdate:
    """Keeps how long a branch and its snapshots are kept, which pyiceberg forgets."""
    if not isinstance(update, SetSnapshotRefUpdate) or (ref := table.refs().get(update.ref_name)) is None:
        return update
    return update.model_copy(update={name: getattr(ref, name) for name in _RETENTION})


def _tasks(table: Table, head: Snapshot | None, row_filter: BooleanExpression) -> list[FileScanTask]:
    try:
        scan = table.scan(row_filter=row_filter, snapshot_id=None if head is None else head.snapshot_id)
        return list(scan.plan_files())
    except (NotImplementedError, ValueError) as error:  # such as equality deletes
        raise ConfigurationError(
            f"the rows to replace in Iceberg table {'.'.join(table.name())!r} cannot be found: {error}. Rewrite the "
            "data files of the table, or write to another one"
        ) from error


def _any_of(name: str, values: Sequence[str]) -> BooleanExpression:
    parts = (values[start : start + IN_PREDICATE_LIMIT] for start in range(0, len(values), IN_PREDICATE_LIMIT))
    return reduce(Or, [In(name, part) for part in parts])  # with more, files of other values would match


def _identities(table: Table, file: DataFile) -> dict[str | None, Any]:
    """Returns the values that all rows of a file have, by column."""
    names = {field.field_id: field.name for field in table.schema().fields}
    return {
        names.get(field.source_id): file.partition[position]
        for position, field in enumerate(table.specs()[file.spec_id].fields)
        if isinstance(field.transform, IdentityTransform)
    }
