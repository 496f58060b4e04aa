"""What callers ask of the master of a job, and what they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["Completion", "EpochKind", "EpochRequest", "JobEpoch"]


class EpochKind(Enum):
    """What an epoch does."""

    READ = auto()
    """It reads the next input."""
    REPEAT = auto()
    """It reads nothing: its checkpoint has the current state."""
    DRAIN = auto()
    """It reads nothing, and ends all input."""


@dataclass(frozen=True)
class EpochRequest:
    """A request for epochs."""

    kind: EpochKind = EpochKind.READ
    limit: int | None = 1
    """The number of epochs; fewer if the input ends. None: until the input ends or an epoch has nothing to read."""
    periodic: bool = False
    """Whether each epoch waits until the next periodic checkpoint is due."""
    continuous: bool = False
    """Whether to wait for input until it ends, with an epoch only when there is some. Not with ``periodic``."""
    goes_on: bool = False
    """Whether the job goes on after it, so that an epoch of tasks that live may wait for a periodic checkpoint."""
    stop: bool = False
    """Whether the job stops with the checkpoint."""

    @property
    def until_idle(self) -> bool:
        """Whether an epoch that has read nothing is the last one."""
        return self.limit is None and not self.periodic and not self.continuous


@dataclass
class JobEpoch:
    """An epoch that all regions run."""

    kind: EpochKind
    checkpoint_id: int
    """The checkpoint of the barrier at its end."""
    ends: bool | None = None
    """Whether all input of the regions that read no blocking edge ends with it; None if it is not known yet."""
    live: bool = False
    """Whether its sources read from before its checkpoint is triggered."""
    open: bool = False
    """Whether its checkpoint is not triggered, and more input may follow."""


@dataclass(frozen=True)
class Completion:
    """A checkpoint that is complete and committed."""

    metadata: CheckpointMetadata
    duration_ms: int
    """Time from the trigger to the end of the commit."""
    collected: Mapping[str, list[pa.Array]]
    """The records of collect operators, by uid."""
    epochs: int
    """How many of the requested epochs it ends: several if failed checkpoints have handed over to it."""
