"""The operators at the two ends of a blocking edge: records go to the store, and come back, with their event time.

The records of a Spark DataFrame are read from the store likewise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operators import (
    ExchangeSinkSpec,
    ExchangeSourceSpec,
    SourceSpec,
    SparkSourceSpec,
    SparkTransformSpec,
)
from dagster_flinkpy.runtime.batch import StreamBatch
from dagster_flinkpy.runtime.operators import Snapshot, SourceOperator
from dagster_flinkpy.runtime.sink_operators import SinkOperator
from dagster_flinkpy.storage import StorageLocation

__all__ = ["ExchangeSinkOperator", "ExchangeSourceOperator", "bind_exchanges"]


def bind_exchanges(graph: JobGraph, location: StorageLocation) -> JobGraph:
    """The graph with its exchanges at a place."""

    def bound(uid: str, spec: Any) -> Any:
        if isinstance(spec, ExchangeSinkSpec):
            return replace(spec, sink=replace(spec.sink, location=location))
        if isinstance(spec, SparkSourceSpec):
            return replace(spec, source=replace(spec.source, location=location, uid=uid))
        if isinstance(spec, SparkTransformSpec):
            return replace(spec, source=replace(spec.source, location=location, uid=uid))
        if isinstance(spec, ExchangeSourceSpec):
            return replace(spec, source=replace(spec.source, location=location))
        return spec

    return JobGraph(tuple(replace(v, spec=bound(v.uid, v.spec)) for v in graph.vertices), graph.edges)


class ExchangeSinkOperator(SinkOperator):
    """Writes segments; each subtask also commits how far event time and the input were."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        arrays = [batch.column, pa.array(batch.timestamps)]
        self._write(pa.StructArray.from_arrays(arrays, names=["value", "timestamp"]))

    def snapshot(self) -> Snapshot:
        context = self.context
        file = next(iter(super().snapshot().committables), None)
        (interval,) = (i for i in context.epoch.intervals if i.checkpoint_id == context.checkpoint_id)
        sources = {v.uid for v in context.epoch.graph.vertices if isinstance(v.spec, SourceSpec)}
        committable = {
            "rows": 0 if file is None else file["rows"],
            "file": file,
            "watermark": None if context.watermark == MIN_WATERMARK else context.watermark,
            "idle": context.idle,
            "end_of_input": sources <= interval.ended_sources,
        }
        return Snapshot(committables=[committable])


class ExchangeSourceOperator(SourceOperator):
    """Reads segments; behind those of a checkpoint comes its watermark."""

    def _to_batch(self, column: pa.Array) -> StreamBatch:
        vertex = self.context.vertex
        timestamps = column.field("timestamp").to_numpy()
        return StreamBatch(vertex.output_type, timestamps, column=column.field("value"), producer=vertex.uid)

    def _end_split(self, split: SourceSplit) -> None:
        watermark = split.properties["watermark"]
        if watermark is not None:
            self._time.watermark = max(self._time.watermark, watermark)
