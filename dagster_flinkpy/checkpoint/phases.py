"""How long each phase of a checkpoint took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dagster_flinkpy.storage import json_fields

__all__ = ["CheckpointPhases"]


@dataclass(frozen=True)
class CheckpointPhases:
    """The phases of a checkpoint, from its trigger to the end of its commit, in milliseconds.

    What runs in several regions is added up. A Spark job that reads several epochs counts for each of them.
    """

    trigger_ms: int = 0
    """The lease is renewed, the id is taken, and master hooks are called."""
    plan_ms: int = 0
    """Sources list what the epoch reads."""
    spark_ms: int = 0
    """The Spark job, from its start to its end."""
    sync_ms: int = 0
    """The longest time for which a subtask took its snapshot and processed nothing; part of the Spark job."""
    async_ms: int = 0
    """The longest time for which a task waited at its end until its files were stored; part of the Spark job."""
    metadata_ms: int = 0
    """``_metadata`` is written."""
    head_ms: int = 0
    """HEAD is replaced."""
    commit_ms: int = 0
    """Sinks commit, and listeners are notified."""
    total_ms: int = 0
    """From the trigger to the end of the commit."""
    latency_ms_p50: int | None = None
    """The time from a source to the commit: the median of the latency markers that reached the end of a stream. None
    if there were no markers."""
    latency_ms_p99: int | None = None

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

    @staticmethod
    def from_json(data: dict[str, Any]) -> CheckpointPhases:
        """Decodes what ``dataclasses.asdict`` returned.

        Raises:
            KeyError, TypeError, ValueError: The data is something else.
        """
        optional = ("latency_ms_p50", "latency_ms_p99")
        for name in asdict(CheckpointPhases()):
            (json_fields.optional_integer if name in optional else json_fields.integer)(data, name)
        return CheckpointPhases(**data)
