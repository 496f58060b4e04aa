"""An edge whose records are combined per key before they leave the task."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.job_graph import JobEdge, PartitionerKind
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.operators.local_aggregate import LocalAggregate, local_aggregate_of
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.key_columns import key_values
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.task.operator_task import RecordWriterOutput, watermark_origins

__all__ = ["writer_output"]


def writer_output(edge: JobEdge, writer: RecordWriter, job: EpochJob) -> RecordWriterOutput:
    """Returns the output for an edge through the shuffle.

    Records are not combined if barriers may overtake them: in-flight data is stored, and stays records.
    """
    target = job.graph.vertex(edge.target)
    if edge.partitioner.kind is PartitionerKind.HASH and job.alignment_timeout is None:
        local = local_aggregate_of(target.spec)
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

    def barrier(self, checkpoint_id: int, digest: str) -> None:
        super().barrier(checkpoint_id, digest)
        self._local.pays = True

    @property
    def _event_time(self) -> int:
        """The greatest event time that the operator may have reached."""
        return max(self._floor, min(self._reached.values()))

    def _send(self) -> None:
        for combined in self._local.take():
            self.writer.emit(combined)
