"""The exchange: every edge between stages is a Spark shuffle of rows that carry Arrow buffers and events.

All rows have one schema, whatever flows through them. The record writer mirrors Flink's ``RecordWriter`` and
``ResultPartition``; seq is a position in a channel, so that a replay is in the same order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.key_types import infer_key_type
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types, type_from_json
from dagster_flinkpy.datastream.functions import KeySelector
from dagster_flinkpy.datastream.job_graph import JobEdge, Partitioner, PartitionerKind
from dagster_flinkpy.datastream.operators import as_callable
from dagster_flinkpy.datastream.windowed_stream import NullByteKeySelector
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.key_groups import StructAs, java_hash_codes, key_groups_of_hashes, operator_indexes
from dagster_flinkpy.runtime.batch import NO_TIMESTAMP, KeyColumn, StreamBatch
from dagster_flinkpy.runtime.channel_selectors import (
    ChannelSelector,
    CustomSelector,
    RoundRobinSelector,
    ShuffleSelector,
    downstream_subtasks,
)
from dagster_flinkpy.runtime.failure import user_error

__all__ = [
    "BUFFER_SIZE",
    "COLLECTED",
    "MAX_PAYLOAD",
    "NETWORK_MEMORY",
    "NO_EDGE",
    "PRINTED",
    "SEQ_BITS",
    "SPARK_SCHEMA",
    "WIRE_SCHEMA",
    "BufferPool",
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

NETWORK_MEMORY = 32 << 20
"""Bytes of records that a task holds back at most to fill buffers."""

SEQ_BITS = 40
"""Seq is a position between two barriers, and above these bits the number of barriers before it."""

MAX_PAYLOAD = 1 << 30
"""Bytes of one row: half of what Spark and Arrow can address."""

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
    LATENCY_MARKER = 8


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
        """Appends a row.

        Raises:
            ConfigurationError: Neither Arrow nor Spark can move so large a payload.
        """
        if len(payload) > MAX_PAYLOAD:
            raise ConfigurationError(
                f"a record takes {len(payload)} bytes, and a row of the exchange holds {MAX_PAYLOAD} at most: emit "
                "smaller records, such as a reference to what they hold"
            )
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
    names, metadata, values = batch.schema.names, batch.schema.metadata or {}, batch.column("value")
    if "timestamp" in names:
        timestamps = batch.column("timestamp").to_numpy()
    else:
        timestamps = _times_of(values, json.loads(metadata[b"timestamp_field"]))
    keys = None
    if "hash" in names:
        key_type = _key_type(metadata[b"key_type"])
        column = batch.column("key") if "key" in names else _key_of_fields(values, json.loads(metadata[b"key_fields"]))
        keys = KeyColumn(key_type, column, batch.column("hash").to_numpy())
    return StreamBatch(type_info, timestamps, column=values, keys=keys)


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
        key_type = _field_type(batch, selector)
        column = _key_of_fields(batch.column, _positions(batch.type_info, selector))
    elif isinstance(selector, tuple):
        key_type = TupleTypeInfo([_field_type(batch, name) for name in selector])
        column = _key_of_fields(batch.column, _positions(batch.type_info, selector))
    elif isinstance(selector, NullByteKeySelector):
        key_type, column = Types.LONG(), pa.array(np.zeros(len(batch), dtype=np.int64))
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


def _field_type(batch: StreamBatch, name: str) -> TypeInformation:
    """The type of a key field, which is null in no record."""
    row_type = batch.type_info
    if not isinstance(row_type, RowTypeInfo) or name not in row_type.field_names:
        raise UnsupportedKeyTypeError(f"key_by({name!r}): the stream's type {row_type} has no field of this name")
    position = row_type.field_names.index(name)
    column = pc.struct_field(batch.column, [position])
    if column.null_count:
        raise UnsupportedKeyTypeError(
            f"key field {name!r} is null in {column.null_count} records; filter them out first"
        )
    return row_type.field_types[position]


def _positions(record_type: TypeInformation, selector: str | Sequence[str]) -> int | list[int]:
    """Of the fields of a selector; a name may be anything, and PyArrow takes some for paths."""
    assert isinstance(record_type, RowTypeInfo)
    names = record_type.field_names
    return names.index(selector) if isinstance(selector, str) else [names.index(name) for name in selector]


def _key_of_fields(values: pa.Array, positions: int | Sequence[int]) -> pa.Array:
    """The key column of one field, or the tuples of several."""
    if isinstance(positions, int):
        return pc.struct_field(values, [positions])
    columns = [pc.struct_field(values, [i]) for i in positions]
    return pa.StructArray.from_arrays(columns, names=[f"f{i}" for i in range(len(columns))])


def _times_of(values: pa.Array, field: int | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The timestamps of records that hold them in a field; without one, those of records without event time."""
    return np.full(len(values), NO_TIMESTAMP) if field is None else pc.struct_field(values, [field]).to_numpy()


