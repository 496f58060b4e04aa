"""The second phase of sinks into tables with a log, of which each version is one compare-and-swap.

A commit looks at a version, makes sure that the checkpoint is not in the table, and writes the next version if that one
is still the newest. Otherwise, and if nobody knows whether it has written it, it looks again. The library must not try
again by itself, because it would not look again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.commit.checkpoint_committer import (
    BY_KEY,
    BY_PARTITION,
    CheckpointCommitter,
    StagedCheckpoint,
    other_writer,
)
from dagster_flinkpy.connectors.commit.staged_files import FileNames, StagedFileCommitter, written_by
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedRows
from dagster_flinkpy.connectors.files.parquet_table import table_schema
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError, SinkCommitError, StorageError
from dagster_flinkpy.storage.object_store import RangedFile

__all__ = ["LOOKS", "LakeCommitter", "LakeTarget", "PartitionReplacement", "without"]

LOOKS = 10
"""How often a commit looks at a table that others change."""
_THREADS = 8
_ROW = "__row"

TableT = TypeVar("TableT")
"""A table as it was looked at."""


class LakeTarget(ABC, Generic[TableT]):
    """The table of a sink, and what it tells of the commits of a job and sink."""

    @property
    @abstractmethod
    def found(self) -> bool:
        """Whether this attempt has found or created it."""

    @abstractmethod
    def open(self, *, create: bool) -> TableT:
        """Returns the table as it is now. The first time it may be created.

        Raises:
            ConfigurationError: There is none.
        """

    @abstractmethod
    def try_open(self) -> TableT | None:
        """Returns the table as it is now, or None if there is none.

        Raises:
            ConfigurationError: There is one, but its log or its metadata is not complete.
        """

    @abstractmethod
    def check(self, table: TableT) -> TableT:
        """Checks that a table is the one that it was, and takes the rows. The first time it may get new columns.

        Raises:
            ConfigurationError: It is another one, or does not take them.
        """

    @abstractmethod
    def has(self, table: TableT, checkpoint: StagedCheckpoint) -> bool:
        """Returns whether a table has the rows of a checkpoint. They were staged before they were added.

        Raises:
            CommittableLostError: Nobody knows.
        """

    @abstractmethod
    def added_files(self, table: TableT) -> int | None:
        """Returns how many files were added to a table and not removed by any commit, or None if nobody knows."""

    @abstractmethod
    def last(self, table: TableT) -> int | None:
        """Returns the last checkpoint that a table has, 0 if there is none, or None if nobody knows."""


class LakeCommitter(CheckpointCommitter, Generic[TableT]):
    """Adds a checkpoint to a table in one version of its log."""

    _races: ClassVar[tuple[type[Exception], ...]]
    """What is raised if the table has another version by now, perhaps ours."""
    _is_branch = False
    """Whether it writes to a branch, which began with rows of others."""

    def __init__(self, sink: LakeSink, context: CommitterInitContext, target: LakeTarget[TableT]) -> None:
        self._target = target
        self._store, self._names = sink.location.open(), FileNames(context)
        self._files = StagedFileCommitter(self._store, context)
        self._rows = StagedRows(sink.staged.location, context) if sink.key else None
        super().__init__(context, self._rows or self._files, sink.what)
        self._key = sink.key
        if sink.key:
            self._never_replaces = BY_KEY
        self._owned = sink.filled is not None and sink.filled.owner is not None
        self._since_ms = current_millis()
        """What others commit after this time is later than what this attempt commits."""

    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        self._since_ms = min(self._since_ms, checkpoint.staged_ms)
        create = not self._of_others(checkpoint)  # an attempt finds or creates the table before it stages rows
        error: Exception | None = None
        for _ in range(LOOKS):
            # 1. Look at the newest version of the table.
            table = self._target.open(create=create)
            # 2. Is the checkpoint in it, or a later one in its place?
            if self._target.has(table, checkpoint):
                return False
            self._check_newest(table, checkpoint)
            # 3. Is it the table that it was, and does it take the rows?
            table = self._checked(table)
            # 4. Complete the files. Nobody sees them before they are in the log.
            if error is None and self._rows is None:
                self._files.complete(checkpoint.requests)
            try:
                # 5. Write the next version, if the one that was looked at is still the newest.
                self._swap(table, self._change(table, checkpoint), checkpoint)
                return True
            except self._races as lost:
                error = lost
            except (CommittableLostError, FileNotFoundError) as gone:  # or somebody else has just deleted it
                if isinstance(error, type(gone)):
                    raise self._gone(gone) from gone
                error = gone
            except ValueError as wrong:  # of what others have changed meanwhile, such as numbers of snapshots
                if self._is_newest(table):
                    raise
                error = wrong
        raise StorageError(f"{self._what} changes faster than it can be committed to: {error}")

    def _begin(self) -> None:
        if not self._target.found:
            self._checked(self._target.open(create=True))

    def _check_newest(self, table: TableT, checkpoint: StagedCheckpoint) -> None:
        """Checks that the rows of a checkpoint do not replace later ones. By default they replace none."""

    def _checked(self, table: TableT) -> TableT:
        return self._target.check(table)

    @abstractmethod
    def _change(self, table: TableT, checkpoint: StagedCheckpoint) -> Any:
        """Returns what a checkpoint changes in a table.

        Raises:
            CommittableLostError: What was staged is gone.
            ConfigurationError: The table does not take a file that an older program has staged.
        """

    def _check_epochs(self, after: int, before: int) -> None:
        if (table := self._target.try_open()) is not None:
            self._files_of_epochs(table, after, before)

    def _remove_epochs(self, checkpoint_id: int, after: int, before: int) -> None:
        def without(table: TableT) -> int:
            files = self._files_of_epochs(table, after, before)
            if files:
                self._remove(self._checked(table), files, checkpoint_id)
            return len(files)

        self._change_once(without)

    def _replaced(self, table: TableT, checkpoint: StagedCheckpoint) -> list[Any]:
        """Returns the files whose rows a checkpoint has anew."""
        return [] if checkpoint.replaced is None else self._files_of_epochs(table, *checkpoint.replaced)

    def _files_of_epochs(self, table: TableT, after: int, before: int) -> list[Any]:
        """Returns the files of a table whose rows are those of the checkpoints between two of this job and sink."""
        found, mine = list[Any](), 0
        others: str | None = None
        for path, file in self._files_in(table):
            checkpoint_id = self._names.replaced_checkpoint(path)
            mine += self._names.checkpoint(path) is not None
            if checkpoint_id is not None and after < checkpoint_id < before:
                found.append(file)
            writer = written_by(path)
            if writer is None:
                others = path
            elif checkpoint_id is None and self._is_branch:
                self._check_inherited(*writer, after, before)
        if others is not None and (self._context.ancestors or mine != self._target.added_files(table)):
            raise ConfigurationError(
                f"{self._what} has files of others, such as {others}, and not all that this sink has added, or the "
                "job with whose state it began, as far as is known: somebody has rewritten or deleted some, as a "
                "compaction does, so that its rows cannot be told from others"
            )
        return found

    def _check_inherited(self, job_id: str, uid: str, checkpoint_id: int, after: int, before: int) -> None:
        """Checks that rows with which a branch began are not of the same epochs, such as from before a fork."""
        if uid == self._context.uid and after < checkpoint_id < before:
            raise ConfigurationError(
                f"{self._what} began with rows that job {job_id!r} had written at checkpoint {checkpoint_id}, and "
                "nobody knows whether they are among those that are read again"
            )

    @abstractmethod
    def _files_in(self, table: TableT) -> Sequence[tuple[str, Any]]:
        """Returns the paths of all files of a table, and what is known of each.

        Raises:
            ConfigurationError: Others have changed rows without rewriting files, or the table keeps files.
        """

    @abstractmethod
    def _remove(self, table: TableT, files: Sequence[Any], checkpoint_id: int) -> None:
        """Writes a version without some files, once, as the change of a checkpoint that has no rows."""

    def _change_once(self, change: Callable[[TableT], int]) -> int:
        """Changes a table, if there is one, and looks again if somebody else was faster. Returns what this does."""
        with self._reaching():
            for _ in range(LOOKS):
                if (table := self._target.try_open()) is None:
                    return 0
                with suppress(*self._races):  # somebody else has changed it
                    return change(table)
        raise StorageError(f"{self._what} changes faster than rows can be replaced")

    @abstractmethod
    def _swap(self, table: TableT, change: Any, checkpoint: StagedCheckpoint) -> None:
        """Writes the version after the one of ``table``, once."""

    def _is_newest(self, table: TableT) -> bool:
        """Returns whether nobody has changed a table since it was looked at, if its client does not say so."""
        return True

    def _gone(self, error: Exception) -> Exception:
        """Returns what to raise if a file is gone although nobody else has just changed the table."""
        return error

    def last_committed(self) -> int | None:
        with self._reaching():
            table = self._target.try_open()
            return 0 if table is None else self._target.last(table)

    def _footers(self, files: Sequence[RowFile]) -> Iterator[tuple[RowFile, pq.FileMetaData]]:
        """Returns files with their footers, of which several are read at a time."""
        with ThreadPoolExecutor(_THREADS, "footers") as pool:
            return zip(files, list(pool.map(self._footer, files)), strict=True)

    def _footer(self, file: RowFile) -> pq.FileMetaData:
        with pq.ParquetFile(RangedFile(self._store, file.key, file.bytes)) as parquet:
            return parquet.metadata

    def _of_others(self, checkpoint: StagedCheckpoint) -> list[RowFile]:
        """Returns the files that another attempt, perhaps of an older program, has staged."""
        return [file for file in checkpoint.files if file.key and not self._names.of_this_attempt(file.key)]

    def _last_rows(self, checkpoint: StagedCheckpoint, check: Callable[[pa.Schema, str], None]) -> pa.Table:
        """Returns the staged rows of a sink with a key: of each key the last one."""
        if self._rows is None or self._context.type_info is None:
            raise SinkCommitError(f"the type of the records of sink {self._context.uid!r} is unknown")
        columns = table_schema(self._context.type_info)
        return last_of_each(self._rows.read(checkpoint.files, columns, checkpoint.checkpoint_id, check), self._key)


class PartitionReplacement(LakeCommitter[TableT]):
    """Replaces the rows of partitions in the version that adds the new ones.

    An older checkpoint does not replace a later one. A job that begins anew counts from 1 again: its rows are staged
    after the former ones were committed.
    """

    _never_replaces = BY_PARTITION

    @abstractmethod
    def _replaced_by(self, table: TableT, partition: str | None, checkpoint_id: int, since_ms: int) -> int | None:
        """Returns the checkpoint that has replaced a partition: this one, or a later one since some time, or None."""

    @abstractmethod
    def _empty(self, table: TableT, partition: str | None, checkpoint_id: int) -> int:
        """Writes a version without the rows of a partition, if there are any. Returns how many files had them."""

    def _check_own(self, partition: str | None, paths: Iterable[str]) -> None:
        """Checks that files of a partition, which are replaced, are not those of another job that also writes it."""
        if self._owned or self._is_branch:  # others have another owner; a branch begins with rows of others
            return
        line = {self._context.job_id, *(job_id for job_id, _ in self._context.ancestors)}
        for writer in filter(None, map(written_by, paths)):
            if writer[0] not in line:
                raise other_writer(self._what, partition, *writer[:2])

    def _check_newest(self, table: TableT, checkpoint: StagedCheckpoint) -> None:
        since_ms = 0 if self._owned else checkpoint.staged_ms
        for partition in checkpoint.by_partition:
            newest = self._replaced_by(table, partition, checkpoint.checkpoint_id, since_ms)
            if newest is not None and newest > checkpoint.checkpoint_id:
                raise SinkCommitError(
                    f"{self._what} has newer rows{'' if partition is None else f' of {partition}'}, those of {newest}: "
                    f"{checkpoint.checkpoint_id} must not replace them"
                )

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Deletes the rows of a partition for which nothing was committed. Otherwise the commit has replaced them."""
        since_ms = 0 if self._owned else self._since_ms

        def without(table: TableT) -> int:
            if self._replaced_by(table, partition, checkpoint_id, since_ms) is not None:
                return 0
            return self._empty(self._checked(table), partition, checkpoint_id)

        return self._change_once(without)


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the last row of each key, in the order of the rows."""
    last = _numbered(rows, key).group_by(list(key)).aggregate([(_ROW, "max")])
    return rows.take(last.column(f"{_ROW}_max").sort())


def without(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the rows whose key none of the others has."""
    numbered = _numbered(rows, key)
    numbered = numbered.cast(pa.schema([*(others.schema.field(name) for name in key), numbered.schema.field(_ROW)]))
    # Only the key is joined: PyArrow cannot carry nested columns through a join.
    kept = numbered.join(others.select(list(key)), keys=list(key), join_type="left anti")
    return rows.take(kept.column(_ROW).sort())


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.select(list(key)).append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
