"""A checkpoint that was triggered but is not complete yet (Flink: ``PendingCheckpoint``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason, Subtask
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStats, CheckpointStatus
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested
from dagster_flinkpy.checkpoint.operator_states import SubtaskState

__all__ = ["AcknowledgeResult", "CheckpointPlan", "PendingCheckpoint", "Stage"]


@dataclass(frozen=True)
class CheckpointPlan:
    """Who takes part in a checkpoint (Flink: ``CheckpointPlan``)."""

    tasks_to_trigger: tuple[Subtask, ...]
    """The sources' subtasks, which emit the barrier."""
    tasks_to_wait_for: tuple[Subtask, ...]
    """All subtasks, which acknowledge the checkpoint."""
    tasks_to_commit: tuple[Subtask, ...]
    """The subtasks that are notified of the completion."""
    coordinators: tuple[str, ...] = ()
    """Uids of the operators with a coordinator, such as a source's split enumerator."""
    master_hooks: tuple[str, ...] = ()
    """Identifiers of the job's master hooks."""

    def first_of(self, tasks: Collection[Subtask]) -> str | None:
        """Returns one of the tasks that takes part, and what it does, in words for people; None if none does."""
        for purpose, own in (
            ("triggering", self.tasks_to_trigger),
            ("acknowledging", self.tasks_to_wait_for),
            ("committing", self.tasks_to_commit),
        ):
            for task in own if tasks else ():
                if task in tasks:
                    return f"{purpose} task {task.uid}[{task.subtask}]"
        return None


class AcknowledgeResult(Enum):
    """The result of an acknowledgement (Flink: ``PendingCheckpoint.TaskAcknowledgeResult``)."""

    SUCCESS = "SUCCESS"
    DUPLICATE = "DUPLICATE"
    """The task has already acknowledged the checkpoint."""
    UNKNOWN = "UNKNOWN"
    """The task does not take part, or the checkpoint is unknown."""
    DISCARDED = "DISCARDED"
    """The checkpoint was aborted, or is already complete."""


class Stage(Enum):
    """How far a pending checkpoint has got."""

    TRIGGERING = "master hooks have not answered; no barrier was sent"
    COLLECTING = "acknowledgements are missing"
    WRITING_METADATA = "its metadata is being written"
    AWAITING_HEAD = "an older checkpoint is being completed or committed"
    REPLACING_HEAD = "HEAD is being replaced"


