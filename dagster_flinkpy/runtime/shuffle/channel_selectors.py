"""Decides which subtasks an edge connects, and which of them gets a record.

Flink: ``ChannelSelector``, ``StreamPartitioner``. HASH is not here: the record writer computes its keys, because they
are sent with the records.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.datastream.functions import KeySelector, Partitioner
from dagster_flinkpy.datastream.operator_specs import as_callable
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind, StreamPartitioner
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

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
    """Returns the upstream subtasks that send to a downstream subtask, given both parallelisms.

    RESCALE connects local groups. If there are more sources than targets, each source sends to one target; if there are
    fewer, each target has one source (Flink:
    ``VertexInputInfoComputationUtils.computeVertexInputInfoForPointwise``).
    """
    if kind is PartitionerKind.FORWARD:
        return [subtask]
    if kind is not PartitionerKind.RESCALE:
        return list(range(sources))
    if sources < targets:
        return [subtask * sources // targets]
    return list(range(subtask * sources // targets, (subtask + 1) * sources // targets))


def downstream_subtasks(kind: PartitionerKind, subtask: int, sources: int, targets: int) -> list[int]:
    """Returns the downstream subtasks that a subtask sends to; the inverse of :func:`upstream_subtasks`."""
    if kind is PartitionerKind.FORWARD:
        return [subtask]
    if kind is not PartitionerKind.RESCALE:
        return list(range(targets))
    return [t for t in range(targets) if subtask in upstream_subtasks(kind, t, sources, targets)]


class ChannelSelector(ABC):
    """Chooses the downstream subtask for each record of a batch."""

    @abstractmethod
    def select(self, batch: StreamBatch) -> Targets:
        """Returns the index of the downstream subtask for each record."""


class RoundRobinSelector(ChannelSelector):
    """Sends to the subtasks in turn (Flink: ``RebalancePartitioner``, ``RescalePartitioner``)."""

    def __init__(self, targets: Sequence[int], first: int) -> None:
        self._targets = np.array(targets, dtype=np.int64)
        self._next = first

    def select(self, batch: StreamBatch) -> Targets:
        n = len(self._targets)
        chosen: Targets = self._targets[(np.arange(len(batch)) + self._next) % n]
        self._next = (self._next + len(batch)) % n
        return chosen


class ShuffleSelector(ChannelSelector):
    """Chooses at random, and repeats the choice in a replay (unlike Flink's ``ShufflePartitioner``).

    The arguments after ``targets`` are the seed.
    """

    def __init__(self, targets: int, *, job_id: str, checkpoint_id: int, edge: int, subtask: int) -> None:
        self._targets = targets
        self._random = np.random.default_rng([zlib.crc32(job_id.encode()), checkpoint_id, edge, subtask])

    def select(self, batch: StreamBatch) -> Targets:
        return self._random.integers(self._targets, size=len(batch), dtype=np.int64)


class CustomSelector(ChannelSelector):
    """Calls a partitioner of the user (Flink: ``CustomPartitionerWrapper``)."""

    def __init__(self, partitioner: StreamPartitioner, targets: int) -> None:
        self._partition = as_callable(partitioner.custom, Partitioner, "partition")
        self._get_key = as_callable(partitioner.selector, KeySelector, "get_key")
        self._targets = targets

    def select(self, batch: StreamBatch) -> Targets:
        """Returns the index of the downstream subtask for each record.

        Raises:
            ValueError: The partitioner returned something other than a subtask index. The message names the record.
        """
        partition, get_key, n = self._partition, self._get_key, self._targets
        chosen: list[Any] = [partition(get_key(value), n) for value in batch.lent(get_key)]
        for value, target in zip(batch.values, chosen, strict=True):
            if not isinstance(target, (int, np.integer)) or not 0 <= target < n:
                raise ValueError(f"got {target!r} for record {value!r}; expected an int from 0 to {n - 1}")
        return np.array(chosen, dtype=np.int64)
