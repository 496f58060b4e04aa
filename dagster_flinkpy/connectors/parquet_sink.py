"""A folder of Parquet files as a two-phase-commit sink.

A writer stages one file per subtask and epoch as an upload that nobody sees. The committer completes the uploads after
the checkpoint; completing one a second time is recognised by what the object is made of.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitterInitContext,
    Json,
    SinkCommitter,
    SinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    SinkCommitError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation, UploadedPart, check_relative

__all__ = ["ParquetCommittable", "ParquetCommitter", "ParquetSink", "ParquetWriter"]

_PART_BYTES = 8 << 20  # S3 wants at least 5 MiB in each part but the last
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 17
_COMMIT_TRIES = 10
_COMMIT_THREADS = 8


class ParquetSink(TwoPhaseCommittingSink):
    """Writes Parquet files into a location; a reader sees those of completed checkpoints only.

    Rows and tuples give one column per field, any other type one column ``value``. Files are named
    ``{job}.{uid}.{checkpoint}.{subtask}.{execution}.parquet``, and lie in ``partition={partition}/`` where the run has
    a Dagster partition. A subtask without records writes none.

    Args:
        location: A folder on S3 or a local one.
    """

    def __init__(self, location: StorageLocation | str) -> None:
        self.location = StorageLocation(location) if isinstance(location, str) else location

    def validate(self, type_info: TypeInformation | None) -> None:
        if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
            raise ConfigurationError(
                f"the Parquet sink {self.location.url} needs typed records: declare output_type=..., such as "
                "Types.ROW_NAMED([...], [...]), on the operator before it"
            )

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> ParquetWriter:
        self.validate(type_info)
        return ParquetWriter(self.location.open(), context, type_info)

    def create_committer(self, context: CommitterInitContext) -> ParquetCommitter:
        return ParquetCommitter(self.location.open(), context)

    def kinds(self) -> set[str]:
        return {"parquet"}


@dataclass(frozen=True)
class ParquetCommittable:
    """A staged file, as checkpoint metadata keeps it."""

    key: str
    """Relative to the sink's location."""
    upload_id: str
    parts: tuple[UploadedPart, ...]
    rows: int
    bytes: int
    sha256: str
    """Of the whole file, in hex."""

    def to_json(self) -> Json:
        """For checkpoint metadata."""
        return {
            "key": self.key,
            "upload_id": self.upload_id,
            "parts": [[part.number, part.etag] for part in self.parts],
            "rows": self.rows,
            "bytes": self.bytes,
            "sha256": self.sha256,
        }

    @staticmethod
    def from_json(data: Json) -> ParquetCommittable:
        """What :meth:`to_json` wrote.

        Raises:
            SinkCommitError: It is not that, or its key leads out of the location.
        """
        try:
            return ParquetCommittable(
                check_relative(data["key"]),
                data["upload_id"],
                tuple(UploadedPart(int(number), str(etag)) for number, etag in data["parts"]),
                int(data["rows"]),
                int(data["bytes"]),
                str(data["sha256"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, PathEscapesPrefixError) as error:
            raise SinkCommitError(f"not a committable of a Parquet sink: {data!r} ({error!r})") from error


class ParquetWriter(SinkWriter):
    """Writes one epoch of one subtask into a staged upload, begun with the first record.

    Args:
        store: Rooted at the sink's location.
        context: Who is writing.
        type_info: Of the records.
        part_bytes: Size of the parts that are sent.
    """

    def __init__(
        self,
        store: ObjectStore,
        context: WriterInitContext,
        type_info: TypeInformation,
        *,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self._flat = isinstance(type_info, (RowTypeInfo, TupleTypeInfo))
        self._schema = pa.schema(list(type_info.arrow_type) if self._flat else [("value", type_info.arrow_type)])
        self._upload = _Upload(store, _key(context), part_bytes)
        self._parquet: pq.ParquetWriter | None = None
        self._group: list[pa.RecordBatch] = []  # the row group that is being filled
        self._group_rows = 0
        self._group_bytes = 0
        self._rows = 0

    def write(self, column: pa.Array) -> None:
        columns = column.flatten() if self._flat else [column]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= _GROUP_ROWS or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._group_rows:
            if self._parquet is None:
                self._parquet = pq.ParquetWriter(self._upload, self._schema, compression="zstd")
            self._parquet.write_table(pa.Table.from_batches(self._group, self._schema), row_group_size=_GROUP_ROWS)
            self._rows += self._group_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0

    def prepare_commit(self) -> list[Json]:
        self._write_group()
        if self._parquet is None:
            return []
        self._parquet.close()
        return [self._upload.finish(self._rows).to_json()]

    def abort(self) -> None:
        self._group, self._parquet = [], None
        self._upload.abort()


class _Upload(io.RawIOBase):
    """A file being written that goes out in parts, begun with the first byte."""

    def __init__(self, store: ObjectStore, key: str, part_bytes: int) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes
        self._upload_id: str | None = None
        self._parts: list[UploadedPart] = []
        self._pending = bytearray()
        self._digest = hashlib.sha256()
        self._size = 0
        self._aborted = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._aborted:  # the Parquet footer, when the writer is dropped
            return len(view)
        self._pending += view
        self._digest.update(view)
        self._size += len(view)
        while len(self._pending) >= self._part_bytes:
            self._send(self._part_bytes)
        return len(view)

    def _send(self, size: int) -> None:
        if self._upload_id is None:
            self._upload_id = self._store.create_upload(self._key)
        number = len(self._parts) + 1
        self._parts.append(self._store.upload_part(self._key, self._upload_id, number, bytes(self._pending[:size])))
        del self._pending[:size]

    def finish(self, rows: int) -> ParquetCommittable:
        if self._pending:
            self._send(len(self._pending))
        return ParquetCommittable(
            self._key, self._upload_id or "", tuple(self._parts), rows, self._size, self._digest.hexdigest()
        )

    def abort(self) -> None:
        self._pending.clear()
        self._aborted = True
        if self._upload_id is not None:
            with suppress(StorageError):  # what stays is found by abort_lingering
                self._store.abort_upload(self._key, self._upload_id)


class ParquetCommitter(SinkCommitter):
    """Completes staged uploads: in the order of checkpoints, the files of one checkpoint side by side.

    Args:
        store: Rooted at the sink's location.
        context: Who is committing.
        wait: Waits so many seconds between two tries.
    """

    def __init__(
        self, store: ObjectStore, context: CommitterInitContext, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._context = context
        self._wait = wait

    def commit(self, requests: Sequence[CommitRequest]) -> int:
        before = 0
        with ThreadPoolExecutor(_COMMIT_THREADS, "parquet-commit") as pool:
            for _, group in groupby(sorted(requests, key=_checkpoint), key=_checkpoint):
                pending = [pool.submit(self._commit_one, request) for request in group]
                # All are tried, so that one lost file does not hide the others; then the first error is raised.
                before += sum([future.result() for future in pending if future.exception() is None])
                for future in pending:
                    future.result()
        return before

    def _commit_one(self, request: CommitRequest) -> bool:
        """Commits one file; says whether it was there before."""
        file = ParquetCommittable.from_json(request.committable)
        where = f"{self._store.url}/{file.key} of checkpoint {request.checkpoint_id} (subtask {request.subtask})"
        there: bool | None = None
        for tries in range(1, _COMMIT_TRIES + 1):
            try:
                if there is None:
                    there = any(info.key == file.key for info in self._store.list(file.key))
                self._complete(file, where)
                return there
            except StorageError as error:
                if tries == _COMMIT_TRIES:
                    raise SinkCommitError(
                        f"cannot commit {where} after {tries} tries: {error}. The checkpoint keeps it; run again."
                    ) from error
                self._wait(min(0.1 * 2 ** (tries - 1), 10.0))
        raise AssertionError("unreachable")

    def _complete(self, file: ParquetCommittable, where: str) -> None:
        try:
            self._store.complete_upload(file.key, file.upload_id, file.parts, if_none_match=True)
        except PreconditionFailedError as error:
            if self._is(file):
                return
            raise SinkCommitError(
                f"cannot commit {where}: another object has its name. Its {file.rows} rows are not in the table; they "
                f"stay staged as upload {file.upload_id!r}. Move the other object away and run again."
            ) from error
        except UploadNotFoundError as error:
            if self._is(file):
                return
            raise SinkCommitError(
                f"cannot commit {where}: its upload is gone and the file is not there, so its {file.rows} rows are "
                "lost. Either the upload was aborted (by a lifecycle rule of the bucket?) or the file was deleted "
                "after it was committed. Restore from an older checkpoint to write the rows again."
            ) from error

    def _is(self, file: ParquetCommittable) -> bool:
        """Whether the object there is the file, whatever its ETag is made of (encrypted objects have odd ones)."""
        if not any(info.key == file.key and info.size == file.bytes for info in self._store.list(file.key)):
            return False
        digest = hashlib.sha256()
        for start in range(0, file.bytes, _PART_BYTES):
            digest.update(self._store.get_range(file.key, start, _PART_BYTES))
        return digest.hexdigest() == file.sha256

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        kept = {(file.key, file.upload_id) for file in (ParquetCommittable.from_json(r.committable) for r in keep)}
        mine = _name_start(self._context.job_id, self._context.uid)
        lingering = [
            upload
            for upload in self._store.list_uploads()
            if upload.key.rpartition("/")[2].startswith(mine) and (upload.key, upload.upload_id) not in kept
        ]
        for upload in lingering:
            self._store.abort_upload(upload.key, upload.upload_id)
        return len(lingering)


def _checkpoint(request: CommitRequest) -> int:
    return request.checkpoint_id


def _plain(text: str) -> str:
    """``text`` without slashes and dots, so that names can be told apart at the dots."""
    return quote(text, safe="").replace(".", "%2E")


def _name_start(job_id: str, uid: str) -> str:
    return f"{_plain(job_id)}.{_plain(uid)}."


def _key(context: WriterInitContext) -> str:
    name = (
        f"{_name_start(context.job_id, context.uid)}{context.checkpoint_id:010d}.{context.subtask:05d}."
        f"{_plain(context.execution)}.parquet"
    )
    return name if context.partition is None else f"partition={quote(context.partition, safe='')}/{name}"
