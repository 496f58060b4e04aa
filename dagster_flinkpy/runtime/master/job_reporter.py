"""Tells others about a run: how it is executed, how its checkpoints were, and metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStatus
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch, completed_epoch
from dagster_flinkpy.checkpoint.reports.execution_report import (
    ExecutionReport,
    InputReport,
    PriorExecutions,
    RunReport,
    VertexReport,
    read_execution_report,
    write_execution_report,
)
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.errors import FencedError, FlinkPyError
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.epoch_request import Completion
from dagster_flinkpy.runtime.master.execution_graph import ExecutionJobVertex
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.mailbox import Lane, Mailbox
from dagster_flinkpy.runtime.master.metric_reporters import MetricReporters
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["JobReporter"]

_INTERVAL_MS = 10_000
_HISTORY = 16


class JobReporter:
    """Tells others about a run: how it is executed, the statistics of its checkpoints, and metrics.

    How it is executed is stored when it begins; after a checkpoint that is complete or has failed, at most once in ten
    seconds, with the statistics; at restarts; and when the run ends.
    """

    def __init__(
        self,
        config: JobConfig,
        deployed: Callable[[], DeployedJob],
        mailbox: Mailbox,
        watchdog: Watchdog,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self._url, self._deployed = config.storage.child(config.job_id).url, deployed
        self._mailbox, self._watchdog, self._now = mailbox, watchdog, now
        self._metrics = MetricReporters(config.metric_reporters, config.job_id, progress)
        self.tokens: set[int] = set()
        """The fencing tokens of all attempts of the run."""
        self._counted = (0, 0)
        """The restarts of the run that are in the statistics: all, and those of the whole job."""
        self._read = self._lost = False
        self._etag: str | None = None
        self._earlier: tuple[RunReport, ...] = ()
        self._due: ExecutionReport | None = None
        self._due_statistics: tuple[Attempt, CheckpointStatistics] | None = None

    def open(self, store: CompletedCheckpointStore) -> None:
        """Begins to report about a run whose first attempt is deployed."""
        self._metrics.open()
        self._store, self._began_ms = store, self._now()
        self._written_ms = self._began_ms

    def close(self) -> None:
        """Ends the reporters of metrics."""
        self._metrics.close()

    # --- how it is executed ------------------------------------------------------------------------------------------

    @property
    def execution(self) -> ExecutionReport | None:
        """How the attempt is executed; None if it has not begun."""
        return self._report() if self.tokens else None

    def completed(self) -> None:
        """Notes on the master's thread how things are, if it is time; :meth:`write` stores it."""
        if self._now() - self._written_ms >= _INTERVAL_MS:
            self.note()
            self._note_statistics()

    def aborted(self) -> None:
        """Lets others see that checkpoints fail, if it is time: none may complete for long."""
        if self._now() - self._written_ms >= _INTERVAL_MS:
            self.completed()
            self._mailbox.submit(Lane.STORE, self._write_watched)

    def on_status(self, status: JobStatus) -> None:
        """Lets others see the beginning, or a restart while it is under way: no checkpoint may complete for long."""
        if status in (JobStatus.RESTARTING, JobStatus.RUNNING):
            self.note()
            self._mailbox.submit(Lane.STORE, self._write_watched)

    def ended(self, error: BaseException | None) -> None:
        """Notes how the run has ended, and stores it."""
        report = self.note()
        self._due = replace(report, run=replace(report.run, error="" if error is None else type(error).__name__))
        if not isinstance(error, FencedError):  # another attempt has read them, and goes on with them
            self._note_statistics()
        self._write_watched()

    def _write_watched(self) -> None:
        with suppress(FlinkPyError):
            self._watchdog.run("writing how the job is executed", self.write)

    def write(self) -> None:
        """Stores what was noted. Failures are ignored, because nothing depends on it."""
        report, self._due = self._due, None
        statistics, self._due_statistics = self._due_statistics, None
        with suppress(FlinkPyError):
            if statistics is not None:
                self._store.save_statistics(*statistics)
        if report is None or self._lost:
            return
        with suppress(FlinkPyError):
            if not self._read:
                former, self._etag = read_execution_report(self._store.store)
                self._earlier = () if former is None else (*former.earlier, former.run)[-_HISTORY:]
                self._read = True
            self._etag = write_execution_report(self._store.store, replace(report, earlier=self._earlier), self._etag)
            self._lost = self._etag is None  # a newer run writes it now

    def note(self) -> ExecutionReport:
        """Notes on the master's thread how things are; :meth:`write` stores it."""
        self._due = self._report()
        self._written_ms = self._due.run.at_ms
        return self._due

    def _report(self) -> ExecutionReport:
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
        inputs = self._deployed().regions.inputs
        vertices = tuple(_vertex(each, inputs[each.uid]) for region in graph.regions for each in region)
        return ExecutionReport(run, vertices, tuple(graph.failures))

    # --- its checkpoints ---------------------------------------------------------------------------------------------

    def _statistics(self) -> CheckpointStatistics:
        """Returns the statistics, with all restarts of the run."""
        statistics = self._deployed().coordinator.statistics
        now = (self._deployed().failover.graph.restarts, len(self.tokens) - 1)
        (restarts, full), self._counted = self._counted, now
        statistics.record_restarts(now[0] - restarts, now[1] - full)
        return statistics

    def save_statistics(self) -> None:
        """Writes the statistics of the attempt."""
        save: Callable[..., object] = self._store.save_statistics
        self._watchdog.run("writing the statistics", save, self._deployed().attempt, self._statistics())

    def _note_statistics(self) -> None:
        """Notes on the master's thread how checkpoints were: it changes them while the store is written."""
        now = self._statistics()
        ended = [each for each in now.history if each.status is not CheckpointStatus.IN_PROGRESS]
        self._due_statistics = self._deployed().attempt, CheckpointStatistics(now.counts, ended)

    def hand_out(self, completion: Completion) -> CompletedEpoch:
        """Reports a checkpoint, and returns it as callers know it."""
        sinks, statistics = set(self._deployed().transactions.committers.uids), self._statistics()
        self._metrics.report(completion.metadata, statistics)
        return completed_epoch(completion.metadata, self._url, completion.duration_ms, sinks, statistics)


def _vertex(vertex: ExecutionJobVertex, inputs: tuple[InputReport, ...]) -> VertexReport:
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
        inputs=inputs,
    )


def _prior(attempt: int, executions: list[tuple[str, int, int]]) -> PriorExecutions:
    states = [state for state, _, _ in executions]
    return PriorExecutions(
        attempt,
        min(began for _, began, _ in executions),
        max(ended for _, _, ended in executions),
        {state: states.count(state) for state in sorted(set(states))},
    )
