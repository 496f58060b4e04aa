"""What is told about single checkpoints (Flink: ``AbstractCheckpointStats``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

__all__ = ["CheckpointStats", "CheckpointStatus"]


class CheckpointStatus(Enum):
    """How a checkpoint stands (Flink: ``CheckpointStatsStatus``)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class CheckpointStats:
    """One checkpoint."""

    checkpoint_id: int
    kind: CheckpointKind
    status: CheckpointStatus
    trigger_ms: int
    """Milliseconds since 1970."""
    duration_ms: int
    """From the trigger to its end, or to the last event if it has not ended."""
    acknowledged: int
    """Tasks that have answered."""
    tasks: int
    """Tasks that have to."""
    state_bytes: int
    """Size of the keyed state that was acknowledged."""
    reason: CheckpointFailureReason | None = None
    """Of a failure."""
