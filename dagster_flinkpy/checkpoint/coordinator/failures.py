"""Which failed checkpoints a job tolerates, and when their files can be deleted."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

__all__ = ["LOSES_NOTHING", "CheckpointFailureManager", "DiscardedFiles"]

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
    """Counts consecutive failures (Flink: ``CheckpointFailureManager``).

    Args:
        tolerable: How many consecutive failures are tolerated.
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._failed: set[int] = set()
        self._failed_without_id = 0
        self._last_success = 0

    def failed(
        self,
        checkpoint_id: int | None,
        request: TriggerRequested,
        reason: CheckpointFailureReason,
        *,
        by_task: bool = False,
    ) -> bool:
        """Counts a failure, once per checkpoint, and only if it is later than the last success.

        If the driver could not take a savepoint, that does not count, because the caller gets the error. If a task
        could not take it, it counts; and if the job was to stop with it, the job fails at once.

        Args:
            checkpoint_id: Id of the checkpoint, or None if it failed before it had one.
            request: The request for the checkpoint.
            reason: The reason of the failure.
            by_task: Whether a task reported the failure, not the driver.

        Returns:
            Whether there are now more failures than tolerated. If so, the count starts again.
        """
        if request.kind is CheckpointKind.SAVEPOINT and not by_task:
            return False
        if request.stop and by_task:
            return True
        if reason not in _COUNTED or (checkpoint_id is not None and checkpoint_id <= self._last_success):
            return False
        if checkpoint_id is None:
            self._failed_without_id += 1
        else:
            self._failed.add(checkpoint_id)
        if len(self._failed) + self._failed_without_id <= self._tolerable:
            return False
        self._clear()
        return True

    def succeeded(self, checkpoint_id: int) -> None:
        """Resets the count, unless a later checkpoint has already succeeded."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._clear()

    def _clear(self) -> None:
        self._failed.clear()
        self._failed_without_id = 0


class DiscardedFiles:
    """Keeps what a later checkpoint may name, and the latest one does (Flink: ``CheckpointsCleaner``).

    Args:
        named: What the checkpoint names that the attempt started from. It is never deleted.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named_by_latest = frozenset(named)
        self._garbage: set[str] = set()
        self._handed_over: dict[int, set[str]] = {}
        """Files of failed checkpoints that the next one may name, too: its tasks continue from their state."""

    def discard(self, files: Iterable[str]) -> None:
        """Takes files that no checkpoint is to name."""
        self._garbage.update(files)

    def keep(self, files: Iterable[str]) -> None:
        """Keeps files that a checkpoint may name of which nobody knows whether it is complete."""
        self._named_by_latest |= frozenset(files)

    def hand_over(self, checkpoint_id: int, files: Iterable[str]) -> None:
        """Keeps the files of a failed checkpoint until a later one is complete."""
        self._handed_over[checkpoint_id] = set(files) - self._named_by_latest

    def completed(self, checkpoint_id: int, files: Iterable[str]) -> None:
        """Takes note of what the latest checkpoint names. What failed ones before it have left is not needed."""
        self._named_by_latest = frozenset(files)
        for number in list(self._handed_over):
            if number < checkpoint_id:
                self._garbage |= self._handed_over.pop(number)
            else:
                self._handed_over[number] -= self._named_by_latest

    def give_up(self) -> None:
        """Takes note that no checkpoint will take over from failed ones."""
        self._garbage.update(*self._handed_over.values())
        self._handed_over.clear()

    def take(self) -> frozenset[str]:
        """Returns what can be deleted, and forgets it. Nobody must be writing files.

        Files are named by content, so a task may write one of the same name again.
        """
        files = frozenset(self._garbage) - self._named_by_latest - frozenset().union(*self._handed_over.values())
        self._garbage.clear()
        return files
