"""Messages from tasks to the coordinator (Flink: ``org.apache.flink.runtime.messages.checkpoint``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from dagster_flinkpy.checkpoint.operator_states import SubtaskState

__all__ = ["AcknowledgeCheckpoint", "CheckpointFailureReason", "DeclineCheckpoint", "Subtask"]


class Subtask(NamedTuple):
    """One subtask of one operator."""

    uid: str
    subtask: int


class CheckpointFailureReason(Enum):
    """Why a checkpoint was not triggered, or not completed (Flink: ``CheckpointFailureReason``)."""

    # Before anything was sent to a task.
    PERIODIC_SCHEDULER_SHUTDOWN = "The periodic checkpoint scheduler is shut down."
    TOO_MANY_CHECKPOINT_REQUESTS = "The maximum number of queued checkpoint requests is exceeded."
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "The minimum time between checkpoints is still pending."
    NOT_ALL_REQUIRED_TASKS_RUNNING = "Not all required tasks are currently running."
    IO_EXCEPTION = "An I/O error occurred while the checkpoint was triggered."
    BLOCKING_OUTPUT_EXIST = "A task has a blocking output, which takes no barriers."
    TRIGGER_CHECKPOINT_FAILURE = "The checkpoint could not be triggered."
    # Afterwards.
    CHECKPOINT_ASYNC_EXCEPTION = "A task failed while writing its snapshot."
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = "Another task failed to write channel state to the same file."
    CHECKPOINT_EXPIRED = "The checkpoint expired before completing."
    CHECKPOINT_SUBSUMED = "The checkpoint was subsumed by a later one."
    CHECKPOINT_DECLINED = "The checkpoint was declined."
    CHECKPOINT_DECLINED_TASK_NOT_READY = "The checkpoint was declined: a task was not ready."
    CHECKPOINT_DECLINED_TASK_CLOSING = "The checkpoint was declined: a task was closing."
    CHECKPOINT_DECLINED_SUBSUMED = "The checkpoint was declined: a barrier of a newer checkpoint arrived."
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "The checkpoint was declined: an input cancelled it."
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "The checkpoint was declined: an input ended."
    CHECKPOINT_COORDINATOR_SHUTDOWN = "The checkpoint coordinator is shut down."
    CHECKPOINT_COORDINATOR_SUSPEND = "The checkpoint coordinator is suspended: the job is not running."
    JOB_FAILOVER_REGION = "A region of the job is restarting."
    TASK_FAILURE = "A task has failed."
    TASK_CHECKPOINT_FAILURE = "A task could not keep its local copy of the snapshot."
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = "An unknown task was to be notified."
    FINALIZE_CHECKPOINT_FAILURE = "The checkpoint could not be finalized."

    @classmethod
    def _missing_(cls, value: object) -> CheckpointFailureReason | None:
        """Finds it by the name under which it is stored."""
        return cls.__members__.get(str(value))


@dataclass(frozen=True)
class AcknowledgeCheckpoint:
    """Subtask to coordinator: my snapshot is durable."""

    job_id: str
    checkpoint_id: int
    fencing_token: int
    """Fencing token of the execution attempt."""
    uid: str
    subtask: int
    state: SubtaskState


@dataclass(frozen=True)
class DeclineCheckpoint:
    """Subtask to coordinator: I cannot take part."""

    job_id: str
    checkpoint_id: int
    fencing_token: int
    """Fencing token of the execution attempt."""
    uid: str
    subtask: int
    reason: CheckpointFailureReason
    cause: dict[str, Any]
    """The error as JSON (type, message, traceback, key, ...)."""
