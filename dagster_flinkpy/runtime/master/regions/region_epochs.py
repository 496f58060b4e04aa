"""What a region knows about epochs, and what its tasks acknowledge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epoch_request import EpochBatch
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.results import TaskFailure

__all__ = ["Acknowledged", "Phase", "RegionEpochs", "RegionStage", "Turn"]


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
    """Nothing, and no epochs are at hand."""
    LOOKING = auto()
    """It looks for input."""
    DEPLOYED = auto()
    """Nothing; the epochs at hand wait for another one that the same Spark job reads."""
    PLANNING = auto()
    """It plans the input of an epoch."""
    RUNNING = auto()
    """It runs the Spark job of the epochs at hand."""


class RegionStage(Enum):
    """How far epochs have come in a region."""

    WAITING = auto()
    """For their turn or their input."""
    PASSING = auto()
    """Their barriers overtake what the region reads; they wait for the regions before it."""
    CURRENT = auto()
    """They are planned or run."""
    PASSED = auto()
    """Acknowledged without a Spark job; the checkpoints are not complete."""
    ACKNOWLEDGED = auto()
    """All tasks have acknowledged them; the checkpoints are not complete."""


@dataclass(frozen=True)
class Acknowledged:
    """What all tasks of a region acknowledge of a checkpoint."""

    checkpoint_id: int
    states: Mapping[Subtask, SubtaskState]
    failure: TaskFailure | None = None
    """Why a part of these states is not in the store; None if all is there."""
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
        return replace(self, states=states, job=job)


@dataclass
class RegionEpochs:
    """The epochs of a batch, as one region reads them."""

    batch: EpochBatch
    stage: RegionStage = RegionStage.WAITING
    planned: list[EpochInput] = field(default_factory=list)
    """Those whose splits are assigned."""
    read: bool = False
    """Whether the enumerators know that they were read."""
    stale: bool = False
    """Whether regions before it may have written what they read anew since they were planned. It stays, as plans do."""
    since_ms: int = 0
    """When they were triggered, in milliseconds since 1970."""
    found: EdgeInputs = ()
    """What was in flight to the region before them."""
    reads: Sequence[EdgeInputs] | None = None
    """What each epoch reads of blocking edges; None if it is not decided yet."""
    aligns: bool = False
    """Whether it is decided that the region reads all that the regions before it write in these epochs."""
    ahead: bool = False
    """Whether no checkpoint waits for them: it is one Spark job, which the first checkpoint has only given its name."""
    start: int = 0
    """The state from which they start, by the last epoch before it."""
    before: int = 0
    """The checkpoint that the region had acknowledged before them."""
    carried: RegionEnded | None = None
    """The Spark job whose results belong to their first checkpoint, too; or None."""
    at_end: bool = False
    """Whether nothing more follows before the barrier of an epoch that is open."""
    settled: bool = True
    """Whether it is known what was in flight at their barriers, once they are acknowledged."""

    @property
    def first(self) -> int:
        """The first checkpoint."""
        return self.batch.checkpoint_ids[0]

    @property
    def last(self) -> int:
        """The last checkpoint."""
        return self.batch.checkpoint_ids[-1]
