"""What the driver tells the tasks of one epoch. Travels pickled inside the Spark job, never to storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from dagster_flinkpy.checkpoint.config import CheckpointingMode
from dagster_flinkpy.checkpoint.metadata import OperatorStateHandle
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.state_backend_type import StateBackendType
from dagster_flinkpy.runtime.clock import Clock, SystemClock
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Epoch", "Interval", "SubtaskInput"]

Json = Any


@dataclass(frozen=True)
class SubtaskInput:
    """What one subtask of one operator starts from."""

    keyed: KeyedSnapshot | None = None
    """Keyed state of its key-group range."""
    watermark: int | None = None
    """Event time it had reached, in milliseconds."""
    operator_state: tuple[OperatorStateHandle, ...] = ()
    raw_keyed: tuple[Json, ...] = ()
    """Raw keyed state of its key-group range."""
    splits: tuple[SourceSplit, ...] = ()
    """Sources: what to read up to the first barrier."""
    channel_state: tuple[Json, ...] = ()
    """What was on its way at an unaligned checkpoint; comes before all other input."""


@dataclass(frozen=True)
class Interval:
    """The input between two barriers, and the one that ends it."""

    checkpoint_id: int
    """Of the barrier at its end."""
    splits: Mapping[tuple[str, int], tuple[SourceSplit, ...]]
    """What sources read, by uid and subtask."""
    ended_sources: frozenset[str] = frozenset()
    """Uids of sources whose input ends with it."""

    def reads(self, uid: str) -> bool:
        """Whether any subtask of a source has something to read."""
        return any(splits for (source, _), splits in self.splits.items() if source == uid)


@dataclass(frozen=True)
class Epoch:
    """What one Spark job of one pipelined region does: the input up to a barrier, or to the last one of several."""

    graph: JobGraph
    job_id: str
    checkpoint_id: int
    """Of the barrier that ends the epoch; the first, where there are several."""
    attempt: int
    """Fencing token of the execution attempt."""
    job_storage: StorageLocation
    """The prefix of the job."""
    inputs: Mapping[tuple[str, int], SubtaskInput]
    """By uid and subtask; what is missing starts empty."""
    ended_sources: frozenset[str] = frozenset()
    """Uids of sources whose input ends with the first barrier."""
    later: tuple[Interval, ...] = ()
    """What is between the first barrier and the others that this job carries."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """Whether gates align barriers, or only count them."""
    alignment_timeout: timedelta | None = None
    """EXACTLY_ONCE: how long a gate aligns before it goes over to unaligned; zero: not at all. None: for ever."""
    latency_interval: timedelta = timedelta(0)
    """Time between two latency markers of a source. Default: 0, none are sent."""
    partition: str | None = None
    """Dagster partition of the run, where there is one."""
    cache_dir: str = ""
    """Where executors keep local copies of state files."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """Where keyed state is while a task works with it."""
    restored: int | None = None
    """Id of the checkpoint or savepoint that the epoch goes on from, if any."""
    clock: Clock = field(default_factory=SystemClock)
    """Tells processing time."""

    @property
    def written_by(self) -> str:
        """Part of the names of the state files: those of two execution attempts, or Spark jobs, are never equal."""
        return f"{self.attempt}-{self.checkpoint_id}"

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """All input in order, each piece with the barrier that ends it."""
        splits = {task: given.splits for task, given in self.inputs.items()}
        return (Interval(self.checkpoint_id, splits, self.ended_sources), *self.later)

    def input(self, uid: str, subtask: int) -> SubtaskInput:
        """What a subtask starts from."""
        return self.inputs.get((uid, subtask), SubtaskInput())
