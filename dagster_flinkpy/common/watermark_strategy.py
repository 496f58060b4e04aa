"""How a stream gets its event time and its watermarks (``pyflink.common.watermark_strategy``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["MAX_WATERMARK", "MIN_WATERMARK", "TimestampAssigner", "WatermarkStrategy"]

MIN_WATERMARK = -(2**63)
"""No event time is known yet (``Long.MIN_VALUE``)."""

MAX_WATERMARK = 2**63 - 1
"""No record follows: the input has ended (``Long.MAX_VALUE``)."""


class TimestampAssigner(ABC):
    """Gives a record its event time."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The event time of the record, in milliseconds since the epoch, UTC.

        Args:
            value: The record.
            record_timestamp: The timestamp it had before, or ``-(2**63)``.
        """


@dataclass(frozen=True)
class WatermarkStrategy:
    """Timestamps and watermarks of one stream. Made by the factories below."""

    max_out_of_orderness: Duration | None = None
    """Records may be so much older than the newest one seen; None: no watermarks are made."""
    timestamp_assigner: TimestampAssigner | str | None = None
    """A function of the record, or the name of its field that holds milliseconds (read as a whole column)."""
    idle_timeout: Duration | None = None
    """A channel that brings nothing for so long no longer holds the watermark back."""

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """For timestamps that never go back."""
        return WatermarkStrategy(max_out_of_orderness=Duration.of_millis(0))

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Duration) -> WatermarkStrategy:
        """For records that come at most so much late.

        Flink: ``BoundedOutOfOrdernessWatermarks``; the watermark is the newest timestamp less the bound less 1 ms.
        """
        if max_out_of_orderness.millis < 0:
            raise ConfigurationError(f"max_out_of_orderness is negative: {max_out_of_orderness.millis} ms")
        return WatermarkStrategy(max_out_of_orderness=max_out_of_orderness)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """For streams without event time."""
        return WatermarkStrategy()

    def with_timestamp_assigner(self, timestamp_assigner: TimestampAssigner | str) -> WatermarkStrategy:
        """Takes timestamps from the assigner, or from the field of this name (int milliseconds)."""
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """Leaves a channel out of the minimum after so long without a record."""
        if idle_timeout.millis <= 0:
            raise ConfigurationError(f"idle_timeout must be positive, not {idle_timeout.millis} ms")
        return replace(self, idle_timeout=idle_timeout)
