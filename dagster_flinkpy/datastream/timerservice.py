"""The timer service (``pyflink.datastream.timerservice``)."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """Tells the time, and registers timers for the current key.

    Timers are part of the state. A timer for a time in the past is due immediately: at the next watermark for event
    time, after the current batch for processing time. In a strict program it raises a `PastTimerError`. A time that is
    not a 64-bit int raises a `ConfigurationError`.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Returns the current processing time in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Returns the current watermark in milliseconds, or ``-(2**63)`` before the first one."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires when processing time passes the timestamp, once per key and timestamp.

        A task reads the clock at the start of an epoch, after each batch, at watermarks and at the barrier. So a timer
        that becomes due between two epochs fires at the start of the second one. As in Flink, timers that are still
        pending when a bounded input ends do not fire.

        Args:
            timestamp: Milliseconds since 1970.
        """

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires when the watermark passes the timestamp, once per key and timestamp.

        Args:
            timestamp: Milliseconds.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer, if it exists."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer, if it exists."""
