"""End states of time partitions: which checkpoint holds the state at the end of a partition, and which are kept.

In a job that is partitioned by time, one epoch reads one partition, and the checkpoint after it is the partition's end
state. ``HEAD`` names these checkpoints, so the one write that completes a checkpoint also makes it an end state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["PartitionEnd", "PartitionRetention"]


@dataclass(frozen=True)
class PartitionEnd:
    """The state at the end of a partition."""

    partition: str
    """Dagster's partition key."""
    ordinal: int
    """Place of the partition among all of the job, from 0 on, in order of time."""
    checkpoint_id: int
    """The checkpoint that holds it."""
    based_on: int | None
    """The checkpoint the partition started from; None: from empty state."""

    def to_json(self) -> list[Any]:
        """For ``HEAD``; short, for there is one for each partition that is kept."""
        return [self.partition, self.ordinal, self.checkpoint_id, self.based_on]

    @staticmethod
    def from_json(data: Any) -> PartitionEnd:
        """What :meth:`to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        match data:
            case [str(partition), int(ordinal), int(checkpoint_id), int() | None as based_on]:
                return PartitionEnd(partition, ordinal, checkpoint_id, based_on)
        raise ValueError(f"not the end state of a partition: {str(data)[:100]}")


@dataclass(frozen=True)
class PartitionRetention:
    """Which end states are kept, besides the newest, and the one the run at work started from. Default: all.

    A backfill starts from the end state before its first partition: what is not kept has to be made again.
    """

    every: int | None = 1
    """Each k-th partition's, counted from the job's first. None: none for this reason."""
    last: int | None = None
    """Those of the last n partitions that have one. None: none for this reason."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range, or nothing would be kept.
        """
        for name, value in (("every", self.every), ("last", self.last)):
            if value is not None and value < 1:
                raise ConfigurationError(f"partition retention {name}={value} must be at least 1")
        if self.every is None and self.last is None:
            raise ConfigurationError("partition retention keeps nothing: give every=k, last=n, or both")

    def kept(self, ends: Iterable[PartitionEnd], *always: int | None) -> tuple[PartitionEnd, ...]:
        """Those that are kept, in order of time.

        Args:
            ends: One per partition.
            always: Checkpoints whose end states are kept whatever the policy says.
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
