"""What an attempt tells others: how it is executed, the statistics of its checkpoints, and metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dagster_flinkpy.checkpoint.execution_report import ExecutionReport
from dagster_flinkpy.checkpoint.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.epoch_request import Completion
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_reporter import JobReporter
from dagster_flinkpy.runtime.master.mailbox import Lane, Mailbox
from dagster_flinkpy.runtime.master.metric_reporters import MetricReporters
from dagster_flinkpy.runtime.master.reports import CompletedEpoch, completed_epoch
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["AttemptReports"]


class AttemptReports:
    """Reports about a run.

    Args:
        config: The job.
        deployed: Returns the current deployment.
        mailbox: Runs the store's lane.
        watchdog: Runs what waits for the store.
        now: Tells milliseconds since 1970.
        progress: Takes one-line progress messages.
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
        self.reporter: JobReporter
        """Writes how the run is executed. Nothing before `open`."""

    def open(self, store: CompletedCheckpointStore) -> None:
        """Begins to report about a run whose first attempt is deployed."""
        self._metrics.open()
        self.reporter = JobReporter(store.store, self._deployed, self._now)

    def close(self) -> None:
        """Ends the reporters of metrics."""
        self._metrics.close()

    # --- how it is executed ------------------------------------------------------------------------------------------

    @property
    def execution(self) -> ExecutionReport | None:
        """How the attempt is executed; None if it has not begun."""
        return self.reporter.report() if self.tokens else None

    def on_status(self, status: JobStatus, _: int) -> None:
        """Lets others see a restart while it is under way: no checkpoint may complete for long."""
        restarted = status is JobStatus.RUNNING and self._deployed().failover.graph.restarts
        if status is JobStatus.RESTARTING or restarted:
            self.reporter.note()
            self._mailbox.submit(Lane.STORE, self._write)

    def _write(self) -> None:
        with suppress(FlinkPyError):
            self._watchdog.run("writing how the job is executed", self.reporter.write)

    def ended(self, error: BaseException | None) -> None:
        """Writes how the run has ended."""
        self._watchdog.run("writing how the job was executed", self.reporter.ended, error)

    # --- its checkpoints ---------------------------------------------------------------------------------------------

    def _statistics(self) -> CheckpointStatistics:
        """Returns the statistics, with all restarts of the run."""
        statistics = self._deployed().coordinator.statistics
        now = (self._deployed().failover.graph.restarts, len(self.tokens) - 1)
        (restarts, full), self._counted = self._counted, now
        statistics.record_restarts(now[0] - restarts, now[1] - full)
        return statistics

    def save_statistics(self, store: CompletedCheckpointStore) -> None:
        """Writes the statistics of the attempt."""
        save: Callable[..., object] = store.save_statistics
        self._watchdog.run("writing the statistics", save, self._deployed().attempt, self._statistics())

    def hand_out(self, completion: Completion) -> CompletedEpoch:
        """Reports a checkpoint, and returns it as callers know it."""
        sinks, statistics = set(self._deployed().transactions.committers.uids), self._statistics()
        self._metrics.report(completion.metadata, statistics)
        return completed_epoch(completion.metadata, self._url, completion.duration_ms, sinks, statistics)
