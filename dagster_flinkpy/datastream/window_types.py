"""Windows and their serializers."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple, Protocol, TypeVar

from dagster_flinkpy.common.serializer import TypeSerializer

__all__ = [
    "CountWindow",
    "CountWindowSerializer",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "SupportsMerge",
    "TimeWindow",
    "TimeWindowSerializer",
    "Window",
]

_MAX_TIME = 2**63 - 1
_LONG, _TWO_LONGS = struct.Struct(">q"), struct.Struct(">qq")


W_contra = TypeVar("W_contra", contravariant=True)


class SupportsMerge(Protocol[W_contra]):
    """Receives the windows that merge (`MergingWindowAssigner.MergeCallback`)."""

    def merge(self, to_be_merged: Iterable[W_contra], merge_result: W_contra) -> None:
        """Merges windows into ``merge_result``."""


class Window(ABC):
    """A group of records. The windows of an assigner have one class, are hashable, and compare by value."""

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """Returns the last event time inside the window, in milliseconds."""


class _Bounds(NamedTuple):
    start: int
    end: int


class TimeWindow(_Bounds, Window):
    """The times from ``start`` (inclusive) to ``end`` (exclusive), in milliseconds.

    It is a tuple, so that it can be a namespace in state, and windows are ordered by start.
    """

    __slots__ = ()

    def max_timestamp(self) -> int:
        """Returns the last millisecond inside the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Returns whether the windows overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Returns the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Returns the start of the window that contains a timestamp (``TimeWindow.getWindowStartWithOffset``)."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: SupportsMerge[TimeWindow]) -> None:
        """Merges the windows that overlap or touch, in order of time (``TimeWindow.mergeWindows``)."""
        merged: list[tuple[TimeWindow, dict[TimeWindow, None]]] = []
        for window in sorted(windows):
            if merged and merged[-1][0].intersects(window):
                covered, parts = merged[-1]
                parts[window] = None
                merged[-1] = (covered.cover(window), parts)
            else:
                merged.append((window, {window: None}))
        for covered, parts in merged:
            if len(parts) > 1:
                callback.merge(parts, covered)


@dataclass(frozen=True)
class CountWindow(Window):
    """The window with index ``id`` among windows by count."""

    id: int

    def max_timestamp(self) -> int:
        """Returns the largest timestamp, because such a window has no event time."""
        return _MAX_TIME


@dataclass(frozen=True)
class GlobalWindow(Window):
    """The single window that contains all records."""

    @staticmethod
    def get() -> GlobalWindow:
        """Returns the only global window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """Returns the largest timestamp."""
        return _MAX_TIME

    def __repr__(self) -> str:
        return "GlobalWindow"


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Writes start and end as Java writes longs."""

    def serialize(self, element: TimeWindow, stream: BytesIO) -> None:
        stream.write(_TWO_LONGS.pack(*element))

    def deserialize(self, stream: BytesIO) -> TimeWindow:
        return TimeWindow(*_TWO_LONGS.unpack(stream.read(16)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """Writes the id as Java writes longs."""

    def serialize(self, element: CountWindow, stream: BytesIO) -> None:
        stream.write(_LONG.pack(element.id))

    def deserialize(self, stream: BytesIO) -> CountWindow:
        return CountWindow(*_LONG.unpack(stream.read(8)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """Writes one byte, as in Flink."""

    def serialize(self, element: GlobalWindow, stream: BytesIO) -> None:
        stream.write(b"\x00")

    def deserialize(self, stream: BytesIO) -> GlobalWindow:
        stream.read(1)
        return GlobalWindow()
