"""Segments: the records that one task has written for another region, as objects in the store.

A segment is an Arrow stream of ``value`` and ``timestamp``. It is complete when it exists, and its name is unique to
the execution of the task that wrote it. So a reader sees exactly the segments that it is told of.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.recomputation import Recomputation
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, type_from_json
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit
from dagster_flinkpy.datastream.connectors.spark import SparkTransform
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    SparkSourceSpec,
    SparkTransformSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import InputTypeError, ObjectNotFoundError, SegmentLostError, SourceReadError, StorageError
from dagster_flinkpy.state.schema_evolution import read_alike, upgraded
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.object_store import RangedFile

__all__ = [
    "SegmentWriter",
    "bind_blocking_edges",
    "check_retained",
    "deal_out",
    "in_order",
    "open_segments",
    "read_segment",
    "read_segments",
]

SEGMENT_BYTES = 32 << 20
"""A segment is written with one request, so a task that dies leaves no open upload."""
_BUFFER_BYTES = 1 << 20
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def open_segments(location: Any, uid: str) -> ObjectStore:
    """Opens the folder in which an operator keeps segments."""
    assert isinstance(location, StorageLocation), "the job attempt sets the location of segments"
    return location.child(uid).open()


def bind_blocking_edges(graph: JobGraph, location: StorageLocation) -> JobGraph:
    """Returns the graph with the segments of its blocking edges at a location."""

    def bound(uid: str, spec: Any) -> Any:
        if isinstance(spec, BlockingEdgeSinkSpec):
            return replace(spec, sink=replace(spec.sink, location=location))
        if isinstance(spec, SparkSourceSpec | SparkTransformSpec):
            return replace(spec, source=replace(spec.source, location=location, uid=uid))
        if isinstance(spec, BlockingEdgeSourceSpec):
            return replace(spec, source=replace(spec.source, location=location))
        return spec

    return JobGraph(tuple(replace(v, spec=bound(v.uid, v.spec)) for v in graph.vertices), graph.edges)


class SegmentWriter:
    """Writes records as segments that fit into memory.

    Args:
        store: The folder of the operator.
        name: Beginning of the names of the segments, unique to the execution of the task.
        type_info: Type of the records.
    """

    def __init__(self, store: ObjectStore, name: str, type_info: TypeInformation) -> None:
        self._store, self._name = store, name
        fields, metadata = [("value", type_info.arrow_type), ("timestamp", pa.int64())], json.dumps(type_info.to_json())
        self._schema = pa.schema(fields, metadata={b"type": metadata})
        self._segments: list[Json] = []
        self._rows = 0

    def write(self, values: pa.Array, timestamps: pa.Array) -> None:
        """Takes records and their event times in milliseconds."""
        if not self._rows:
            self._buffer = pa.BufferOutputStream()
            self._stream = pa.ipc.new_stream(self._buffer, self._schema, options=_OPTIONS)
        self._stream.write_batch(pa.RecordBatch.from_arrays([values, timestamps], schema=self._schema))
        self._rows += len(values)
        if self._buffer.tell() >= SEGMENT_BYTES:
            self._send()

    def finish(self) -> list[Json]:
        """Writes the rest, and returns the segments in their order, each with its ``key``, ``bytes`` and ``rows``."""
        if self._rows:
            self._send()
        return self._segments

    def discard(self) -> None:
        """Deletes what was written so far."""
        with suppress(StorageError):  # the next attempt or sweep deletes what remains
            self._store.delete_many([segment["key"] for segment in self._segments])

    def _send(self) -> None:
        self._stream.close()
        data = self._buffer.getvalue().to_pybytes()
        key = f"{self._name}.{len(self._segments):04d}-{hashlib.sha256(data).hexdigest()}.arrow"
        self._store.put(key, data)
        self._segments.append({"key": key, "bytes": len(data), "rows": self._rows})
        self._rows = 0


def deal_out(name: str, segments: Sequence[Json], watermark: int | None, parallelism: int) -> list[SourceSplit]:
    """Returns a split for each subtask that reads, with all segments of some writers in their order.

    ``name`` is the prefix of the split ids, and ``watermark`` the one after the segments.
    """
    shares = [[s for s in segments if s["subtask"] % parallelism == subtask] for subtask in range(parallelism)]
    return [
        SourceSplit(f"{name}-{subtask}", {"segments": share, "watermark": watermark})
        for subtask, share in enumerate(shares)
    ]


def read_segments(
    location: StorageLocation, folder: str, split: SourceSplit, type_info: TypeInformation
) -> Iterator[tuple[pa.Array, int]]:
    """Reads the records of a split as structs of ``value`` and ``timestamp``.

    Raises:
        SourceReadError: A segment cannot be read. The message names it.
        InputTypeError: The records are of another type, apart from the order of their fields.
    """
    # A forked job reads the first segments where the other job has written them: only its prefix knows where.
    store, below, offset = location.parent.open(), f"{location.name}/{folder}/", 0
    for segment in split.properties["segments"]:
        for batch in read_segment(store, folder, segment, below):
            offset += batch.num_rows
            value = upgraded(batch.column("value"), type_info)
            if isinstance(type_info, RowTypeInfo | TupleTypeInfo):
                value = in_order(value, type_info.field_names, folder)
            if value.type != type_info.arrow_type:
                raise _other_records(folder, f"of the type {value.type}", str(type_info))
            kept = json.loads((batch.schema.metadata or {}).get(b"type", "null"))
            if kept is not None and not read_alike(kept, type_info):
                raise _other_records(folder, f"of {type_from_json(kept)}", str(type_info))
            yield pa.StructArray.from_arrays([value, batch.column("timestamp")], ["value", "timestamp"]), offset


def in_order(records: pa.Array, names: Sequence[str], edge: str) -> pa.Array:
    """Puts the fields of records into the order that the operator declares now; they are read by their positions.

    Raises:
        InputTypeError: The records have other fields.
    """
    there = [field.name for field in records.type] if pa.types.is_struct(records.type) else []
    if there == [*names]:
        return records
    if sorted(there) != sorted(names):
        raise _other_records(edge, f"with the fields {', '.join(there) or 'none'}", ", ".join(names))
    columns = dict(zip(there, records.flatten(), strict=True))
    nulls = records.is_null() if records.null_count else None
    return pa.StructArray.from_arrays([columns[name] for name in names], [*names], mask=nulls)


def _other_records(edge: str, kept: str, declared: str) -> InputTypeError:
    before = edge.removesuffix(".exchange")
    return InputTypeError(
        f"the blocking edge after {before!r} has kept records {kept}, and the program has {declared} there: recompute "
        f"{before!r}, too, which writes them again, or go back to what was there"
    )


def check_retained(
    location: StorageLocation, graph: JobGraph, metadata: CheckpointMetadata, recomputation: Recomputation
) -> None:
    """Checks on the oldest and the newest segment of each edge that a program can read again what was kept.

    Raises:
        InputTypeError: The records are of another type than in the program. The message names the edge.
        SourceReadError: A segment cannot be read.
    """
    for v in graph.split().vertices:
        if not isinstance(v.spec, BlockingEdgeSourceSpec) or v.spec.source.sink_uid not in recomputation.edges:
            continue
        edge, type_info = v.spec.source.sink_uid, v.spec.source.type_info
        if isinstance(v.spec.source, SparkTransform):
            assert v.spec.source.input_type is not None, "only workers do not know it"
            type_info = v.spec.source.input_type
        stored = metadata.operator(edge)
        kept = None if stored is None or stored.history is None else stored.history.since(recomputation.after)
        segments = [segment for each in kept or () for segment in each["segments"]]
        for segment in (*segments[:1], *segments[1:][-1:]):
            next(read_segments(location, edge, SourceSplit(edge, {"segments": [segment]}), type_info), None)


def read_segment(store: ObjectStore, folder: str, segment: Json, below: str = "") -> Iterator[pa.RecordBatch]:
    """Reads the batches of a segment, with columns ``value`` and ``timestamp``.

    ``store`` is the writer's folder, or has it at ``below``, which ends with a slash. ``folder`` is its name.

    Raises:
        SegmentLostError: It does not exist.
        SourceReadError: It cannot be read.
    """
    path = below + segment["key"]
    raw = RangedFile(store, path, segment["bytes"])
    try:
        with io.BufferedReader(raw, _BUFFER_BYTES) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except ObjectNotFoundError as error:
        raise SegmentLostError(
            f"segment {store.url}/{path} is gone, although no complete checkpoint has read it: {error}",
            edge=folder,
            key=segment["key"],
        ) from error
    except (StorageError, pa.ArrowException) as error:
        raise SourceReadError(f"cannot read {store.url}/{path}: {error}") from error
