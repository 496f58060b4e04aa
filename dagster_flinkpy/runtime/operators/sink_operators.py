"""Operators at the end of a stream: sinks, print and collect; and at both ends of a blocking edge."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from dagster_flinkpy.checkpoint.reports.late_rows import QUARTER_HOUR_MS, to_metrics
from dagster_flinkpy.common.text import to_printed
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import (
    CommittingSinkWriter,
    SinkWriter,
    SourceSplit,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.operator_specs import CollectSpec, PrintSpec, SinkSpec, SourceSpec
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.shuffle.wire import COLLECTED, PRINTED

__all__ = ["BlockingEdgeSinkOperator", "BlockingEdgeSourceOperator", "CollectOperator", "PrintOperator", "SinkOperator"]


class SinkOperator(StreamOperator):
    """Writes the records of an epoch, and returns committables at the barrier (Flink: ``SinkWriterOperator``)."""

    def __init__(self, context: OperatorContext, spec: SinkSpec) -> None:
        super().__init__(context)
        self._sink = spec.sink
        self._writer: SinkWriter | None = None
        self._late = Counter[int]()
        """The late rows since the last barrier, by quarter of an hour."""

    def open(self) -> None:
        self._create_writer()

    def begin_checkpoint(self) -> None:
        self._create_writer()

    def _create_writer(self) -> None:
        context = self.context
        init = WriterInitContext(
            job_id=context.job.job_id,
            uid=context.vertex.uid,
            subtask=context.subtask,
            fencing_token=context.job.fencing_token,
            checkpoint_id=context.checkpoint_id,
            execution=context.execution,
            partition=context.job.partition,
        )
        context.state.forget(self._writer)
        writer = self.call("create_writer()", self._sink.create_writer, init, context.vertex.output_type)
        commits = isinstance(self._sink, TwoPhaseCommittingSink) or hasattr(writer, "prepare_commit")
        if commits and not isinstance(writer, CommittingSinkWriter):
            raise TypeMismatchError(
                f"create_writer() of sink {context.vertex.uid!r} returned a {type(writer).__qualname__}, whose output "
                "would never be committed: it must extend CommittingSinkWriter"
            )
        self._writer = writer
        context.state.initialize(self._writer)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        self._write(batch.column)
        if self.context.watermark != MIN_WATERMARK:
            times = batch.timestamps
            late = times[(times <= self.context.watermark) & (times != NO_TIMESTAMP)]
            if len(late):
                quarters, rows = np.unique(late // QUARTER_HOUR_MS, return_counts=True)
                self._late.update(dict(zip(quarters.tolist(), rows.tolist(), strict=True)))

    def _write(self, column: pa.Array) -> None:
        assert self._writer is not None
        self.call("write()", self._writer.write, column)

    def snapshot(self) -> OperatorSnapshot:
        writer = self._writer
        assert writer is not None
        self.call("flush()", writer.flush)
        late, self._late = to_metrics(self._late), Counter()
        if not isinstance(writer, CommittingSinkWriter):
            return OperatorSnapshot(metrics=late)
        return OperatorSnapshot(committables=self.call("prepare_commit()", writer.prepare_commit), metrics=late)

    def abort(self) -> None:
        if self._writer is not None:
            self.call("abort()", self._writer.abort)


class PrintOperator(StreamOperator):
    """Sends lines to the driver, which prints them when the checkpoint is complete (Flink: ``PrintSink``)."""

    def __init__(self, context: OperatorContext, spec: PrintSpec) -> None:
        super().__init__(context)
        parts = [spec.identifier] if spec.identifier else []
        parts += [str(context.subtask + 1)] if context.vertex.parallelism > 1 else []
        self._prefix = f"{':'.join(parts)}> " if parts else ""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        type_info, prefix = batch.type_info, self._prefix
        lines = [f"{prefix}{to_printed(type_info, value)}" for value in batch.values]
        self.context.collect(pa.array(lines, type=pa.string()), PRINTED)


class CollectOperator(StreamOperator):
    """Sends records to the caller of ``execute_and_collect``."""

    def __init__(self, context: OperatorContext, spec: CollectSpec) -> None:
        super().__init__(context)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        self.context.collect(batch.column, f"{COLLECTED}/{self.context.vertex.uid}")


class BlockingEdgeSinkOperator(SinkOperator):
    """Writes segments. Each subtask tells the driver which ones, its watermark, and whether its input has ended."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        arrays = [batch.column, pa.array(batch.timestamps)]
        self._write(pa.StructArray.from_arrays(arrays, names=["value", "timestamp"]))

    def snapshot(self) -> OperatorSnapshot:
        context = self.context
        sources = {v.uid for v in context.job.graph.vertices if isinstance(v.spec, SourceSpec)}
        output = {
            "segments": super().snapshot().committables,
            "event_times": {
                origin: {"watermark": None if watermark == MIN_WATERMARK else watermark, "idle": idle}
                for origin, (watermark, idle) in context.event_times().items()
            },
            "end_of_input": sources <= context.epoch.ended_sources,
        }
        return OperatorSnapshot(committables=[output])  # the driver takes it out of the acknowledgement


class BlockingEdgeSourceOperator(SourceOperator):
    """Reads segments, and likewise the rows of a Spark DataFrame. The watermark of an epoch follows its segments."""

    def _to_batch(self, column: pa.Array) -> StreamBatch:
        vertex = self.context.vertex
        timestamps = column.field("timestamp").to_numpy()
        return StreamBatch(vertex.output_type, timestamps, column=column.field("value"), producer=vertex.uid)

    def _end_split(self, split: SourceSplit) -> None:
        if (watermark := split.properties["watermark"]) is not None:
            self._time.watermark = max(self._time.watermark, watermark)
