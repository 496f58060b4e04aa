"""Clocks, and conversions to and from milliseconds, the unit of every stored time."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import datetime, timedelta, timezone

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "Clock",
    "SystemClock",
    "current_millis",
    "datetime_of_millis",
    "elapsed_millis",
    "epoch_millis",
    "steady_millis",
    "to_millis",
]

_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def current_millis() -> int:
    """Returns the time of the machine's clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_SLOWED = 900
"""Milliseconds in a second of a clock that goes on while that of the machine is behind it."""
_seen = (0.0, time.monotonic())
"""What `steady_millis` has returned last in this process, and when. There is no lock, which a fork could inherit."""


def steady_millis() -> int:
    """Returns the time as `current_millis` does, for what waits: it never goes back.

    When the machine's clock is set back, this one goes on, a tenth slower, until it is right again. So nothing waits
    until the machine's clock has caught up, which may take hours. Other machines see other times: for them, use
    `current_millis`.
    """
    global _seen
    (millis, at), now = _seen, time.monotonic()
    millis = max(current_millis(), millis + (now - at) * _SLOWED)
    _seen = millis, now
    return int(millis)


def elapsed_millis(since: float) -> int:
    """Returns the whole milliseconds since ``time.monotonic()`` was ``since``."""
    return int((time.monotonic() - since) * 1000)


def to_millis(span: Time | Duration | timedelta) -> int:
    """Returns a span in whole milliseconds, rounded down.

    >>> to_millis(timedelta(seconds=1.5))
    1500

    Raises:
        ConfigurationError: It is not a span of time.
    """
    if not isinstance(span, (Time, Duration, timedelta)):
        raise ConfigurationError(f"need a span of time, such as Time.minutes(5), not {span!r}")
    return span // _MILLISECOND if isinstance(span, timedelta) else span.millis


def epoch_millis(when: datetime | float) -> int:
    """Returns a point in time as milliseconds since 1970.

    Args:
        when: A datetime, in UTC if it has no time zone, or seconds since 1970.

    >>> epoch_millis(datetime(1970, 1, 1, 0, 0, 1))
    1000
    """
    if isinstance(when, datetime):
        return (when.replace(tzinfo=when.tzinfo or timezone.utc) - _1970) // _MILLISECOND
    return round(when * 1000)


def datetime_of_millis(millis: int) -> datetime:
    """Returns the datetime, in UTC, that is this many milliseconds after 1970.

    Raises:
        OverflowError: No datetime is that far away.
    """
    return _1970 + timedelta(milliseconds=millis)


class Clock(ABC):
    """Tells processing time. It travels with an epoch, so a test can bring its own."""

    @abstractmethod
    def now(self) -> int:
        """Returns the time in milliseconds since 1970."""


class SystemClock(Clock):
    """The clock of the machine, see `steady_millis`."""

    now = staticmethod(steady_millis)
