"""The wire format: the rows that a Spark shuffle moves between two stages. All edges have the same format.

A row is addressed to a subtask (``target``) of one edge. It has a position (``seq``) in the channel of the sending
subtask, so that a replay has the same order. Its payload is an Arrow record batch or an event.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import struct_field
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.shuffle.key_dictionary import keys_of
from dagster_flinkpy.state.schema_evolution import upgraded

__all__ = [
    "AFTER_STATIC",
    "COLLECTED",
    "MAX_PAYLOAD",
    "NO_EDGE",
    "PRINTED",
    "SEQ_BITS",
    "SPARK_SCHEMA",
    "WIRE_SCHEMA",
    "Kind",
    "RowOutput",
    "TaskOutput",
    "WireRow",
    "batch_of",
    "check_size",
    "decode_buffer",
    "decode_buffers",
    "decode_event",
    "encode_buffer",
    "encode_element",
    "joined",
    "read_buffer",
    "rows_of",
]

SEQ_BITS = 40
"""The low bits of seq are the position between two barriers; the high bits are the number of barriers before it."""

AFTER_STATIC = 1 << (SEQ_BITS - 1)
"""The first position of what an operator takes after its static inputs: Spark sorts the rows of an epoch by it."""

MAX_PAYLOAD = 1 << 30
"""The maximum payload of a row, in bytes: half of what Spark and Arrow can address."""

_OUTPUT_BATCH_BYTES = 8 << 20

_OPTIONS = pa.ipc.IpcWriteOptions()  # without options, Arrow looks into the environment each time

NO_EDGE = -1
"""The edge of rows for the driver."""

COLLECTED, PRINTED = "value", "line"
"""Names of the column of a COLLECT row: records for the caller, followed by ``/`` and the uid, or lines to print."""


class Kind(IntEnum):
    """What a row carries."""

    BUFFER = 0
    WATERMARK = 1
    STREAM_STATUS = 2
    BARRIER = 3
    CANCEL_BARRIER = 4
    ACK = 5
    FAILURE = 6
    COLLECT = 7
    LATENCY_MARKER = 8
    LOG = 9
    OPERATOR_EVENT = 10
    FILE = 11


_KINDS = tuple(Kind)  # by number; calling the enum takes ten times as long

WIRE_SCHEMA = pa.schema(
    [
        pa.field("target", pa.int32(), nullable=False),
        pa.field("edge", pa.int32(), nullable=False),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_FEW_ROWS = 64
"""Buffers of at most so many rows are encoded in the way that is fast for few."""
_IDLE, _ACTIVE = b"\x01", b"\x00"
_WATERMARK_BYTES = 8
_PREFIX_BYTES = 8
"""A message of Arrow begins with four bytes of ones and the size of its metadata."""
_MOST_SCHEMA_BYTES = 1 << 16
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

_NUMBERS = "iiiqb"
"""The numbers of a row, as Python's ``array`` names their types."""
SPARK_SCHEMA = "target int, edge int, channel int, seq long, kind byte, payload binary"


@dataclass(frozen=True)
class WireRow:
    """One row of the shuffle; the payload is still encoded."""

    target: int
    edge: int
    channel: int
    seq: int
    kind: Kind
    payload: pa.Buffer


def rows_of(batch: pa.RecordBatch) -> Iterator[WireRow]:
    """Yields the rows of a record batch. Payloads are copied, which aligns them: Flight puts them at any address."""
    *columns, payloads = batch.columns
    numbers = zip(*(column.to_pylist() for column in columns), strict=True)
    for i, (target, edge, channel, seq, kind) in enumerate(numbers):
        yield WireRow(target, edge, channel, seq, _KINDS[kind], payloads[i].as_buffer())


