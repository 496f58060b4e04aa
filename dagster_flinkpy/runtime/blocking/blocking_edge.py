"""Runs a blocking edge: writes and reads segments in the object store, with a marker for each completed checkpoint.

``segments/`` contains Arrow streams of ``value`` and ``timestamp``, which are staged as uploads. The marker
``checkpoints/{id}.json`` is written when all segments of the checkpoint are visible. Readers list the markers, so they
read a checkpoint completely or not at all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.connectors.ranged_file import RangedFile
from dagster_flinkpy.connectors.staged_files import StagedFile, StagedFileCommitter, StagedUpload, file_name
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    Json,
    SourceSplit,
    SplitEnumerator,
    WriterInitContext,
    position_field,
)
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSink, BlockingEdgeSource
from dagster_flinkpy.errors import (
    PathEscapesPrefixError,
    PreconditionFailedError,
    SinkCommitError,
    SourceReadError,
    StorageError,
)
from dagster_flinkpy.runtime.task.watermark_valve import WatermarkValve
from dagster_flinkpy.state.schema_evolution import upgraded
from dagster_flinkpy.storage import ObjectStore, StorageLocation, check_relative

__all__ = [
    "BlockingEdgeCommitter",
    "BlockingEdgeEnumerator",
    "BlockingEdgeWriter",
    "deal_out",
    "read_segment",
    "read_segments",
]

_SEGMENTS, _CHECKPOINTS = "segments/", "checkpoints/"
_VERSION = 1
_BUFFER_BYTES = 1 << 20


def _open(location: Any, sink_uid: str) -> ObjectStore:
    assert isinstance(location, StorageLocation), "the job attempt sets the location of segments"
    return location.child(sink_uid).open()


class BlockingEdgeWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask as an Arrow stream, which is opened for the first record.

    Args:
        sink: The sink side of the edge.
        context: The job, operator and subtask that write.
        type_info: Type of the records.
    """

    def __init__(self, sink: BlockingEdgeSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        store = _open(sink.location, context.uid)
        self._upload = StagedUpload(store, f"{_SEGMENTS}{file_name(context)}.arrow")
        self._schema = pa.schema([("value", type_info.arrow_type), ("timestamp", pa.int64())])
        self._stream: pa.RecordBatchStreamWriter | None = None
        self._rows = 0

    def write(self, column: pa.Array) -> None:
        """Takes structs of ``value`` and ``timestamp``."""
        if self._stream is None:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._stream = pa.ipc.new_stream(self._upload, self._schema, options=options)
        arrays = [column.field("value"), column.field("timestamp")]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(column)

    def prepare_commit(self) -> list[Json]:
        if self._stream is None:
            return []
        self._stream.close()
        return [self._upload.finish(self._rows).to_json()]

    def abort(self) -> None:
        self._upload.abort()


class BlockingEdgeCommitter(Committer):
    """Makes the segments of a checkpoint visible, then writes its marker.

    Args:
        sink: The sink side of the edge.
        context: The job and operator that commit.
    """

    def __init__(self, sink: BlockingEdgeSink, context: CommitterInitContext) -> None:
        self._store = _open(sink.location, context.uid)
        self._files = StagedFileCommitter(self._store, context)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        checkpoint_id = requests[0].checkpoint_id
        key, marker = f"{_CHECKPOINTS}{checkpoint_id:010d}.json", _marker(checkpoint_id, requests)
        try:
            if self._store.head(key) is not None:
                self._check_same(key, marker)
                for request in requests:
                    request.signal_already_committed()
                return
            files = _with_files(requests)
            self._files.commit(files)
            if failed := [file for file in files if file.error is not None]:
                for request in requests:  # the marker names all segments, so all of them are tried again
                    request.state, request.error = failed[0].state, failed[0].error
                return
            try:
                self._store.put(key, marker, if_none_match=True)
            except PreconditionFailedError:
                self._check_same(key, marker)
        except StorageError as error:
            for request in requests:
                request.retry_later(error)

    def _check_same(self, key: str, marker: bytes) -> None:
        if self._store.get(key)[0] != marker:
            raise SinkCommitError(
                f"{self._store.url}/{key} was written earlier by this job, but the checkpoints of that time are gone. "
                f"Delete the folder {self._store.url} and the checkpoints of the jobs that read it, and run all of "
                "them again."
            )

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._files.abort_lingering(_with_files(keep))


def _with_files(requests: Sequence[CommitRequest]) -> list[CommitRequest]:
    return [
        CommitRequest(r.checkpoint_id, r.subtask, r.committable["file"])
        for r in requests
        if r.committable["file"] is not None
    ]


def _marker(checkpoint_id: int, requests: Sequence[CommitRequest]) -> bytes:
    """Returns the marker of a checkpoint, which has the same bytes each time."""
    subtasks = [r.committable for r in requests]
    files = [(r.subtask, StagedFile.from_json(r.committable["file"])) for r in requests if r.committable["file"]]
    data = {
        "version": _VERSION,
        "checkpoint_id": checkpoint_id,
        "watermark": _watermark(subtasks),
        "end_of_input": all(c["end_of_input"] for c in subtasks),
        "segments": [{"subtask": subtask, "key": f.key, "bytes": f.bytes, "rows": f.rows} for subtask, f in files],
    }
    return json.dumps(data, indent=1).encode()


def _watermark(subtasks: list[Json]) -> int | None:
    """Combines the watermarks of all subtasks, as an input gate does."""
    # Committables of the first releases have one origin only.
    times = [c.get("event_times") or {"": {"watermark": c["watermark"], "idle": c["idle"]}} for c in subtasks]
    valve = WatermarkValve(dict(enumerate(times)))
    for subtask, origins in enumerate(times):
        for origin, time in origins.items():
            if time["watermark"] is not None:
                valve.on_watermark(subtask, origin, time["watermark"], 0)
    for subtask, origins in enumerate(times):
        for origin, time in origins.items():
            valve.on_status(subtask, origin, time["idle"], 0)
    return None if valve.watermark == MIN_WATERMARK else valve.watermark


class BlockingEdgeEnumerator(SplitEnumerator):
    """Assigns the checkpoints that have completed upstream. Its state is the last assigned checkpoint.

    The segments of an upstream subtask go to one subtask, in the order of checkpoints. Each subtask gets a split for
    each checkpoint, even without segments, because the split carries the watermark.

    Args:
        source: The source side of the edge.
        restored: State of an earlier enumerator, or None.
    """

    def __init__(self, source: BlockingEdgeSource, restored: Json | None) -> None:
        self._source = source
        self._last, self._ended = 0, False
        if restored is not None:
            self._last, self._ended = position_field(restored, "last", int), position_field(restored, "ended", bool)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        store = _open(self._source.location, self._source.sink_uid)
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        try:
            keys = [info.key for info in store.list(_CHECKPOINTS)]
            markers = [_read_marker(store, key) for key in keys if key > f"{_CHECKPOINTS}{self._last:010d}.json"]
        except StorageError as error:
            raise SourceReadError(f"cannot list the checkpoints in {store.url}: {error}") from error
        for marker in markers:
            splits = deal_out(f"{marker['checkpoint_id']}", self._segments(marker), marker["watermark"], parallelism)
            for share, split in zip(shares, splits, strict=True):
                share.append(split)
            self._last, self._ended = marker["checkpoint_id"], marker["end_of_input"]
        return shares

    def _segments(self, marker: Json) -> list[Json]:
        """Returns the segments of a checkpoint that are to be read."""
        segments: list[Json] = marker["segments"]
        return segments

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._ended

    def snapshot_state(self) -> Json:
        return {"last": self._last, "ended": self._ended}


def deal_out(name: str, segments: Sequence[Json], watermark: int | None, parallelism: int) -> list[SourceSplit]:
    """Returns a split for each subtask, with all segments of some writers in their order.

    Args:
        name: Prefix of the split ids.
        segments: The segments, each with the writer's ``subtask``, ``key``, ``bytes`` and ``rows``.
        watermark: The watermark after the segments.
        parallelism: Number of subtasks that read.
    """
    shares = [[s for s in segments if s["subtask"] % parallelism == subtask] for subtask in range(parallelism)]
    return [
        SourceSplit(f"{name}-{subtask}", {"segments": share, "watermark": watermark})
        for subtask, share in enumerate(shares)
    ]


def _read_marker(store: ObjectStore, key: str) -> Json:
    """Reads a marker.

    Raises:
        SourceReadError: The object is not a marker, or names files outside the edge.
    """
    try:
        marker: Json = json.loads(store.get(key)[0])
        if marker["version"] != _VERSION:
            raise SourceReadError(
                f"{store.url}/{key} has version {marker['version']}, but this release reads version {_VERSION}"
            )
        for segment in marker["segments"]:
            check_relative(segment["key"])
    except (KeyError, TypeError, ValueError, PathEscapesPrefixError) as error:
        raise SourceReadError(f"{store.url}/{key} is not a marker of a blocking edge ({error!r})") from error
    return marker


def read_segments(
    location: StorageLocation, folder: str, split: SourceSplit, type_info: TypeInformation
) -> Iterator[tuple[pa.Array, int]]:
    """Reads the records of a split as structs of ``value`` and ``timestamp``.

    Args:
        location: Location of the program's segments.
        folder: Folder of the writer, below the location.
        split: The split, which names the segments.
        type_info: Type of the records.

    Raises:
        SourceReadError: A segment cannot be read. The message names it.
    """
    store, offset = _open(location, folder), 0
    for segment in split.properties["segments"]:
        for batch in read_segment(store, segment):
            offset += batch.num_rows
            value = upgraded(batch.column("value"), type_info)
            yield pa.StructArray.from_arrays([value, batch.column("timestamp")], ["value", "timestamp"]), offset


def read_segment(store: ObjectStore, segment: Json) -> Iterator[pa.RecordBatch]:
    """Reads the batches of a segment, with columns ``value`` and ``timestamp``.

    Raises:
        SourceReadError: The segment cannot be read. The message names it.
    """
    raw = RangedFile(store, segment["key"], segment["bytes"])
    try:
        with io.BufferedReader(raw, _BUFFER_BYTES) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except (StorageError, pa.ArrowException) as error:
        raise SourceReadError(f"cannot read {store.url}/{segment['key']}: {error}") from error
