"""The record writer: distributes the records of an edge over buffers, one for each downstream subtask.

Mirrors Flink's ``RecordWriter`` and ``ResultPartition``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa

from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind, StreamPartitioner
from dagster_flinkpy.errors import FlinkPyError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.key_hashes import key_groups_of_hashes, operator_indexes
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS, user_error
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.shuffle.channel_selectors import (
    ChannelSelector,
    CustomSelector,
    RoundRobinSelector,
    ShuffleSelector,
    downstream_subtasks,
)
from dagster_flinkpy.runtime.shuffle.key_columns import field_positions, key_column
from dagster_flinkpy.runtime.shuffle.key_dictionary import KeyDictionary
from dagster_flinkpy.runtime.shuffle.wire import (
    AFTER_STATIC,
    SEQ_BITS,
    Kind,
    RowOutput,
    encode_buffer,
    encode_element,
    joined,
)

__all__ = ["BUFFER_ROWS", "BUFFER_SIZE", "NETWORK_MEMORY", "BufferPool", "RecordWriter"]

K = TypeVar("K")
P = ParamSpec("P")

BUFFER_SIZE = 1 << 20
"""The size at which a buffer is sent at the latest, in bytes."""

BUFFER_ROWS = 16_384
"""A batch of large records is cut into buffers of so many, of up to four times the size. Receivers process that many at
once: they would join smaller buffers, which is another copy."""

_SMALL_ONES = 64
"""A batch is cut into at most about so many buffers that are smaller: each has a cost."""

NETWORK_MEMORY = 32 << 20
"""The maximum size of all records that a task holds back to fill buffers, in bytes."""


class BufferPool:
    """Limits the bytes that the record writers of a task hold back; the largest buffer is sent first.

    Flink: ``LocalBufferPool``.
    """

    def __init__(self, limit: int = NETWORK_MEMORY) -> None:
        self._limit = limit
        self._pending: dict[tuple[RecordWriter, int], int] = {}
        self._total = 0

    def add(self, writer: RecordWriter, lane: int, size: int) -> None:
        """Adds pending bytes and flushes a buffer if there are too many."""
        owner = (writer, lane)
        pending = self._pending.get(owner, 0) + size
        self._pending[owner] = pending
        self._total += size
        if pending >= writer.buffer_size(lane):
            writer.flush_lane(lane)
        elif self._total > self._limit:
            largest, largest_lane = max(self._pending, key=lambda o: self._pending[o])
            largest.flush_lane(largest_lane)

    def release(self, writer: RecordWriter, lane: int) -> int:
        """Forgets the pending bytes of a lane, which are sent, and returns their number."""
        size = self._pending.pop((writer, lane), 0)
        self._total -= size
        return size


class RecordWriter:
    """Distributes the records of one edge over the downstream subtasks (Flink: ``RecordWriter``).

    A buffer for all subtasks is encoded once.

    Args:
        edge: The edge.
        subtask: Index of the writing subtask, which is the channel.
        targets: Downstream parallelism.
        max_parallelism: Number of key groups of the downstream operator.
        output: Takes the rows.
        channels: Upstream parallelism.
        replay: Job id and checkpoint id, which are the same when these records are sent again.
        after_static: Whether the receivers take what static inputs send first.
        pool: The buffer pool of the task.
        together: How many records a buffer has at least, up to its largest size, before it is full. Receivers may take
            as long for one.
    """

    def __init__(
        self,
        edge: JobEdge,
        subtask: int,
        targets: int,
        max_parallelism: int,
        output: RowOutput,
        channels: int = 1,
        *,
        replay: tuple[str, int] = ("", 0),
        after_static: bool = False,
        pool: BufferPool | None = None,
        together: int = 1,
    ) -> None:
        self.edge = edge
        self._together, self._record_size = together, 0.0
        self._frame = 0
        """The size of a buffer without records, once there are any."""
        self._kind = kind = edge.partitioner.kind
        self._subtask = subtask
        self._width = targets
        self._max_parallelism = max_parallelism
        self._output = output
        self._pool = pool or BufferPool()
        self._targets = downstream_subtasks(kind, subtask, channels, targets)
        # A lane is the receiver of a buffer: all subtasks for a broadcast, otherwise one subtask.
        broadcast = kind is PartitionerKind.BROADCAST
        self._lanes = {0: self._targets} if broadcast else {t: [t] for t in self._targets}
        self._pending: dict[int, list[pa.RecordBatch]] = {lane: [] for lane in self._lanes}
        self._first_seq = AFTER_STATIC if after_static else 0
        self._seq = dict.fromkeys(self._targets, self._first_seq)
        self._markers = subtask
        self.bytes_out = 0
        """The size of all encoded records sent so far, to each subtask that they were sent to."""
        self._dictionary = KeyDictionary() if kind is PartitionerKind.HASH else None
        self._selector = self._create_selector(*replay) if len(self._targets) > 1 else None
        # Fields that may contain the timestamps. One that once did not is not tried again: the schema seldom changes.
        record = edge.type_info.arrow_type
        fields = list(record) if pa.types.is_struct(record) else []
        self._timestamp_fields = [None, *(i for i, f in enumerate(fields) if f.type == pa.int64())]

    def _create_selector(self, job_id: str, checkpoint_id: int) -> ChannelSelector | None:
        """Returns the selector of subtasks, or None if this kind of edge needs none."""
        partitioner, subtask, targets = self.edge.partitioner, self._subtask, self._targets
        match self._kind:
            case PartitionerKind.REBALANCE:
                return RoundRobinSelector(targets, subtask % len(targets))
            case PartitionerKind.RESCALE:
                return RoundRobinSelector(targets, 0)
            case PartitionerKind.SHUFFLE:
                return ShuffleSelector(
                    len(targets), job_id=job_id, checkpoint_id=checkpoint_id, edge=self.edge.id, subtask=subtask
                )
            case PartitionerKind.CUSTOM:
                return CustomSelector(partitioner, len(targets))
            case _:
                return None

    def emit(self, batch: StreamBatch) -> None:
        """Takes records, and sends buffers that are full."""
        if not len(batch):
            return
        columns, metadata = {"value": batch.column}, {}
        if batch.combined:
            metadata["accumulator_type"] = json.dumps(batch.type_info.to_json())
            columns["timestamp"] = pa.array(batch.timestamps)
        else:
            # Timestamps that are also a field of the records are not sent twice.
            while self._timestamp_fields and not _holds_times(batch, self._timestamp_fields[0]):
                self._timestamp_fields.pop(0)
            if self._timestamp_fields:
                metadata["timestamp_field"] = json.dumps(self._timestamp_fields[0])
            else:
                columns["timestamp"] = pa.array(batch.timestamps)
        targets: np.ndarray[Any, Any] | None = None
        if self._kind is PartitionerKind.HASH:
            selector = self.edge.partitioner.selector
            if batch.combined:
                assert batch.keys is not None
                keys = batch.keys
            else:
                keys = self.keys(batch, key_column)
            metadata["key_type"] = json.dumps(keys.type_info.to_json())
            if keys.seldom_repeat:
                metadata["seldom_repeat"] = "1"
            if isinstance(selector, str | tuple) and batch.type_info == self.edge.type_info:
                metadata["key_fields"] = json.dumps(field_positions(batch.type_info, selector))
            else:
                columns["key"] = keys.column
            columns["hash"] = pa.array(keys.hashes)
            if self._width > 1:
                groups = key_groups_of_hashes(keys.hashes, self._max_parallelism)
                targets = operator_indexes(groups, self._max_parallelism, self._width)
        elif self._selector is not None:
            what = f"partition_custom in front of operator {self.edge.target!r}"
            targets = self._call(what, self._selector.select, batch)
        records = pa.RecordBatch.from_pydict(columns, metadata=metadata)
        if targets is None or (targets == targets[0]).all():
            self._append(next(iter(self._lanes)) if targets is None else int(targets[0]), records)
        else:
            self._split(records, targets)

    def keys(self, batch: StreamBatch, compute: Callable[[StreamPartitioner, StreamBatch], K]) -> K:
        """Returns the keys of a batch; an error names the operator behind the edge."""
        name = f"key_by in front of operator {self.edge.target!r}"
        try:
            return self._call(name, compute, self.edge.partitioner, batch)
        except (UnsupportedKeyTypeError, TypeMismatchError) as e:
            raise type(e)(f"{name}: {e}") from e

    def _call(self, what: str, function: Callable[P, K], *args: P.args, **kwargs: P.kwargs) -> K:
        """Calls what may call a function of the user."""
        try:
            return function(*args, **kwargs)
        except FlinkPyError:
            raise
        except USER_EXCEPTIONS as e:
            raise user_error(e, what=what, operator=self.edge.source, subtask=self._subtask) from e

    def _split(self, records: pa.RecordBatch, targets: np.ndarray[Any, Any]) -> None:
        order = np.argsort(targets.astype(np.uint16), kind="stable")
        sorted_records = records.take(pa.array(order))
        ends = np.cumsum(np.bincount(targets, minlength=self._width)).tolist()
        start, total = 0, len(order)
        for target, end in enumerate(ends):
            if end > start:
                if (end - start) * self._width * 2 < total:
                    # A slice would keep the whole batch in memory while its few records wait for a full buffer.
                    part = records.take(pa.array(order[start:end]))
                else:
                    part = sorted_records.slice(start, end - start)
                self._append(target, part)
            start = end

    def _append(self, lane: int, records: pa.RecordBatch) -> None:
        self._pending[lane].append(records)
        size = _size_of(records)
        self._record_size = size / records.num_rows
        self._frame = self._frame or encode_buffer(records.slice(0, 0)).size
        self._pool.add(self, lane, size)

    def buffer_size(self, lane: int) -> int:
        """Returns the size of the records of a buffer, in bytes."""
        wanted = min(self._output.buffer_size(self.edge.id, target) for target in self._lanes[lane])
        if wanted < BUFFER_SIZE:
            wanted -= self._frame
        return min(BUFFER_SIZE, max(wanted, round(self._together * self._record_size), 1))

    def flush(self) -> None:
        """Sends all pending records."""
        for lane in self._lanes:
            self.flush_lane(lane)

    def flush_to_room(self, has_room: Callable[[int, int], bool]) -> bool:
        """Sends the pending records of subtasks that have room for a buffer. Those of others would only wait elsewhere.

        Returns:
            Whether none are left.
        """
        for lane, targets in self._lanes.items():
            if self._pending[lane] and all(has_room(self.edge.id, target) for target in targets):
                self.flush_lane(lane)
        return not any(self._pending.values())

    def flush_lane(self, lane: int) -> None:
        """Sends the pending records of one lane."""
        pending = self._pending[lane]
        if not pending:
            return
        size = self._pool.release(self, lane)
        self._pending[lane] = []
        # Key types come from the records, so a change of type starts a new buffer.
        parts = list(joined(pending))
        for records in parts:
            self._send(lane, records, size if len(parts) == 1 else records.nbytes)

    def _send(self, lane: int, records: pa.RecordBatch, size: int) -> None:
        """Sends buffers of about 1 MiB, those of large records of up to 4 MiB; a larger record gets its own buffer."""
        most = self.buffer_size(lane)
        rows = max(records.num_rows * most // max(size, 1), 1)
        rows = max(rows, min(4 * rows, BUFFER_ROWS) if most == BUFFER_SIZE else records.num_rows // _SMALL_ONES)
        # Records of a batch have similar sizes. Up to half a buffer too much is not split.
        rows = records.num_rows if records.num_rows * 2 <= rows * 3 else rows
        for start in range(0, records.num_rows, rows):
            part = records.slice(start, rows)
            payload = encode_buffer(part if self._dictionary is None else self._dictionary.encode(part))
            self.bytes_out += payload.size * len(self._lanes[lane])
            for target in self._lanes[lane]:
                self._row(target, Kind.BUFFER, payload)

    def _row(self, target: int, kind: Kind, payload: Any) -> None:
        self._output.add(target, self.edge.id, self._subtask, self._seq[target], kind, payload)
        self._seq[target] += 1

    def watermark(self, origin: str, watermark: int) -> None:
        """Sends a watermark, and the uid of the operator that generated it."""
        self._event(Kind.WATERMARK, encode_element(Kind.WATERMARK, (origin, watermark)))

    def status(self, origin: str, idle: bool) -> None:
        """Sends the status of an origin of watermarks: an idle one sends nothing before the next barrier."""
        self._event(Kind.STREAM_STATUS, encode_element(Kind.STREAM_STATUS, (origin, idle)))

    def _event(self, kind: Kind, payload: bytes) -> None:
        """Sends an event to every downstream subtask, after all records emitted so far."""
        self.flush()
        for target in self._targets:
            self._row(target, kind, payload)

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        """Sends a barrier. Seq jumps after it, so that all channels, sorted by seq, reach it together."""
        barrier = {"checkpoint_id": checkpoint_id, "digest": digest, "aligned": aligned}
        self._event(Kind.BARRIER, json.dumps(barrier).encode())
        for target in self._targets:
            self._seq[target] = ((self._seq[target] >> SEQ_BITS) + 1 << SEQ_BITS) + self._first_seq

    def latency_marker(self, marker: JsonRecord) -> None:
        """Sends a latency marker to one subtask, a different one each time (Flink: ``RecordWriter.randomEmit``)."""
        target = self._targets[self._markers % len(self._targets)]
        self._markers += 1
        self.flush_lane(target if target in self._lanes else 0)
        self._row(target, Kind.LATENCY_MARKER, marker.to_bytes())


def _size_of(records: pa.RecordBatch) -> int:
    """Returns how many bytes records have. Arrow takes 10 us to find that out, if they are a slice."""
    widths = [_width(kind) for kind in records.schema.types]
    return int(records.nbytes) if None in widths else round(sum(filter(None, widths)) * records.num_rows)


@lru_cache(maxsize=256)
def _width(kind: pa.DataType) -> float | None:
    """Returns how many bytes a value of a type has, or None if they have different sizes."""
    if pa.types.is_struct(kind):
        widths = [_width(field.type) for field in kind]
        return None if None in widths else sum(filter(None, widths))
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    return kind.bit_width / 8 if fixed else None


def _holds_times(batch: StreamBatch, field: int | None) -> bool:
    first = batch.timestamps[0]
    if field is None:
        return bool(first == NO_TIMESTAMP and (batch.timestamps == NO_TIMESTAMP).all())
    if batch.column.null_count:
        return False
    numbers = batch.column.field(field)
    return bool(numbers[0].as_py() == first and not numbers.null_count and np.array_equal(numbers, batch.timestamps))