class RowOutput(Protocol):
    """Takes the rows that a task sends."""

    @property
    def digest(self) -> int:
        """A CRC of all data sent so far, or 0 if nobody compares it."""

    def buffer_size(self, edge: int, target: int) -> int:
        """Returns the size of buffers for a subtask, in bytes. `RecordWriter` has a limit of its own."""

    def add(self, target: int, edge: int, channel: int, seq: int, kind: Kind, payload: Any = b"") -> None:
        """Takes a row; see `WireRow`."""


class TaskOutput:
    """Collects the rows that a task sends into record batches of about 8 MiB."""

    def __init__(self) -> None:
        self._full: list[pa.RecordBatch] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._payloads: list[Any] = []
        self._bytes = 0
        self.digest = 0
        """A CRC of all data sent so far. Two attempts of a task that sent the same data have the same digest."""

    def buffer_size(self, edge: int, target: int) -> int:
        return MAX_PAYLOAD

    def add(self, target: int, edge: int, channel: int, seq: int, kind: Kind, payload: Any = b"") -> None:
        """Appends a row.

        Raises:
            ConfigurationError: The payload is too large for Arrow and Spark.
        """
        check_size(payload)
        self._payloads.append(payload)
        self._bytes += len(payload)
        self._rows.append((target, edge, channel, seq, int(kind)))
        if kind in (Kind.BUFFER, Kind.WATERMARK, Kind.STREAM_STATUS):
            self.digest = zlib.crc32(payload, self.digest)
        if self._bytes >= _OUTPUT_BATCH_BYTES:
            self._finish()

    @property
    def ready(self) -> bool:
        """Whether a record batch is full."""
        return bool(self._full)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yields everything that was collected."""
        if self._rows:
            self._finish()
        full, self._full = self._full, []
        yield from full

    def _finish(self) -> None:
        self._full.append(batch_of(self._rows, self._payloads))
        self._rows, self._payloads, self._bytes = [], [], 0


def check_size(payload: Any) -> None:
    """Checks the payload of a row.

    Raises:
        ConfigurationError: It is too large for Arrow and Spark.
    """
    if len(payload) > MAX_PAYLOAD:
        raise ConfigurationError(
            f"a record has {len(payload)} bytes, and a row of the shuffle can have at most {MAX_PAYLOAD}: emit "
            "smaller records, such as references to large data"
        )


def batch_of(rows: Sequence[tuple[int, int, int, int, int]], payloads: Sequence[Any]) -> pa.RecordBatch:
    """Returns rows as a record batch. If there are several, payloads are copied into the buffer of the column.

    Args:
        rows: Target, edge, channel, seq and kind of at least one row.
        payloads: The payload of each row: bytes, or a buffer of bytes.
    """
    # Most batches have one row. Arrow takes several times as long to make arrays of Python's numbers.
    buffers: list[list[Any]] = [
        [array(code, column)] for code, column in zip(_NUMBERS, zip(*rows, strict=True), strict=True)
    ]
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    buffers.append([array("i", accumulate(map(len, payloads), initial=0)), data])
    columns = [
        pa.Array.from_buffers(kind, len(rows), [None, *map(pa.py_buffer, each)])
        for kind, each in zip(WIRE_SCHEMA.types, buffers, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WIRE_SCHEMA)


def encode_buffer(batch: pa.RecordBatch) -> pa.Buffer:
    """Encodes a record batch as an Arrow IPC stream."""
    if batch.num_rows <= _FEW_ROWS:
        # Arrow lets other threads run in each call, which costs a small buffer more than a copy.
        schema = batch.schema.serialize().to_pybytes()
        if _schema_of(schema) is not None:
            return pa.py_buffer(b"".join((schema, batch.serialize(), _END_OF_STREAM)))
    size = pa.MockOutputStream()
    _write(batch, size)
    payload = pa.allocate_buffer(size.size())
    _write(batch, pa.FixedSizeBufferWriter(payload))
    return payload


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)


def encode_element(kind: Kind, value: Any) -> Any:
    """Encodes an element for the shuffle or for channel state, records with their keys."""
    if isinstance(value, pa.Buffer):
        return value
    if kind is Kind.BUFFER:
        columns, metadata = {"value": value.column, "timestamp": pa.array(value.timestamps)}, dict[bytes, bytes]()
        if (keys := value.keys) is not None:
            columns |= {"key": keys.column, "hash": pa.array(keys.hashes)}
            metadata[b"key_type"] = json.dumps(keys.type_info.to_json()).encode()
        return encode_buffer(pa.RecordBatch.from_pydict(columns, metadata=metadata))
    origin, value = value
    if kind is Kind.WATERMARK:
        return value.to_bytes(_WATERMARK_BYTES, "big", signed=True) + origin.encode()
    return (_IDLE if value else _ACTIVE) + origin.encode()


def decode_event(kind: Kind, payload: bytes) -> tuple[str, int | bool]:
    """Returns origin and watermark, or origin and status. In-flight data of the first releases has the origin ''."""
    if kind is Kind.WATERMARK:
        watermark = int.from_bytes(payload[:_WATERMARK_BYTES], "big", signed=True)
        return payload[_WATERMARK_BYTES:].decode(), watermark
    return payload[1:].decode(), payload[:1] == _IDLE


def decode_buffer(payload: pa.Buffer, type_info: TypeInformation) -> StreamBatch:
    """Decodes the records of a BUFFER row, with their keys if the edge is keyed; also those that were combined."""
    return _decode(read_buffer(payload), type_info)


def decode_buffers(read: Sequence[pa.RecordBatch], type_info: TypeInformation) -> Iterator[StreamBatch]:
    """Decodes what :func:`read_buffer` has returned. Buffers that follow each other and have one format are joined."""
    for batch in joined(read):
        yield _decode(batch, type_info)


def joined(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins record batches that follow each other and have one schema, with its metadata."""
    start = 0
    for i in range(1, len(batches) + 1):
        if i == len(batches) or not batches[i].schema.equals(batches[start].schema, check_metadata=True):
            yield pa.concat_batches(batches[start:i]) if i > start + 1 else batches[start]
            start = i


