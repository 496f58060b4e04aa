"""Window assigners, which put records into windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_flinkpy.common.arguments import check_number, check_settings
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.serializer import TypeSerializer
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.functions import RuntimeContext
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window_triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from dagster_flinkpy.datastream.window_types import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CountSlidingWindowAssigner",
    "CountTumblingWindowAssigner",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]

T = TypeVar("T")
W = TypeVar("W")
W2 = TypeVar("W2")

Span = Time | Duration | timedelta


class WindowAssigner(ABC, Generic[T, W]):
    """Assigns each record to any number of windows."""

    class WindowAssignerContext(ABC):
        """The time, and the state of the current key."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Returns the current processing time in milliseconds since 1970."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Returns the runtime context, with the state of the current key."""

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """Returns the windows of a record with this event time in milliseconds."""

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """Returns the trigger of windows for which the program sets none."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """Returns the serializer for windows in state."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Returns whether windows use event time, so that records can be late."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """A window assigner whose windows can merge."""

    class MergeCallback(ABC, Generic[W2]):
        """Is told which windows merge."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """Merges windows into ``merge_result``."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback[W]) -> None:
        """Tells the callback which of the windows of a key merge."""


class SessionWindowTimeGapExtractor(ABC):
    """Determines, for each record, the gap after which its session ends."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Returns the gap in milliseconds; it must be greater than 0."""


class _TimeAssigner(WindowAssigner[T, TimeWindow]):
    """Time windows."""

    @abstractmethod
    def _windows(self, element: T, time: int) -> list[TimeWindow]:
        """Returns the windows of a record at a time in milliseconds."""

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()


class _EventTime(_TimeAssigner[T]):
    """Time windows in event time."""

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        if timestamp == MIN_WATERMARK:
            raise ValueError(
                f"record {element!r} has no event time; set a watermark strategy with a timestamp assigner"
            )
        return self._windows(element, timestamp)

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class _ProcessingTime(_TimeAssigner[T]):
    """Time windows in processing time."""

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        return self._windows(element, context.get_current_processing_time())

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


# --- tumbling and sliding ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tumbling:
    """Windows of a fixed size that do not overlap.

    Args:
        size: Milliseconds.
        offset: Milliseconds by which windows start later than at multiples of the size. Default: 0.
    """

    size: int
    offset: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.size <= 0 or abs(self.offset) >= self.size:
            raise ConfigurationError(
                f"window size {self.size} ms, offset {self.offset} ms: need size > 0 and |offset| < size"
            )

    @classmethod
    def of(cls, size: Span, offset: Span | None = None) -> Self:
        """Returns windows of this size."""
        return cls(to_millis(size), 0 if offset is None else to_millis(offset))

    def _windows(self, element: Any, time: int) -> list[TimeWindow]:
        start = TimeWindow.get_window_start_with_offset(time, self.offset, self.size)
        return [TimeWindow(start, start + self.size)]


@dataclass(frozen=True)
class _Sliding:
    """Windows of a fixed size, one starting every ``slide`` milliseconds.

    Args:
        size: Milliseconds.
        slide: Milliseconds.
        offset: Milliseconds by which windows start later than at multiples of the slide. Default: 0.
    """

    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.size <= 0 or self.slide <= 0 or abs(self.offset) >= self.slide:
            raise ConfigurationError(
                f"window size {self.size} ms, slide {self.slide} ms, offset {self.offset} ms: "
                "need size > 0, slide > 0 and |offset| < slide"
            )

    @classmethod
    def of(cls, size: Span, slide: Span, offset: Span | None = None) -> Self:
        """Returns windows of this size, one every ``slide``."""
        return cls(to_millis(size), to_millis(slide), 0 if offset is None else to_millis(offset))

    def _windows(self, element: Any, time: int) -> list[TimeWindow]:
        last = TimeWindow.get_window_start_with_offset(time, self.offset, self.slide)
        return [TimeWindow(start, start + self.size) for start in range(last, time - self.size, -self.slide)]


class TumblingEventTimeWindows(_Tumbling, _EventTime[Any]):
    """Event-time windows of a fixed size that do not overlap."""


class TumblingProcessingTimeWindows(_Tumbling, _ProcessingTime[Any]):
    """Processing-time windows of a fixed size that do not overlap."""


class SlidingEventTimeWindows(_Sliding, _EventTime[Any]):
    """Event-time windows of a fixed size, one starting every ``slide`` milliseconds."""


class SlidingProcessingTimeWindows(_Sliding, _ProcessingTime[Any]):
    """Processing-time windows of a fixed size, one starting every ``slide`` milliseconds."""


# --- sessions ---------------------------------------------------------------------------------------------------------


class _Sessions(MergingWindowAssigner[Any, TimeWindow]):
    """Sessions, which end when no record arrives for a gap of time."""

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        TimeWindow.merge_windows(windows, callback)


