"""Windows and their serializers."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from dagster_flinkpy.common.serializer import TypeSerializer

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.window_assigners import MergingWindowAssigner

__all__ = [
    "CountWindow",
    "CountWindowSerializer",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "TimeWindow",
    "TimeWindowSerializer",
    "Window",
]

_MAX_TIME = 2**63 - 1
_LONG, _TWO_LONGS = struct.Struct(">q"), struct.Struct(">qq")


class Window(ABC):
    """A bucket of records. Windows of one assigner are of one class, hashable, and equal when they mean the same."""

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """The last event time that belongs to the window, in milliseconds."""


class _Bounds(NamedTuple):
    start: int
    end: int


class TimeWindow(_Bounds, Window):
    """The times from ``start`` (inclusive) to ``end`` (exclusive), in milliseconds.

    It is a tuple, so that it is its own namespace in state, and windows are in order of their start.
    """

    __slots__ = ()

    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window a timestamp lies in (``TimeWindow.getWindowStartWithOffset``)."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]) -> None:
        """Merges the windows that overlap or touch (``TimeWindow.mergeWindows``)."""
        merged: list[tuple[TimeWindow, set[TimeWindow]]] = []
        for window in sorted(windows):
            if merged and merged[-1][0].intersects(window):
                covered, parts = merged[-1]
                parts.add(window)
                merged[-1] = (covered.cover(window), parts)
            else:
                merged.append((window, {window}))
        for covered, parts in merged:
            if len(parts) > 1:
                callback.merge(parts, covered)


@dataclass(frozen=True)
class CountWindow(Window):
    """The ``id``-th window of a count."""

    id: int

    def max_timestamp(self) -> int:
        """The end of time: such a window has no event time."""
        return _MAX_TIME


@dataclass(frozen=True)
class GlobalWindow(Window):
    """The one window that holds everything."""

    @staticmethod
    def get() -> GlobalWindow:
        """The window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """The end of time."""
        return _MAX_TIME


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Start and end, as Java writes longs."""

    def serialize(self, element: TimeWindow, stream: BytesIO) -> None:
        stream.write(_TWO_LONGS.pack(*element))

    def deserialize(self, stream: BytesIO) -> TimeWindow:
        return TimeWindow(*_TWO_LONGS.unpack(stream.read(16)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """The id, as Java writes longs."""

    def serialize(self, element: CountWindow, stream: BytesIO) -> None:
        stream.write(_LONG.pack(element.id))

    def deserialize(self, stream: BytesIO) -> CountWindow:
        return CountWindow(*_LONG.unpack(stream.read(8)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """One byte, as in Flink."""

    def serialize(self, element: GlobalWindow, stream: BytesIO) -> None:
        stream.write(b"\x00")

    def deserialize(self, stream: BytesIO) -> GlobalWindow:
        stream.read(1)
        return GlobalWindow()
