"""The exchange: every edge between stages is a Spark shuffle of rows that carry Arrow buffers and events.

All rows have one schema, whatever flows through them. The record writer mirrors Flink's ``RecordWriter`` and
``ResultPartition``; seq is a position in a channel, so that a replay is in the same order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, infer_key_type, type_from_json
from dagster_flinkpy.datastream.functions import KeySelector
from dagster_flinkpy.datastream.functions import Partitioner as CustomPartitioner
from dagster_flinkpy.datastream.job_graph import JobEdge, Partitioner, PartitionerKind
from dagster_flinkpy.datastream.operators import as_callable
from dagster_flinkpy.errors import FlinkPyError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.key_groups import StructAs, java_hash_codes, key_groups_of_hashes, operator_indexes
from dagster_flinkpy.runtime.batch import KeyColumn, StreamBatch
from dagster_flinkpy.runtime.failure import user_error

__all__ = [
    "BUFFER_SIZE",
    "COLLECTED",
    "NO_EDGE",
    "PRINTED",
    "SPARK_SCHEMA",
    "WIRE_SCHEMA",
    "Kind",
    "RecordWriter",
    "TaskOutput",
    "WireRow",
    "decode_buffer",
    "encode_buffer",
    "key_column",
    "rows_of",
]

BUFFER_SIZE = 1 << 20
"""Bytes of records after which a buffer is sent."""

_OUTPUT_BATCH_BYTES = 8 << 20

NO_EDGE = -1
"""Edge of the rows that go to the driver."""

COLLECTED, PRINTED = "value", "line"
"""Names of the column of a COLLECT row: records for the caller, or lines to print."""


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
SPARK_SCHEMA = "target int, edge int, channel int, seq long, kind byte, payload binary"


@dataclass(frozen=True)
class WireRow:
    """One row of an exchange, decoded as far as the columns go."""

    target: int
    edge: int
    channel: int
    seq: int
    kind: Kind
    payload: pa.Buffer


def rows_of(batch: pa.RecordBatch) -> Iterator[WireRow]:
    """The rows of a record batch; payloads are not copied."""
    columns = [batch.column(i).to_numpy(zero_copy_only=False).tolist() for i in range(5)]
    payloads = batch.column(5)
    for i, (target, edge, channel, seq, kind) in enumerate(zip(*columns, strict=True)):
        yield WireRow(target, edge, channel, seq, Kind(kind), payloads[i].as_buffer())


class TaskOutput:
    """Collects the rows a task sends, in record batches of about 8 MiB.

    Payloads are written one behind another into one buffer, which becomes the column without a copy.
    """

    def __init__(self) -> None:
        self._full: list[pa.RecordBatch] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._sink = pa.BufferOutputStream()
        self._offsets = [0]
        self.digest = 0
        """CRC of all that was sent: two attempts of a task that sent the same have the same."""

    def add(self, target: int, edge: int, channel: int, seq: int, kind: Kind, payload: Any = b"") -> None:
        """Appends a row."""
        self._sink.write(payload)
        self._offsets.append(self._sink.tell())
        self._rows.append((target, edge, channel, seq, int(kind)))
        if kind in (Kind.BUFFER, Kind.WATERMARK, Kind.STREAM_STATUS):
            self.digest = zlib.crc32(payload, self.digest)
        if self._offsets[-1] >= _OUTPUT_BATCH_BYTES:
            self._finish()

    @property
    def ready(self) -> bool:
        """Whether there is enough for a record batch."""
        return bool(self._full)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Gives what was collected, if anything."""
        if self._rows:
            self._finish()
        full, self._full = self._full, []
        yield from full

    def _finish(self) -> None:
        n = len(self._rows)
        offsets = pa.py_buffer(np.array(self._offsets, dtype=np.int32))
        payload = pa.BinaryArray.from_buffers(pa.binary(), n, [None, offsets, self._sink.getvalue()])
        types = [f.type for f in WIRE_SCHEMA][:5]
        columns = [pa.array(c, type=t) for c, t in zip(zip(*self._rows, strict=True), types, strict=True)]
        self._rows, self._sink, self._offsets = [], pa.BufferOutputStream(), [0]
        self._full.append(pa.RecordBatch.from_arrays([*columns, payload], schema=WIRE_SCHEMA))


