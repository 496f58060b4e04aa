"""Where the records and events of an operator go that leave its task (Flink: ``Output``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.operator_specs import SourceSpec, TimestampsSpec
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, PartitionerKind
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.operators.local_aggregate import LocalAggregate, local_aggregate_of
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.key_columns import key_values
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import Kind, encode_buffer
from dagster_flinkpy.runtime.task.latency import LatencyMarker

__all__ = ["RecordWriterOutput", "decode_event", "encode_element", "watermark_origins", "writer_output"]

_IDLE, _ACTIVE = b"\x01", b"\x00"
_WATERMARK_BYTES = 8


class RecordWriterOutput:
    """An edge that leaves the task (Flink: ``RecordWriterOutput``)."""

    def __init__(self, edge: JobEdge, writer: RecordWriter) -> None:
        self.edge, self.writer = edge, writer

    def emit(self, batch: StreamBatch) -> None:
        """Takes records."""
        self.writer.emit(batch)

    def watermark(self, origin: str, watermark: int) -> None:
        """Takes a watermark, and the uid of the operator that generated it."""
        self.writer.event(Kind.WATERMARK, encode_element(Kind.WATERMARK, (origin, watermark)))

    def status(self, origin: str, idle: bool) -> None:
        """Takes the status of an origin of watermarks: an idle one sends nothing before the next barrier."""
        self.writer.event(Kind.STREAM_STATUS, encode_element(Kind.STREAM_STATUS, (origin, idle)))

    def latency_marker(self, marker: LatencyMarker) -> None:
        """Takes a latency marker."""
        self.writer.latency_marker(marker.to_bytes())

    def flush(self) -> None:
        """Sends all buffered records."""
        self.writer.flush()

    def flush_to_room(self, has_room: Callable[[int, int], bool]) -> bool:
        """Sends the buffered records for which there is room, see :meth:`RecordWriter.flush_to_room`."""
        return self.writer.flush_to_room(has_room)

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        """Takes a barrier, a digest of all output of the task before it, and whether it overtakes nothing."""
        barrier = {"checkpoint_id": checkpoint_id, "digest": digest, "aligned": aligned}
        self.writer.barrier(json.dumps(barrier).encode())


def encode_element(kind: Kind, value: Any) -> Any:
    """Encodes an element for the shuffle or for channel state."""
    if isinstance(value, pa.Buffer):
        return value
    if kind is Kind.BUFFER:
        columns = [value.column, pa.array(value.timestamps)]
        return encode_buffer(pa.RecordBatch.from_arrays(columns, names=["value", "timestamp"]))
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


def watermark_origins(graph: JobGraph, uid: str) -> tuple[str, ...]:
    """Returns the uids of the operators that generate the watermarks which an operator sends."""
    if isinstance(graph.vertex(uid).spec, SourceSpec | TimestampsSpec):
        return (uid,)
    return tuple(dict.fromkeys(origin for e in graph.inputs(uid) for origin in watermark_origins(graph, e.source)))


def writer_output(edge: JobEdge, writer: RecordWriter, job: EpochJob) -> RecordWriterOutput:
    """Returns the output for an edge through the shuffle.

    Records are not combined if barriers may overtake them: in-flight data is stored, and stays records.
    """
    target = job.graph.vertex(edge.target)
    if edge.partitioner.kind is PartitionerKind.HASH and job.alignment_timeout is None:
        local = local_aggregate_of(target.spec, target.uid)
        if local is not None:
            reached = [job.input(target.uid, i).watermark for i in range(target.parallelism)]
            floor = max((each for each in reached if each is not None), default=MIN_WATERMARK)
            return CombiningOutput(edge, writer, local, watermark_origins(job.graph, edge.source), floor)
    return RecordWriterOutput(edge, writer)


class CombiningOutput(RecordWriterOutput):
    """Holds records back, combined, until the windows that they are in may end.

    They leave before the watermark that ends them and before each barrier, so windows fire with the same contents, and
    a checkpoint covers the same records. Whether a record is late is up to the operator. A batch
    with one that might be late, or makes a window fire again, is sent as it is, after what is held.

    The operator's event time is at most that of this channel, unless the channel was idle and event time went on
    without it, or was further when the Spark job began.

    If combining leaves more than 0.7 of the records, they are sent as they are until the next barrier.

    Args:
        edge: The edge.
        writer: Sends records to the subtasks of their keys.
        local: Combines records.
        origins: Where the watermarks of the channel come from.
        floor: The greatest event time that a subtask of the operator has at the start of the Spark job.
    """

    def __init__(
        self, edge: JobEdge, writer: RecordWriter, local: LocalAggregate, origins: Sequence[str], floor: int
    ) -> None:
        super().__init__(edge, writer)
        self._local, self._floor = local, floor
        self._reached = dict.fromkeys(origins, MIN_WATERMARK)
        self._was_idle = False

    def emit(self, batch: StreamBatch) -> None:
        if not len(batch):
            return
        combinable = not self._was_idle and self._local.pays and self._local.takes(batch)
        if not combinable or self._local.over(batch.timestamps, self._event_time):
            self._send()  # Of the records of a window the first one counts, so nothing overtakes what is held.
            self.writer.emit(batch)
            return
        key_type, keys = self.writer.keys(batch, key_values)
        for combined in self._local.add(key_type, keys, batch):
            self.writer.emit(combined)

    def watermark(self, origin: str, watermark: int) -> None:
        self._reached[origin] = watermark
        if self._local.closes <= self._event_time:
            self._send()
        super().watermark(origin, watermark)

    def status(self, origin: str, idle: bool) -> None:
        if idle:
            self._send()
            self._was_idle = True
        super().status(origin, idle)

    def flush(self) -> None:
        self._send()
        super().flush()

    def flush_to_room(self, has_room: Callable[[int, int], bool]) -> bool:
        self._send()
        return super().flush_to_room(has_room)

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        super().barrier(checkpoint_id, digest, aligned)
        self._local.pays = True

    @property
    def _event_time(self) -> int:
        """The greatest event time that the operator may have reached."""
        return max(self._floor, min(self._reached.values()))

    def _send(self) -> None:
        for combined in self._local.take():
            self.writer.emit(combined)
