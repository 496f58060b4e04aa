"""Where the records and events of an operator go: to another one in its task, or through a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.program.job_graph import JobEdge, PartitionerKind
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.operators.local_aggregate import LocalAggregate, local_aggregate_of
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.key_columns import key_values
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.task.barrier_handlers import Barrier, Channel, Event
from dagster_flinkpy.runtime.task.latency import LatencyMarker

__all__ = ["ChainingOutput", "Output", "writer_output"]


class _Target(Protocol):
    context: OperatorContext

    def receive(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None: ...

    def handle(self, event: Event) -> None: ...


class ChainingOutput:
    """An edge inside the task, with the methods of `RecordWriter`; passes everything on without encoding it."""

    bytes_out = 0
    """No bytes are moved."""

    def __init__(self, edge: JobEdge, target: _Target) -> None:
        self.edge, self.target = edge, target
        self.channel = (edge.id, target.context.subtask)
        self._epoch = 0

    def emit(self, batch: StreamBatch) -> None:
        self._send(Kind.BUFFER, batch)

    def watermark(self, origin: str, watermark: int) -> None:
        self._send(Kind.WATERMARK, (origin, watermark))

    def status(self, origin: str, idle: bool) -> None:
        self._send(Kind.STREAM_STATUS, (origin, idle))

    def latency_marker(self, marker: LatencyMarker) -> None:
        self._send(Kind.LATENCY_MARKER, marker)

    def flush(self) -> None:
        """Does nothing, because records are not buffered inside a task."""

    def flush_to_room(self, has_room: Callable[[int, int], bool]) -> bool:
        """Returns True, for the same reason."""
        return True

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        self._epoch += 1
        self.target.handle(Barrier(self.channel, checkpoint_id, aligned))

    def _send(self, kind: Kind, value: Any) -> None:
        self.target.receive(self.channel, kind, value, self._epoch)


def writer_output(writer: RecordWriter, job: EpochJob) -> RecordWriter | CombiningOutput:
    """Returns the output for an edge through the shuffle.

    Records are not combined if barriers may overtake them: in-flight data is stored, and stays records.
    """
    edge, target = writer.edge, job.graph.vertex(writer.edge.target)
    if edge.partitioner.kind is PartitionerKind.HASH and job.alignment_timeout is None:
        local = local_aggregate_of(target.spec, target.uid)
        if local is not None:
            reached = [job.input(target.uid, i).watermark for i in range(target.parallelism)]
            floor = max((each for each in reached if each is not None), default=MIN_WATERMARK)
            return CombiningOutput(writer, local, job.graph.watermark_origins[edge.source], floor)
    return writer


class CombiningOutput:
    """Holds records back, combined, until the windows that they are in may end.

    They leave before the watermark that ends them and before each barrier, so windows fire with the same contents, and
    a checkpoint covers the same records. A buffer timeout does not send them: nothing has a result earlier. Whether a
    record is late is up to the operator. A batch with one that might be late, or makes a window fire again, is sent as
    it is, after what is held.

    The operator's event time is at most that of this channel, unless the channel was idle and event time went on
    without it, or was further when the Spark job began.

    If combining leaves more than 0.7 of the records, they are sent as they are until the next barrier.

    Args:
        writer: Sends records to the subtasks of their keys.
        local: Combines records.
        origins: Where the watermarks of the channel come from.
        floor: The greatest event time that a subtask of the operator has at the start of the Spark job.
    """

    def __init__(self, writer: RecordWriter, local: LocalAggregate, origins: Sequence[str], floor: int) -> None:
        self.edge, self._writer = writer.edge, writer
        self.latency_marker = writer.latency_marker
        self._local, self._floor = local, floor
        self._reached = dict.fromkeys(origins, MIN_WATERMARK)
        self._was_idle = False

    def emit(self, batch: StreamBatch) -> None:
        if not len(batch):
            return
        combinable = not self._was_idle and self._local.pays and self._local.takes(batch)
        if not combinable or self._local.over(batch.timestamps, self._event_time):
            self._send()  # Of the records of a window the first one counts, so nothing overtakes what is held.
            self._writer.emit(batch)
            return
        key_type, keys = self._writer.keys(batch, key_values)
        for combined in self._local.add(key_type, keys, batch):
            self._writer.emit(combined)

    def watermark(self, origin: str, watermark: int) -> None:
        self._reached[origin] = watermark
        if self._local.closes <= self._event_time:
            self._send()
        self._writer.watermark(origin, watermark)

    def status(self, origin: str, idle: bool) -> None:
        if idle:
            self._send()
            self._was_idle = True
        self._writer.status(origin, idle)

    def flush(self) -> None:
        self._send()
        self._writer.flush()

    def flush_to_room(self, has_room: Callable[[int, int], bool]) -> bool:
        if self._local.by_clock:
            self._send()
        return self._writer.flush_to_room(has_room)

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        self._writer.barrier(checkpoint_id, digest, aligned)
        self._local.pays = True

    @property
    def bytes_out(self) -> int:
        """The size of all records sent so far, see :class:`RecordWriter`."""
        return self._writer.bytes_out

    @property
    def _event_time(self) -> int:
        """The greatest event time that the operator may have reached."""
        return max(self._floor, min(self._reached.values()))

    def _send(self) -> None:
        for combined in self._local.take():
            self._writer.emit(combined)


Output = ChainingOutput | RecordWriter | CombiningOutput
"""An edge out of an operator (Flink: ``Output``)."""