def encode_buffer(batch: pa.RecordBatch) -> pa.Buffer:
    """A record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_buffer(payload: pa.Buffer, type_info: TypeInformation) -> StreamBatch:
    """The records of a BUFFER row, with their keys where the edge is keyed."""
    with pa.ipc.open_stream(payload) as reader:
        batch = reader.read_next_batch()
    keys = None
    if batch.num_columns == 4:
        key_type = _key_type(batch.schema.metadata[b"key_type"])
        keys = KeyColumn(key_type, batch.column(2), batch.column(3).to_numpy())
    return StreamBatch(type_info, batch.column(1).to_numpy(), column=batch.column(0), keys=keys)


@lru_cache(maxsize=256)
def _key_type(description: bytes) -> TypeInformation:
    return type_from_json(json.loads(description))


def key_column(partitioner: Partitioner, batch: StreamBatch) -> KeyColumn:
    """The keys of a batch.

    Raises:
        UnsupportedKeyTypeError: A key is None or has no stable hash; the message names the field.
        UserFunctionError: The key selector raised.
    """
    selector = partitioner.selector
    if isinstance(selector, str):
        key_type, column = _field(batch, selector)
    elif isinstance(selector, tuple):
        types, columns = zip(*(_field(batch, name) for name in selector), strict=True)
        key_type = TupleTypeInfo(types)
        column = pa.StructArray.from_arrays(columns, fields=list(key_type.arrow_type))
    else:
        get_key = as_callable(selector, KeySelector, "get_key")
        keys = [get_key(v) for v in batch.values]
        key_type = partitioner.key_type or infer_key_type(keys[0])
        column = key_type.to_arrow(keys)
        _check_no_null("the key", column, batch)
    struct_as: StructAs = "tuple"
    if isinstance(key_type, RowTypeInfo):
        struct_as = "named_row" if key_type.named else "row"
    return KeyColumn(key_type, column, java_hash_codes(column, struct_as=struct_as))


def _check_no_null(name: str, column: pa.Array, batch: StreamBatch) -> None:
    if column.null_count:
        i = pc.index(column.is_null(), True).as_py()
        raise UnsupportedKeyTypeError(f"{name} of record {batch.values[i]!r} is None; filter such records out first")
    if pa.types.is_struct(column.type):
        for i, child in enumerate(column.flatten()):
            _check_no_null(f"field {column.type[i].name!r} of the key", child, batch)


def _field(batch: StreamBatch, name: str) -> tuple[TypeInformation, pa.Array]:
    row_type = batch.type_info
    if not isinstance(row_type, RowTypeInfo) or name not in row_type.field_names:
        raise UnsupportedKeyTypeError(f"key_by({name!r}): the stream's type {row_type} has no field of this name")
    column = pc.struct_field(batch.column, name)
    if column.null_count:
        raise UnsupportedKeyTypeError(
            f"key field {name!r} is null in {column.null_count} records; filter them out first"
        )
    return row_type.field_types[row_type.field_names.index(name)], column


class RecordWriter:
    """Spreads the records of one edge over the subtasks downstream (Flink: ``RecordWriter``, ``ChannelSelector``).

    Args:
        edge: The edge.
        subtask: Index of the subtask that writes: the channel.
        targets: Parallelism downstream.
        max_parallelism: Key groups of the operator downstream.
        output: Where the rows go.
        channels: Parallelism upstream.
    """

    def __init__(
        self,
        edge: JobEdge,
        subtask: int,
        targets: int,
        max_parallelism: int,
        output: TaskOutput,
        channels: int = 1,
    ) -> None:
        self._edge = edge
        self._subtask = subtask
        self._width = targets
        self._max_parallelism = max_parallelism
        self._output = output
        self._forward = edge.partitioner.kind is PartitionerKind.FORWARD
        self._targets = [subtask] if self._forward else list(range(targets))
        self._pending: dict[int, list[pa.RecordBatch]] = {t: [] for t in self._targets}
        self._pending_bytes = dict.fromkeys(self._targets, 0)
        self._seq = dict.fromkeys(self._targets, 0)
        self._next = subtask % targets
        # RESCALE: first and number of the subtasks downstream that this one feeds; a pointwise share of them.
        first = subtask * targets // channels
        self._share = first, max((subtask + 1) * targets // channels - first, 1)

    def emit(self, batch: StreamBatch) -> None:
        """Takes records; full buffers go to the output."""
        if not len(batch):
            return
        kind = self._edge.partitioner.kind
        arrays = [batch.column, pa.array(batch.timestamps)]
        fields = [pa.field("value", arrays[0].type), pa.field("timestamp", pa.int64())]
        metadata = None
        targets: np.ndarray[Any, Any] | None = None
        if kind is PartitionerKind.HASH:
            keys = self._keys(batch)
            arrays += [keys.column, pa.array(keys.hashes)]
            fields += [pa.field("key", keys.column.type), pa.field("hash", pa.int32())]
            metadata = {"key_type": json.dumps(keys.type_info.to_json())}
            if self._width > 1:
                groups = key_groups_of_hashes(keys.hashes, self._max_parallelism)
                targets = operator_indexes(groups, self._max_parallelism, self._width)
        elif kind is PartitionerKind.REBALANCE and self._width > 1:
            targets = (np.arange(len(batch)) + self._next) % self._width
            self._next = (self._next + len(batch)) % self._width
        elif kind is PartitionerKind.RESCALE and self._width > 1:
            first, width = self._share
            targets = first + (np.arange(len(batch)) + self._next) % width
            self._next = (self._next + len(batch)) % width
        elif kind is PartitionerKind.CUSTOM:
            targets = self._custom(batch)
        records = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))
        if targets is not None:
            self._split(records, targets)
        elif kind is PartitionerKind.BROADCAST:
            for target in self._targets:
                self._append(target, records)
        else:
            self._append(self._subtask if self._forward else 0, records)

    def _keys(self, batch: StreamBatch) -> KeyColumn:
        name = f"key_by in front of operator {self._edge.target!r}"
        try:
            return key_column(self._edge.partitioner, batch)
        except (UnsupportedKeyTypeError, TypeMismatchError) as e:
            raise type(e)(f"{name}: {e}") from e
        except FlinkPyError:
            raise
        except Exception as e:
            raise user_error(e, what=name, operator=self._edge.source, subtask=self._subtask) from e

    def _custom(self, batch: StreamBatch) -> np.ndarray[Any, Any]:
        """The subtasks that a partitioner of the user chooses."""
        partitioner = self._edge.partitioner
        partition = as_callable(partitioner.custom, CustomPartitioner, "partition")
        get_key, width = as_callable(partitioner.selector, KeySelector, "get_key"), self._width
        name = f"partition_custom in front of operator {self._edge.target!r}"
        try:
            chosen = [partition(get_key(v), width) for v in batch.values]
        except Exception as e:
            raise user_error(e, what=name, operator=self._edge.source, subtask=self._subtask) from e
        for value, target in zip(batch.values, chosen, strict=True):
            if not isinstance(target, (int, np.integer)) or not 0 <= target < width:
                raise TypeMismatchError(f"{name} gave {target!r} for record {value!r}; wants an int in 0..{width - 1}")
        return np.array(chosen, dtype=np.int64)

    def _split(self, records: pa.RecordBatch, targets: np.ndarray[Any, Any]) -> None:
        order = np.argsort(targets.astype(np.uint16), kind="stable")
        sorted_records = records.take(pa.array(order))
        ends = np.cumsum(np.bincount(targets, minlength=self._width)).tolist()
        start = 0
        for target, end in enumerate(ends):
            if end > start:
                self._append(target, sorted_records.slice(start, end - start))
            start = end

    def _append(self, target: int, records: pa.RecordBatch) -> None:
        self._pending[target].append(records)
        self._pending_bytes[target] += records.nbytes
        if self._pending_bytes[target] >= BUFFER_SIZE:
            self._flush(target)

    def flush(self) -> None:
        """Sends what is pending."""
        for target in self._targets:
            self._flush(target)

    def _flush(self, target: int) -> None:
        pending = self._pending[target]
        if not pending:
            return
        # Key types are taken from the records: a change of type starts a new buffer.
        start = 0
        for i in range(1, len(pending) + 1):
            if i == len(pending) or not pending[i].schema.equals(pending[start].schema, check_metadata=True):
                self._row(target, Kind.BUFFER, encode_buffer(pa.concat_batches(pending[start:i])))
                start = i
        self._pending[target] = []
        self._pending_bytes[target] = 0

    def _row(self, target: int, kind: Kind, payload: Any) -> None:
        self._output.add(target, self._edge.id, self._subtask, self._seq[target], kind, payload)
        self._seq[target] += 1

    def event(self, kind: Kind, payload: bytes) -> None:
        """Sends an event behind all records emitted so far, to every subtask downstream."""
        self.flush()
        for target in self._targets:
            self._row(target, kind, payload)
