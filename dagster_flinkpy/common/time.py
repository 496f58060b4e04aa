"""Durations and instants, as ``pyflink.common.time`` names them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Duration", "Instant", "Time", "to_millis"]


@dataclass(frozen=True, order=True)
class Time:
    """A span of time, in milliseconds. Used by window assigners."""

    millis: int

    def to_milliseconds(self) -> int:
        """The span in milliseconds."""
        return self.millis

    def __str__(self) -> str:
        return f"{self.millis} ms"

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """A span of so many milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """A span of so many seconds."""
        return Time(seconds * 1000)

    @staticmethod
    def minutes(minutes: int) -> Time:
        """A span of so many minutes."""
        return Time(minutes * 60_000)

    @staticmethod
    def hours(hours: int) -> Time:
        """A span of so many hours."""
        return Time(hours * 3_600_000)

    @staticmethod
    def days(days: int) -> Time:
        """A span of so many days."""
        return Time(days * 86_400_000)


@dataclass(frozen=True, order=True)
class Duration:
    """A span of time, in milliseconds. Used by watermark strategies."""

    millis: int

    def to_millis(self) -> int:
        """The span in milliseconds."""
        return self.millis

    @staticmethod
    def of_days(days: int) -> Duration:
        """A span of so many days."""
        return Duration(days * 86_400_000)

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """A span of so many hours."""
        return Duration(hours * 3_600_000)

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """A span of so many minutes."""
        return Duration(minutes * 60_000)

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """A span of so many seconds."""
        return Duration(seconds * 1000)

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """A span of so many milliseconds."""
        return Duration(millis)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """A span of so many nanoseconds, in whole milliseconds."""
        return Duration(nanos // 1_000_000)


@dataclass(frozen=True, order=True, repr=False)
class Instant:
    """A point in time: seconds and nanoseconds since the epoch, UTC. ``Types.INSTANT()`` keeps its microseconds."""

    seconds: int
    nanos: int

    def to_epoch_milli(self) -> int:
        """Milliseconds since the epoch."""
        return self.seconds * 1000 + self.nanos // 1_000_000

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """The instant so many milliseconds after the epoch."""
        return Instant(epoch_milli // 1000, epoch_milli % 1000 * 1_000_000)

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"


def to_millis(span: Time | Duration | timedelta) -> int:
    """The span in whole milliseconds."""
    if isinstance(span, timedelta):
        return span // timedelta(milliseconds=1)
    return span.millis
