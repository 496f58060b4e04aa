"""Instructions of the checkpoint coordinator, which the runtime carries out in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason, Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import SubtaskState

__all__ = [
    "ArmPeriodic",
    "ArmTimeout",
    "AssignCheckpointId",
    "CancelSparkJob",
    "DiscardState",
    "DropSubsumed",
    "EmitBarriers",
    "FailJob",
    "HandOver",
    "Instruction",
    "NotifyAborted",
    "NotifyComplete",
    "NotifySubsumed",
    "Rejected",
    "ReplaceHead",
    "SnapshotCoordinators",
    "TriggerMasterHooks",
    "WriteMetadata",
]


@dataclass(frozen=True)
class Instruction:
    """Base of all instructions."""


@dataclass(frozen=True)
class AssignCheckpointId(Instruction):
    """Take the next checkpoint id; answer with ``CheckpointIdAssigned`` or ``TriggerFailed``."""

    request_id: str


@dataclass(frozen=True)
class Rejected(Instruction):
    """The request was dropped, and nothing was sent to any task."""

    request_id: str
    reason: CheckpointFailureReason
    message: str
    tolerated: bool = False
    """Whether it counts as a failed checkpoint, and the job tolerates that. It may be requested again."""


@dataclass(frozen=True)
class ArmPeriodic(Instruction):
    """Send a ``PeriodicTick`` at this time, instead of at any time that was set before."""

    at_ms: int


@dataclass(frozen=True)
class ArmTimeout(Instruction):
    """Send ``TimerFired`` at this time."""

    checkpoint_id: int
    at_ms: int


@dataclass(frozen=True)
class SnapshotCoordinators(Instruction):
    """Snapshot the coordinators of these operators; answer with one ``CoordinatorSnapshotted`` for each.

    A split enumerator takes its snapshot when it has received the offsets of the epoch, so after the acknowledgements.
    """

    checkpoint_id: int
    uids: tuple[str, ...]


@dataclass(frozen=True)
class TriggerMasterHooks(Instruction):
    """Call these hooks; answer with one ``MasterStateCollected`` or ``MasterHookFailed`` for each."""

    checkpoint_id: int
    timestamp_ms: int
    """When the checkpoint was triggered, in milliseconds since 1970."""
    identifiers: tuple[str, ...]


@dataclass(frozen=True)
class EmitBarriers(Instruction):
    """Insert the barrier at these source tasks (Flink: ``TriggerCheckpoint``)."""

    checkpoint_id: int
    tasks: tuple[Subtask, ...]


@dataclass(frozen=True)
class CancelSparkJob(Instruction):
    """Interrupt the Spark job that carries this checkpoint's barrier."""

    checkpoint_id: int


@dataclass(frozen=True)
class WriteMetadata(Instruction):
    """All have acknowledged: write ``_metadata``; answer with ``MetadataWritten`` or ``MetadataWriteFailed``."""

    checkpoint_id: int
    kind: CheckpointKind
    trigger_ms: int
    states: Mapping[str, tuple[SubtaskState, ...]]
    """The states of an operator's subtasks, in their order, by uid."""
    coordinator_states: Mapping[str, Any]
    """JSON values, by uid."""
    master_states: Mapping[str, Any] = field(default_factory=dict)
    """JSON values, by identifier of the master hook."""


@dataclass(frozen=True)
class HandOver(WriteMetadata):
    """All have acknowledged a checkpoint that had expired: let the next one take over. There is no answer."""


@dataclass(frozen=True)
class ReplaceHead(Instruction):
    """Complete the checkpoint; answer with ``HeadReplaced`` or ``MetadataWriteFailed``."""

    checkpoint_id: int


@dataclass(frozen=True)
class NotifyComplete(Instruction):
    """Commit what these tasks prepared; answer with ``CommitFinished``, even if there are no tasks."""

    job_id: str
    checkpoint_id: int
    fencing_token: int
    """Fencing token of the execution attempt."""
    tasks: tuple[Subtask, ...]


@dataclass(frozen=True)
class NotifyAborted(Instruction):
    """The checkpoint will never complete: abort what its tasks prepared, unless the failure is tolerated."""

    job_id: str
    checkpoint_id: int
    fencing_token: int
    """Fencing token of the execution attempt."""
    reason: CheckpointFailureReason
    tolerated: bool = False
    """Whether nothing is lost, and the job goes on: the next checkpoint takes over what the tasks have prepared, and
    states continue from those of the failed one."""


@dataclass(frozen=True)
class NotifySubsumed(Instruction):
    """This completed checkpoint and all earlier ones will no longer be restored."""

    job_id: str
    checkpoint_id: int
    fencing_token: int
    """Fencing token of the execution attempt."""
    tasks: tuple[Subtask, ...]


@dataclass(frozen=True)
class DiscardState(Instruction):
    """Delete these files, which no checkpoint names, unless this attempt was fenced."""

    files: frozenset[str]


@dataclass(frozen=True)
class DropSubsumed(Instruction):
    """Delete these completed checkpoints, which are no longer retained, and the files that only they name."""

    checkpoint_ids: tuple[int, ...]


@dataclass(frozen=True)
class FailJob(Instruction):
    """Fail the job: too many checkpoints in a row failed, or the one that the job was to stop with."""

    checkpoint_id: int | None
    """Id of the last failed checkpoint; None if it failed before it had one."""
    reason: CheckpointFailureReason
    message: str
