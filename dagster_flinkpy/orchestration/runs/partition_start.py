"""Decides from which state a run over time partitions starts, and which later partitions it makes outdated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from dagster import TimeWindow
from dagster import TimeWindowPartitionsDefinition as PartitionsDefinition

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.common.clock import datetime_of_millis, epoch_millis
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, RestoreError

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["PartitionStart", "outdated", "partition_start", "refuse_other_window", "renumbered", "time_partitions"]


def time_partitions(partitions_def: PartitionsDefinition, keys: Iterable[str]) -> list[TimePartition]:
    """Returns the partitions with some keys, in the order of the keys.

    Raises:
        ConfigurationError: No partition has one of these keys.
    """
    # To count the partitions before a single one takes Dagster as long as to list all, for most schedules.
    ordinals = {key: ordinal for ordinal, key in enumerate(partitions_def.get_partition_keys())}
    found = []
    for key in keys:
        if key not in ordinals:
            raise ConfigurationError(
                f"there is no partition {key!r}: the first is {partitions_def.get_first_partition_key()}, the last "
                f"{partitions_def.get_last_partition_key()}"
            )
        window = partitions_def.time_window_for_partition_key(key)
        found.append(TimePartition(key, window.start, window.end, ordinals[key]))
    return found


@dataclass(frozen=True)
class PartitionStart:
    """The state that a run over partitions starts from."""

    checkpoint_id: int | None
    """The end state of the previous partition, or None for empty state."""
    reason: str
    """An explanation for the log."""
    after: str | None = None
    """The partition whose end state it is."""

    @property
    def restore_from(self) -> str | None:
        """The checkpoint as an attempt takes it, or None for empty state."""
        return None if self.checkpoint_id is None else f"chk-{self.checkpoint_id}"


def renumbered(
    ends: Iterable[PartitionEnd], partitions_def: PartitionsDefinition, *, job_id: str
) -> tuple[PartitionEnd, ...]:
    """Returns the kept end states with the ordinals that their partitions have in the current definition.

    The stored ordinals belong to an earlier definition, which may have begun on another day. Partitions before the
    start of the current definition have negative ordinals.

    Raises:
        ConfigurationError: An end state belongs to a partition that the definition could not have at any start date.
    """
    known = {key: ordinal for ordinal, key in enumerate(partitions_def.get_partition_keys())}
    first = _first_start(partitions_def)

    def ordinal(key: str) -> int:
        if key in known:
            return known[key]
        start = _start_of(partitions_def, key)
        if start is None:
            empty = " To leave out a partition that has run, do not exclude it: empty its input, and run it again."
            raise ConfigurationError(
                f"job {job_id!r} keeps the end state of partition {key!r}, which cannot be one of {partitions_def}: "
                f"{'it is excluded now, or ' if partitions_def.exclusions else ''}its windows were different. Undo "
                "that change; or give the job another name, and start its first partition with restore_from."
                f"{empty if partitions_def.exclusions else ''}"
            )
        if start >= first:
            return partitions_def.get_num_partitions_in_window(TimeWindow(first, start))
        return -partitions_def.get_num_partitions_in_window(TimeWindow(start, first))

    return tuple(msgspec.structs.replace(end, ordinal=ordinal(end.partition)) for end in ends)


def _first_start(partitions_def: PartitionsDefinition) -> datetime:
    """Returns the start of the first partition. A definition may begin amid a window, which is then none of them."""
    first = partitions_def.get_first_partition_window()
    return partitions_def.start if first is None else first.start


def _start_of(partitions_def: PartitionsDefinition, key: str) -> datetime | None:
    """Returns the start of a partition, whenever the definition begins and ends, or None if the key is impossible."""
    try:
        start = partitions_def.time_window_for_partition_key(key).start
    except ValueError:
        return None
    return start if partitions_def.get_partition_key_for_timestamp(start.timestamp()) == key else None


def partition_start(
    kept: Iterable[PartitionEnd], first: TimePartition, key_of: Callable[[int], str], *, assets: str, folder: str
) -> PartitionStart:
    """Decides from which state a run starts.

    Args:
        kept: The end states that are kept, as `renumbered` returns them.
        first: The first partition of the run.
        key_of: Returns a partition key by its ordinal.
        assets: How to select the job's assets on the command line.
        folder: The URL of the job's checkpoints.

    Raises:
        RestoreError: The end state of the previous partition is missing. The message says which end state exists, and
            what to run.
    """
    ends = {end.ordinal: end for end in kept}
    before = first.ordinal - 1
    if chosen := ends.get(before):
        return PartitionStart(
            chosen.checkpoint_id,
            f"Partition {first.key} starts from the end state of {chosen.partition}: checkpoint {chosen.checkpoint_id}",
            chosen.partition,
        )
    if first.ordinal == 0:
        return PartitionStart(None, f"Partition {first.key} is the first: it starts from empty state.")
    nearest = max((ordinal for ordinal in ends if 0 <= ordinal < before), default=None)
    if nearest is None:
        known = (
            "No partition before it has one. First"
            if ends
            else f"If the job has run before, put its checkpoints back into {folder}, which has none. Otherwise first"
        )
        since = 0
    else:
        known = f"The nearest one before it that has one is {ends[nearest].partition}. First"
        since = nearest + 1
    missing = key_of(since) if since == before else f"{key_of(since)}...{key_of(before)}"
    option = "--partition" if since == before else "--partition-range"
    raise RestoreError(
        f"partition {first.key} starts from the end state of {key_of(before)}, which is not kept. {known} "
        f"run `dagster asset materialize --select '{assets}' {option} {missing}`. Or start this run from another "
        "state, with restore_from or start_empty in its config."
    )


def refuse_other_window(end: CheckpointMetadata, partition: str, partitions_def: PartitionsDefinition) -> None:
    """Refuses to go on from an end state whose partition is of another time now: rows would be missing, or count twice.

    Args:
        end: The end state. Those of earlier releases do not say of which time they are.
        partition: Its partition.
        partitions_def: The partitions of the job.

    Raises:
        ConfigurationError: The partition begins or ends at another time.
    """
    from dagster_flinkpy.checkpoint.metadata import WINDOW

    window, then = partitions_def.time_window_for_partition_key(partition), end.properties.get(WINDOW)
    if then not in (None, [epoch_millis(window.start), epoch_millis(window.end)]):
        start, stop = map(datetime_of_millis, then)
        raise ConfigurationError(
            f"checkpoint {end.checkpoint_id} is the end state of partition {partition!r}, which was from {start} to "
            f"{stop}. Now {partition!r} is from {window.start} to {window.end}: rows between would be missing, or "
            "count twice. Undo that change, such as of the time zone; or give the job another name, and start its "
            f"first partition with restore_from. If sources do not read by time, set restore_from to "
            f"chk-{end.checkpoint_id} in the config of this run."
        )


def outdated(ends: Iterable[PartitionEnd]) -> list[PartitionEnd]:
    """Returns the end states that are older than a rerun of an earlier partition, and all after them, in order of time.

    Those that are newer nevertheless have begun with one of them.
    """
    newest, in_order = 0, sorted(ends, key=lambda end: end.ordinal)
    for number, end in enumerate(in_order):
        if end.checkpoint_id < newest:
            return in_order[number:]
        newest = end.checkpoint_id
    return []
