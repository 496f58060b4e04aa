"""What the coordinator and the runtime tell each other of: subtasks, and why checkpoints fail."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["CheckpointFailureReason", "Subtask"]


class Subtask(NamedTuple):
    """One subtask of one operator."""

    uid: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.uid}[{self.subtask}]"


class CheckpointFailureReason(Enum):
    """Why a checkpoint was not triggered, or not completed (Flink: ``CheckpointFailureReason``)."""

    # Before anything was sent to a task.
    PERIODIC_SCHEDULER_SHUTDOWN = "The periodic checkpoint scheduler is shut down."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests is exceeded."
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "The minimum time between checkpoints is still pending."
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    IO_EXCEPTION = "An I/O error occurred while the checkpoint was triggered."
    TRIGGER_CHECKPOINT_FAILURE = "The checkpoint could not be triggered."
    # Afterwards.
    CHECKPOINT_ASYNC_EXCEPTION = "A task failed while writing its snapshot."
    CHECKPOINT_EXPIRED = "The checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "The checkpoint was subsumed by a later one."
    CHECKPOINT_DECLINED = "The checkpoint was declined."
    CHECKPOINT_DECLINED_SUBSUMED = "The checkpoint was declined: a barrier of a newer checkpoint arrived."
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "The checkpoint was declined: an input cancelled it."
    CHECKPOINT_COORDINATOR_SUSPEND = "The checkpoint coordinator is suspended: the job is not running."
    FINALIZE_CHECKPOINT_FAILURE = "The checkpoint could not be finalized."

    @classmethod
    def _missing_(cls, value: object) -> CheckpointFailureReason | None:
        """Finds it by the name under which it is stored."""
        return cls.__members__.get(str(value))
