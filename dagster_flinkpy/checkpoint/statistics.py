"""Statistics of checkpoints (Flink: ``CheckpointStatsTracker``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from math import ceil
from typing import Any

from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.storage import json_fields

__all__ = ["CheckpointCounts", "CheckpointStatistics", "CheckpointStats", "CheckpointStatus", "Summary"]

HISTORY_LENGTH = 100
_VERSION = 1


class CheckpointStatus(Enum):
    """How a checkpoint stands (Flink: ``CheckpointStatsStatus``)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class CheckpointStats:
    """One checkpoint (Flink: ``AbstractCheckpointStats``)."""

    checkpoint_id: int
    kind: CheckpointKind
    status: CheckpointStatus
    trigger_ms: int
    """Milliseconds since 1970."""
    duration_ms: int
    """From the trigger to its end, or to the last event if it has not ended."""
    acknowledged: int
    """Tasks that have answered."""
    tasks: int
    """Tasks that have to."""
    state_bytes: int
    """Size of the keyed state that was acknowledged."""
    alignment_ms: int = 0
    """The longest that a gate waited for its last barrier."""
    reason: CheckpointFailureReason | None = None
    """Of a failure."""

    def to_json(self) -> dict[str, Any]:
        """For the job's ``statistics`` object."""
        return {
            **asdict(self),
            "kind": self.kind.value,
            "status": self.status.value,
            "reason": self.reason.name if self.reason else None,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> CheckpointStats:
        """What :meth:`to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: It is not that.
        """
        for name in ("checkpoint_id", "duration_ms", "acknowledged", "tasks", "state_bytes"):
            json_fields.integer(data, name)
        json_fields.integer(data, "trigger_ms", most=json_fields.MAX_TIMESTAMP_MS)
        json_fields.optional_integer(data, "alignment_ms")
        return CheckpointStats(
            **{
                **data,
                "kind": CheckpointKind(data["kind"]),
                "status": CheckpointStatus(data["status"]),
                "reason": CheckpointFailureReason[data["reason"]] if data["reason"] else None,
            }
        )


@dataclass(frozen=True)
class CheckpointCounts:
    """How many there were since the job began (Flink: ``CheckpointStatsCounts``)."""

    completed: int = 0
    failed: int = 0
    """Those too that failed before they had an id."""
    restored: int = 0
    """How often an attempt began with a checkpoint or savepoint."""


@dataclass(frozen=True)
class Summary:
    """One number over the last completed checkpoints (Flink: ``StatsSummary``)."""

    last: int
    minimum: int
    maximum: int
    p50: int
    p99: int

    @staticmethod
    def of(values: Sequence[int]) -> Summary:
        """Of one value at least, in order of time; percentiles are values that occur (nearest rank)."""
        ordered = sorted(values)
        p50, p99 = (ordered[ceil(len(ordered) * share / 100) - 1] for share in (50, 99))
        return Summary(values[-1], ordered[0], ordered[-1], p50, p99)


class CheckpointStatistics:
    """The statistics of a job, over all its attempts.

    Args:
        counts: Of the attempts before.
        history: The last checkpoints of the attempts before that have ended, oldest first.
    """

    def __init__(self, counts: CheckpointCounts = CheckpointCounts(), history: Sequence[CheckpointStats] = ()) -> None:
        self.counts = counts
        self._ended = deque(history, HISTORY_LENGTH)
        self._in_progress: dict[int, CheckpointStats] = {}

    @property
    def history(self) -> tuple[CheckpointStats, ...]:
        """The last 100 that have ended, and those in progress, oldest first."""
        return (*self._ended, *self._in_progress.values())

    def with_growth(self) -> list[tuple[CheckpointStats, int | None]]:
        """The history, with the bytes of state that a completed one has more than the completed one before."""
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

    def record_failure(self) -> None:
        """Counts a checkpoint that failed before it had an id, too."""
        self.counts = replace(self.counts, failed=self.counts.failed + 1)

    def record_restore(self) -> None:
        """Counts an attempt that begins with a checkpoint or savepoint."""
        self.counts = replace(self.counts, restored=self.counts.restored + 1)

    def summary(self, number: str) -> Summary | None:
        """Of ``duration_ms``, ``state_bytes`` or ``alignment_ms``; None before the first completed checkpoint."""
        values = [getattr(stats, number) for stats in self._ended if stats.status is CheckpointStatus.COMPLETED]
        return Summary.of(values) if values else None

    def to_json(self) -> dict[str, Any]:
        """Encodes the job's ``statistics`` object, without checkpoints in progress."""
        return {
            "version": _VERSION,
            "counts": asdict(self.counts),
            "history": [stats.to_json() for stats in self._ended],
        }

    @staticmethod
    def from_json(data: Any) -> CheckpointStatistics:
        """Decodes what :meth:`to_json` returned; anything else gives empty statistics, as nothing depends on them."""
        try:
            if data["version"] != _VERSION:
                return CheckpointStatistics()
            history = [CheckpointStats.from_json(each) for each in data["history"]]
            counts = {name: json_fields.integer(data["counts"], name) for name in data["counts"]}
            return CheckpointStatistics(CheckpointCounts(**counts), history)
        except (AttributeError, KeyError, TypeError, ValueError):
            return CheckpointStatistics()
