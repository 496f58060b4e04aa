"""The cores and resources that a slot-sharing group gives to the Spark tasks of a stage, or to a slot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.spark.task_slots import task_profile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["group_profile", "stage_profile"]


def stage_profile(spark: SparkSession, graph: JobGraph, stage: int) -> Any:
    """Returns the resource profile of a stage, or None for Spark's own.

    A task runs all chains of its stage, so it has what the most demanding of their groups asks for.

    Raises:
        NoResourceAvailableError: No executor has as much.
    """
    heads = [v for v in graph.stage_vertices(stage) if not any(graph.is_chained(e) for e in graph.inputs(v.uid))]
    return group_profile(spark, [v.slot_resources for v in heads if v.slot_resources is not None])


def group_profile(spark: SparkSession, groups: Iterable[SlotSharingGroup]) -> Any:
    """Returns the resource profile of what has all that some groups ask for, or None for Spark's own.

    Raises:
        NoResourceAvailableError: No executor has as much.
    """
    named = {group.name: group for group in groups}
    if not named:
        return None
    cores = max(math.ceil(group.cpu_cores or 1) for group in named.values())
    resources: dict[str, float] = {}
    for group in named.values():
        for name, amount in group.external_resources:
            resources[name] = max(amount, resources.get(name, 0.0))
    profile = task_profile(spark, cores, resources)
    for name in named:
        if profile is None:
            no_effect(f"resources of slot-sharing group {name!r}", "Spark runs in local mode")
        else:
            no_effect(f"memory of slot-sharing group {name!r}", "all tasks of a Spark executor share its memory")
    return profile
