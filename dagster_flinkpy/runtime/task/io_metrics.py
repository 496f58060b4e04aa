"""The metrics of one operator in a task, from barrier to barrier.

Mirrors Flink's ``OperatorIOMetricGroup``, ``TaskIOMetricGroup`` and ``WatermarkGauge``.
"""

from __future__ import annotations

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.runtime.task.latency import LatencyStats

__all__ = ["OperatorIOMetrics"]


class OperatorIOMetrics:
    """Counts what an operator receives and sends."""

    def __init__(self) -> None:
        self.records_in = 0
        self.records_out = 0
        self.bytes_in = 0
        """Encoded records that came through a shuffle; chained edges move no bytes."""
        self.bytes_out = 0
        """All that was sent through shuffles since the task began."""
        self.latency = LatencyStats()
        self._bytes_out_before = 0

    def take(self, *, now_ms: int, input_watermark: int, output_watermark: int | None) -> dict[str, int | float]:
        """Returns the metrics since the last call, by the names in a checkpoint."""
        bytes_out = self.bytes_out - self._bytes_out_before
        found: dict[str, int | float] = {
            "records_in": self.records_in,
            "records_out": self.records_out,
            "bytes_in": self.bytes_in,
            "bytes_out": bytes_out,
        }
        if input_watermark != MIN_WATERMARK:
            found["input_watermark"] = input_watermark
        if output_watermark is not None and output_watermark != MAX_WATERMARK:
            found["watermark_lag_ms"] = now_ms - output_watermark
        found |= self.latency.take()
        self.records_in = self.records_out = self.bytes_in = 0
        self._bytes_out_before = self.bytes_out
        return found
