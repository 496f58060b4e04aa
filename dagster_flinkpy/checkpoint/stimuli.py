"""Stimuli of the checkpoint coordinator. Each carries its time, because the coordinator has no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

__all__ = [
    "Acknowledge",
    "CheckpointIdAssigned",
    "CommitFinished",
    "CoordinatorSnapshotted",
    "Decline",
    "HeadReplaced",
    "JobStatusChanged",
    "MasterHookFailed",
    "MasterStateCollected",
    "MetadataWriteFailed",
    "MetadataWritten",
    "PeriodicTick",
    "Shutdown",
    "Stimulus",
    "TimerFired",
    "TriggerFailed",
    "TriggerRequested",
]


@dataclass(frozen=True)
class Stimulus:
    """Base of all stimuli."""

    now_ms: int
    """When it happened, in milliseconds since 1970."""


@dataclass(frozen=True)
class TriggerRequested(Stimulus):
    """Somebody wants a checkpoint or savepoint."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    periodic: bool = False
    """Asked for by the interval, not by a person."""
    forced: bool = False
    """Regardless of the number of concurrent checkpoints and of the pause (Flink: ``isForce``)."""
    stop: bool = False
    """Savepoint only: the job stops with it, so it also completes as a checkpoint and sinks commit."""
    request_id: str = ""
    """Comes back in ``AssignCheckpointId`` or ``Rejected``."""


@dataclass(frozen=True)
class PeriodicTick(Stimulus):
    """The time of an ``ArmPeriodic`` has come."""


@dataclass(frozen=True)
class CheckpointIdAssigned(Stimulus):
    """Answers ``AssignCheckpointId``."""

    checkpoint_id: int


@dataclass(frozen=True)
class TriggerFailed(Stimulus):
    """Answers ``AssignCheckpointId``: no id is available."""

    cause: str


@dataclass(frozen=True)
class MasterStateCollected(Stimulus):
    """Answers ``TriggerMasterHooks``, once per hook."""

    checkpoint_id: int
    identifier: str
    state: Any
    """JSON; None if the hook has none."""


@dataclass(frozen=True)
class MasterHookFailed(Stimulus):
    """Answers ``TriggerMasterHooks``: a hook raised."""

    checkpoint_id: int
    identifier: str
    cause: str


@dataclass(frozen=True)
class CoordinatorSnapshotted(Stimulus):
    """Answers ``SnapshotCoordinators``, once per operator; before or after the acknowledgements."""

    checkpoint_id: int
    uid: str
    state: Any
    """JSON."""


@dataclass(frozen=True)
class Acknowledge(Stimulus):
    """A task's snapshot is durable."""

    message: AcknowledgeCheckpoint


@dataclass(frozen=True)
class Decline(Stimulus):
    """A task cannot take part."""

    message: DeclineCheckpoint


@dataclass(frozen=True)
class MetadataWritten(Stimulus):
    """Answers ``WriteMetadata``."""

    checkpoint_id: int


@dataclass(frozen=True)
class MetadataWriteFailed(Stimulus):
    """Answers ``WriteMetadata`` or ``ReplaceHead``."""

    checkpoint_id: int
    unknown_outcome: bool
    """Whether the write may have happened all the same; then no state is deleted."""
    cause: str = ""


@dataclass(frozen=True)
class HeadReplaced(Stimulus):
    """Answers ``ReplaceHead``: the checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True)
class CommitFinished(Stimulus):
    """Answers ``NotifyComplete``: all committables of the checkpoint are committed."""

    checkpoint_id: int


@dataclass(frozen=True)
class TimerFired(Stimulus):
    """The time of an ``ArmTimeout`` has come."""

    checkpoint_id: int


@dataclass(frozen=True)
class JobStatusChanged(Stimulus):
    """The job, or some of its tasks, started or stopped running (Flink: ``CheckpointCoordinatorDeActivator``)."""

    running: bool
    not_running: frozenset[Subtask] = frozenset()
    """While the job runs: the tasks that do not."""


@dataclass(frozen=True)
class Shutdown(Stimulus):
    """The end of the coordinator."""

    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
