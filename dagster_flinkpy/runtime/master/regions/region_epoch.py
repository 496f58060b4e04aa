"""What a region knows about an epoch, and what its tasks acknowledge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epoch_request import JobEpoch
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.results import EpochResults, TaskFailure

__all__ = ["Acknowledged", "Phase", "RegionEpoch", "RegionStage", "Turn"]


@dataclass
class Turn:
    """What all parts of the state share while a stimulus is handled."""

    now_ms: int = 0
    """When it happened, in milliseconds since 1970."""
    instructions: list[Instruction] = field(default_factory=list)
    """What is to be done, in this order."""


class Phase(Enum):
    """What the lane of a region does. Whether that counts, its executions say: not if they are being canceled."""

    IDLE = auto()
    """Nothing, and no epoch is at hand."""
    LOOKING = auto()
    """It looks for input."""
    DEPLOYED = auto()
    """Nothing; the epoch at hand is to be planned or run next."""
    PLANNING = auto()
    """It plans the input of the epoch at hand."""
    RUNNING = auto()
    """It runs the epoch at hand."""


class RegionStage(Enum):
    """How far an epoch has come in a region."""

    WAITING = auto()
    """For its turn or its input."""
    PASSING = auto()
    """Its barrier overtakes what the region reads; it waits for the regions before it."""
    CURRENT = auto()
    """It is planned or run."""
    PASSED = auto()
    """Acknowledged without a Spark job; the checkpoint is not complete."""
    ACKNOWLEDGED = auto()
    """All tasks have acknowledged it; the checkpoint is not complete."""


@dataclass(frozen=True)
class Acknowledged:
    """What all tasks of a region acknowledge of a checkpoint."""

    checkpoint_id: int
    states: Mapping[Subtask, SubtaskState]
    failure: TaskFailure | None
    """Why a part of these states is not in the store; None if all is there."""
    results: Sequence[EpochResults]
    """What tasks have sent to the driver that belongs to the checkpoint, in order."""
    in_flight: Sequence[tuple[str, list[Json]]] = ()
    """What the region has not read as of these states, for the metadata: by uid of the source that reads the edge."""


@dataclass
class RegionEpoch:
    """An epoch, as one region reads it."""

    shared: JobEpoch
    """The epoch, as all regions know it."""
    stage: RegionStage = RegionStage.WAITING
    planned: EpochInput | None = None
    """What it reads, once its splits are assigned."""
    read: bool = False
    """Whether the enumerators know that it was read."""
    stale: bool = False
    """Whether regions before it may have written what it reads anew since it was planned. It stays, as plans do."""
    since_ms: int = 0
    """When it was triggered, in milliseconds since 1970."""
    found: EdgeInputs = ()
    """What was in flight to the region before it."""
    reads: EdgeInputs | None = None
    """What it reads of blocking edges; None if it is not decided yet."""
    aligns: bool = False
    """Whether it is decided that the region reads all that the regions before it write in this epoch."""
    ahead: bool = False
    """Whether no checkpoint waits for it: it is a Spark job to which a checkpoint has only given its name."""
    start: int = 0
    """The state from which it starts, by the last epoch before it."""
    before: int = 0
    """The checkpoint that the region had acknowledged before it."""
    carried: RegionEnded | None = None
    """The Spark job whose results belong to its checkpoint, too; or None."""
    at_end: bool = False
    """Whether nothing more follows before its barrier, if it is open."""
    settled: bool = True
    """Whether it is known what was in flight at its barrier, once it is acknowledged."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint of its barrier."""
        return self.shared.checkpoint_id
