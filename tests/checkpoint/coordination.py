"""A coordinator of a small job, and the events that tests send to it."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import (
    AssignCheckpointId,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    NotifySubsumed,
)
from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    Acknowledge,
    CheckpointIdAssigned,
    CommitFinished,
    Decline,
    HeadReplaced,
    JobStatusChanged,
    MetadataWritten,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from tests.checkpoint.samples import keyed

JOB = "flights"
TOKEN = 4
SOURCE = Subtask("flights", 0)
COUNTS = (Subtask("count", 0), Subtask("count", 1))
PLAN = CheckpointPlan((SOURCE,), (SOURCE, *COUNTS), COUNTS)
REASON = CheckpointFailureReason


def state(task: Subtask, name: str = "") -> SubtaskState:
    names = (name,) if name else ()
    return SubtaskState(task.subtask, keyed=keyed(*names, index=task.subtask) if names else None)


def files(*names: str, index: int = 0) -> frozenset[str]:
    return frozenset(keyed(*names, index=index).files())


def ack(
    now: int, checkpoint_id: int, task: Subtask, name: str = "", *, job: str = JOB, fencing_token: int = TOKEN
) -> Acknowledge:
    return Acknowledge(
        now, AcknowledgeCheckpoint(job, checkpoint_id, fencing_token, task.uid, task.subtask, state(task, name))
    )


def decline(
    now: int,
    checkpoint_id: int,
    task: Subtask = SOURCE,
    reason: CheckpointFailureReason = REASON.CHECKPOINT_DECLINED,
    *,
    fencing_token: int = TOKEN,
) -> Decline:
    cause = {"message": "division by zero"}
    return Decline(now, DeclineCheckpoint(JOB, checkpoint_id, fencing_token, task.uid, task.subtask, reason, cause))


def notify_complete(checkpoint_id: int) -> NotifyComplete:
    return NotifyComplete(JOB, checkpoint_id, TOKEN, COUNTS)


def notify_aborted(checkpoint_id: int, reason: CheckpointFailureReason, *, tolerated: bool = False) -> NotifyAborted:
    return NotifyAborted(JOB, checkpoint_id, TOKEN, reason, tolerated)


def notify_subsumed(checkpoint_id: int) -> NotifySubsumed:
    return NotifySubsumed(JOB, checkpoint_id, TOKEN, COUNTS)


def running(plan: CheckpointPlan = PLAN, **config: Any) -> CheckpointCoordinator:
    """Returns the coordinator of a job that has been running since time 0. By default it tolerates five failures."""
    coordinator = CheckpointCoordinator(JOB, TOKEN, plan, CoordinatorConfig(**{"tolerable_failed": 5, **config}))
    coordinator.handle(JobStatusChanged(0, True))
    return coordinator


def trigger(coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, **request: Any) -> list[Instruction]:
    assert AssignCheckpointId("") in coordinator.handle(TriggerRequested(now, **request))
    return coordinator.handle(CheckpointIdAssigned(now, checkpoint_id))


def acknowledge_all(
    coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, name: str = ""
) -> list[Instruction]:
    for task in (SOURCE, COUNTS[0]):
        assert coordinator.handle(ack(now, checkpoint_id, task, name and f"{name}-{task.uid}-{task.subtask}")) == []
    return coordinator.handle(ack(now, checkpoint_id, COUNTS[1], name and f"{name}-count-1"))


def complete(coordinator: CheckpointCoordinator, now: int, checkpoint_id: int, name: str = "") -> list[Instruction]:
    """Takes a checkpoint from the trigger to the end of the commit."""
    trigger(coordinator, now, checkpoint_id)
    acknowledge_all(coordinator, now, checkpoint_id, name)
    coordinator.handle(MetadataWritten(now, checkpoint_id))
    coordinator.handle(HeadReplaced(now, checkpoint_id))
    return coordinator.handle(CommitFinished(now, checkpoint_id))


def only(instructions: list[Instruction], kind: type[Any]) -> Any:
    found = [instruction for instruction in instructions if isinstance(instruction, kind)]
    assert len(found) == 1, instructions
    return found[0]
