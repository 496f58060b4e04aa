"""Which subtasks an edge joins, and to which of them a record goes (Flink: ``ChannelSelector``, ``StreamPartitioner``).

HASH is not here: its keys travel with the records, so the record writer has them at hand.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.datastream.functions import KeySelector
from dagster_flinkpy.datastream.functions import Partitioner as CustomPartitioner
from dagster_flinkpy.datastream.job_graph import Partitioner, PartitionerKind
from dagster_flinkpy.datastream.operators import as_callable
from dagster_flinkpy.runtime.batch import StreamBatch

__all__ = [
    "ChannelSelector",
    "CustomSelector",
    "RoundRobinSelector",
    "ShuffleSelector",
    "downstream_subtasks",
    "upstream_subtasks",
]

Targets = npt.NDArray[np.int64]


def upstream_subtasks(kind: PartitionerKind, subtask: int, sources: int, targets: int) -> list[int]:
    """The subtasks that send to this one downstream.

    RESCALE joins local groups: where there are more sources each sends to one target, where there are fewer each target
    has one source (Flink: ``VertexInputInfoComputationUtils.computeVertexInputInfoForPointwise``).

    Args:
        kind: How the edge spreads records.
        subtask: Index downstream.
        sources: Parallelism upstream.
        targets: Parallelism downstream.
    """
    if kind is PartitionerKind.FORWARD:
        return [subtask]
    if kind is not PartitionerKind.RESCALE:
        return list(range(sources))
    if sources < targets:
        return [subtask * sources // targets]
    return list(range(subtask * sources // targets, (subtask + 1) * sources // targets))


def downstream_subtasks(kind: PartitionerKind, subtask: int, sources: int, targets: int) -> list[int]:
    """The subtasks to which this one upstream sends, if only events; the inverse of :func:`upstream_subtasks`."""
    if kind is PartitionerKind.FORWARD:
        return [subtask]
    if kind is not PartitionerKind.RESCALE:
        return list(range(targets))
    return [t for t in range(targets) if subtask in upstream_subtasks(kind, t, sources, targets)]


class ChannelSelector(ABC):
    """Chooses a subtask for each record of a batch."""

    @abstractmethod
    def select(self, batch: StreamBatch) -> Targets:
        """Indices of subtasks downstream, one per record."""


class RoundRobinSelector(ChannelSelector):
    """One after the other (Flink: ``RebalancePartitioner``, ``RescalePartitioner``).

    Args:
        targets: Subtasks downstream.
        first: Position in ``targets`` of the first record's.
    """

    def __init__(self, targets: Sequence[int], first: int) -> None:
        self._targets = np.array(targets, dtype=np.int64)
        self._next = first

    def select(self, batch: StreamBatch) -> Targets:
        n = len(self._targets)
        chosen: Targets = self._targets[(np.arange(len(batch)) + self._next) % n]
        self._next = (self._next + len(batch)) % n
        return chosen


class ShuffleSelector(ChannelSelector):
    """At random, and in a replay the same again (Flink: ``ShufflePartitioner``, which is not).

    Args:
        targets: Parallelism downstream.
        job_id: With the rest the seed.
        checkpoint_id: First one of the Spark job.
        edge: Id of the edge.
        subtask: That sends.
    """

    def __init__(self, targets: int, *, job_id: str, checkpoint_id: int, edge: int, subtask: int) -> None:
        self._targets = targets
        self._random = np.random.default_rng([zlib.crc32(job_id.encode()), checkpoint_id, edge, subtask])

    def select(self, batch: StreamBatch) -> Targets:
        return self._random.integers(self._targets, size=len(batch), dtype=np.int64)


class CustomSelector(ChannelSelector):
    """As a partitioner of the user says (Flink: ``CustomPartitionerWrapper``).

    Args:
        partitioner: With the user's functions.
        targets: Parallelism downstream.
    """

    def __init__(self, partitioner: Partitioner, targets: int) -> None:
        self._partition = as_callable(partitioner.custom, CustomPartitioner, "partition")
        self._get_key = as_callable(partitioner.selector, KeySelector, "get_key")
        self._targets = targets

    def select(self, batch: StreamBatch) -> Targets:
        """Indices of subtasks downstream, one per record.

        Raises:
            ValueError: The partitioner gave what is no index of a subtask; names the record.
        """
        partition, get_key, n = self._partition, self._get_key, self._targets
        chosen: list[Any] = [partition(get_key(value), n) for value in batch.values]
        for value, target in zip(batch.values, chosen, strict=True):
            if not isinstance(target, (int, np.integer)) or not 0 <= target < n:
                raise ValueError(f"got {target!r} for record {value!r}; wants an int in 0..{n - 1}")
        return np.array(chosen, dtype=np.int64)
