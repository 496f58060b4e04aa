"""The committers of the Delta Lake sink."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.checkpoint_committer import StagedCheckpoint
from dagster_flinkpy.connectors.commit.staged_files import partition_values
from dagster_flinkpy.connectors.commit.staged_rows import RowFile
from dagster_flinkpy.connectors.delta.sink import DeltaSink
from dagster_flinkpy.connectors.delta.table import CONSTRAINT, DIGEST, Change, DeltaTarget, check_log
from dagster_flinkpy.connectors.lake.committer import LakeCommitter, PartitionReplacement
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["DeltaCommitter", "DeltaPartitionCommitter", "DeltaUpsertCommitter"]

_TIME = "/committed_ms"
"""How the ``txn`` is named that has the time of a partition's latest commit, in milliseconds since 1970."""


class DeltaCommitter(LakeCommitter[DeltaTable]):
    """Appends the staged files of a checkpoint."""

    change: ClassVar[Change] = "append"
    """What a commit does to the table."""
    _client_errors = (DeltaError, OSError)
    _races = (CommitFailedError,)  # by somebody else's version, or by ours if the answer was lost

    def __init__(self, sink: DeltaSink, context: CommitterInitContext) -> None:
        self._sink, self._table = sink, DeltaTarget(sink, context, self.change)
        self._counted: tuple[int, int | None] | None = None
        """A checkpoint, and how many files the sink had added before it."""
        super().__init__(sink, context, self._table)

    def _change(self, table: DeltaTable, checkpoint: StagedCheckpoint) -> Any:
        """Checks that the table has the columns of older files."""
        for file, footer in self._footers(self._of_others(checkpoint)):
            self._table.check_columns(table, Schema.from_arrow(footer.schema.to_arrow_schema()))
            by, partitions = list(partition_values(file.key)), table.metadata().partition_columns
            if set(by) != set(partitions):
                raise ConfigurationError(f"{self._what} is partitioned by {partitions}, not by {by}, as {file.key} is")
        return checkpoint.files

    def _files_of_epochs(self, table: DeltaTable, after: int, before: int) -> list[RemoveAction]:
        self._table.check_replaceable(table)
        return super()._files_of_epochs(table, after, before)

    def _files_in(self, table: DeltaTable) -> list[tuple[str, RemoveAction]]:
        found = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        # delta-rs quotes the paths of actions, and returns them as they are in the log.
        files, now = [(unquote(each["path"]), each["size_bytes"]) for each in found], current_millis()
        return [(key, RemoveAction(key, True, now, size, partition_values(key))) for key, size in files]

    def _remove(self, table: DeltaTable, files: Sequence[RemoveAction], checkpoint_id: int) -> None:
        properties = self._properties(
            {self._table.app_id: checkpoint_id, **self._grown(table, -self._own(files), checkpoint_id)}, {}
        )
        self._write(table, [], properties, removed=files)

    def _own(self, removed: Sequence[RemoveAction]) -> int:
        """Returns how many files this sink had added, and not a job with whose state it began."""
        return sum(self._names.checkpoint(file.path) is not None for file in removed)

    def _grown(self, table: DeltaTable, files: int, checkpoint_id: int) -> dict[str, int]:
        """Returns the transaction that counts the files of the sink after more were added, if that is known."""
        if self._counted is None or self._counted[0] != checkpoint_id:  # once: others may commit faster than it reads
            self._counted = checkpoint_id, self._table.added_files(table)
        added = self._counted[1]
        return {} if added is None else {self._table.files_id: added + files}

    def _swap(self, table: DeltaTable, change: Any, checkpoint: StagedCheckpoint) -> None:
        following = table.version() + 1
        try:
            self._add(table, change, checkpoint)
        except CommitFailedError:
            raise
        except DeltaError:
            check_log(self._what, self._store, table.version())
            raise
        self._table.latest = checkpoint.checkpoint_id, following

    def _add(self, table: DeltaTable, change: Any, checkpoint: StagedCheckpoint) -> None:
        removed = self._replaced(table, checkpoint)
        transactions = {self._table.app_id: checkpoint.checkpoint_id}
        transactions |= self._grown(table, len(change) - self._own(removed), checkpoint.checkpoint_id)
        self._write(table, change, self._properties(transactions, {DIGEST: checkpoint.digest}), removed=removed)

    def _properties(self, transactions: dict[str, int], metadata: dict[str, str]) -> CommitProperties:
        """Returns what the next version says about itself. Without retries it is the one after that of the table."""
        return CommitProperties(
            custom_metadata=metadata,
            max_commit_retries=0,
            app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
        )

    def _write(
        self,
        table: DeltaTable,
        files: Sequence[RowFile],
        properties: CommitProperties,
        replaced: list[tuple[str, str, str | list[str]]] | None = None,
        removed: Sequence[RemoveAction] = (),
    ) -> None:
        now = current_millis()
        added = [
            AddAction(
                file.key, file.bytes, partition_values(file.key), now, True, json.dumps({"numRecords": file.rows})
            )
            for file in files
        ]
        table.create_write_transaction(
            [*removed, *added],
            "append" if replaced is None else "overwrite",
            table.schema(),
            partition_by=self._sink.partition_by,
            partition_filters=replaced,
            commit_properties=properties,
        )
        self._counted = None


