"""Rows that wait on the store until the driver has put them somewhere else. Nobody else reads the folder."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.commit.staged_files import (
    PART_BYTES,
    Committable,
    FileNames,
    Staged,
    StagedFile,
    still_staged,
)
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, Json, WriterInitContext
from dagster_flinkpy.errors import CommittableLostError, ObjectNotFoundError, StorageError, TypeMismatchError
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = [
    "RowFile",
    "StagedContent",
    "StagedRows",
    "StagedRowsWriter",
    "check_keys",
    "completed",
    "digest_of",
    "without_rows",
]


@dataclass(frozen=True)
class RowFile(Committable):
    """A file of staged rows, as checkpoint metadata describes it."""

    key: str
    """Relative to the folder. Empty if there are no rows, but the partition has to be mentioned."""
    rows: int
    bytes: int
    sha256: str
    staged_ms: int = 0
    """When it was staged, in milliseconds since 1970. 0: an earlier release has not stored it."""
    partition: str | None = None
    """The Dagster partition of the run, if any."""

    @staticmethod
    def of(request: CommitRequest) -> RowFile:
        return RowFile.from_json(request.committable)

    def check_key(self) -> None:
        if self.key:
            super().check_key()


def digest_of(files: Sequence[RowFile | StagedFile]) -> str:
    """Returns the identity of the files of a checkpoint, as SHA-256 in hex."""
    return hashlib.sha256(json.dumps([[file.key, file.sha256] for file in files]).encode()).hexdigest()


def completed(store: ObjectStore, file: StagedFile, partition: str | None) -> RowFile:
    """Completes a staged upload, because nobody else reads the folder. Returns what is to be committed."""
    with still_staged():
        store.complete_upload(file.key, file.upload_id, file.parts, if_none_match=True)
    return RowFile(file.key, file.rows, file.bytes, file.sha256, current_millis(), partition)


def without_rows(context: WriterInitContext) -> RowFile:
    """Returns what mentions the partition of a run whose subtasks have no rows."""
    return RowFile("", 0, 0, context.execution, current_millis(), context.partition)


def check_keys(where: str, key: Collection[str], names: Iterable[str], column: pa.Array) -> None:
    """Checks that no row has null in its key: in SQL it is not the key of any other row, and would be added each time.

    Args:
        where: What the rows are for, for the message.
        key: The columns of the key.
        names: The columns of the records, in order.
        column: The records.
    """
    arrays = column.flatten() if pa.types.is_struct(column.type) else [column]
    for name, array in zip(names, arrays, strict=True):
        if name in key and array.null_count:
            raise TypeMismatchError(
                f"a row for {where} has null in column {name!r}, which is part of its key: filter() it out"
            )


class StagedRowsWriter(TableWriter):
    """Writes one epoch of one subtask to files that nobody else reads."""

    def __init__(self, files: TableSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(files, context, type_info)
        self._completed: list[str] = []

    def prepare_commit(self) -> list[Json]:
        partition, staged = self._context.partition, list[RowFile]()
        for file in map(StagedFile.from_json, super().prepare_commit()):
            staged.append(completed(self._store, file, partition))
            self._completed.append(file.key)
        if not staged and partition is not None and self._context.subtask == 0:
            staged = [without_rows(self._context)]
        return [file.to_json() for file in staged]

    def abort(self) -> None:
        super().abort()
        with suppress(StorageError):  # abort_lingering finds what remains
            self._store.delete_many(self._completed)


class StagedRows(Staged):
    """The staged rows of a job and sink."""

    def __init__(self, location: StorageLocation, context: CommitterInitContext) -> None:
        self._store, self._context = location.open(), context
        self._names = FileNames(context)

    def read(
        self,
        files: Sequence[RowFile],
        schema: pa.Schema,
        checkpoint_id: int,
        check: Callable[[pa.Schema, str], None] = lambda columns, file: None,
    ) -> pa.Table:
        """Reads the rows of files, in their order. Columns that a file does not have are null.

        Rows that an older program has staged may have columns that are not in ``schema``; they come last.
        """
        parts = list[pa.Table]()
        for file in files:
            if file.key:
                parts.append(self._read(file, checkpoint_id))
                check(parts[-1].schema, file.key)
        return pa.concat_tables([schema.empty_table(), *parts], promote_options="default")

    def _read(self, file: RowFile, checkpoint_id: int) -> pa.Table:
        try:
            data = self._store.get(file.key)[0]
        except ObjectNotFoundError as error:
            raise self._lost(file, checkpoint_id, "is missing") from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise self._lost(file, checkpoint_id, "was changed")
        return pq.ParquetFile(pa.BufferReader(data)).read()

    def require(self, files: Sequence[RowFile], checkpoint_id: int) -> None:
        """Makes sure that files exist with their size."""
        for file in files:
            if file.key and ((found := self._store.head(file.key)) is None or found.size != file.bytes):
                raise self._lost(file, checkpoint_id, "is missing" if found is None else "was changed")

    def _lost(self, file: RowFile, checkpoint_id: int, what: str) -> CommittableLostError:
        return CommittableLostError.of(
            checkpoint_id,
            f"sink {self._context.uid!r} cannot commit checkpoint {checkpoint_id}: {self._store.url}/{file.key} "
            f"{what}, so its {file.rows} rows are lost",
        )

    def delete(self, requests: Sequence[CommitRequest]) -> None:
        self._store.delete_many([key for request in requests if (key := RowFile.of(request).key)])

    def _files(self, keep: Sequence[CommitRequest]) -> list[str]:
        kept = {RowFile.of(request).key for request in keep}
        return [info.key for info in self._store.list() if self._names.mine(info.key) and info.key not in kept]


class StagedContent(io.RawIOBase):
    """Reads a staged file from its beginning to its end, one part ahead. As a context it is closed at the end."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key = store, key
        self._offsets = iter(range(0, size, PART_BYTES))
        self._part, self._digest = memoryview(b""), hashlib.sha256()
        self._reader = ThreadPoolExecutor(1, "staged")
        self._next = self._begin()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._part and self._next is not None:
            self._part = memoryview(self._next.result())
            self._next = self._begin()
        end = len(self._part) if size < 0 else size
        taken, self._part = self._part[:end], self._part[end:]
        return bytes(taken)

    def _begin(self) -> Future[bytes] | None:
        offset = next(self._offsets, None)
        return None if offset is None else self._reader.submit(self._fetch, offset)

    def _fetch(self, offset: int) -> bytes:
        data = self._store.get_range(self._key, offset, PART_BYTES)
        self._digest.update(data)
        return data

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def close(self) -> None:
        self._reader.shutdown()
        super().close()
