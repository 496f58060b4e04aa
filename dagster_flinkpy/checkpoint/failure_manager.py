"""How many failed checkpoints a job survives (Flink: ``CheckpointFailureManager``)."""

from __future__ import annotations

from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason

__all__ = ["CheckpointFailureManager"]

_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)


class CheckpointFailureManager:
    """Counts failures in a row.

    Args:
        tolerable: how many are survived.
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._failed: set[int] = set()
        self._last_success = 0

    def failed(self, checkpoint_id: int, reason: CheckpointFailureReason) -> bool:
        """Count a failure, once per checkpoint and only of those after the last success.

        Returns:
            Whether there are more now than are tolerated.
        """
        if reason not in _COUNTED or checkpoint_id <= self._last_success:
            return False
        self._failed.add(checkpoint_id)
        return len(self._failed) > self._tolerable

    def succeeded(self, checkpoint_id: int) -> None:
        """Start over."""
        self._failed.clear()
        self._last_success = max(self._last_success, checkpoint_id)
