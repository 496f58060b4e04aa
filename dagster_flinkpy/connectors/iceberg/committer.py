"""The committers of the Iceberg sink.

A commit is one compare-and-swap of the table: it looks at a snapshot, makes sure that the checkpoint is not in the
table, and adds the next snapshot if that one is still the current one. Otherwise, and if nobody knows whether it is
added, it looks again. The library must not try again by itself, because it would not look again, and it would delete
what it has written although a lost answer may have been a success.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ForbiddenError, NoSuchTableError, RESTError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThanOrEqual
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
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
)
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DateType, IntegerType, LongType
from sqlalchemy.exc import SQLAlchemyError

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.keyed_rows import last_of_each, without
from dagster_flinkpy.connectors.commit.staged_files import FileNames, StagedFile, StagedFileCommitter, partition_values
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedRows, digest_of, refuse
from dagster_flinkpy.connectors.files.parquet_table import table_schema
from dagster_flinkpy.connectors.iceberg.table import (
    NAME_MAPPING,
    CommitLog,
    TargetTable,
    check_file_schema,
    column_ids,
    name_mapping,
    partition_fields,
)
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergCommitter", "PartitionCommitter", "UpsertCommitter", "to_data_file"]

_LOOKS = 10
_THREADS = 8
_TO_RETRY = (StorageError, RESTError, SQLAlchemyError, OSError)
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class _Change:
    """What a commit does to the table."""

    added: list[DataFile]
    removed: list[DataFile]


class IcebergCommitter(Committer):
    """Completes the staged files of a checkpoint, and adds them to the table in one snapshot.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def __init__(self, sink: IcebergSink, context: CommitterInitContext) -> None:
        self._sink, self._context = sink, context
        self._store = sink.location.open()
        self._files, self._names = StagedFileCommitter(self._store, context), FileNames(context)
        self._staging = self._store
        """Where the rows are staged."""
        self._table = TargetTable(sink, context)
        self._log, self._since_ms = CommitLog(context, sink.table), current_millis()
        """What others commit after this time is later than what this attempt commits."""
        self._last: tuple[int, str] | None = None
        """The checkpoint that this attempt has committed last, and its digest."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        try:
            self._commit(requests)
        except (ConfigurationError, ForbiddenError, BadRequestError) as error:
            owned = self._sink.filled is not None and self._sink.filled.owner is not None
            refuse(requests, self._staging, self._context.uid, error, owned=owned)
        except _TO_RETRY as error:
            for request in requests:
                request.retry_later(error)
        except CommittableLostError as error:
            for request in requests:
                request.signal_failed_with_known_reason(error)
        except (SinkCommitError, KeyError, TypeError, ValueError) as error:
            for request in requests:
                request.signal_failed_with_unknown_reason(error)

    def _commit(self, requests: Sequence[CommitRequest]) -> None:
        digest = self._digest(requests)
        staged_ms = min(int(request.committable["staged_ms"]) for request in requests)
        self._since_ms = min(self._since_ms, staged_ms)
        error: Exception | None = None
        older = [key for r in requests if (key := RowFile.of(r).key) and not self._names.of_this_attempt(key)]
        for _ in range(_LOOKS):
            table = self._table.open(create=not older)  # an attempt finds or creates it before it stages rows
            if self._log.has(table, requests[0].checkpoint_id, digest, staged_ms):
                for request in requests:
                    request.signal_already_committed()
                self._clean_up(requests)
                return
            table = self._table.check(table)
            if self._last is not None and not self._log.has_recently(table, self._last[1]):
                raise ConfigurationError(
                    f"Iceberg table {self._sink.table!r} does not have the rows of checkpoint {self._last[0]} any "
                    "more: it was restored from a backup. Running again adds rows to what was restored"
                )
            self._check_newest(table, requests)
            if error is None and not self._complete(requests):
                return
            try:
                self._swap(table, self._change(table, requests), requests, digest)
            except (CommitFailedException, NoSuchTableError) as failed:  # the next look tells which
                error = failed
            except ValueError as failed:  # numbers of snapshots that others have made, and perhaps rolled back
                if self._table.open(create=False).metadata_location == table.metadata_location:
                    raise
                error = failed
            except (CommittableLostError, FileNotFoundError) as gone:  # or somebody else has just deleted it
                if not isinstance(error, type(gone)):
                    error = gone
                elif isinstance(gone, CommittableLostError):
                    raise
                else:
                    raise ConfigurationError(
                        f"Iceberg table {self._sink.table!r} has lost a file: {gone}. Put it back, or roll back to a "
                        "snapshot without it"
                    ) from gone
            else:
                self._last = requests[0].checkpoint_id, digest
                self._clean_up(requests)
                return
        raise StorageError(f"Iceberg table {self._sink.table!r} changes faster than it can be committed to: {error}")

    def _check_newest(self, table: Table, requests: Sequence[CommitRequest]) -> None:
        """Checks that the requests may still be committed."""

    def _digest(self, requests: Sequence[CommitRequest]) -> str:
        return digest_of([RowFile.of(request) for request in requests])

    def _complete(self, requests: Sequence[CommitRequest]) -> bool:
        """Completes the files, which nobody sees before they are in a snapshot. Returns whether all are there."""
        staged = [
            CommitRequest(r.checkpoint_id, r.subtask, r.committable, r.number_of_retries)
            for r in requests
            if r.committable["key"]
        ]
        self._files.commit(staged)
        failed = [request for request in staged if request.error is not None]
        for request in requests if failed else ():  # a snapshot has all files of a checkpoint, or it is not written
            request.state, request.error = failed[0].state, failed[0].error
        return not failed

    def _change(self, table: Table, requests: Sequence[CommitRequest]) -> _Change:
        files = [StagedFile.from_json(r.committable) for r in requests if r.committable["key"]]
        with ThreadPoolExecutor(_THREADS, "iceberg-footers") as pool:
            added = list(pool.map(lambda file: self._data_file(table, file), files))
        return _Change(added, [])

    def _data_file(self, table: Table, file: StagedFile) -> DataFile:
        footer = self._footer(file)
        if not self._names.of_this_attempt(file.key):
            check_file_schema(table, footer.schema.to_arrow_schema(), file.key)
        return to_data_file(table, footer, file)

    def _footer(self, file: StagedFile) -> pq.FileMetaData:
        with pq.ParquetFile(RangedFile(self._store, file.key, file.bytes)) as parquet:
            return parquet.metadata

    def _swap(self, table: Table, change: _Change, requests: Sequence[CommitRequest], digest: str) -> None:
        """Adds a snapshot after that of ``table``, once.

        Raises:
            CommitFailedException: The table has another one now.
        """
        transaction, checkpoint_id = Transaction(table), requests[0].checkpoint_id
        written = self._written()
        properties = self._log.properties(
            table, checkpoint_id, digest, _partitions(requests), column_ids(table, written)
        )
        if (mapping := name_mapping(table, written)) is not None:
            properties[NAME_MAPPING] = mapping
        transaction.set_properties(properties)
        if change.added or change.removed:
            update = transaction.update_snapshot(self._log.summary(checkpoint_id, digest))
            with update.overwrite() if change.removed else update.merge_append() as producer:
                for file in change.removed:
                    producer.delete_data_file(file)
                for file in change.added:
                    producer.append_data_file(file)
        requirements = transaction._requirements
        if not (change.added or change.removed):  # the property is as important as a snapshot
            current = table.current_snapshot()
            requirements = (
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if current is None else current.snapshot_id),
            )
        requirements = (
            *requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        table.catalog.commit_table(table, requirements, transaction._updates)

    def _written(self) -> list[str]:
        return [] if self._context.type_info is None else self._table.schema.names

    def _clean_up(self, requests: Sequence[CommitRequest]) -> None:
        """Is called when the requests are committed."""

    def last_committed(self) -> int | None:
        with _reachable(self._sink):
            return self._log.last(self._table.open(create=False)) if self._table.exists() else 0

    def is_record_with_rows(self) -> bool:
        return True

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._files.lingering([request for request in keep if request.committable["key"]])

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        self._check_at_start()
        return self._files.abort_lingering([request for request in keep if request.committable["key"]])

    def _check_at_start(self) -> None:
        """Finds or creates the table when an attempt starts."""
        if not self._table.found:
            with _reachable(self._sink):
                self._table.check(self._table.open(create=True))


class PartitionCommitter(IcebergCommitter):
    """Replaces the files of partitions in the snapshot that adds the new ones."""

    def _change(self, table: Table, requests: Sequence[CommitRequest]) -> _Change:
        assert self._sink.filled is not None
        removed: dict[str, DataFile] = {}
        for partition in _partitions(requests):
            replaced = self._sink.filled.replaced(partition)
            for task in _tasks(table, _all_of([EqualTo(name, value) for name, value in replaced.items()])):
                if not _within(table, task.file, replaced):
                    raise SinkCommitError(
                        f"cannot replace {replaced} in Iceberg table {self._sink.table!r}: {task.file.file_path} was "
                        "written when the table was partitioned otherwise, and may have other rows. Rewrite the table."
                    )
                removed[task.file.file_path] = task.file
        return _Change(super()._change(table, requests).added, list(removed.values()))

    def _check_newest(self, table: Table, requests: Sequence[CommitRequest]) -> None:
        """Checks that rows do not replace later ones.

        A job that begins anew counts from 1 again: its rows are staged after the former ones were committed.
        """
        assert self._sink.filled is not None
        staged_ms = min(int(request.committable["staged_ms"]) for request in requests)
        since_ms = 0 if self._sink.filled.owner is not None else staged_ms
        self._log.check_newest(table, requests[0].checkpoint_id, _partitions(requests), since_ms)

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Deletes the rows of a partition for which nothing was committed. Otherwise the commit has replaced them."""
        with _reachable(self._sink):
            if not self._table.exists():
                return 0
            request = CommitRequest(checkpoint_id, 0, {"key": "", "partition": partition})
            for _ in range(_LOOKS):
                table = self._table.open(create=False)
                since_ms = 0 if self._sink.filled is None or self._sink.filled.owner is not None else self._since_ms
                if self._log.has_written(table, checkpoint_id, partition, since_ms):
                    return 0
                self._log.check_reaches_back(table, self._since_ms)
                table = self._table.check(table)
                change = self._change(table, [request])
                if not change.removed:
                    return 0
                with suppress(CommitFailedException, NoSuchTableError):  # somebody else has changed or dropped it
                    self._swap(table, change, [request], f"{checkpoint_id}-{partition}")
                    return len(change.removed)
        raise StorageError(f"Iceberg table {self._sink.table!r} changes faster than a partition can be replaced")


