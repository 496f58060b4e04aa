"""Sets the storage location of a job's blocking edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    SparkSourceSpec,
    SparkTransformSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.storage import StorageLocation

__all__ = ["bind_blocking_edges"]


def bind_blocking_edges(graph: JobGraph, location: StorageLocation) -> JobGraph:
    """Returns the graph with its blocking edges stored at a location."""

    def bound(uid: str, spec: Any) -> Any:
        if isinstance(spec, BlockingEdgeSinkSpec):
            return replace(spec, sink=replace(spec.sink, location=location))
        if isinstance(spec, SparkSourceSpec | SparkTransformSpec):
            return replace(spec, source=replace(spec.source, location=location, uid=uid))
        if isinstance(spec, BlockingEdgeSourceSpec):
            return replace(spec, source=replace(spec.source, location=location))
        return spec

    return JobGraph(tuple(replace(v, spec=bound(v.uid, v.spec)) for v in graph.vertices), graph.edges)
