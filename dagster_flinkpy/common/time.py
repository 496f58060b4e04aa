"""Durations and instants (``pyflink.common.time``)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from numbers import Real
from typing import Any

from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError

__all__ = ["Duration", "Instant", "Time"]


def _millis(call: str, number: Any, unit: int) -> int:
    """Returns a number of units of time in milliseconds.

    Raises:
        ConfigurationError: It is no number, or not one of whole milliseconds.
    """
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if not is_number or round(number * unit, 6) % 1 != 0:  # 1.001 seconds are 1000.9999999999999 ms
        raise ConfigurationError(f"{call} needs a number that gives whole milliseconds, not {number!r}")
    millis: int = round(number * unit)
    return millis


@dataclass(frozen=True, order=True)
class Time:
    """A span of time in milliseconds, for window assigners."""

    millis: int

    def to_milliseconds(self) -> int:
        """Returns the span in milliseconds."""
        return self.millis

    def __str__(self) -> str:
        return f"{self.millis} ms"

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """Returns a span of this many milliseconds."""
        return Time(_millis("Time.milliseconds()", milliseconds, 1))

    @staticmethod
    def seconds(seconds: int) -> Time:
        """Returns a span of this many seconds."""
        return Time(_millis("Time.seconds()", seconds, 1000))

    @staticmethod
    def minutes(minutes: int) -> Time:
        """Returns a span of this many minutes."""
        return Time(_millis("Time.minutes()", minutes, 60_000))

    @staticmethod
    def hours(hours: int) -> Time:
        """Returns a span of this many hours."""
        return Time(_millis("Time.hours()", hours, 3_600_000))

    @staticmethod
    def days(days: int) -> Time:
        """Returns a span of this many days."""
        return Time(_millis("Time.days()", days, 86_400_000))


@dataclass(frozen=True, order=True)
class Duration:
    """A span of time in milliseconds, for watermark strategies."""

    millis: int

    def to_millis(self) -> int:
        """Returns the span in milliseconds."""
        return self.millis

    @staticmethod
    def of_days(days: int) -> Duration:
        """Returns a span of this many days."""
        return Duration(_millis("Duration.of_days()", days, 86_400_000))

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """Returns a span of this many hours."""
        return Duration(_millis("Duration.of_hours()", hours, 3_600_000))

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """Returns a span of this many minutes."""
        return Duration(_millis("Duration.of_minutes()", minutes, 60_000))

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """Returns a span of this many seconds."""
        return Duration(_millis("Duration.of_seconds()", seconds, 1000))

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """Returns a span of this many milliseconds."""
        return Duration(_millis("Duration.of_millis()", millis, 1))

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """Returns a span of this many nanoseconds, rounded down to milliseconds."""
        return Duration(_millis("Duration.of_nanos()", nanos, 1) // 1_000_000)


@dataclass(frozen=True, order=True, repr=False)
class Instant:
    """A point in time: seconds and nanoseconds since 1970, in UTC. ``Types.INSTANT()`` stores microseconds."""

    seconds: int
    nanos: int

    def to_epoch_milli(self) -> int:
        """Returns the milliseconds since 1970."""
        return self.seconds * 1000 + self.nanos // 1_000_000

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """Returns the instant this many milliseconds after 1970."""
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    @staticmethod
    def of_datetime(value: datetime) -> Instant:
        """Returns the instant of a date and time with a time zone.

        Raises:
            TypeMismatchError: It has no time zone.
        """
        if value.utcoffset() is None:
            raise TypeMismatchError(
                f"{value!r} has no time zone, so it may be any instant: give it one, such as "
                "value.replace(tzinfo=timezone.utc)"
            )
        since = value - datetime(1970, 1, 1, tzinfo=timezone.utc)
        return Instant(since.days * 86_400 + since.seconds, since.microseconds * 1000)

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"