class UpsertCommitter(IcebergCommitter):
    """Writes the rows of a checkpoint in one snapshot, in place of those with the same keys (copy on write)."""

    def __init__(self, sink: IcebergSink, context: CommitterInitContext) -> None:
        super().__init__(sink, context)
        self._rows, self._staging = StagedRows(sink.staged.location, context), sink.staged.location.open()

    def _complete(self, requests: Sequence[CommitRequest]) -> bool:
        return True

    def _change(self, table: Table, requests: Sequence[CommitRequest]) -> _Change:
        type_info, files = self._context.type_info, [RowFile.of(request) for request in requests]
        assert type_info is not None
        check = partial(check_file_schema, table)
        rows = self._rows.read(files, table_schema(type_info), requests[0].checkpoint_id, check)
        kinds = {field.name: field for field in self._table.schema}
        rows = rows.cast(pa.schema([kinds.get(field.name, field) for field in rows.schema]))
        rows = last_of_each(rows, self._sink.key)
        parts, removed = [rows], []
        for task in _tasks(table, _range(rows, self._sink.key[0])):
            there = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
            kept = without(there, rows, self._sink.key)
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
                f"pyiceberg cannot write files for Iceberg table {self._sink.table!r}: {error}. Change the 'write' "
                "properties of the table"
            ) from error
        return _Change(added, removed)

    def _clean_up(self, requests: Sequence[CommitRequest]) -> None:
        self._rows.delete([RowFile.of(request) for request in requests])

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._rows.lingering(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        self._check_at_start()
        return self._rows.delete_lingering(keep)


def to_data_file(table: Table, footer: pq.FileMetaData, file: StagedFile) -> DataFile:
    """Returns a staged file as an entry of a manifest.

    Raises:
        ConfigurationError: The table no longer has one of its columns, or is partitioned otherwise.
    """
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
    if text is None:
        return None
    if isinstance(column.field_type, BooleanType):
        return text == "true"
    if isinstance(column.field_type, (IntegerType, LongType)):
        return int(text)
    return (date.fromisoformat(text) - _EPOCH).days if isinstance(column.field_type, DateType) else text


def _range(rows: pa.Table, column: str) -> BooleanExpression:
    """Returns which rows may have one of the keys. Files without such rows are not read."""
    values = rows.column(column)
    if pa.types.is_boolean(values.type) or not rows.num_rows:
        return AlwaysTrue()
    ordered = values.combine_chunks().sort()
    return And(GreaterThanOrEqual(column, ordered[0].as_py()), LessThanOrEqual(column, ordered[-1].as_py()))


def _tasks(table: Table, row_filter: BooleanExpression) -> list[FileScanTask]:
    try:
        return list(table.scan(row_filter=row_filter).plan_files())
    except (NotImplementedError, ValueError) as error:  # such as equality deletes
        raise ConfigurationError(
            f"the rows to replace in Iceberg table {'.'.join(table.name())!r} cannot be found: {error}. Rewrite the "
            "data files of the table, or write to another one"
        ) from error


def _all_of(conditions: Sequence[BooleanExpression]) -> BooleanExpression:
    return conditions[0] if len(conditions) == 1 else And(*conditions)


def _within(table: Table, file: DataFile, values: dict[str, str]) -> bool:
    """Returns whether all rows of a file have these values."""
    names = {field.field_id: field.name for field in table.schema().fields}
    found = {
        names.get(field.source_id): file.partition[position]
        for position, field in enumerate(table.specs()[file.spec_id].fields)
        if isinstance(field.transform, IdentityTransform)
    }
    return all(found.get(name) == value for name, value in values.items())


def _partitions(requests: Sequence[CommitRequest]) -> list[str | None]:
    return list(dict.fromkeys(request.committable["partition"] for request in requests))


@contextmanager
def _reachable(sink: IcebergSink) -> Iterator[None]:
    try:
        yield
    except (RESTError, SQLAlchemyError, OSError) as error:
        raise StorageError(
            f"cannot use Iceberg table {sink.table!r} of catalog {sink.catalog!r}: {error}. Check the settings of the "
            "catalog."
        ) from error
