from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_flinkpy.runtime.task.latency import LatencyMarker, LatencyStats, LatencyTimer


def test_a_marker_is_due_at_once_and_then_once_per_interval() -> None:
    timer = LatencyTimer(timedelta(seconds=2))
    assert [now for now in range(0, 9000, 500) if timer.due(now)] == [0, 2000, 4000, 6000, 8000]


def test_without_interval_none_is_due() -> None:
    timer = LatencyTimer(timedelta(0))
    assert not any(timer.due(now) for now in range(5))


def test_the_histogram_is_of_the_last_128_markers_and_starts_anew() -> None:
    stats = LatencyStats()
    for latency in range(1, 201):
        stats.report(LatencyMarker("s", 0, 1000), 1000 + latency)
    taken = stats.take()
    assert taken == pytest.approx(
        {
            "latency_markers": 200,
            "latency_ms_p50": 136.5,
            "latency_ms_p95": 193.65,
            "latency_ms_p99": 198.73,
            "latency_ms_max": 200,
        }
    )
    assert stats.take() == {}
    assert stats.take_marked() == {"s": [1000] * 128}
    assert stats.take_marked() == {}


def test_a_marker_survives_the_shuffle() -> None:
    marker = LatencyMarker("source", 3, 1_700_000_000_000)
    assert LatencyMarker.from_text(marker.to_bytes()) == marker
