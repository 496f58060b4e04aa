"""Windows (``pyflink.datastream.window``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dagster_flinkpy.common.time import Duration, Time, to_millis
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["SlidingEventTimeWindows", "TimeWindow", "TumblingEventTimeWindows", "WindowAssigner"]


@dataclass(frozen=True, order=True)
class TimeWindow:
    """The event times from ``start`` (inclusive) to ``end`` (exclusive), in milliseconds."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window a timestamp lies in (``TimeWindow.getWindowStartWithOffset``)."""
        return timestamp - (timestamp - offset) % window_size


class WindowAssigner(ABC):
    """Puts a record into windows."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int) -> list[TimeWindow]:
        """The windows of a record with this event time in milliseconds."""


@dataclass(frozen=True)
class SlidingEventTimeWindows(WindowAssigner):
    """Windows of one size that start every ``slide`` milliseconds (Flink's class of this name)."""

    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        if self.size <= 0 or self.slide <= 0 or abs(self.offset) >= self.slide:
            raise ConfigurationError(
                f"window size {self.size} ms, slide {self.slide} ms, offset {self.offset} ms: "
                "need size > 0, slide > 0 and |offset| < slide"
            )

    @staticmethod
    def of(
        size: Time | Duration | timedelta,
        slide: Time | Duration | timedelta,
        offset: Time | Duration | timedelta | None = None,
    ) -> SlidingEventTimeWindows:
        """Windows of this size, one each ``slide``."""
        return SlidingEventTimeWindows(to_millis(size), to_millis(slide), 0 if offset is None else to_millis(offset))

    def assign_windows(self, element: Any, timestamp: int) -> list[TimeWindow]:
        last = TimeWindow.get_window_start_with_offset(timestamp, self.offset, self.slide)
        return [TimeWindow(s, s + self.size) for s in range(last, timestamp - self.size, -self.slide)]


@dataclass(frozen=True)
class TumblingEventTimeWindows(WindowAssigner):
    """Windows of one size, side by side (Flink's class of this name)."""

    size: int
    offset: int = 0

    def __post_init__(self) -> None:
        if self.size <= 0 or abs(self.offset) >= self.size:
            raise ConfigurationError(
                f"window size {self.size} ms, offset {self.offset} ms: need size > 0 and |offset| < size"
            )

    @staticmethod
    def of(
        size: Time | Duration | timedelta, offset: Time | Duration | timedelta | None = None
    ) -> TumblingEventTimeWindows:
        """Windows of this size."""
        return TumblingEventTimeWindows(to_millis(size), 0 if offset is None else to_millis(offset))

    def assign_windows(self, element: Any, timestamp: int) -> list[TimeWindow]:
        start = TimeWindow.get_window_start_with_offset(timestamp, self.offset, self.size)
        return [TimeWindow(start, start + self.size)]
