"""Sources that can be read partition by partition of time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime

from dagster_flinkpy.datastream.connectors.base import Source

__all__ = ["PartitionedSource", "TimePartition"]


@dataclass(frozen=True)
class TimePartition:
    """A partition of time (Dagster: a time window of a partitions definition)."""

    key: str
    """Dagster's partition key, such as ``2013-02-01``."""
    start: datetime
    """With time zone."""
    end: datetime
    """With time zone; exclusive."""
    ordinal: int
    """Its place among all partitions of the definition, from 0 on."""


class PartitionedSource(Source):
    """A source of a job that is partitioned by time, where one epoch reads one partition."""

    @abstractmethod
    def for_partition(self, partition: TimePartition) -> Source:
        """The input of one partition, as a bounded source.

        It gives the same records each time it is called for a partition, or the partition cannot be run again.

        Raises:
            ConfigurationError: This source cannot be read by partition.
        """
