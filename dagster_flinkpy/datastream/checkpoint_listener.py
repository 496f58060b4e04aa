"""What is told of the end of checkpoints (Flink: ``CheckpointListener``)."""

from __future__ import annotations

__all__ = ["CheckpointListener"]


class CheckpointListener:
    """Base of what lives on the driver and wants to know: sink committers and master hooks.

    User functions live as long as the Spark job of an epoch, and no checkpoint completes before that is over: they are
    told nothing. As in Flink, a notification is lost where the attempt dies before it.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete, and all sinks have committed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """The completed checkpoint, and all before it, are deleted: later ones have taken their place."""