class PendingCheckpoint:
    """Collects acknowledgements.

    Args:
        checkpoint_id: Id of the checkpoint.
        request: The request for it.
        trigger_ms: When it was triggered, in milliseconds since 1970.
        plan: Which subtasks, coordinators and hooks have to acknowledge it.
    """

    def __init__(self, checkpoint_id: int, request: TriggerRequested, trigger_ms: int, plan: CheckpointPlan) -> None:
        self.checkpoint_id = checkpoint_id
        self.request = request
        self.trigger_ms = trigger_ms
        self.stage = Stage.TRIGGERING if plan.master_hooks else Stage.COLLECTING
        self._number_of_tasks = len(plan.tasks_to_wait_for)
        self._missing_tasks = set(plan.tasks_to_wait_for)
        self._missing_coordinators = set(plan.coordinators)
        self._hooks = frozenset(plan.master_hooks)
        self._missing_hooks = set(plan.master_hooks)
        self._states: dict[Subtask, SubtaskState] = {}
        self._coordinator_states: dict[str, Any] = {}
        self._master_states: dict[str, Any] = {}
        self.state_bytes = 0
        """Size of the keyed state acknowledged so far."""
        self.alignment_ms = 0
        """The longest time that a gate has waited for its last barrier so far, in milliseconds."""
        self.start_delay_ms = 0
        """The longest time until the first barrier has come to a task so far, in milliseconds."""

    @property
    def can_abort(self) -> bool:
        """Whether it is certain that the checkpoint will not complete after it is aborted."""
        return self.stage in (Stage.TRIGGERING, Stage.COLLECTING)

    @property
    def masters_acknowledged(self) -> bool:
        """Whether all master hooks have answered."""
        return not self._missing_hooks

    @property
    def fully_acknowledged(self) -> bool:
        """Whether all tasks, coordinators and master hooks have answered."""
        return not self._missing_tasks and not self._missing_coordinators and not self._missing_hooks

    @property
    def answers(self) -> str:
        """How many tasks have answered, in words for people."""
        return f"{self.acknowledged} of {self._number_of_tasks} tasks answered"

    @property
    def acknowledged(self) -> int:
        """How many tasks have answered."""
        return len(self._states)

    def acknowledge(self, task: Subtask, state: SubtaskState) -> AcknowledgeResult:
        """Takes the state of a task, unless it has already acknowledged."""
        if task in self._states:
            return AcknowledgeResult.DUPLICATE
        if task not in self._missing_tasks:
            return AcknowledgeResult.UNKNOWN
        self._missing_tasks.remove(task)
        metrics = dict(state.metrics)
        if (barrier_ms := metrics.pop("barrier_ms", None)) is not None:
            delay = max(int(barrier_ms) - self.trigger_ms, 0)  # another machine may have another clock
            state = replace(state, metrics={**metrics, "start_delay_ms": delay})
            self.start_delay_ms = max(self.start_delay_ms, delay)
        self._states[task] = state
        self.state_bytes += state.state_bytes
        self.alignment_ms = max(self.alignment_ms, int(state.metrics.get("alignment_ms", 0)))
        return AcknowledgeResult.SUCCESS

    def withdraw(self, tasks: Iterable[Subtask]) -> None:
        """Forgets the states of tasks, which run again and acknowledge once more."""
        for task in tasks:
            if (state := self._states.pop(task, None)) is not None:
                self._missing_tasks.add(task)
                self.state_bytes -= state.state_bytes

    def acknowledge_coordinator(self, uid: str, state: Any) -> AcknowledgeResult:
        """Takes the state of a coordinator, unless it has already acknowledged."""
        if uid in self._coordinator_states:
            return AcknowledgeResult.DUPLICATE
        if uid not in self._missing_coordinators:
            return AcknowledgeResult.UNKNOWN
        self._missing_coordinators.remove(uid)
        self._coordinator_states[uid] = state
        return AcknowledgeResult.SUCCESS

    def acknowledge_master(self, identifier: str, state: Any) -> AcknowledgeResult:
        """Takes the state of a master hook, unless it has already acknowledged. None means that it has no state."""
        if identifier not in self._missing_hooks:
            return AcknowledgeResult.DUPLICATE if identifier in self._hooks else AcknowledgeResult.UNKNOWN
        self._missing_hooks.remove(identifier)
        if state is not None:
            self._master_states[identifier] = state
        return AcknowledgeResult.SUCCESS

    def stats(
        self, now_ms: int, status: CheckpointStatus, reason: CheckpointFailureReason | None = None
    ) -> CheckpointStats:
        """Returns how it is, for the statistics."""
        return CheckpointStats(
            checkpoint_id=self.checkpoint_id,
            kind=self.request.kind,
            status=status,
            trigger_ms=self.trigger_ms,
            duration_ms=now_ms - self.trigger_ms,
            acknowledged=self.acknowledged,
            tasks=self._number_of_tasks,
            state_bytes=self.state_bytes,
            alignment_ms=self.alignment_ms,
            start_delay_ms=self.start_delay_ms,
            reason=reason,
        )

    def files(self) -> Iterable[str]:
        """Returns the state files that were acknowledged so far."""
        return (path for state in self._states.values() for path in state.files())

    def states(self) -> dict[str, tuple[SubtaskState, ...]]:
        """Returns the states of an operator's subtasks, in their order, by uid."""
        by_uid: dict[str, list[SubtaskState]] = {}
        for task in sorted(self._states):
            by_uid.setdefault(task.uid, []).append(self._states[task])
        return {uid: tuple(states) for uid, states in by_uid.items()}

    def coordinator_states(self) -> Mapping[str, Any]:
        """The states of the coordinators, by uid."""
        return dict(self._coordinator_states)

    def master_states(self) -> Mapping[str, Any]:
        """The states of the master hooks that have state, by identifier."""
        return dict(self._master_states)