@dataclass(frozen=True)
class _FixedGap(_Sessions):
    """Sessions with a fixed gap.

    Args:
        session_gap: Milliseconds.
    """

    session_gap: int

    def __post_init__(self) -> None:
        check_settings(self)
        if self.session_gap <= 0:
            raise ConfigurationError(f"the gap between sessions must be positive, not {self.session_gap} ms")

    @classmethod
    def with_gap(cls, size: Span) -> Self:
        """Returns sessions that end when no record has arrived for this long."""
        return cls(to_millis(size))

    def _windows(self, element: Any, time: int) -> list[TimeWindow]:
        return [TimeWindow(time, time + self.session_gap)]


@dataclass(frozen=True)
class _DynamicGap(_Sessions):
    """Sessions whose gap depends on each record.

    Args:
        session_window_time_gap_extractor: Determines the gap.
    """

    session_window_time_gap_extractor: SessionWindowTimeGapExtractor

    def __post_init__(self) -> None:
        if not isinstance(self.session_window_time_gap_extractor, SessionWindowTimeGapExtractor):
            raise ConfigurationError(
                f"sessions with a dynamic gap need a SessionWindowTimeGapExtractor, "
                f"not {self.session_window_time_gap_extractor!r}"
            )

    @classmethod
    def with_dynamic_gap(cls, extractor: SessionWindowTimeGapExtractor) -> Self:
        """Returns sessions whose gap depends on each record."""
        return cls(extractor)

    def _windows(self, element: Any, time: int) -> list[TimeWindow]:
        gap = self.session_window_time_gap_extractor.extract(element)
        if gap <= 0:
            raise ValueError(f"the gap after record {element!r} must be positive, not {gap} ms")
        return [TimeWindow(time, time + gap)]


class EventTimeSessionWindows(_FixedGap, _EventTime[Any]):
    """Event-time sessions."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows:
        """Returns sessions whose gap depends on each record."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_FixedGap, _ProcessingTime[Any]):
    """Processing-time sessions."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Returns sessions whose gap depends on each record."""
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(_DynamicGap, _EventTime[Any]):
    """Event-time sessions whose gap depends on each record."""


class DynamicProcessingTimeSessionWindows(_DynamicGap, _ProcessingTime[Any]):
    """Processing-time sessions whose gap depends on each record."""


# --- by count, and all in one -----------------------------------------------------------------------------------------


class _Counting(WindowAssigner[T, CountWindow]):
    """Windows with a fixed number of records of a key."""

    def __init__(self, window_size: int, state_name: str) -> None:
        check_number("a count window", window_size, "records")
        if window_size <= 0:
            raise ConfigurationError(f"a count window needs at least one record, not {window_size}")
        self.window_size = window_size
        """The number of records."""
        self.position_state = ValueStateDescriptor(state_name, Types.LONG())
        """State with the number of records of the key so far."""

    @abstractmethod
    def window_ids(self, position: int) -> Sequence[int]:
        """Returns the ids of the windows of a record, given the number of records before it."""

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[CountWindow]:
        state = context.get_runtime_context().get_state(self.position_state)
        position: int = state.value() or 0
        state.update(position + 1)
        return [CountWindow(i) for i in self.window_ids(position)]

    def get_default_trigger(self, env: Any) -> Trigger[T, CountWindow]:
        # A full window gets no further records. PyFlink's trigger does not purge, so it keeps all of them forever.
        return PurgingTrigger(CountTrigger(self.window_size))

    def get_window_serializer(self) -> CountWindowSerializer:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(_Counting[T]):
    """Windows with a fixed number of records of a key that do not overlap.

    Args:
        window_size: The number of records.
    """

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, "tumble-count-assigner")

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner[Any]:
        """Returns windows of this many records."""
        return CountTumblingWindowAssigner(window_size)

    def window_ids(self, position: int) -> tuple[int]:
        """Returns the id of the window of a record, given the number of records before it."""
        return (position // self.window_size,)


class CountSlidingWindowAssigner(_Counting[T]):
    """Windows with a fixed number of records of a key, one starting every ``window_slide`` records.

    Args:
        window_size: The number of records.
        window_slide: A new window starts after this many records.
    """

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__(window_size, "slide-count-assigner")
        check_number("a count window", window_slide, "records")
        if window_slide <= 0:
            raise ConfigurationError(f"count windows need to slide by at least one record, not {window_slide}")
        self.window_slide = window_slide
        """The number of records after which a new window starts."""

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner[Any]:
        """Returns windows of this many records, one starting every ``window_slide`` records."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def window_ids(self, position: int) -> range:
        """Returns the ids of the windows of a record, given the number of records before it."""
        newest = position // self.window_slide
        oldest = max(0, -((self.window_size - 1 - position) // self.window_slide))
        return range(newest, oldest - 1, -1)


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """A single window for all records of a key. It never fires unless another trigger is set."""

    @staticmethod
    def create() -> GlobalWindows[Any]:
        """Returns the assigner."""
        return GlobalWindows()

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: Any) -> Trigger[T, GlobalWindow]:
        return NeverTrigger()

    def get_window_serializer(self) -> GlobalWindowSerializer:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False
