"""What the tasks of a region acknowledge of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.master.region_runner import RegionEnded

__all__ = ["Acknowledged"]


@dataclass(frozen=True)
class Acknowledged:
    """What all tasks of a region acknowledge of a checkpoint."""

    checkpoint_id: int
    states: Mapping[Subtask, SubtaskState]
    job: RegionEnded | None = None
    """The Spark job that no checkpoint has waited for, and whose results belong to this one; or None."""
    in_flight: Sequence[tuple[str, list[Json]]] = ()
    """What the region has not read as of these states, for the metadata: by uid of the source that reads the edge."""

    def after(self, job: RegionEnded | None) -> Acknowledged:
        """Returns this, with what an earlier Spark job has prepared, which no checkpoint has waited for."""
        if job is None:
            return self
        before = job.results.states
        states = {t: replace(s, committables=before[t].committables + s.committables) for t, s in self.states.items()}
        return Acknowledged(self.checkpoint_id, states, job)
