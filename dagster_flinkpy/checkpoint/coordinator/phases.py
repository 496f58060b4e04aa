"""How long each phase of a checkpoint took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["CheckpointPhases"]


@dataclass(frozen=True)
class CheckpointPhases(JsonRecord):
    """The phases of a checkpoint, from its trigger to the end of its commit, in milliseconds.

    What runs in several regions is added up.
    """

    trigger_ms: Count = 0
    """The lease is renewed, the id is taken, and master hooks are called."""
    plan_ms: Count = 0
    """Sources list what the epoch reads."""
    spark_ms: Count = 0
    """The Spark job, from its start to its end."""
    sync_ms: Count = 0
    """The longest time for which a subtask took its snapshot and processed nothing; part of the Spark job."""
    async_ms: Count = 0
    """The longest time for which a task waited at its end until its files were stored; part of the Spark job."""
    metadata_ms: Count = 0
    """``_metadata`` is written."""
    head_ms: Count = 0
    """HEAD is replaced."""
    commit_ms: Count = 0
    """Sinks commit, and listeners are notified."""
    total_ms: Count = 0
    """From the trigger to the end of the commit."""
    latency_ms_p50: Count | None = None
    """The time from a source to the commit: the median of the latency markers that reached the end of a stream. None
    if there were no markers."""
    latency_ms_p99: Count | None = None

    @property
    def waiting_ms(self) -> int:
        """The time that is in no phase: the checkpoint waited for the region, or for the one before it."""
        named = self.trigger_ms + self.plan_ms + self.spark_ms + self.metadata_ms + self.head_ms + self.commit_ms
        return max(self.total_ms - named, 0)

    def by_name(self) -> Mapping[str, int]:
        """Returns the phases in order of time, by names for people; the two of a snapshot are part of ``spark``."""
        return {
            "trigger": self.trigger_ms,
            "plan": self.plan_ms,
            "spark": self.spark_ms,
            "snapshot": self.sync_ms,
            "upload": self.async_ms,
            "metadata": self.metadata_ms,
            "head": self.head_ms,
            "commit": self.commit_ms,
            "waiting": self.waiting_ms,
        }
