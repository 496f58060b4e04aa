"""The operators at the two ends of a blocking edge: one writes records to the object store, the other reads them.

The rows of a Spark DataFrame are read from the store in the same way.
"""

from __future__ import annotations

import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.runtime.operators.sink_operators import SinkOperator
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["BlockingEdgeSinkOperator", "BlockingEdgeSourceOperator"]


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
    """Reads segments. The watermark of an epoch follows its segments."""

    def _to_batch(self, column: pa.Array) -> StreamBatch:
        vertex = self.context.vertex
        timestamps = column.field("timestamp").to_numpy()
        return StreamBatch(vertex.output_type, timestamps, column=column.field("value"), producer=vertex.uid)

    def _end_split(self, split: SourceSplit) -> None:
        if (watermark := split.properties["watermark"]) is not None:
            self._time.watermark = max(self._time.watermark, watermark)
