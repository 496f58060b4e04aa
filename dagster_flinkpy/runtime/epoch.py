"""What the driver tells the tasks of one epoch. Travels pickled inside the Spark job, never to storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.clock import Clock, SystemClock
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Epoch", "SubtaskInput"]


@dataclass(frozen=True)
class SubtaskInput:
    """What one subtask of one operator starts from."""

    keyed: KeyedSnapshot | None = None
    """Keyed state of its key-group range."""
    watermark: int | None = None
    """Event time it had reached, in milliseconds."""
    splits: tuple[SourceSplit, ...] = ()
    """Sources: what to read in this epoch."""


@dataclass(frozen=True)
class Epoch:
    """One epoch of one pipelined region: the input between two barriers."""

    graph: JobGraph
    job_id: str
    checkpoint_id: int
    """Of the barrier that ends the epoch."""
    attempt: int
    """Fencing token of the execution attempt."""
    job_storage: StorageLocation
    """The prefix of the job."""
    inputs: Mapping[tuple[str, int], SubtaskInput]
    """By uid and subtask; what is missing starts empty."""
    ended_sources: frozenset[str] = frozenset()
    """Uids of sources whose input ends with this epoch."""
    partition: str | None = None
    """Dagster partition of the run, where there is one."""
    cache_dir: str = ""
    """Where executors keep local copies of state files."""
    clock: Clock = field(default_factory=SystemClock)
    """Tells processing time."""

    def input(self, uid: str, subtask: int) -> SubtaskInput:
        """What a subtask starts from."""
        return self.inputs.get((uid, subtask), SubtaskInput())
