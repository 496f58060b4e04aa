"""All that is known about a job from its store: its runs, operators, checkpoints, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStats
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.reports.event_time_holders import OperatorEventTime, event_times
from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport, RunReport, read_execution_report
from dagster_flinkpy.checkpoint.reports.job_metrics import JobMetrics, OperatorMetrics, job_metrics
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.errors import JobNotFoundError
from dagster_flinkpy.storage import ObjectStore

__all__ = ["JobOverview", "is_killed", "job_overview", "stored_report"]

_SUMMARIES = ("duration_ms", "state_bytes", "start_delay_ms", "alignment_ms")


@dataclass(frozen=True)
class JobOverview:
    """A job, as its last run and its last checkpoint have left it."""

    directory: str
    """The URL of its folder."""
    read_at_ms: int
    """When it was read, in milliseconds since 1970."""
    report: ExecutionReport
    killed: bool
    """Whether the last run has ended without a word."""
    statistics: CheckpointStatistics
    latest: CheckpointMetadata | None
    """The last completed checkpoint."""
    metrics: JobMetrics | None
    """What that checkpoint has measured."""

    @property
    def goes_on(self) -> bool:
        """Whether the last run has not ended."""
        return not (self.killed or JobStatus[self.report.run.status].is_terminal_state())

    @property
    def phases(self) -> CheckpointPhases | None:
        """The phases of the last checkpoint that has some."""
        return next((each.phases for each in reversed(self.statistics.history) if each.phases), None)

    @property
    def event_times(self) -> Mapping[str, OperatorEventTime]:
        """The event time of each operator, by uid; empty before the first checkpoint."""
        return {} if self.metrics is None else event_times(self.report.vertices, self.metrics.operators)

    def to_json(self) -> dict[str, Any]:
        """Encodes it for people's tools and the page."""
        latest, metrics, times = self.latest, self.metrics, self.event_times
        return {
            **self.report.to_json(),
            **asdict(self.report),  # also what is empty
            "directory": self.directory,
            "read_at_ms": self.read_at_ms,
            "killed": self.killed,
            "phases": None if self.phases is None else self.phases.by_name(),
            "metrics": {} if metrics is None else {each.uid: dict(each.total) for each in metrics.operators},
            "job_metrics": {} if metrics is None else dict(metrics.job),
            "checkpoint": None if latest is None else _checkpoint(latest),
            "operators": {} if metrics is None or latest is None else _operators(latest, metrics.operators),
            "event_times": {uid: asdict(each) for uid, each in times.items()},
            "checkpoints": {
                "counts": asdict(self.statistics.counts),
                "summary": {name: asdict(s) for name in _SUMMARIES if (s := self.statistics.summary(name))},
                "history": [_ended(stats, growth) for stats, growth in self.statistics.with_growth()],
            },
        }


def job_overview(store: ObjectStore, known: JobOverview | None = None) -> JobOverview:
    """Reads what is known about a job.

    Args:
        store: The object store, rooted at the job's prefix.
        known: The result of an earlier call: a checkpoint that is still the latest is not read again.

    Raises:
        JobNotFoundError: No run has stored anything there.
        CorruptMetadataError: The last checkpoint cannot be read.
        StorageError: The store does not answer.
    """
    report, checkpoints = stored_report(store), CompletedCheckpointStore(store)
    statistics, head = checkpoints.statistics(), read_head(store)
    latest = None if known is None else known.latest
    if latest is None or head is None or head[0].checkpoint_id != latest.checkpoint_id:
        latest = checkpoints.latest()
    return JobOverview(
        store.url,
        current_millis(),
        report,
        is_killed(store, report.run),
        statistics,
        latest,
        None if latest is None else job_metrics(latest, statistics),
    )


def stored_report(store: ObjectStore) -> ExecutionReport:
    """Returns how a job was executed.

    Args:
        store: The object store, rooted at the job's prefix.

    Raises:
        JobNotFoundError: No run has stored it.
    """
    report, _ = read_execution_report(store)
    if report is None:
        raise JobNotFoundError(
            f"no run has stored how the job in {store.url} was executed. DIR is the folder of a job, below that of the "
            "checkpoints; 'flinkpy job list' shows the jobs of a folder of checkpoints."
        )
    return report


def is_killed(store: ObjectStore, run: RunReport) -> bool:
    """Returns whether a run has not ended, as far as is known, but does not lead the job any more.

    Args:
        store: The object store, rooted at the job's prefix.
        run: The run.
    """
    if JobStatus[run.status].is_terminal_state():
        return False
    leader = CompletedCheckpointStore(store).leader()
    return leader is None or leader.token != run.token or not leader.alive(current_millis())


def _checkpoint(latest: CheckpointMetadata) -> dict[str, Any]:
    return {
        "checkpoint_id": latest.checkpoint_id,
        "timestamp_ms": latest.timestamp_ms,
        "partition": latest.partition,
        "end_of_input": latest.end_of_input,
        "state_bytes": latest.state_bytes,
    }


def _operators(latest: CheckpointMetadata, metrics: tuple[OperatorMetrics, ...]) -> dict[str, Any]:
    return {
        measured.uid: {
            "state_bytes": operator.state_bytes,
            "rows": operator.rows,
            "user_metrics": dict(measured.user),
            "subtasks": [
                {**numbers, "index": subtask.index, "state_bytes": subtask.state_bytes, "rows": subtask.rows}
                for subtask, numbers in zip(operator.subtasks, measured.subtasks, strict=True)
            ],
        }
        for operator, measured in zip(latest.operators, metrics, strict=True)
    }


def _ended(stats: CheckpointStats, growth: int | None) -> dict[str, Any]:
    phases = None if stats.phases is None else {"total": stats.phases.total_ms, **stats.phases.by_name()}
    return {
        **asdict(stats),
        "kind": stats.kind.value,
        "status": stats.status.value,
        "reason": stats.reason and stats.reason.name,
        "growth": growth,
        "phases": phases,
    }