def _holds_times(batch: StreamBatch, field: int | None) -> bool:
    first = batch.timestamps[0]
    if field is None:
        return bool(first == NO_TIMESTAMP and (batch.timestamps == NO_TIMESTAMP).all())
    if batch.column.null_count:
        return False
    numbers = batch.column.field(field)
    return bool(numbers[0].as_py() == first and not numbers.null_count and np.array_equal(numbers, batch.timestamps))


class BufferPool:
    """Bounds what the record writers of a task hold back: the largest buffer goes first (Flink: ``LocalBufferPool``).

    Args:
        limit: Bytes of all pending records. Default: 32 MiB.
    """

    def __init__(self, limit: int = NETWORK_MEMORY) -> None:
        self._limit = limit
        self._pending: dict[tuple[RecordWriter, int], int] = {}
        self._total = 0

    def add(self, writer: RecordWriter, lane: int, size: int) -> None:
        """Takes note of pending bytes, and flushes what has become too much."""
        owner = (writer, lane)
        pending = self._pending.get(owner, 0) + size
        self._pending[owner] = pending
        self._total += size
        if pending >= BUFFER_SIZE:
            writer.flush_lane(lane)
        elif self._total > self._limit:
            largest, largest_lane = max(self._pending, key=lambda o: self._pending[o])
            largest.flush_lane(largest_lane)

    def release(self, writer: RecordWriter, lane: int) -> None:
        """They were sent."""
        self._total -= self._pending.pop((writer, lane), 0)


