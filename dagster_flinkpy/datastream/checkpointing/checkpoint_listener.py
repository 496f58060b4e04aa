"""Listeners for the end of checkpoints (Flink: ``CheckpointListener``)."""

from __future__ import annotations

__all__ = ["CheckpointListener"]


class CheckpointListener:
    """Is notified of how checkpoints end. Sink committers, master hooks, and functions of tasks that live extend it.

    Committers and hooks are notified on the driver. Functions, sources and sink writers are notified on the thread of
    their task if tasks live (``execution.exchange``). Otherwise they are not, because they live only as long as the
    Spark job of an epoch, and no checkpoint completes before that job ends. As in Flink, a notification is lost if the
    attempt dies before it is sent. Behind a blocking edge with unaligned barriers, a checkpoint may have an earlier
    snapshot of a function. Then the function is told the number of that snapshot, once.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Is called when a checkpoint is complete and all sinks have committed."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Is called when a checkpoint will never complete."""

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Is called when a completed checkpoint and all before it are deleted, because later ones replace them."""
