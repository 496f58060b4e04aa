"""End states of time partitions: which checkpoint has the state at the end of a partition, and which ones are kept.

In a job that is partitioned by time, one epoch reads one partition, and the checkpoint after it is the partition's end
state. ``HEAD`` names these checkpoints, so the one write that completes a checkpoint also makes it an end state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from dagster_flinkpy.common.arguments import check_settings
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.json_records import ArrayRecord

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["PartitionEnd", "PartitionRetention", "is_end", "repeated_end", "repeated_entry"]

Load: TypeAlias = "Callable[[int], CheckpointMetadata]"
"""Reads a checkpoint of the job by its id."""


class PartitionEnd(ArrayRecord, frozen=True):
    """The state at the end of a partition. ``HEAD`` has one for each kept partition, in a short form."""

    partition: str
    """Dagster's partition key."""
    ordinal: int
    """Position of the partition among all partitions of the job, in order of time, from 0."""
    checkpoint_id: int
    """The checkpoint with this state."""
    based_on: int | None
    """The checkpoint that the partition started from; None if it started from empty state."""


@dataclass(frozen=True)
class PartitionRetention:
    """Which end states are kept. Default: all.

    The newest one and the one that the active run started from are always kept. A backfill starts from the end state
    before its first partition. If that one is not kept, the backfill has to start earlier.

    Examples:
        >>> ends = [PartitionEnd(f"2024-01-0{day}", day - 1, day, None) for day in range(1, 8)]
        >>> [end.partition for end in PartitionRetention(every=4, last=2).kept(ends)]
        ['2024-01-04', '2024-01-06', '2024-01-07']
    """

    every: int | None = 1
    """Keeps the end state of each k-th partition, counted from the job's first one. None disables this rule."""
    last: int | None = None
    """Keeps the end states of the last n partitions that have one. None disables this rule."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range, or nothing would be kept.
        """
        check_settings(self)
        for name, value in (("every", self.every), ("last", self.last)):
            if value is not None and value < 1:
                raise ConfigurationError(f"partition retention {name}={value} must be at least 1")
        if self.every is None and self.last is None:
            raise ConfigurationError("partition retention keeps nothing: give every=k, last=n, or both")

    def kept(self, ends: Iterable[PartitionEnd], *always: int | None) -> tuple[PartitionEnd, ...]:
        """Returns the end states that are kept, in order of time.

        Args:
            ends: The end states, one per partition.
            *always: Checkpoints whose end states are kept in any case.
        """
        in_order = sorted(ends, key=lambda end: end.ordinal)
        recent = set(in_order[-self.last :]) if self.last is not None else set()
        return tuple(
            end
            for end in in_order
            if end.checkpoint_id in always
            or end in recent
            or (self.every is not None and (end.ordinal + 1) % self.every == 0)
        )


def repeated_end(ends: Iterable[PartitionEnd], metadata: CheckpointMetadata, load: Load) -> PartitionEnd | None:
    """Returns the end state of a partition that a checkpoint or savepoint has, or None if it has another state."""
    newest_first = sorted(ends, key=lambda end: end.checkpoint_id, reverse=True)
    return next((end for end in newest_first if load(end.checkpoint_id).read_by == metadata.read_by), None)


def repeated_entry(ends: Collection[PartitionEnd], metadata: CheckpointMetadata, load: Load) -> PartitionEnd | None:
    """Returns the entry for a checkpoint that repeats the end state of a partition, if it does."""
    if same := repeated_end(ends, metadata, load):
        return msgspec.structs.replace(same, checkpoint_id=metadata.checkpoint_id)
    if ends or metadata.end_of is None:
        return None
    # The first of a job that begins with the state of another one. Only runs know its place among the partitions.
    return PartitionEnd(metadata.end_of, 0, metadata.checkpoint_id, None)


def is_end(ends: Collection[PartitionEnd], latest: CheckpointMetadata, load: Load) -> bool:
    """Returns whether the latest checkpoint is the end state of a partition. If not, the job has lost them."""
    return latest.checkpoint_id in {end.checkpoint_id for end in ends} or repeated_end(ends, latest, load) is not None
