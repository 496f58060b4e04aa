"""Stimuli of the checkpoint coordinator. Each carries its time, because the coordinator has no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason, Subtask
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.operator_states import SubtaskState

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
    """Requests a checkpoint."""

    periodic: bool = False
    """Whether the interval asks for it. If not, neither the limit of concurrent checkpoints nor the pause counts."""
    stop: bool = False
    """Whether the job stops with it. It is kept as a savepoint, too."""
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
    """The coordinator of an operator has taken its snapshot; before or after the acknowledgements.

    A split enumerator takes it when it has received the offsets of the epoch, so after the acknowledgements.
    """

    checkpoint_id: int
    uid: str
    state: Any
    """A JSON value."""


@dataclass(frozen=True)
class Acknowledge(Stimulus):
    """A task's snapshot is durable."""

    checkpoint_id: int
    task: Subtask
    state: SubtaskState


@dataclass(frozen=True)
class Decline(Stimulus):
    """A task cannot take part."""

    checkpoint_id: int
    task: Subtask
    reason: CheckpointFailureReason
    message: str = ""
    """What went wrong. Default: what the reason says."""


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


def describe(stimulus: Stimulus) -> str:
    """Describes a stimulus in one line, without states and other large values, of which it has the types."""
    if isinstance(stimulus, Acknowledge | Decline):
        what = f"checkpoint_id={stimulus.checkpoint_id} {stimulus.task}"
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
