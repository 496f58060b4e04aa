"""Stimuli of the checkpoint coordinator. Each carries its time, because the coordinator has no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

__all__ = [
    "Acknowledge",
    "AcknowledgedLate",
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
    "TasksRestarted",
    "TimerFired",
    "TriggerFailed",
    "TriggerRequested",
    "describe",
]


@dataclass(frozen=True)
class Stimulus:
    """Base of all stimuli."""

    now_ms: int
    """When it happened, in milliseconds since 1970."""


@dataclass(frozen=True)
class TriggerRequested(Stimulus):
    """Requests a checkpoint or savepoint."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    periodic: bool = False
    """Whether the interval asks for it, not a person."""
    forced: bool = False
    """Whether to ignore the limit of concurrent checkpoints and the pause between them (Flink: ``isForce``)."""
    stop: bool = False
    """Whether the job stops with this savepoint. If so, it also completes as a checkpoint, and sinks commit."""
    request_id: str = ""
    """Identifies the request in ``AssignCheckpointId`` and ``Rejected``."""


@dataclass(frozen=True)
class PeriodicTick(Stimulus):
    """The time that ``ArmPeriodic`` set has come."""


@dataclass(frozen=True)
class CheckpointIdAssigned(Stimulus):
    """Answers ``AssignCheckpointId`` with the next id."""

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
    """A JSON value; None if the hook has no state."""


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
    """A JSON value."""


@dataclass(frozen=True)
class Acknowledge(Stimulus):
    """A task's snapshot is durable."""

    message: AcknowledgeCheckpoint


@dataclass(frozen=True)
class Decline(Stimulus):
    """A task cannot take part."""

    message: DeclineCheckpoint


@dataclass(frozen=True)
class AcknowledgedLate(Stimulus):
    """Tasks have stored states that no checkpoint will name any more (Flink: ``discardSubtaskState``)."""

    files: frozenset[str]


@dataclass(frozen=True)
class TasksRestarted(Stimulus):
    """Tasks run again from an earlier state; what they have acknowledged since does not count.

    Their coordinators' states stay: the tasks read the same splits again. The files of the old states are left to the
    sweep, because other checkpoints may name some of them.
    """

    checkpoint_ids: tuple[int, ...]
    """The checkpoints that are affected. Not all tasks have acknowledged them."""
    tasks: tuple[Subtask, ...]


@dataclass(frozen=True)
class MetadataWritten(Stimulus):
    """Answers ``WriteMetadata``."""

    checkpoint_id: int


@dataclass(frozen=True)
class MetadataWriteFailed(Stimulus):
    """Answers ``WriteMetadata`` or ``ReplaceHead``."""

    checkpoint_id: int
    unknown_outcome: bool
    """Whether the write may have succeeded nevertheless. If so, no state is deleted."""
    cause: str = ""
    reason: CheckpointFailureReason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    """Another one if nothing was tried, because a task could not store its snapshot."""


@dataclass(frozen=True)
class HeadReplaced(Stimulus):
    """Answers ``ReplaceHead``: the checkpoint is complete."""

    checkpoint_id: int


@dataclass(frozen=True)
class CommitFinished(Stimulus):
    """Answers ``NotifyComplete``: all committables of the checkpoint are committed."""

    checkpoint_id: int
    phases: CheckpointPhases | None = None
    """How long its phases took, for the statistics."""


@dataclass(frozen=True)
class TimerFired(Stimulus):
    """The time that ``ArmTimeout`` set has come."""

    checkpoint_id: int


@dataclass(frozen=True)
class JobStatusChanged(Stimulus):
    """The job, or some of its tasks, started or stopped running (Flink: ``CheckpointCoordinatorDeActivator``)."""

    running: bool
    not_running: frozenset[Subtask] = frozenset()
    """The tasks that are not running although the job is."""


@dataclass(frozen=True)
class Shutdown(Stimulus):
    """Shuts the coordinator down."""

    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN


def describe(stimulus: Stimulus) -> str:
    """Describes a stimulus in one line, without states and other large values, of which it has the types."""
    if isinstance(stimulus, Acknowledge | Decline):
        message = stimulus.message
        what = f"checkpoint_id={message.checkpoint_id} {message.uid}[{message.subtask}]"
    elif isinstance(stimulus, CoordinatorSnapshotted):
        what = f"checkpoint_id={stimulus.checkpoint_id} {stimulus.uid}"
    elif isinstance(stimulus, TasksRestarted):
        what = f"checkpoint_ids={stimulus.checkpoint_ids} {len(stimulus.tasks)} tasks from {stimulus.tasks[0].uid}"
    else:
        fields = ((name, value) for name, value in vars(stimulus).items() if name != "now_ms")
        what = " ".join(f"{name}={value if _is_short(name, value) else type(value).__name__}" for name, value in fields)
    return f"{stimulus.now_ms} {type(stimulus).__name__} {what}".rstrip()


def _is_short(name: str, value: object) -> bool:
    return name == "checkpoint_ids" or value is None or isinstance(value, (int, str, Enum))
