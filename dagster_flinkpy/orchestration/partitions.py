"""Time-partitioned jobs: which partitions a run reads, and from which state it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dagster import AssetDep, AssetSpec, TimeWindow, TimeWindowPartitionMapping
from dagster import PartitionsDefinition as AnyPartitionsDefinition
from dagster import TimeWindowPartitionsDefinition as PartitionsDefinition

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, RestoreError
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.runtime.partition_input import check_partitioned

__all__ = [
    "PartitionStart",
    "check_partitions",
    "outdated",
    "partition_start",
    "partitioned_specs",
    "renumbered",
    "time_partition",
]

_SHORTEST_DAY = timedelta(hours=23)


def check_partitions(job: FlinkJob, partitions_def: AnyPartitionsDefinition | None) -> PartitionsDefinition | None:
    """The partitions of a job, if it can have these.

    Raises:
        ConfigurationError: They are no partitions of time, or shorter than a day in a time zone with daylight saving
            time, or a source of the job cannot be read by partition.
    """
    if partitions_def is None:
        return None
    if not isinstance(partitions_def, PartitionsDefinition):
        raise ConfigurationError(
            f"partitions_def of job {job.job_id!r} is a {type(partitions_def).__name__}: state goes on from one "
            "partition to the next, so they must be time windows, such as DailyPartitionsDefinition"
        )
    start = partitions_def.start
    window = partitions_def.time_window_for_partition_key(start.strftime(partitions_def.fmt))
    if window.end - window.start < _SHORTEST_DAY and len({_offset(start, month) for month in range(13)}) > 1:
        raise ConfigurationError(
            f"partitions_def of job {job.job_id!r} has windows of {window.end - window.start} in time zone "
            f"{partitions_def.timezone}, where once a year an hour comes twice: names of files cannot tell the two "
            "apart. Use timezone='UTC', or partitions of a day or longer."
        )
    check_partitioned(job.graph)
    return partitions_def


def _offset(start: datetime, month: int) -> timedelta | None:
    """From UTC, about so many months later."""
    return (start + timedelta(days=30 * month)).utcoffset()


def partitioned_specs(
    job: FlinkJob, specs: Mapping[str, AssetSpec], partitions_def: PartitionsDefinition
) -> dict[str, AssetSpec]:
    """A job's assets with partitions. Its sources depend on their own partition before: it has the state to start from.

    Of the sources only, and through them all that reads from these: a backfill of Dagster puts an asset that depends
    on itself into another run than what it is made from.
    """
    before = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    partitioned = {uid: spec.replace_attributes(partitions_def=partitions_def) for uid, spec in specs.items()}
    for uid, spec in specs.items():
        if not job.graph.inputs(uid):
            deps = [*spec.deps, AssetDep(spec.key, partition_mapping=before)]
            partitioned[uid] = partitioned[uid].replace_attributes(deps=deps)
    return partitioned


def time_partition(partitions_def: PartitionsDefinition, key: str) -> TimePartition:
    """A partition by its key.

    Raises:
        ConfigurationError: There is none of that key.
    """
    if not partitions_def.has_partition_key(key):
        raise ConfigurationError(
            f"there is no partition {key!r}: the first is {partitions_def.get_first_partition_key()}, the last "
            f"{partitions_def.get_last_partition_key()}"
        )
    window = partitions_def.time_window_for_partition_key(key)
    earlier = TimeWindow(partitions_def.start, window.start)
    ordinal = partitions_def.get_num_partitions_in_window(earlier) if earlier.end > earlier.start else 0
    return TimePartition(key, window.start, window.end, ordinal)


@dataclass(frozen=True)
class PartitionStart:
    """What a run over partitions starts from."""

    checkpoint_id: int | None
    """The end state of the partition before; None: empty state."""
    reason: str
    """In words, for the log."""

    @property
    def restore_from(self) -> str | None:
        """As an attempt takes it."""
        return None if self.checkpoint_id is None else f"chk-{self.checkpoint_id}"


def renumbered(
    ends: Iterable[PartitionEnd], partitions_def: PartitionsDefinition, *, job_id: str
) -> tuple[PartitionEnd, ...]:
    """Kept end states, with the ordinals of their partitions in the definition as it is now.

    Those that are stored are of the definition as it was, which may have begun on another day. Partitions before its
    start have negative ordinals.

    Raises:
        ConfigurationError: One is of a partition that this definition could not have, whenever it began.
    """
    known = {key: ordinal for ordinal, key in enumerate(partitions_def.get_partition_keys())}

    def ordinal(key: str) -> int:
        if key in known:
            return known[key]
        start = _start_of(partitions_def, key)
        if start is None:
            raise ConfigurationError(
                f"job {job_id!r} keeps the end state of partition {key!r}, which cannot be one of {partitions_def}: "
                "its windows were others. Take back that change; or give the job another name, and start its first "
                "partition with restore_from."
            )
        if start >= partitions_def.start:
            return partitions_def.get_num_partitions_in_window(TimeWindow(partitions_def.start, start))
        return -partitions_def.get_num_partitions_in_window(TimeWindow(start, partitions_def.start))

    return tuple(replace(end, ordinal=ordinal(end.partition)) for end in ends)


def _start_of(partitions_def: PartitionsDefinition, key: str) -> datetime | None:
    """Of a partition, whenever the definition begins and ends; None if that is no key of it."""
    try:
        start = partitions_def.time_window_for_partition_key(key).start
    except ValueError:
        return None
    return start if partitions_def.get_partition_key_for_timestamp(start.timestamp()) == key else None


def partition_start(
    kept: Iterable[PartitionEnd], first: TimePartition, key_of: Callable[[int], str], *, assets: str
) -> PartitionStart:
    """What a run whose first partition is ``first`` starts from.

    Args:
        kept: The end states there are, as `renumbered` gives them.
        first: The first partition of the run.
        key_of: Partition keys by ordinal.
        assets: How to select the job's assets on the command line.

    Raises:
        RestoreError: The end state of the partition before is missing. Says which one there is, and what to run.
    """
    ends = {end.ordinal: end for end in kept}
    before = first.ordinal - 1
    if chosen := ends.get(before):
        return PartitionStart(
            chosen.checkpoint_id,
            f"partition {first.key} starts from the end state of {chosen.partition}, checkpoint {chosen.checkpoint_id}",
        )
    if first.ordinal == 0:
        return PartitionStart(None, f"partition {first.key} is the first: it starts from empty state")
    nearest = max((ordinal for ordinal in ends if 0 <= ordinal < before), default=None)
    if nearest is None:
        known = "No partition before it has one"
        since = 0
    else:
        known = f"The nearest one before it that has one is {ends[nearest].partition}"
        since = nearest + 1
    missing = key_of(since) if since == before else f"{key_of(since)}...{key_of(before)}"
    option = "--partition" if since == before else "--partition-range"
    raise RestoreError(
        f"partition {first.key} starts from the end state of {key_of(before)}, and that is not kept. {known}: first "
        f"run `dagster asset materialize --select '{assets}' {option} {missing}`. Or start this run from elsewhere, "
        "with restore_from or start_empty in its config."
    )


def outdated(ends: Iterable[PartitionEnd]) -> list[PartitionEnd]:
    """End states that were made before an earlier partition was run again, in order of time."""
    newest, found = 0, list[PartitionEnd]()
    for end in sorted(ends, key=lambda end: end.ordinal):
        if end.checkpoint_id < newest:
            found.append(end)
        newest = max(newest, end.checkpoint_id)
    return found
