"""Decides how many failed checkpoints a job tolerates (Flink: ``CheckpointFailureManager``)."""

from __future__ import annotations

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested

__all__ = ["LOSES_NOTHING", "CheckpointFailureManager"]

_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
        # Flink ignores a hook that fails. Here an epoch waits for its checkpoint, so the job would stand still.
        CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
    }
)

LOSES_NOTHING = frozenset(
    {
        CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""Failures before an epoch begins, and those after which all tasks take their snapshots, though perhaps late."""


class CheckpointFailureManager:
    """Counts consecutive failures.

    Args:
        tolerable: How many consecutive failures are tolerated.
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._failed = 0

    def failed(self, request: TriggerRequested, reason: CheckpointFailureReason, *, by_task: bool = False) -> bool:
        """Counts the failure of a checkpoint.

        If a task could not take the one that the job was to stop with, the job fails at once. If the driver could not,
        that does not count, because the caller gets the error.

        Args:
            request: The request for the checkpoint.
            reason: The reason of the failure.
            by_task: Whether a task reported the failure, not the driver.

        Returns:
            Whether there are now more failures than tolerated. If so, the count starts again.
        """
        if request.stop:
            return by_task
        self._failed += reason in _COUNTED
        if self._failed <= self._tolerable:
            return False
        self._failed = 0
        return True

    def succeeded(self) -> None:
        """Resets the count."""
        self._failed = 0
