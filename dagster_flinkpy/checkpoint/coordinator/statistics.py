"""Statistics of checkpoints (Flink: ``CheckpointStatsTracker``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointPhases
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.json_records import Count, Json, JsonRecord, Millis

__all__ = ["CheckpointCounts", "CheckpointStatistics", "CheckpointStats", "CheckpointStatus", "Summary"]

HISTORY_LENGTH = 100
_VERSION = 1


class CheckpointStatus(Enum):
    """The status of a checkpoint (Flink: ``CheckpointStatsStatus``)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class CheckpointStats(JsonRecord):
    """One checkpoint (Flink: ``AbstractCheckpointStats``)."""

    checkpoint_id: Count
    kind: CheckpointKind
    status: CheckpointStatus
    trigger_ms: Millis
    """When it was triggered, in milliseconds since 1970."""
    duration_ms: Count
    """The time from the trigger to the end, or to the last event if it has not ended."""
    acknowledged: Count
    """The number of tasks that have acknowledged it."""
    tasks: Count
    """The number of tasks that have to acknowledge it."""
    state_bytes: Count
    """Size of the acknowledged keyed state, in bytes."""
    alignment_ms: Count = 0
    """The longest time that a gate waited for its last barrier."""
    start_delay_ms: Count = 0
    """The longest time from the trigger until a task saw the barrier (Flink: the start delay)."""
    reason: CheckpointFailureReason | None = None
    """Why it failed; None if it did not."""
    phases: CheckpointPhases | None = None
    """How long its phases took; None until it is committed, and in statistics of older releases."""

    def to_json(self) -> dict[str, Json]:
        return {**super().to_json(), "reason": self.reason and self.reason.name}


@dataclass(frozen=True)
class CheckpointCounts(JsonRecord):
    """The number of checkpoints since the job began (Flink: ``CheckpointStatsCounts``)."""

    completed: Count = 0
    failed: Count = 0
    """Includes checkpoints that failed before they had an id."""
    restored: Count = 0
    """How often an attempt started from a checkpoint or savepoint."""
    restarts: Count = 0
    """How often a region or the whole job was restarted inside a run (Flink: ``numRestarts``)."""
    full_restarts: Count = 0
    """How often the whole job was."""


@dataclass(frozen=True)
class Summary:
    """Summary of one number over the last completed checkpoints (Flink: ``StatsSummary``)."""

    last: int
    minimum: int
    maximum: int
    p50: int
    p99: int

    @staticmethod
    def of(values: Sequence[int]) -> Summary:
        """Summarises values, at least one, in order of time. Percentiles are among the values (nearest rank).

        Example:
            >>> Summary.of([10, 30, 20])
            Summary(last=20, minimum=10, maximum=30, p50=20, p99=30)
        """
        ordered = sorted(values)
        p50, p99 = (ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 99))
        return Summary(values[-1], ordered[0], ordered[-1], p50, p99)


class CheckpointStatistics:
    """The statistics of a job over all its attempts.

    Args:
        counts: The counts of earlier attempts.
        history: The last ended checkpoints of earlier attempts, oldest first.
    """

    def __init__(self, counts: CheckpointCounts = CheckpointCounts(), history: Sequence[CheckpointStats] = ()) -> None:
        self.counts = counts
        self._ended = deque(history, HISTORY_LENGTH)
        self._in_progress: dict[int, CheckpointStats] = {}

    @property
    def history(self) -> tuple[CheckpointStats, ...]:
        """The last 100 checkpoints that have ended, then those in progress; oldest first."""
        return (*self._ended, *self._in_progress.values())

    def with_growth(self) -> list[tuple[CheckpointStats, int | None]]:
        """Returns the history, each checkpoint with the growth of its state in bytes.

        The growth is relative to the previous completed checkpoint. It is None if there is none, or if the checkpoint
        is not completed.
        """
        grown, before = list[tuple[CheckpointStats, int | None]](), None
        for stats in self.history:
            if stats.status is not CheckpointStatus.COMPLETED:
                grown.append((stats, None))
                continue
            grown.append((stats, None if before is None else stats.state_bytes - before))
            before = stats.state_bytes
        return grown

    def record(self, stats: CheckpointStats) -> None:
        """Records the status of a checkpoint."""
        if stats.status is CheckpointStatus.IN_PROGRESS:
            self._in_progress[stats.checkpoint_id] = stats
            return
        self._in_progress.pop(stats.checkpoint_id, None)
        self._ended.append(stats)
        if stats.status is CheckpointStatus.COMPLETED:
            self.counts = replace(self.counts, completed=self.counts.completed + 1)
        else:
            self.record_failure()

    def record_phases(self, checkpoint_id: int, phases: CheckpointPhases | None) -> None:
        """Adds the phases of a completed checkpoint that has been committed, if they are known."""
        for i in reversed(range(len(self._ended))):
            if self._ended[i].checkpoint_id == checkpoint_id:
                self._ended[i] = replace(self._ended[i], phases=phases)
                return

    def record_failure(self) -> None:
        """Counts a checkpoint that failed before it had an id."""
        self.counts = replace(self.counts, failed=self.counts.failed + 1)

    def record_restore(self) -> None:
        """Counts an attempt that starts from a checkpoint or savepoint."""
        self.counts = replace(self.counts, restored=self.counts.restored + 1)

    def record_restarts(self, restarts: int, full: int) -> None:
        """Counts restarts inside a run.

        Args:
            restarts: How many there have been since the last call.
            full: How many of them restarted the whole job.
        """
        counts = self.counts
        self.counts = replace(counts, restarts=counts.restarts + restarts, full_restarts=counts.full_restarts + full)

    def summary(self, number: str) -> Summary | None:
        """Summarises a number over the last completed checkpoints.

        Args:
            number: ``duration_ms``, ``state_bytes``, ``alignment_ms`` or ``start_delay_ms``.

        Returns:
            The summary, or None before the first completed checkpoint.
        """
        values = [getattr(stats, number) for stats in self._ended if stats.status is CheckpointStatus.COMPLETED]
        return Summary.of(values) if values else None

    def to_json(self) -> dict[str, Any]:
        """Encodes the job's ``statistics`` object, without checkpoints in progress."""
        return {
            "version": _VERSION,
            "counts": self.counts.to_json(),
            "history": [stats.to_json() for stats in self._ended],
        }

    @staticmethod
    def from_json(data: Any) -> CheckpointStatistics:
        """Decodes what :meth:`to_json` returned. Anything else gives empty statistics; nothing depends on them."""
        try:
            if data["version"] != _VERSION:
                return CheckpointStatistics()
            history = [CheckpointStats.from_json(each) for each in data["history"]]
            return CheckpointStatistics(CheckpointCounts.from_json(data["counts"]), history)
        except (KeyError, TypeError, ValueError):
            return CheckpointStatistics()