class DeltaPartitionCommitter(DeltaCommitter, PartitionReplacement[DeltaTable]):
    """Replaces the rows of partitions. The table has the latest checkpoint of each partition and its time (``txn``)."""

    change: ClassVar[Change] = "replace"

    def _add(self, table: DeltaTable, change: Any, checkpoint: StagedCheckpoint) -> None:
        self._replace(table, change, checkpoint.checkpoint_id, checkpoint.by_partition, {DIGEST: checkpoint.digest})

    def _replace(
        self,
        table: DeltaTable,
        files: Sequence[RowFile],
        checkpoint_id: int,
        partitions: Collection[str | None],
        metadata: dict[str, str],
    ) -> None:
        now, filled = current_millis(), self._sink.filled
        assert filled is not None
        for partition, paths in self._paths_of(table, partitions).items():
            self._check_own(partition, paths)
        transactions = {self._app_of(each): checkpoint_id for each in (None, *partitions)}
        transactions |= {f"{self._app_of(each)}{_TIME}": now for each in partitions}
        transactions |= self._grown(table, len(files), checkpoint_id)
        replaced: list[tuple[str, str, str | list[str]]] = [
            (name, "=", value) for name, value in filled.replaced(None).items()
        ]
        if keys := [partition for partition in partitions if partition is not None]:
            replaced.append((filled.partition, "in", keys))
        self._write(table, files, self._properties(transactions, metadata), replaced)

    def _app_of(self, partition: str | None) -> str:
        return self._table.app_id if partition is None else f"{self._table.app_id}/{partition}"

    def _replaced_by(self, table: DeltaTable, partition: str | None, checkpoint_id: int, since_ms: int) -> int | None:
        latest: int | None = table.transaction_version(self._app_of(partition))
        if latest is None or latest < checkpoint_id:
            return None
        committed_ms = table.transaction_version(f"{self._app_of(partition)}{_TIME}")
        # An earlier release has written no time.
        return latest if latest == checkpoint_id or committed_ms is None or committed_ms >= since_ms else None

    def _empty(self, table: DeltaTable, partition: str | None, checkpoint_id: int) -> int:
        there = len(self._paths_of(table, [partition])[partition])
        if there:
            self._replace(table, [], checkpoint_id, [partition], {})
        return there

    def _paths_of(self, table: DeltaTable, partitions: Collection[str | None]) -> dict[str | None, list[str]]:
        """Returns the files that are replaced with each of some partitions."""
        assert self._sink.filled is not None
        names, wanted = self._sink.filled.replaced_by_any(partitions)
        found: dict[str | None, list[str]] = {each: [] for each in partitions}
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            values = tuple((name, file[f"partition.{name}"]) for name in names)
            if values in wanted:
                found[wanted[values]].append(unquote(file["path"]))
        return found


class DeltaUpsertCommitter(DeltaCommitter):
    """Merges the staged rows of a checkpoint into the table."""

    change: ClassVar[Change] = "merge"

    def _change(self, table: DeltaTable, checkpoint: StagedCheckpoint) -> Any:
        return self._last_rows(checkpoint, lambda found, _: self._table.check_columns(table, Schema.from_arrow(found)))

    def _add(self, table: DeltaTable, change: Any, checkpoint: StagedCheckpoint) -> None:
        # delta-rs writes the files, and names them. So the sink does not have all files that it has added.
        transactions = {self._table.app_id: checkpoint.checkpoint_id, **self._grown(table, 1, checkpoint.checkpoint_id)}
        properties = self._properties(transactions, {DIGEST: checkpoint.digest})
        try:
            _merge(table, change, self._key, properties)
        except CommitFailedError:
            raise
        except DeltaError as error:
            self._check_files()
            if _breaks_a_rule(table, change, self._key):
                raise ConfigurationError(f"a constraint of {self._what} refuses its rows: {error}") from error
            raise

    def _check_files(self) -> None:
        """Checks that the files of the table are there, because their rows are merged."""
        table, there = self._table.open(create=False), {info.key for info in self._store.list()}
        for file in pa.table(table.get_add_actions()).column("path").to_pylist():
            if "://" not in file and unquote(file) not in there:
                raise ConfigurationError(
                    f"{unquote(file)} of {self._what} is missing: put it back, or RESTORE the table, or run FSCK "
                    "REPAIR TABLE, which gives up its rows"
                )


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties | None = None) -> None:
    names = [f"`{name.replace('`', '``')}`" for name in rows.schema.names]
    values = {name: f"new.{name}" for name in names}
    keys = [f"`{name.replace('`', '``')}`" for name in key]
    merger = table.merge(
        rows,
        " AND ".join(f"old.{name} = new.{name}" for name in keys),
        source_alias="new",
        target_alias="old",
        commit_properties=properties,
    )
    merger.when_matched_update(values).when_not_matched_insert(values).execute()


def _breaks_a_rule(table: DeltaTable, rows: pa.Table, key: Sequence[str]) -> bool:
    """Returns whether an empty local table with the same rules refuses the rows, too: delta-rs has one error for all.

    Then trying again does not help.
    """
    metadata = table.metadata()
    with TemporaryDirectory(prefix="flinkpy-") as folder:
        try:
            empty = DeltaTable.create(folder, table.schema(), partition_by=metadata.partition_columns or None)
            for name, rule in metadata.configuration.items():
                if name.startswith(CONSTRAINT):
                    empty.alter.add_constraint({name.removeprefix(CONSTRAINT): rule})
            _merge(empty, rows, key)
        except DeltaError:
            return True
    return False
