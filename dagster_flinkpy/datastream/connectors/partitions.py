"""Sources that can be read one time partition at a time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime

from dagster_flinkpy.datastream.connectors.base import Source

__all__ = ["PartitionedSource", "TimePartition"]


@dataclass(frozen=True)
class TimePartition:
    """A time partition (Dagster: a time window of a partitions definition)."""

    key: str
    """Dagster's partition key, such as ``2013-02-01``."""
    start: datetime
    """With time zone."""
    end: datetime
    """With time zone; exclusive."""
    ordinal: int
    """Its index among all partitions of the definition, from 0."""


class PartitionedSource(Source):
    """A source for jobs that are partitioned by time, where each epoch reads one partition."""

    def check_partition(self, partition: TimePartition) -> None:
        """Checks without a look at the input that the source can be read by such partitions.

        It is called with one of them when Dagster loads the job.

        Raises:
            ConfigurationError: It cannot.
        """

    @abstractmethod
    def for_partition(self, partition: TimePartition) -> Source:
        """Returns the input of one partition, as a bounded source.

        It must return the same records each time for a partition, or the partition cannot be run again.

        Raises:
            ConfigurationError: The source cannot be read by partition.
        """