class RecordWriter:
    """Spreads the records of one edge over the subtasks downstream (Flink: ``RecordWriter``).

    What goes to all subtasks is encoded once.

    Args:
        edge: The edge.
        subtask: Index of the subtask that writes: the channel.
        targets: Parallelism downstream.
        max_parallelism: Key groups of the operator downstream.
        output: Where the rows go.
        channels: Parallelism upstream.
        replay: Job id and checkpoint id, the same whenever these records are sent again.
        pool: That of the task.
    """

    def __init__(
        self,
        edge: JobEdge,
        subtask: int,
        targets: int,
        max_parallelism: int,
        output: TaskOutput,
        channels: int = 1,
        *,
        replay: tuple[str, int] = ("", 0),
        pool: BufferPool | None = None,
    ) -> None:
        self._edge = edge
        self._kind = kind = edge.partitioner.kind
        self._subtask = subtask
        self._width = targets
        self._max_parallelism = max_parallelism
        self._output = output
        self._pool = pool or BufferPool()
        self._targets = downstream_subtasks(kind, subtask, channels, targets)
        # A lane is what one buffer is filled for: all subtasks of a broadcast, else one.
        broadcast = kind is PartitionerKind.BROADCAST
        self._lanes = {0: self._targets} if broadcast else {t: [t] for t in self._targets}
        self._pending: dict[int, list[pa.RecordBatch]] = {lane: [] for lane in self._lanes}
        self._seq = dict.fromkeys(self._targets, 0)
        self._markers = subtask
        self._selector = self._create_selector(*replay) if len(self._targets) > 1 else None
        # What may hold the timestamps; what once did not is not tried again, so that the schema changes seldom.
        record = edge.type_info.arrow_type
        fields = list(record) if pa.types.is_struct(record) else []
        self._timestamp_fields = [None, *(i for i, f in enumerate(fields) if f.type == pa.int64())]

    def _create_selector(self, job_id: str, checkpoint_id: int) -> ChannelSelector | None:
        """What chooses among several subtasks; None where the kind says it all."""
        partitioner, subtask, targets = self._edge.partitioner, self._subtask, self._targets
        match self._kind:
            case PartitionerKind.REBALANCE:
                return RoundRobinSelector(targets, subtask % len(targets))
            case PartitionerKind.RESCALE:
                return RoundRobinSelector(targets, 0)
            case PartitionerKind.SHUFFLE:
                return ShuffleSelector(
                    len(targets), job_id=job_id, checkpoint_id=checkpoint_id, edge=self._edge.id, subtask=subtask
                )
            case PartitionerKind.CUSTOM:
                return CustomSelector(partitioner, len(targets))
            case _:
                return None

    def emit(self, batch: StreamBatch) -> None:
        """Takes records; full buffers go to the output."""
        if not len(batch):
            return
        columns, metadata = {"value": batch.column}, {}
        # What a field of the record holds already is not sent again.
        while self._timestamp_fields and not _holds_times(batch, self._timestamp_fields[0]):
            self._timestamp_fields.pop(0)
        if self._timestamp_fields:
            metadata["timestamp_field"] = json.dumps(self._timestamp_fields[0])
        else:
            columns["timestamp"] = pa.array(batch.timestamps)
        targets: np.ndarray[Any, Any] | None = None
        if self._kind is PartitionerKind.HASH:
            keys, selector = self._keys(batch), self._edge.partitioner.selector
            metadata["key_type"] = json.dumps(keys.type_info.to_json())
            if isinstance(selector, str | tuple):
                metadata["key_fields"] = json.dumps(_positions(batch.type_info, selector))
            else:
                columns["key"] = keys.column
            columns["hash"] = pa.array(keys.hashes)
            if self._width > 1:
                groups = key_groups_of_hashes(keys.hashes, self._max_parallelism)
                targets = operator_indexes(groups, self._max_parallelism, self._width)
        elif self._selector is not None:
            targets = self._select(self._selector, batch)
        records = pa.RecordBatch.from_pydict(columns, metadata=metadata)
        if targets is None:
            self._append(next(iter(self._lanes)), records)
        else:
            self._split(records, targets)

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

    def _select(self, selector: ChannelSelector, batch: StreamBatch) -> np.ndarray[Any, Any]:
        try:
            return selector.select(batch)
        except FlinkPyError:
            raise
        except Exception as e:
            what = f"partition_custom in front of operator {self._edge.target!r}"
            raise user_error(e, what=what, operator=self._edge.source, subtask=self._subtask) from e

    def _split(self, records: pa.RecordBatch, targets: np.ndarray[Any, Any]) -> None:
        order = np.argsort(targets.astype(np.uint16), kind="stable")
        sorted_records = records.take(pa.array(order))
        ends = np.cumsum(np.bincount(targets, minlength=self._width)).tolist()
        start, total = 0, len(order)
        for target, end in enumerate(ends):
            if end > start:
                if (end - start) * self._width * 2 < total:
                    # A slice keeps the whole batch in memory, and few records wait long for their buffer to fill.
                    self._append(target, records.take(pa.array(order[start:end])))
                else:
                    self._append(target, sorted_records.slice(start, end - start))
            start = end

    def _append(self, lane: int, records: pa.RecordBatch) -> None:
        self._pending[lane].append(records)
        self._pool.add(self, lane, records.nbytes)

    def flush(self) -> None:
        """Sends what is pending."""
        for lane in self._lanes:
            self.flush_lane(lane)

    def flush_lane(self, lane: int) -> None:
        """Sends what is pending in one lane."""
        pending = self._pending[lane]
        if not pending:
            return
        self._pool.release(self, lane)
        self._pending[lane] = []
        # Key types are taken from the records: a change of type starts a new buffer.
        start = 0
        for i in range(1, len(pending) + 1):
            if i == len(pending) or not pending[i].schema.equals(pending[start].schema, check_metadata=True):
                self._send(lane, pa.concat_batches(pending[start:i]))
                start = i

    def _send(self, lane: int, records: pa.RecordBatch) -> None:
        """Sends buffers of about 1 MiB; a record larger than that gets one of its own."""
        rows = max(records.num_rows * BUFFER_SIZE // max(records.nbytes, 1), 1)
        # Records of one batch are of like size: what is up to half a buffer over is not split.
        rows = records.num_rows if records.num_rows * 2 <= rows * 3 else rows
        for start in range(0, records.num_rows, rows):
            payload = encode_buffer(records.slice(start, rows))
            for target in self._lanes[lane]:
                self._row(target, Kind.BUFFER, payload)

    def _row(self, target: int, kind: Kind, payload: Any) -> None:
        self._output.add(target, self._edge.id, self._subtask, self._seq[target], kind, payload)
        self._seq[target] += 1

    def event(self, kind: Kind, payload: bytes) -> None:
        """Sends an event behind all records emitted so far, to every subtask downstream."""
        self.flush()
        for target in self._targets:
            self._row(target, kind, payload)

    def barrier(self, payload: bytes) -> None:
        """Sends a barrier. Seq leaps behind it, so that channels which are sorted by seq reach it together."""
        self.event(Kind.BARRIER, payload)
        for target in self._targets:
            self._seq[target] = ((self._seq[target] >> SEQ_BITS) + 1) << SEQ_BITS

    def latency_marker(self, payload: bytes) -> None:
        """Sends a latency marker to one subtask, each in turn (Flink: ``RecordWriter.randomEmit``)."""
        target = self._targets[self._markers % len(self._targets)]
        self._markers += 1
        self.flush_lane(target if target in self._lanes else 0)
        self._row(target, Kind.LATENCY_MARKER, payload)
