"""What :class:`~dagster_flinkpy.runtime.master.job_state.JobState` is told, and what it tells the job's master to do.

The stimuli and instructions of the checkpoint coordinator are among them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.checkpoint.coordinator.stimuli import Stimulus
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.requests import Request
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeInputs
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.epoch_request import EpochRequest

__all__ = [
    "AbortLingering",
    "AnswerRequest",
    "BeginEpoch",
    "CheckpointIdsReserved",
    "CloseEpoch",
    "CommitCheckpoint",
    "CompleteCheckpoint",
    "DiscardRead",
    "EpochsAsked",
    "GiveUpSavepoints",
    "HandOut",
    "InterruptRegion",
    "JobStarted",
    "LookForInput",
    "LookForRequests",
    "NotifySources",
    "PlanEpoch",
    "Quieted",
    "RegionInstruction",
    "RepeatState",
    "RequestsTaken",
    "ReserveCheckpointIds",
    "Resumed",
    "RunEpoch",
    "SavepointWritten",
    "Say",
    "StepFailed",
    "Subsume",
    "Terminated",
    "TimePassed",
    "WriteCheckpoint",
    "WriteSavepoint",
]

# --- stimuli ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobStarted(Stimulus):
    """The attempt has restored its state. Comes first, once."""


@dataclass(frozen=True)
class EpochsAsked(Stimulus):
    """A caller asks for epochs. Nothing of an earlier request is under way."""

    request: EpochRequest


@dataclass(frozen=True)
class Resumed(Stimulus):
    """Somebody waits again, or something is done that nobody waits for."""


@dataclass(frozen=True)
class TimePassed(Stimulus):
    """Nothing has happened until ``next_timer``."""

    records: int = 0
    """How many records tasks have read, as far as that is known, if a checkpoint is to expire."""


@dataclass(frozen=True)
class Terminated(Stimulus):
    """Somebody outside ends the run."""

    error: BaseException


@dataclass(frozen=True)
class StepFailed(Stimulus):
    """The attempt cannot go on, because of what a lane has met."""

    instruction: Instruction | None
    """What it was to do; None if nobody asked for it."""
    error: BaseException


@dataclass(frozen=True)
class RequestsTaken(Stimulus):
    """Answers `LookForRequests`."""

    requests: tuple[tuple[Request, FlinkPyError | None], ...] = ()
    """Each with why its savepoint cannot be written, if that is known already."""
    problem: str = ""
    """Why the store could not be asked."""


@dataclass(frozen=True)
class SavepointWritten(Stimulus):
    """Answers `WriteSavepoint`."""

    request: Request
    checkpoint_id: int
    savepoint: str | None
    """Its URL; None if it is not there."""
    error: Exception | None
    tries: int
    """How many more tries there may be."""


@dataclass(frozen=True)
class CheckpointIdsReserved(Stimulus):
    """Answers `ReserveCheckpointIds`."""

    checkpoint_ids: tuple[int, ...]
    """All that are reserved, in order; fewer if the store has given none."""


@dataclass(frozen=True)
class Quieted(Stimulus):
    """Nothing is running any more."""


# --- instructions: regions --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegionInstruction(Instruction):
    """Base of what the lane of a region does."""

    region: int


@dataclass(frozen=True)
class LookForInput(RegionInstruction):
    """Look for input, and assign it to the next epoch."""


@dataclass(frozen=True)
class NotifySources(RegionInstruction):
    """Tell the sources that a checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True)
class BeginEpoch(RegionInstruction):
    """Prepare the Spark job of the epoch of a checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True)
class PlanEpoch(RegionInstruction):
    """Plan the input up to a barrier."""

    checkpoint_id: int
    inputs: EdgeInputs
    """What it reads of blocking edges."""
    drain: bool


@dataclass(frozen=True)
class RunEpoch(RegionInstruction):
    """Run the tasks that read an epoch."""

    epoch: EpochInput
    """If it is open, more input follows until `CloseEpoch`."""
    restarts: int
    """How often the region has restarted in this attempt."""
    rewritten: EdgeInputs | None
    """What it reads of blocking edges, if that was written anew since it was planned."""
    was_read: bool
    """Whether an earlier Spark job has read the epoch."""


@dataclass(frozen=True)
class CloseEpoch(RegionInstruction):
    """Let the barrier follow in the epoch that is open: its checkpoint is triggered."""

    following: int | None
    """The checkpoint of the epoch that the sources read next, without waiting for the acknowledgements of this one.
    None: they wait."""


@dataclass(frozen=True)
class RepeatState(RegionInstruction):
    """Acknowledge a checkpoint with the current state."""

    checkpoint_id: int
    restarts: int = 0
    """How often the region has restarted in this execution attempt."""


@dataclass(frozen=True)
class InterruptRegion(RegionInstruction):
    """End what the lane is doing, at once."""


# --- instructions: checkpoints ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReserveCheckpointIds(Instruction):
    """Take the ids of the next checkpoints before they are triggered."""

    number: int
    """How many are to be reserved in all."""


@dataclass(frozen=True)
class WriteCheckpoint(Instruction):
    """Write the metadata of a checkpoint that all have acknowledged."""

    metadata: CheckpointMetadata


@dataclass(frozen=True)
class CompleteCheckpoint(Instruction):
    """Let HEAD name a checkpoint."""

    metadata: CheckpointMetadata


@dataclass(frozen=True)
class CommitCheckpoint(Instruction):
    """Commit what the sinks have prepared for a complete checkpoint."""

    metadata: CheckpointMetadata


@dataclass(frozen=True)
class HandOut(Instruction):
    """Give a committed checkpoint to the caller, with what becomes visible with it."""

    metadata: CheckpointMetadata
    checkpoint_ids: tuple[int, ...]
    """The checkpoint, behind those that have handed their part over to it."""
    printed: tuple[str, ...]
    collected: Mapping[str, list[pa.Array]]
    """The records of collect operators, by uid."""


@dataclass(frozen=True)
class DiscardRead(Instruction):
    """Delete segments that were read before the barrier of a complete checkpoint."""

    written: Mapping[str, Collection[int]]
    """The epochs whose segments no checkpoint before it has named, by uid of the sink."""
    named: Collection[str]
    """The paths that the checkpoint names."""


@dataclass(frozen=True)
class Subsume(Instruction):
    """Delete checkpoints that are no longer retained."""

    checkpoint_ids: tuple[int, ...]


@dataclass(frozen=True)
class AbortLingering(Instruction):
    """Abort open transactions that no checkpoint names."""

    region: int | None = None
    """The region on whose lane this is done, before it runs again; None for the store's lane."""


# --- instructions: others ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookForRequests(Instruction):
    """Look for requests to the job."""


@dataclass(frozen=True)
class AnswerRequest(Instruction):
    """Tell who has asked."""

    request: Request
    checkpoint_id: int | None
    savepoint: str | None
    """The URL of the savepoint, if one was asked for."""
    error: Exception | None
    """Why the request was not carried out; None if it was."""


@dataclass(frozen=True)
class WriteSavepoint(Instruction):
    """Copy a checkpoint as a savepoint."""

    request: Request
    metadata: CheckpointMetadata
    tries: int
    """How many more tries there may be."""


@dataclass(frozen=True)
class GiveUpSavepoints(Instruction):
    """Give up savepoints that are not there yet."""


@dataclass(frozen=True)
class Say(Instruction):
    """Pass on a progress message."""

    line: str
