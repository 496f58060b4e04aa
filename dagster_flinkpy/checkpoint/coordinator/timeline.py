"""Measures the phases of each checkpoint, on the lanes where they happen."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["CheckpointPhases", "CheckpointTimeline"]


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


@dataclass
class _Track:
    began_ms: int | None = None
    phases: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    marked_ms: list[int] = field(default_factory=list)


class CheckpointTimeline:
    """Collects how long each phase of the pending checkpoints has taken. All threads of the driver may call it."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._tracks: dict[int, _Track] = {}

    @contextmanager
    def measured(self, phase: str, checkpoint_id: int) -> Iterator[None]:
        """Adds the time of the block to a phase of a checkpoint, which is a field of :class:`CheckpointPhases`."""
        began_ms = self._now()
        try:
            yield
        finally:
            self.add(phase, checkpoint_id, began_ms)

    def add(self, phase: str, checkpoint_id: int, began_ms: int) -> None:
        """Adds the time since ``began_ms`` to a phase. The first one of a checkpoint is its trigger."""
        elapsed = max(self._now() - began_ms, 0)  # clocks are set
        with self._lock:
            track = self._track(checkpoint_id)
            track.phases[phase] += elapsed
            if track.began_ms is None:
                track.began_ms = began_ms

    def marked(self, checkpoint_id: int, marked_ms: Iterable[int]) -> None:
        """Takes when sources sent the latency markers that have reached the end of a stream before a barrier."""
        with self._lock:
            self._track(checkpoint_id).marked_ms.extend(marked_ms)

    def acknowledged(self, checkpoint_id: int, states: Iterable[SubtaskState]) -> None:
        """Takes what subtasks have acknowledged of a checkpoint."""
        with self._lock:
            track = self._track(checkpoint_id)
            for state in states:
                for phase, name in (("sync_ms", "sync_us"), ("async_ms", "async_us")):
                    track.phases[phase] = max(track.phases[phase], round(state.metrics.get(name, 0) / 1000))

    def committed(self, checkpoint_id: int) -> CheckpointPhases:
        """Returns the phases of a checkpoint that has just been committed, and forgets it and older ones."""
        now = self._now()
        with self._lock:
            track = self._track(checkpoint_id)
            for older in [each for each in self._tracks if each <= checkpoint_id]:
                del self._tracks[older]
        latencies = sorted(max(now - marked, 0) for marked in track.marked_ms)
        p50, p99 = (latencies[ceil(len(latencies) * share / 100) - 1] if latencies else None for share in (50, 99))
        began_ms = now if track.began_ms is None else track.began_ms
        return CheckpointPhases(**track.phases, total_ms=max(now - began_ms, 0), latency_ms_p50=p50, latency_ms_p99=p99)

    def _track(self, checkpoint_id: int) -> _Track:
        return self._tracks.setdefault(checkpoint_id, _Track())
