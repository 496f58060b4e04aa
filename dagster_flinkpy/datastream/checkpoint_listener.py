"""Listeners for the end of checkpoints (Flink: ``CheckpointListener``)."""

from __future__ import annotations

__all__ = ["CheckpointListener"]


class CheckpointListener:
    """Is told on the driver how checkpoints end: the base class of sink committers and master hooks.

    User functions are not told, because they live as long as the Spark job of an epoch, and no checkpoint completes
    before it ends. As in Flink, a notification is lost if the attempt dies before it.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Is called when a checkpoint is complete and all sinks have committed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Is called when a checkpoint will never complete."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Is called when a completed checkpoint and all before it are deleted, because later ones replace them."""
