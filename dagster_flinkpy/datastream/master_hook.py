"""What a job does on the driver at each checkpoint (Flink: ``MasterTriggerRestoreHook``).

PyFlink has no such interface; names are those of Flink's Java API in Python's spelling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["MasterTriggerRestoreHook"]


class MasterTriggerRestoreHook(ABC):
    """Called on the driver before the barriers of a checkpoint go out, and when one is restored.

    For what a job needs beside its operators' state, such as a position in an external system. Register it with
    ``env.get_checkpoint_config().add_master_hook(hook)``. In a program of several regions, each of its jobs calls it.
    """

    @abstractmethod
    def get_identifier(self) -> str:
        """Finds the state again: unique in the program, and the same in later versions of it."""

    @abstractmethod
    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        """Called at each checkpoint; what it raises aborts that.

        Args:
            checkpoint_id: Id of the checkpoint.
            timestamp: When it was triggered, in milliseconds since 1970.

        Returns:
            State as JSON: None, bool, finite numbers, str, list and dict. None: there is none.
        """

    @abstractmethod
    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        """Called before the first epoch of an attempt that goes on from a checkpoint or savepoint.

        Args:
            checkpoint_id: Id of the checkpoint.
            checkpoint_data: The state of this hook in it; None: there is none.
        """

    def reset(self) -> None:
        """Called instead where there is no checkpoint to go on from. Does nothing by default."""
        return

    def close(self) -> None:
        """Called when the attempt ends. Does nothing by default."""
        return