def read_buffer(payload: pa.Buffer) -> pa.RecordBatch:
    """Returns the columns of a BUFFER row, without copying them."""
    size = _PREFIX_BYTES + int.from_bytes(payload[4:_PREFIX_BYTES], "little")
    schema = _schema_of(payload[:size].to_pybytes()) if size <= _MOST_SCHEMA_BYTES else None
    if schema is not None:
        return pa.ipc.read_record_batch(payload.slice(size), schema)
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


@lru_cache(maxsize=256)
def _schema_of(message: bytes) -> pa.Schema | None:
    """Returns the schema that a stream begins with; None if dictionaries come before the records."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return None if any(map(_is_dictionary, schema.types)) else schema


def _is_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_is_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _decode(batch: pa.RecordBatch, type_info: TypeInformation) -> StreamBatch:
    names, metadata, values = batch.schema.names, batch.schema.metadata or {}, batch.column("value")
    if "timestamp" in names:
        timestamps = batch.column("timestamp").to_numpy()
    else:
        field = json.loads(metadata[b"timestamp_field"])  # without one, the records have no event time
        timestamps = np.full(len(values), NO_TIMESTAMP) if field is None else struct_field(values, field).to_numpy()
    keys = None
    if b"key_type" in metadata:
        values, keys = keys_of(batch, _type(metadata[b"key_type"]))
    if b"accumulator_type" in metadata:
        return StreamBatch(_type(metadata[b"accumulator_type"]), timestamps, column=values, keys=keys, combined=True)
    if values.type != type_info.arrow_type:  # in-flight data of an earlier release
        values = upgraded(values, type_info)
    return StreamBatch(type_info, timestamps, column=values, keys=keys)


@lru_cache(maxsize=256)
def _type(description: bytes) -> TypeInformation:
    return type_from_json(json.loads(description))
