"""The time partitions of a job: checks them, and declares how its assets depend on their earlier partitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from dagster import AssetDep, AssetSpec, TimeWindowPartitionMapping
from dagster import PartitionsDefinition as AnyPartitionsDefinition
from dagster import TimeWindowPartitionsDefinition as PartitionsDefinition

from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.program.partitioned_program import check_partitioned
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_assets import JobAssets

__all__ = ["check_partitions", "partitioned"]

_SHORTEST_DAY = timedelta(hours=23)


def check_partitions(job: FlinkJob, partitions_def: AnyPartitionsDefinition | None) -> PartitionsDefinition | None:
    """Returns the time partitions of a job, after checking that the job can have them.

    Raises:
        ConfigurationError: The partitions are not time windows, or are shorter than a day in a time zone with daylight
            saving time, or a source of the job cannot be read by partition.
    """
    if partitions_def is None:
        return None
    if not isinstance(partitions_def, PartitionsDefinition):
        raise ConfigurationError(
            f"partitions_def of job {job.job_id!r} is a {type(partitions_def).__name__}, but state is carried from one "
            "partition to the next, so they must be time windows, such as DailyPartitionsDefinition. For one state per "
            "tenant or region, call flink_assets() for each of them with another name, or make it part of the key"
        )
    start = partitions_def.start
    window = partitions_def.time_window_for_partition_key(start.strftime(partitions_def.fmt))
    if window.end - window.start < _SHORTEST_DAY and len({_offset(start, month) for month in range(13)}) > 1:
        raise ConfigurationError(
            f"partitions_def of job {job.job_id!r} has windows of {window.end - window.start} in time zone "
            f"{partitions_def.timezone}, where one hour of the year occurs twice. File names cannot tell the two "
            "apart: use timezone='UTC', or partitions of a day or longer."
        )
    check_partitioned(job.graph, TimePartition(start.strftime(partitions_def.fmt), window.start, window.end, 0))
    return partitions_def


def _offset(start: datetime, month: int) -> timedelta | None:
    """Returns the offset from UTC about this many months later."""
    return (start + timedelta(days=30 * month)).utcoffset()


def partitioned(assets: JobAssets, partitions_def: PartitionsDefinition) -> JobAssets:
    """Adds partitions to a job's assets. A source depends on its own previous partition, where its state comes from.

    Only the first assets of a job depend on themselves; the others do so through them. If an asset depended on itself
    and on others of the job, a backfill would put it into another run than these.
    """
    before = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    graph, specs, follows = assets.job.graph, dict[str, AssetSpec](), dict[str, bool]()
    for vertex in graph.vertices:
        sources = [edge.source for edge in graph.inputs(vertex.uid)]
        follows[vertex.uid] = any(source in assets.specs or follows[source] for source in sources)
    for uid, spec in assets.specs.items():
        own = [] if follows[uid] else [AssetDep(spec.key, partition_mapping=before)]
        specs[uid] = spec.replace_attributes(partitions_def=partitions_def, deps=[*spec.deps, *own])
    return replace(assets, specs=specs)
