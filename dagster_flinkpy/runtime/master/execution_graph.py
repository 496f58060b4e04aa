"""The states of a job and of its tasks during an attempt (Flink: ``ExecutionGraph``).

All operators of a pipelined region run in the same Spark job, so they are scheduled, restarted and canceled together. A
Spark job runs one epoch; an execution lasts until its region restarts. Between two epochs it stays RUNNING.

Flink's state ``INITIALIZING``, in which a task restores its state, is missing: a task reads its state when it needs it.

The module performs no I/O, and time comes from a given clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.checkpoint.reports.execution_report import FailureReport
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.errors import IllegalStateTransitionError, message_of, shorten

__all__ = ["Execution", "ExecutionGraph", "ExecutionJobVertex", "ExecutionState", "ExecutionVertex"]

_HISTORY = 16
"""Flink's default of ``jobmanager.execution.attempts-history-size`` and ``web.exception-history-size``."""
_MESSAGE_CHARACTERS = 500


class ExecutionState(Enum):
    """The states of an execution (Flink: ``ExecutionState``)."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    """Its region waits for its turn."""
    DEPLOYING = "DEPLOYING"
    """The input of its first Spark job is being planned."""
    RUNNING = "RUNNING"
    """Its Spark job runs, or it waits for its next epoch."""
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    """Its Spark job was told to end."""
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def terminal(self) -> bool:
        """Whether no other state follows."""
        return not _EXECUTION[self]


_EXECUTION: Mapping[ExecutionState, Collection[ExecutionState]] = {
    ExecutionState.CREATED: (ExecutionState.SCHEDULED, ExecutionState.CANCELED, ExecutionState.FAILED),
    ExecutionState.SCHEDULED: (ExecutionState.DEPLOYING, ExecutionState.CANCELED, ExecutionState.FAILED),
    ExecutionState.DEPLOYING: (ExecutionState.RUNNING, ExecutionState.CANCELING, ExecutionState.FAILED),
    ExecutionState.RUNNING: (ExecutionState.FINISHED, ExecutionState.CANCELING, ExecutionState.FAILED),
    ExecutionState.CANCELING: (ExecutionState.CANCELED,),
    ExecutionState.FINISHED: (),
    ExecutionState.CANCELED: (),
    ExecutionState.FAILED: (),
}

_CUT = (JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.SUSPENDED)
_JOB: Mapping[JobStatus, Collection[JobStatus]] = {
    JobStatus.CREATED: (JobStatus.RUNNING, *_CUT),
    JobStatus.RUNNING: (JobStatus.RESTARTING, JobStatus.FINISHED, *_CUT),
    JobStatus.RESTARTING: (JobStatus.RUNNING, *_CUT),
    JobStatus.FAILING: (JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED),
    JobStatus.CANCELLING: (JobStatus.CANCELED, JobStatus.FAILING, JobStatus.SUSPENDED),
    **dict.fromkeys((JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED, JobStatus.SUSPENDED), ()),
}


class Execution:
    """One execution of a subtask, from its start to its end or to the restart of its region (Flink: ``Execution``)."""

    def __init__(self, task: Subtask, attempt: int, now: Callable[[], int]) -> None:
        self.task, self.attempt = task, attempt
        self.state = ExecutionState.CREATED
        self.timestamps: dict[ExecutionState, int] = {ExecutionState.CREATED: now()}
        """When it entered each of its states, in milliseconds since 1970."""
        self._now = now

    def transition(self, to: ExecutionState) -> None:
        """Changes the state.

        Raises:
            IllegalStateTransitionError: The new state cannot follow the current one.
        """
        if to not in _EXECUTION[self.state]:
            raise IllegalStateTransitionError(
                f"execution {self.attempt} of subtask {self.task.subtask} of operator {self.task.uid!r} cannot go from "
                f"{self.state.value} to {to.value}"
            )
        self.state = to
        self.timestamps[to] = self._now()

    def cancel(self) -> None:
        """Begins to cancel it. An execution that has not reached Spark is canceled at once; an ended one is left."""
        if self.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            self.transition(ExecutionState.CANCELED)
        elif self.state in (ExecutionState.DEPLOYING, ExecutionState.RUNNING):
            self.transition(ExecutionState.CANCELING)

    def ended(self) -> None:
        """Notes that its Spark job has ended, which completes a cancellation."""
        if self.state is ExecutionState.CANCELING:
            self.transition(ExecutionState.CANCELED)

    def fail(self) -> None:
        """Fails it. An execution that is being canceled becomes CANCELED; an ended one is left (as in Flink)."""
        if self.state is ExecutionState.CANCELING:
            self.transition(ExecutionState.CANCELED)
        elif not self.state.terminal:
            self.transition(ExecutionState.FAILED)


class ExecutionVertex:
    """A subtask with its current execution and its earlier ones (Flink: ``ExecutionVertex``)."""

    def __init__(self, task: Subtask, now: Callable[[], int]) -> None:
        self.task = task
        self.current = Execution(task, 0, now)
        self.prior: deque[Execution] = deque(maxlen=_HISTORY)
        """The last 16 earlier executions, the oldest first."""
        self._now = now

    def reset_for_new_execution(self) -> None:
        """Replaces an execution that has ended by a new one with the next attempt number.

        Raises:
            IllegalStateTransitionError: The execution has not ended.
        """
        if not self.current.state.terminal:
            raise IllegalStateTransitionError(
                f"subtask {self.task.subtask} of operator {self.task.uid!r} cannot restart: its execution "
                f"{self.current.attempt} is {self.current.state.value}"
            )
        self.prior.append(self.current)
        self.current = Execution(self.task, self.current.attempt + 1, self._now)


class ExecutionJobVertex:
    """An operator with its subtasks (Flink: ``ExecutionJobVertex``)."""

    def __init__(self, vertex: JobVertex, region: int, now: Callable[[], int]) -> None:
        self.uid, self.name, self.region = vertex.uid, vertex.name, region
        self.parallelism = vertex.parallelism
        self.vertices = tuple(ExecutionVertex(Subtask(vertex.uid, i), now) for i in range(vertex.parallelism))

    @property
    def counts(self) -> dict[ExecutionState, int]:
        """The number of subtasks in each state."""
        states = [vertex.current.state for vertex in self.vertices]
        return {state: states.count(state) for state in ExecutionState if state in states}

    @property
    def state(self) -> ExecutionState:
        """The state that stands for all subtasks (Flink: ``ExecutionJobVertex.getAggregateJobVertexState``)."""
        counts = self.counts
        for state in (ExecutionState.FAILED, ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.RUNNING):
            if state in counts:
                return state
        if ExecutionState.FINISHED in counts:
            return ExecutionState.FINISHED if len(counts) == 1 else ExecutionState.RUNNING
        if ExecutionState.DEPLOYING in counts:
            return ExecutionState.DEPLOYING
        return ExecutionState.SCHEDULED if ExecutionState.SCHEDULED in counts else ExecutionState.CREATED

    @property
    def attempt(self) -> int:
        """The highest attempt number of its subtasks."""
        return max(vertex.current.attempt for vertex in self.vertices)


class ExecutionGraph:
    """The status of a job, and the executions of all its subtasks."""

    def __init__(self, regions: Sequence[Sequence[JobVertex]], now: Callable[[], int]) -> None:
        self.regions = tuple(tuple(ExecutionJobVertex(v, i, now) for v in each) for i, each in enumerate(regions))
        self.status = JobStatus.CREATED
        self.failures: deque[FailureReport] = deque(maxlen=_HISTORY)
        """The last 16 failures, the oldest first."""
        self.restarts = 0
        """How many restarts there have been (Flink: metric ``numRestarts``)."""
        self._now = now
        self._listeners: list[Callable[[JobStatus], object]] = []
        self._waiting: set[int] = set()

    # --- what is known -----------------------------------------------------------------------------------------------

    def add_listener(self, listener: Callable[[JobStatus], object]) -> None:
        """Calls a listener after each change of the status (Flink: ``JobStatusListener``)."""
        self._listeners.append(listener)

    def executions(self, region: int | None = None) -> Iterator[Execution]:
        """Returns the current executions of a region, or of all."""
        for each in self.regions if region is None else (self.regions[region],):
            for job_vertex in each:
                for vertex in job_vertex.vertices:
                    yield vertex.current

    def attempt(self, region: int) -> int:
        """Returns the number of the current executions of a region, from 0."""
        return max(vertex.attempt for vertex in self.regions[region])

    def canceling(self, region: int) -> bool:
        """Returns whether executions of a region are being canceled, so that what its Spark job does is in vain."""
        return any(execution.state is ExecutionState.CANCELING for execution in self.executions(region))

    @property
    def not_running(self) -> frozenset[Subtask]:
        """The tasks that are neither running nor have finished: no checkpoint can be triggered, as in Flink."""
        runs = (ExecutionState.RUNNING, ExecutionState.FINISHED)
        return frozenset(each.task for each in self.executions() if each.state not in runs)

    @property
    def waiting(self) -> frozenset[int]:
        """The regions that have failed and wait for their restart."""
        return frozenset(self._waiting)

    # --- the life of a region ----------------------------------------------------------------------------------------

    def schedule(self, region: int) -> None:
        """Schedules a region. It is already scheduled if this is not its first epoch since its last restart."""
        if self.status is JobStatus.CREATED:
            self._transition(JobStatus.RUNNING)
        self._move(region, ExecutionState.CREATED, ExecutionState.SCHEDULED)

    def deploy(self, region: int) -> None:
        """Notes that the first Spark job of a region is being prepared."""
        self._move(region, ExecutionState.SCHEDULED, ExecutionState.DEPLOYING)

    def switch_to_running(self, region: int) -> None:
        """Notes that the Spark job of a region runs, or that its tasks do in their slots."""
        self._move(region, ExecutionState.DEPLOYING, ExecutionState.RUNNING)

    def finish(self, region: int) -> None:
        """Notes that a region has no more work. When all regions have finished, so has the job.

        Raises:
            IllegalStateTransitionError: The region is not running.
        """
        for execution in self.executions(region):
            if execution.state is ExecutionState.CANCELING:
                execution.transition(ExecutionState.CANCELED)  # it was canceled first (Flink: Execution.markFinished)
            elif not execution.state.terminal:
                execution.transition(ExecutionState.FINISHED)
        if self.status is JobStatus.RUNNING and all(e.state is ExecutionState.FINISHED for e in self.executions()):
            self._transition(JobStatus.FINISHED)
        self._end_if_over()

    def fail(self, region: int, error: BaseException, task: Subtask | None = None) -> None:
        """Notes that the Spark job of a region has failed: a subtask, or the driver. The others are canceled."""
        self._record(error, region, task)
        for execution in self.executions(region):
            if execution.task == task:
                execution.fail()
        self.cancel(region)
        self.ended(region)

    def cancel(self, region: int) -> None:
        """Begins to cancel a region; :meth:`ended` tells when its Spark job has ended."""
        for execution in self.executions(region):
            execution.cancel()

    def ended(self, region: int) -> None:
        """Notes that no Spark job of a region runs; executions that were being canceled are CANCELED."""
        for execution in self.executions(region):
            execution.ended()
        self._end_if_over()

    # --- the life of the job -----------------------------------------------------------------------------------------

    def await_restart(self, regions: Iterable[int]) -> None:
        """Notes that regions will restart after a delay. Until all have, the job is RESTARTING."""
        self._waiting.update(regions)
        if self.status is JobStatus.RUNNING:
            self._transition(JobStatus.RESTARTING)

    def restart(self, regions: Collection[int]) -> None:
        """Gives the subtasks of regions new executions.

        Raises:
            IllegalStateTransitionError: An execution has not ended, or the job is not waiting for a restart.
        """
        if self.status is not JobStatus.RESTARTING or not self._waiting.issuperset(regions):
            raise IllegalStateTransitionError(
                f"regions {sorted(regions)} cannot restart: the job is {self.status.name}, and the regions "
                f"{sorted(self._waiting)} wait for a restart"
            )
        for region in regions:
            for job_vertex in self.regions[region]:
                for vertex in job_vertex.vertices:
                    vertex.reset_for_new_execution()
        self.restarts += 1
        self._waiting.difference_update(regions)
        if not self._waiting:
            self._transition(JobStatus.RUNNING)

    def fail_job(self, error: BaseException, *, recorded: bool = False) -> None:
        """Fails the job for good, and begins to cancel all tasks. A job that is failing or has ended is left.

        Args:
            error: The root cause.
            recorded: Whether it is in the history already, because a region has failed with it. Default: False.
        """
        if self.status is JobStatus.FAILING or self.status.is_terminal_state():
            return
        if not recorded:
            self._record(error, None, None)
        self._end_by(JobStatus.FAILING)

    def cancel_job(self) -> None:
        """Cancels the job, and begins to cancel all tasks. A job that is being canceled or has ended is left."""
        if self.status is not JobStatus.CANCELLING and not self.status.is_terminal_state():
            self._end_by(JobStatus.CANCELLING)

    def suspend(self) -> None:
        """Ends the attempt, but not the job. Nothing of it may be running. A job that has ended is left."""
        if self.status.is_terminal_state():
            return
        for execution in self.executions():
            execution.cancel()
            execution.ended()
        self._waiting.clear()
        self._transition(JobStatus.SUSPENDED)

    def _record(self, error: BaseException, region: int | None, task: Subtask | None) -> None:
        self.failures.append(
            FailureReport(
                at_ms=self._now(),
                error=type(error).__name__,
                message=shorten(message_of(error).partition("\n")[0], _MESSAGE_CHARACTERS),
                region=region,
                operator=None if task is None else task.uid,
                subtask=None if task is None else task.subtask,
                attempt=0 if region is None else self.attempt(region),
            )
        )

    def _end_by(self, status: JobStatus) -> None:
        self._waiting.clear()
        self._transition(status)
        for execution in self.executions():
            execution.cancel()
        self._end_if_over()

    def _end_if_over(self) -> None:
        ends = {JobStatus.FAILING: JobStatus.FAILED, JobStatus.CANCELLING: JobStatus.CANCELED}
        if self.status in ends and all(e.state.terminal for e in self.executions()):
            self._transition(ends[self.status])

    def _move(self, region: int, before: ExecutionState, after: ExecutionState) -> None:
        for execution in self.executions(region):
            if execution.state is before:
                execution.transition(after)

    def _transition(self, to: JobStatus) -> None:
        if to not in _JOB[self.status]:
            raise IllegalStateTransitionError(f"a job cannot go from {self.status.name} to {to.name}")
        self.status = to
        for listener in self._listeners:
            listener(to)
