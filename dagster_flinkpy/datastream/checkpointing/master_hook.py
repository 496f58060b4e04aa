"""Hooks that run on the driver at each checkpoint (Flink: ``MasterTriggerRestoreHook``).

PyFlink has no such interface. The names are those of Flink's Java API, in Python's spelling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["MasterTriggerRestoreHook"]


class MasterTriggerRestoreHook(ABC):
    """Is called on the driver before the barriers of a checkpoint are sent, and when one is restored.

    It keeps what a job needs besides its operators' state, such as a position in an external system. Register it with
    ``env.get_checkpoint_config().add_master_hook(hook)``. In a program with several jobs, each of them calls it.

    All calls of a run come on one thread, which is not the main thread. A call may take as long as the checkpoint
    timeout; after that the run fails with a `CheckpointTimeoutError`.
    """

    @abstractmethod
    def get_identifier(self) -> str:
        """Returns the id of its state, which is unique in the program and stays the same in later versions."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        """Is called at each checkpoint. An error that it raises aborts the checkpoint.

        Args:
            checkpoint_id: The id of the checkpoint.
            timestamp: When the checkpoint was triggered, in milliseconds since 1970.

        Returns:
            The state as JSON (None, bool, finite numbers, str, list and dict), or None if there is none.
        """

    @abstractmethod
    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        """Is called before the first epoch of an attempt that starts from a checkpoint or savepoint.

        Args:
            checkpoint_id: The id of the checkpoint.
            checkpoint_data: The state of this hook in the checkpoint, or None.
        """

    def reset(self) -> None:
        """Is called instead of `restore_checkpoint` if there is no checkpoint. Does nothing by default."""
        return

    def close(self) -> None:
        """Is called when the attempt ends. Does nothing by default."""
        return
