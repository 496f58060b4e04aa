"""How a stream gets event times and watermarks (``pyflink.common.watermark_strategy``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.former_names import missing_method
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["MAX_WATERMARK", "MIN_WATERMARK", "TimestampAssigner", "WatermarkAlignment", "WatermarkStrategy"]

MIN_WATERMARK = -(2**63)
"""The watermark before any event time is known (``Long.MIN_VALUE``)."""

MAX_WATERMARK = 2**63 - 1
"""The watermark after the end of the input (``Long.MAX_VALUE``)."""


class TimestampAssigner(ABC):
    """Assigns event times to records."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Returns the event time of the record, in milliseconds since 1970, in UTC.

        Args:
            value: The record.
            record_timestamp: The previous timestamp of the record, or ``-(2**63)``.
        """


@dataclass(frozen=True)
class WatermarkAlignment:
    """Which sources wait for each other in event time (Flink: ``WatermarkAlignmentParams``)."""

    group: str
    """The sources of a program with the same group wait for each other."""
    max_drift: Duration
    """How far a source may be ahead of the one that is least far."""
    update_interval: Duration
    """How often subtasks tell how far they are."""


@dataclass(frozen=True)
class WatermarkStrategy:
    """The timestamps and watermarks of a stream. Use the factory methods to create one.

    >>> from dagster_flinkpy.common import Duration
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    >>> strategy = strategy.with_timestamp_assigner("event_time_ms").with_idleness(Duration.of_minutes(1))
    """

    max_out_of_orderness: Duration | None = None
    """How much older than the newest record others may be, or None for no watermarks."""
    timestamp_assigner: TimestampAssigner | str | None = None
    """A function of the record, or the name of a field, which is read as a whole column."""
    idle_timeout: Duration | None = None
    """A channel without records for this long no longer holds back the watermark."""
    alignment: WatermarkAlignment | None = None
    """Which other sources a source waits for. Default: none."""

    if not TYPE_CHECKING:  # type checkers report a missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Returns a strategy for timestamps that never decrease."""
        return WatermarkStrategy(max_out_of_orderness=Duration.of_millis(0))

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Duration) -> WatermarkStrategy:
        """Returns a strategy for records that are late by at most a bound.

        The watermark is the newest timestamp minus the bound minus 1 ms (Flink: ``BoundedOutOfOrdernessWatermarks``).
        """
        wanted = "a Duration, such as Duration.of_minutes(5)"
        check_argument("for_bounded_out_of_orderness()", max_out_of_orderness, (Duration, Time), wanted)
        if max_out_of_orderness.millis < 0:
            raise ConfigurationError(f"max_out_of_orderness is negative: {max_out_of_orderness.millis} ms")
        return WatermarkStrategy(max_out_of_orderness=max_out_of_orderness)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Returns a strategy for streams without event time."""
        return WatermarkStrategy()

    def with_timestamp_assigner(self, timestamp_assigner: TimestampAssigner | str) -> WatermarkStrategy:
        """Returns a strategy with timestamps from an assigner, or from a field with this name.

        The field has integers, which are milliseconds since 1970, or is a ``Types.SQL_TIMESTAMP()`` (in UTC) or
        ``Types.INSTANT()``, rounded down to milliseconds.

        Raises:
            ConfigurationError: It is neither of them.
        """
        if not isinstance(timestamp_assigner, (TimestampAssigner, str)):
            raise ConfigurationError(
                "with_timestamp_assigner() needs the name of a field or a TimestampAssigner, "
                f"not {timestamp_assigner!r}"
            )
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Duration) -> WatermarkStrategy:
        """Returns a strategy that ignores a source after this long without records.

        How long acts in open epochs, which a job with a checkpoint interval has while its tasks live. In another epoch,
        a source that has nothing to read is ignored, whatever the timeout.
        """
        wanted = "a Duration, such as Duration.of_minutes(5)"
        check_argument("with_idleness()", idle_timeout, (Duration, Time), wanted)
        if idle_timeout.millis <= 0:
            raise ConfigurationError(f"idle_timeout must be positive, not {idle_timeout.millis} ms")
        return replace(self, idle_timeout=idle_timeout)

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Duration, update_interval: Duration | None = None
    ) -> WatermarkStrategy:
        """Returns a strategy for a source that waits for others which are not as far in event time (Flink: FLIP-217).

        A subtask does not read on while its watermark is further than that of the group plus the drift. The watermark
        of the group is the least over its subtasks that have something to read; one without input holds the others up
        as far as it was, until it is idle. Splits that are read side by side, such as the partitions of a topic, wait
        for each other, too. It acts while tasks live in a run that goes on or has a checkpoint interval: before a
        barrier, sources read all that the epoch was given.

        Args:
            watermark_group: The name of the group.
            max_allowed_watermark_drift: How far a source may be ahead. A batch of records is not divided.
            update_interval: How often subtasks tell how far they are. Default: 1 second.

        Raises:
            ConfigurationError: An argument is wrong, or the strategy has no watermarks.
        """
        where, wanted = "with_watermark_alignment()", "a Duration, such as Duration.of_minutes(5)"
        check_argument(where, watermark_group, str, "the name of a group")
        interval = Duration.of_seconds(1) if update_interval is None else update_interval
        for each in (max_allowed_watermark_drift, interval):
            check_argument(where, each, (Duration, Time), wanted)
        if max_allowed_watermark_drift.millis < 0 or interval.millis <= 0:
            raise ConfigurationError(f"{where}: the drift must not be negative, and the interval must be positive")
        if self.max_out_of_orderness is None:
            raise ConfigurationError(
                f"{where} needs watermarks: begin with WatermarkStrategy.for_bounded_out_of_orderness(...) or "
                "for_monotonous_timestamps()"
            )
        return replace(self, alignment=WatermarkAlignment(watermark_group, max_allowed_watermark_drift, interval))
