"""What the tasks of a region have sent, as stimuli for the checkpoint coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from dagster_flinkpy.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.stimuli import Acknowledge, CoordinatorSnapshotted, Decline
from dagster_flinkpy.errors import FlinkPyError, message_of
from dagster_flinkpy.runtime.master.epoch_planner import EpochPlanner

__all__ = ["acknowledgements", "declined"]


def acknowledgements(
    planner: EpochPlanner,
    checkpoint_id: int,
    states: Mapping[Subtask, SubtaskState],
    coordinators: Collection[str],
    now: Callable[[], int],
) -> Iterator[Acknowledge | CoordinatorSnapshotted]:
    """Yields the acknowledgements of all tasks of a region, and then those of its enumerators.

    Args:
        planner: The planner of the region, which has the state of the enumerators at the barrier.
        checkpoint_id: The checkpoint.
        states: The state of each task.
        coordinators: Uids of the operators whose enumerators take part.
        now: Tells milliseconds since 1970.
    """
    job_id, token = planner.config.job_id, planner.fencing_token
    for task, state in states.items():
        message = AcknowledgeCheckpoint(job_id, checkpoint_id, token, task.uid, task.subtask, state)
        yield Acknowledge(now(), message)
    positions = planner.splits.take_states(checkpoint_id)
    for uid in coordinators:
        if uid in positions:
            yield CoordinatorSnapshotted(now(), checkpoint_id, uid, positions[uid])


def declined(
    planner: EpochPlanner, checkpoint_id: int, task: Subtask | None, error: FlinkPyError, now_ms: int
) -> Decline:
    """Returns the message that a checkpoint failed in a region.

    Args:
        planner: The planner of the region.
        checkpoint_id: The checkpoint.
        task: The subtask that raised the error; None if the driver raised it.
        error: The error.
        now_ms: The time, in milliseconds since 1970.
    """
    where = task or planner.tasks[0]
    cause = {"type": type(error).__name__, "message": message_of(error)}
    reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
    if task is not None:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    job_id, token = planner.config.job_id, planner.fencing_token
    return Decline(now_ms, DeclineCheckpoint(job_id, checkpoint_id, token, where.uid, where.subtask, reason, cause))
