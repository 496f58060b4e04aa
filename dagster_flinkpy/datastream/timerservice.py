"""Time and timers (``pyflink.datastream.timerservice``)."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["TimerService"]


class TimerService(ABC):
    """Time, and timers of the current key.

    Timers are part of the state. A timer of a time that has passed is due at once: with event time at the next
    watermark, with processing time after the batch; in a strict program it is a `PastTimerError`. A time that is not an
    int of 64 bits is a `ConfigurationError`.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """Milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Event time in milliseconds; ``-(2**63)`` before the first watermark."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Fires when processing time has passed the timestamp; once per key and timestamp.

        A task looks at the clock at the start of an epoch, after each batch, at watermarks and at the barrier, so a
        timer that becomes due between two epochs fires at the start of the next one. Timers that are still pending
        when a bounded input ends do not fire, as in Flink.

        Args:
            timestamp: Milliseconds since 1970.
        """

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Fires when the watermark passes the timestamp; once per key and timestamp.

        Args:
            timestamp: Milliseconds.
        """

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer; one that is not there is fine."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer; one that is not there is fine."""
