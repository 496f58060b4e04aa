"""Writes down how a job is executed, for ``flinkpy job show`` and others that look at it from outside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from dagster_flinkpy.checkpoint.execution_report import (
    ExecutionReport,
    FailureReport,
    PriorExecutions,
    RunReport,
    VertexReport,
    read_execution_report,
    write_execution_report,
)
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph, ExecutionJobVertex
from dagster_flinkpy.storage import ObjectStore

__all__ = ["JobReporter", "execution_report"]

_INTERVAL_MS = 10_000
_HISTORY = 16


class JobReporter:
    """Writes the report of a run: after a checkpoint, at most once in ten seconds; at restarts; when the run ends.

    Args:
        store: The object store, rooted at the job's prefix.
        deployed: Returns the current deployment.
        now: Tells milliseconds since 1970.
    """

    def __init__(self, store: ObjectStore, deployed: Callable[[], DeployedJob], now: Callable[[], int]) -> None:
        self._store, self._deployed, self._now = store, deployed, now
        self._began_ms = self._written_ms = now()
        self._read = self._lost = False
        self._etag: str | None = None
        self._earlier: tuple[RunReport, ...] = ()
        self._due: ExecutionReport | None = None

    def completed(self) -> None:
        """Notes on the master's thread how things are, if it is time; :meth:`write` stores it."""
        if self._now() - self._written_ms >= _INTERVAL_MS:
            self.note()

    def ended(self, error: BaseException | None) -> None:
        """Notes how the run has ended, and stores it."""
        report = self.note()
        self._due = replace(report, run=replace(report.run, error="" if error is None else type(error).__name__))
        self.write()

    def write(self) -> None:
        """Stores what was noted. Failures are ignored, because nothing depends on it."""
        report, self._due = self._due, None
        if report is None or self._lost:
            return
        with suppress(FlinkPyError):
            if not self._read:
                former, self._etag = read_execution_report(self._store)
                self._earlier = () if former is None else (*former.earlier, former.run)[-_HISTORY:]
                self._read = True
            self._etag = write_execution_report(self._store, replace(report, earlier=self._earlier), self._etag)
            self._lost = self._etag is None  # a newer run writes it now

    def note(self) -> ExecutionReport:
        """Notes on the master's thread how things are; :meth:`write` stores it."""
        self._due = self.report()
        self._written_ms = self._due.run.at_ms
        return self._due

    def report(self) -> ExecutionReport:
        """Returns how things are."""
        graph, attempt = self._deployed().failover.graph, self._deployed().attempt
        latest = attempt.latest
        run = RunReport(
            token=attempt.token,
            owner=attempt.leader.owner,
            began_ms=self._began_ms,
            at_ms=self._now(),
            status=graph.status.name,
            restarts=graph.restarts,
            checkpoint_id=None if latest is None else latest.checkpoint_id,
        )
        return execution_report(graph, run)


def execution_report(graph: ExecutionGraph, run: RunReport) -> ExecutionReport:
    """Returns the report of an execution graph.

    Args:
        graph: The execution graph.
        run: The run that it belongs to.
    """
    failures = tuple(
        FailureReport(
            entry.at_ms,
            entry.error,
            entry.message,
            entry.region,
            None if entry.task is None else entry.task.uid,
            None if entry.task is None else entry.task.subtask,
            entry.attempt,
        )
        for entry in graph.failures
    )
    return ExecutionReport(run, tuple(_vertex(each) for region in graph.regions for each in region), failures)


def _vertex(vertex: ExecutionJobVertex) -> VertexReport:
    prior: dict[int, list[tuple[str, int, int]]] = {}
    for each in vertex.vertices:
        for execution in each.prior:
            times = list(execution.timestamps.values())
            prior.setdefault(execution.attempt, []).append((execution.state.value, times[0], times[-1]))
    return VertexReport(
        uid=vertex.uid,
        name=vertex.name,
        region=vertex.region,
        parallelism=vertex.parallelism,
        state=vertex.state.value,
        states={state.value: number for state, number in vertex.counts.items()},
        attempt=vertex.attempt,
        since_ms=max(max(each.current.timestamps.values()) for each in vertex.vertices),
        prior=tuple(_prior(attempt, each) for attempt, each in sorted(prior.items())),
    )


def _prior(attempt: int, executions: list[tuple[str, int, int]]) -> PriorExecutions:
    states = [state for state, _, _ in executions]
    return PriorExecutions(
        attempt,
        min(began for _, began, _ in executions),
        max(ended for _, _, ended in executions),
        {state: states.count(state) for state in sorted(set(states))},
    )
