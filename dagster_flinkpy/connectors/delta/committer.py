"""The writer and the committer of the Delta Lake sink.

A commit is one compare-and-swap of the table's log: it looks at a version, makes sure that the checkpoint is not in
it, and writes the next version. If somebody else has written that one, it looks again. The library must not retry by
itself, because it would not look again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.staged_files import (
    FileNames,
    StagedFile,
    StagedFileCommitter,
    partition_values,
    value_folder,
)
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, digest_of, refuse
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.connectors.delta.entries import check_log, entries, entry_name
from dagster_flinkpy.connectors.delta.rules import Change, check_protocol, check_rules
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Json,
    WriterInitContext,
)
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.delta.sink import DeltaSink

__all__ = ["DIGEST", "DeltaCommitter", "DeltaPartitionCommitter", "DeltaWriter", "storage_options"]

DIGEST = "flinkpy.digest"
"""The entry of a version that tells which committables it has added."""
_LOOKS = 10
_VERSIONS = 50
_CLOCK_SKEW_MS = 3_600_000
_THREADS = 8
_TIME = "/committed_ms"
"""How the ``txn`` is named that has the time of a partition's latest commit, in milliseconds since 1970."""


class DeltaWriter(TableWriter):
    """Stages the data files of one epoch of one subtask.

    Args:
        sink: The sink.
        context: Who is writing.
        type_info: Type of the records.
    """

    def __init__(self, sink: DeltaSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(sink.files, context, type_info)
        self._partition = context.partition
        if sink.filled is not None:
            where = f"the sink of Delta table {sink.location.url}"
            sink.filled.check(where, columns_of(type_info), context.partition)
            values = sink.filled.values(context.partition)
            self._folder = "".join(value_folder(name, value) for name, value in values.items())

    def prepare_commit(self) -> list[Json]:
        facts = {"staged_ms": current_millis(), "partition": self._partition}
        return [{**file, **facts} for file in super().prepare_commit()]


class DeltaCommitter(Committer):
    """Completes the staged files of a checkpoint, and adds them to the table in one version of its log.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    change: ClassVar[Change] = "append"
    """What a commit does to the table."""

    def __init__(self, sink: DeltaSink, context: CommitterInitContext) -> None:
        self._sink, self._context = sink, context
        self._what, self._store = f"Delta table {sink.location.url}", sink.location.open()
        self._files, self._names = StagedFileCommitter(self._store, context), FileNames(context)
        self._staging = self._store
        """Where the rows are staged."""
        self._options = storage_options(sink.location)
        self._app_id = f"flinkpy.{len(context.job_id)}.{context.job_id}.{context.uid}"
        self._table_id: str | None = None
        """The table that was found or created. It can be another one later."""
        self._last = (0, 0)
        """The checkpoint that this attempt has committed last, and its version."""
        self._since_ms = current_millis()
        """What others commit after this time is later than what this attempt commits."""

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        try:
            staged_ms = min(int(request.committable["staged_ms"]) for request in requests)
            self._since_ms = min(self._since_ms, staged_ms)
            self._commit(requests, digest_of([RowFile.of(request) for request in requests]), staged_ms)
        except (StorageError, DeltaError, OSError) as error:
            for request in requests:
                request.retry_later(error)
        except CommittableLostError as error:
            for request in requests:
                request.signal_failed_with_known_reason(error)
        except ConfigurationError as error:
            owned = self._sink.filled is not None and self._sink.filled.owner is not None
            refuse(requests, self._staging, self._context.uid, error, owned=owned)
        except (SinkCommitError, KeyError, TypeError, ValueError) as error:
            for request in requests:
                request.signal_failed_with_unknown_reason(error)

    def _commit(self, requests: Sequence[CommitRequest], digest: str, staged_ms: int) -> None:
        error: Exception | None = None
        older = [key for r in requests if (key := RowFile.of(r).key) and not self._names.of_this_attempt(key)]
        for _ in range(_LOOKS):
            table = self._table(create=not older)  # an attempt finds or creates the table before it stages rows
            if self._has(table, requests, digest, staged_ms):
                for request in requests:
                    request.signal_already_committed()
                self._clean_up(requests)
                return
            self._check(table)
            if error is None and not self._complete(requests):
                return
            following = table.version() + 1
            try:
                self._check_staged(table, requests)
                self._add(table, requests, digest)
            except CommitFailedError as failed:  # by somebody else's version, or by ours if the answer was lost
                error = failed
            except DeltaError:
                check_log(self._what, self._store, table.version())
                raise
            except CommittableLostError as lost:  # or somebody else has just committed and deleted it
                if isinstance(error, CommittableLostError):
                    raise
                error = lost
            else:
                self._last = requests[0].checkpoint_id, following
                self._clean_up(requests)
                return
        raise StorageError(f"table {self._sink.location.url} changes faster than it can be committed to: {error}")

    def _complete(self, requests: Sequence[CommitRequest]) -> bool:
        """Completes the files, which nobody sees before they are in the log. Returns whether all are there."""
        staged = [CommitRequest(r.checkpoint_id, r.subtask, r.committable, r.number_of_retries) for r in requests]
        self._files.commit(staged)
        failed = [request for request in staged if request.error is not None]
        for request in requests if failed else ():  # a version has all files of a checkpoint, or it is not written
            request.state, request.error = failed[0].state, failed[0].error
        return not failed

    def _check_staged(self, table: DeltaTable, requests: Sequence[CommitRequest]) -> None:
        """Checks that the table has the columns of files that another attempt, perhaps of an older program, has staged.

        Raises:
            ConfigurationError: It has not.
        """
        older = [file for r in requests if (file := RowFile.of(r)).key and not self._names.of_this_attempt(file.key)]
        with ThreadPoolExecutor(_THREADS, "delta-footers") as pool:
            schemas = list(pool.map(self._schema_of, older))
        for file, schema in zip(older, schemas, strict=True):
            self._check_columns(table, Schema.from_arrow(schema))
            by, partitions = list(partition_values(file.key)), table.metadata().partition_columns
            if set(by) != set(partitions):
                raise ConfigurationError(f"{self._what} is partitioned by {partitions}, not by {by}, as {file.key} is")

    def _schema_of(self, file: RowFile) -> pa.Schema:
        with pq.ParquetFile(RangedFile(self._store, file.key, file.bytes)) as parquet:
            return parquet.schema_arrow

    def _clean_up(self, requests: Sequence[CommitRequest]) -> None:
        """Is called when the requests are committed."""

    def _add(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str) -> None:
        self._write(table, _files(requests), {self._app_id: requests[0].checkpoint_id}, {DIGEST: digest})

    def _write(
        self,
        table: DeltaTable,
        files: list[StagedFile],
        transactions: dict[str, int],
        metadata: dict[str, str],
        replaced: list[tuple[str, str, str | list[str]]] | None = None,
    ) -> None:
        """Writes the version after the one of ``table``.

        Raises:
            CommitFailedError: Somebody else has written it.
        """
        now = current_millis()
        table.create_write_transaction(
            [
                AddAction(
                    file.key, file.bytes, partition_values(file.key), now, True, json.dumps({"numRecords": file.rows})
                )
                for file in files
            ],
            "append" if replaced is None else "overwrite",
            table.schema(),
            partition_by=self._sink.partition_by,
            partition_filters=replaced,
            commit_properties=CommitProperties(
                custom_metadata=metadata,
                max_commit_retries=0,
                app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
            ),
        )

    def _has(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str, staged_ms: int) -> bool:
        """Returns whether a version has added these files. They were staged before, so older versions do not matter.

        Raises:
            CommittableLostError: The log does not reach back so far.
        """
        limit = _VERSIONS
        while True:
            versions = table.history(limit)
            if any(version.get(DIGEST) == digest for version in versions):
                return True
            oldest = versions[-1] if versions else {}  # some writers say nothing about their versions
            if oldest.get("timestamp", staged_ms) < staged_ms - _CLOCK_SKEW_MS:
                return False
            if limit > table.version():
                if oldest.get("version", 1) <= 0:  # below 0 if somebody has committed meanwhile
                    return False
                first = min(entries(self._store), default="a checkpoint")
                if first == entry_name(0):
                    return False
                checkpoint_id, last = requests[0].checkpoint_id, table.transaction_version(self._app_id)
                if last is not None and last < checkpoint_id:  # ids only grow, unless a job begins anew
                    return False
                raise CommittableLostError(
                    f"cannot tell whether table {self._sink.location.url} has the rows that sink "
                    f"{self._context.uid!r} staged for checkpoint {checkpoint_id}: its log begins with "
                    f"{first}, which is newer. Look for them. Restore a savepoint or an older checkpoint "
                    f"to write the rows again, or 'chk-{checkpoint_id}' to continue without them."
                )
            limit *= 4

    def _schema(self) -> Schema | None:
        """Returns the columns that are written, or None if the type of the records is unknown."""
        if self._context.type_info is None:
            return None
        columns = [(name, kind.arrow_type) for name, kind in columns_of(self._context.type_info).items()]
        columns += [] if self._sink.filled is None else [(name, pa.string()) for name in self._sink.filled.names]
        return Schema.from_arrow(pa.schema(columns))

    def _table(self, *, create: bool) -> DeltaTable:
        """Opens the table. The first time it may be created.

        Raises:
            ConfigurationError: There is none.
        """
        schema = self._schema()
        if schema is not None and self._table_id is None and create:
            return self._found_or_created(schema)
        if (table := self._try_open()) is None:
            raise ConfigurationError(f"{self._what} does not exist any more: it was deleted or moved. Put it back")
        return table

    def _check(self, table: DeltaTable) -> None:
        """Checks that the table is the same one as before, and fits the records. The first time it may get columns.

        Raises:
            ConfigurationError: It is not, or does not fit.
        """
        found, schema = table.metadata(), self._schema()
        if self._table_id is not None and found.id != self._table_id:
            raise ConfigurationError(
                f"{self._what} was dropped and made anew since it was opened. Running again adds the rows to the new "
                "table, if they were not deleted with the old one"
            )
        checkpoint_id, version = self._last
        last = self._last_in(table)
        if table.version() < version or (last is not None and last < checkpoint_id):
            raise ConfigurationError(
                f"{self._what} does not have version {version} any more, with the rows of checkpoint {checkpoint_id}: "
                "it was restored from a backup. Running again adds rows to what was restored"
            )
        self._check_rules(table, None if schema is None else [field.name for field in schema.fields])
        if schema is not None:
            if self._table_id is None:
                self._add_columns(table, schema)
            self._check_columns(table, schema)
        if found.partition_columns != self._sink.partition_by:
            raise ConfigurationError(
                f"{self._what} is partitioned by {found.partition_columns}, not by {self._sink.partition_by}: change "
                "partition_by of the sink, or write the table again"
            )
        self._table_id = found.id

    def _last_in(self, table: DeltaTable) -> int | None:
        """Returns the last checkpoint that a table has, 0 if there is none, or None if it may have forgotten it."""
        last: int | None = table.transaction_version(self._app_id)
        forgets = "delta.setTransactionRetentionDuration" in table.metadata().configuration
        return 0 if last is None and not forgets else last

    def _found_or_created(self, schema: Schema) -> DeltaTable:
        for _ in range(_LOOKS):
            if (table := self._try_open()) is not None:
                return table
            with suppress(CommitFailedError):  # somebody else was faster
                return DeltaTable.create(
                    self._sink.location.url,
                    schema,
                    mode="ignore",
                    partition_by=self._sink.partition_by or None,
                    storage_options=self._options,
                )
        raise StorageError(f"{self._what} changes faster than it can be opened")

    def _try_open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._sink.location.url, storage_options=self._options)
        except TableNotFoundError:
            return None
        except DeltaError:
            check_log(self._what, self._store)
            raise

    def _check_rules(self, table: DeltaTable, written: Sequence[str] | None) -> None:
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        check_protocol(self._what, protocol.min_reader_version, protocol.min_writer_version, features)
        vectors = self.change != "append" and "deletionVectors" in features
        has_vectors = vectors and pa.table(table.deletion_vectors()).num_rows > 0
        fields, settings = table.schema().fields, table.metadata().configuration
        check_rules(self._what, settings, fields, written, self.change, has_vectors=has_vectors)

    def _add_columns(self, table: DeltaTable, schema: Schema) -> None:
        """Adds columns that the table does not have, if the sink says so."""
        for _ in range(_LOOKS):
            found = {field.name for field in table.schema().fields}
            missing = [field for field in schema.fields if field.name not in found] if self._sink.merge_schema else []
            if not missing:
                return
            for field in missing:
                if same := [name for name in found if name.lower() == field.name.lower()]:
                    raise ConfigurationError(
                        f"column {field.name!r} cannot be added to {self._what}, which has {same[0]!r}: rename one"
                    )
            with suppress(CommitFailedError):  # somebody else has written the version, perhaps with these columns
                table.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))
            table.update_incremental()

    def _check_columns(self, table: DeltaTable, schema: Schema) -> None:
        found = {field.name: field for field in table.schema().fields}
        for field in schema.fields:
            if field.name not in found:
                raise ConfigurationError(
                    f"column {field.name!r} of {self._what} must be {_shown(field)}, but does not exist: add "
                    f"it, or {'run again' if self._sink.merge_schema else 'give DeltaSink merge_schema=True'}"
                )
            if found[field.name].type != field.type:
                raise ConfigurationError(
                    f"column {field.name!r} of {self._what} must be {_shown(field)}, but is "
                    f"{_shown(found[field.name])}: change the records or the table"
                )

    def last_committed(self) -> int | None:
        with self._reachable():
            table = self._try_open()
        return 0 if table is None else self._last_in(table)

    def is_record_with_rows(self) -> bool:
        return True

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._files.lingering(keep)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        self._check_at_start()
        return self._files.abort_lingering(keep)

    def _check_at_start(self) -> None:
        """Finds or creates the table when an attempt starts."""
        if self._table_id is None:
            with self._reachable():
                self._check(self._table(create=True))

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise StorageError(f"cannot use {self._what}: {error}") from error


class DeltaPartitionCommitter(DeltaCommitter):
    """Replaces the rows of partitions in the version that adds the new ones.

    The table has the latest checkpoint of each partition and its time (``txn``), so an older one cannot replace it. A
    job that begins anew counts from 1 again: its rows are staged after the former ones were committed.
    """

    change: ClassVar[Change] = "replace"

    def _app_of(self, partition: str | None) -> str:
        return self._app_id if partition is None else f"{self._app_id}/{partition}"

    def _stamps(self, checkpoint_id: int, partitions: Sequence[str | None]) -> dict[str, int]:
        now = current_millis()
        checkpoints = {self._app_of(each): checkpoint_id for each in (None, *partitions)}
        return checkpoints | {f"{self._app_of(each)}{_TIME}": now for each in partitions}

    def _later(self, table: DeltaTable, partition: str | None, checkpoint_id: int, since_ms: int) -> int | None:
        """Returns the later checkpoint or transaction that has replaced a partition since then, or None."""
        latest: int | None = table.transaction_version(self._app_of(partition))
        if latest is None or latest <= checkpoint_id:
            return None
        committed_ms = table.transaction_version(f"{self._app_of(partition)}{_TIME}")
        assert self._sink.filled is not None
        one_order = self._sink.filled.owner is not None or committed_ms is None  # or an earlier release has written it
        return latest if one_order or committed_ms >= since_ms else None

    def _replaced(self, partitions: Sequence[str | None]) -> list[tuple[str, str, str | list[str]]]:
        """Returns the partitions of the table that are replaced, as delta-rs filters files."""
        filled = self._sink.filled
        assert filled is not None
        chosen: list[tuple[str, str, str | list[str]]] = [
            (name, "=", value) for name, value in filled.replaced(None).items()
        ]
        keys = [partition for partition in partitions if partition is not None]
        return [*chosen, (filled.partition, "in", keys)] if keys else chosen

    def _add(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str) -> None:
        partitions = _partitions(requests)
        transactions = self._stamps(requests[0].checkpoint_id, partitions)
        self._write(table, _files(requests), transactions, {DIGEST: digest}, self._replaced(partitions))

    def _has(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str, staged_ms: int) -> bool:
        if super()._has(table, requests, digest, staged_ms):
            return True
        for partition in _partitions(requests):
            newer = self._later(table, partition, requests[0].checkpoint_id, staged_ms)
            if newer is not None:
                raise SinkCommitError(
                    f"table {self._sink.location.url} has newer rows{'' if partition is None else ' of ' + partition}, "
                    f"those of {newer}: {requests[0].checkpoint_id} must not replace them"
                )
        return False

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Deletes the rows of a partition that was run again without any rows. Otherwise the commit replaced them."""
        with self._reachable():
            return self._empty(partition, checkpoint_id)

    def _empty(self, partition: str | None, checkpoint_id: int) -> int:
        for _ in range(_LOOKS):
            if (table := self._try_open()) is None:
                return 0
            if table.transaction_version(self._app_of(partition)) == checkpoint_id:
                return 0
            if self._later(table, partition, checkpoint_id, self._since_ms) is not None:
                return 0
            self._check(table)
            files = self._files_of(table, partition)
            if not files:
                return 0
            transactions = self._stamps(checkpoint_id, [partition])
            with suppress(CommitFailedError):  # somebody else has written the version
                self._write(table, [], transactions, {}, self._replaced([partition]))
                return files
        raise StorageError(f"{self._what} changes faster than partition {partition} can be replaced")

    def _files_of(self, table: DeltaTable, partition: str | None) -> int:
        assert self._sink.filled is not None
        replaced = self._sink.filled.replaced(partition).items()
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return sum(all(file[f"partition.{name}"] == value for name, value in replaced) for file in files)


def _files(requests: Sequence[CommitRequest]) -> list[StagedFile]:
    return [StagedFile.from_json(request.committable) for request in requests]


def _partitions(requests: Sequence[CommitRequest]) -> list[str | None]:
    return list(dict.fromkeys(request.committable["partition"] for request in requests))


def _shown(field: Field) -> str:
    return str(field.type.to_json()).strip('"')


def storage_options(location: StorageLocation) -> dict[str, str]:
    """Returns the settings of a location as delta-rs names them. What is missing it finds in the environment."""
    if not location.url.startswith("s3://"):
        return {}
    given = {
        "AWS_ENDPOINT_URL": location.endpoint_url,
        "AWS_REGION": location.region,
        "AWS_ACCESS_KEY_ID": location.access_key_id,
        "AWS_SECRET_ACCESS_KEY": location.secret_access_key,
        "AWS_ALLOW_HTTP": "true" if urlsplit(location.endpoint_url or "").scheme == "http" else None,
        "aws_conditional_put": "etag",
    }
    return {name: value for name, value in given.items() if value is not None}
