"""The cores and resources that a slot-sharing group gives to the Spark tasks of a stage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.spark.resource_profiles import task_profile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["stage_profile"]


def stage_profile(spark: SparkSession, graph: JobGraph, stage: int) -> Any:
    """Returns the resource profile of a stage, or None for Spark's own.

    A task runs all chains of its stage, so it has what the most demanding of their groups asks for.

    Args:
        spark: The session.
        graph: The region.
        stage: The number of the stage.

    Raises:
        NoResourceAvailableError: No executor has as much.
    """
    heads = [v for v in graph.stage_vertices(stage) if not any(graph.is_chained(e) for e in graph.inputs(v.uid))]
    groups = {v.slot_resources.name: v.slot_resources for v in heads if v.slot_resources is not None}
    if not groups:
        return None
    cores = max(math.ceil(group.cpu_cores or 1) for group in groups.values())
    resources: dict[str, float] = {}
    for group in groups.values():
        for name, amount in group.external_resources:
            resources[name] = max(amount, resources.get(name, 0.0))
    profile = task_profile(spark, cores, resources)
    for name in groups:
        if profile is None:
            no_effect(f"resources of slot-sharing group {name!r}", "Spark runs in local mode")
        else:
            no_effect(f"memory of slot-sharing group {name!r}", "all tasks of a Spark executor share its memory")
    return profile
