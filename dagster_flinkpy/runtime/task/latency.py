"""Latency markers measure how long a record takes from its source to an operator, without time in user functions.

Sources send markers, and operators forward them without calling user functions (Flink: ``LatencyMarker``,
``LatencyStats``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.json_records import JsonRecord

__all__ = ["LatencyMarker", "LatencyStats", "LatencyTimer"]

_HISTORY = 128  # Flink: metrics.latency.history-size


@dataclass(frozen=True)
class LatencyMarker(JsonRecord):
    """A marker that travels with the records."""

    source: str
    """Uid of the source."""
    subtask: int
    """Index of the source's subtask."""
    marked_ms: int
    """When it was sent, in milliseconds since 1970."""


class LatencyTimer:
    """Decides when a source sends a marker: at once, then once per interval; never if that is zero."""

    def __init__(self, interval: timedelta) -> None:
        self._interval_ms = to_millis(interval)
        self._next_ms: int | None = None

    def due(self, now_ms: int) -> bool:
        """Returns whether it is time for a marker; if so, the next interval starts."""
        if self._interval_ms <= 0 or (self._next_ms is not None and now_ms < self._next_ms):
            return False
        self._next_ms = now_ms + self._interval_ms
        return True


class LatencyStats:
    """The latencies of the last 128 markers from all sources at one operator."""

    def __init__(self) -> None:
        self._latencies: deque[int] = deque(maxlen=_HISTORY)
        self._markers: deque[LatencyMarker] = deque(maxlen=_HISTORY)
        self._count = 0

    def report(self, marker: LatencyMarker, now_ms: int) -> None:
        """Adds a marker that has just arrived."""
        self._latencies.append(now_ms - marker.marked_ms)
        self._markers.append(marker)
        self._count += 1

    def take_marked(self) -> dict[str, list[int]]:
        """Returns when the markers since the last call were sent, by source; the last 128 of them.

        Times are milliseconds since 1970.
        """
        marked: dict[str, list[int]] = {}
        for marker in self._markers:
            marked.setdefault(marker.source, []).append(marker.marked_ms)
        self._markers.clear()
        return marked

    def take(self) -> dict[str, int | float]:
        """Returns the metrics since the last call, in milliseconds; empty if no marker has arrived."""
        if not self._count:
            return {}
        latencies, count = np.array(self._latencies), self._count
        self._latencies.clear()
        self._count = 0
        p50, p95, p99 = np.percentile(latencies, (50, 95, 99)).tolist()
        return {
            "latency_markers": count,
            "latency_ms_p50": p50,
            "latency_ms_p95": p95,
            "latency_ms_p99": p99,
            "latency_ms_max": int(latencies.max()),
        }
