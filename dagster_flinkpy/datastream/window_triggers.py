"""Triggers, which decide when a window fires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from dagster_flinkpy.common.arguments import check_number
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.functions import ReduceFunction
from dagster_flinkpy.datastream.state import ReducingStateDescriptor, StateDescriptor
from dagster_flinkpy.datastream.window_types import TimeWindow
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.metrics import MetricGroup

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "Trigger",
    "TriggerResult",
]

T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """What happens to a window: whether it is evaluated, and whether its contents are dropped."""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        """Returns whether the window is evaluated."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Returns whether the contents of the window are dropped."""
        return self.value[1]


class Trigger(ABC, Generic[T, W]):
    """Decides when a window of a key is evaluated.

    One trigger serves all keys and windows, so it has to keep its state in ``ctx.get_partitioned_state()``.
    """

    class TriggerContext(ABC):
        """The time, timers and state of the window of the current key."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Returns the current processing time in milliseconds since 1970."""

        @abstractmethod
        def get_metric_group(self) -> MetricGroup:
            """Returns the metrics of the operator."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Returns the current watermark in milliseconds."""

        @abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Registers a timer that calls ``on_processing_time`` when this time has passed."""

        @abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Registers a timer that calls ``on_event_time`` when the watermark passes this time."""

        @abstractmethod
        def delete_processing_time_timer(self, time: int) -> None:
            """Deletes such a timer, if it exists."""

        @abstractmethod
        def delete_event_time_timer(self, time: int) -> None:
            """Deletes such a timer, if it exists."""

        @abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """Returns state of the current key and window."""

    class OnMergeContext(TriggerContext):
        """The context of a window that others have merged into."""

        @abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Merges list, reducing or aggregating state of the old windows into that of the new one."""

    @abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Is called for each record that is added to a window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Is called when a processing-time timer fires."""

    @abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Is called when an event-time timer fires."""

    def can_merge(self) -> bool:
        """Returns whether the trigger supports windows that merge."""
        return False

    @abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Is called when windows have merged into ``window``, and has to merge their timers and state."""

    @abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """Deletes the timers and state of a window that has ended."""


class _QuietTrigger(Trigger[T, W]):
    """A trigger that does nothing by default."""

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Does nothing."""

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """Does nothing."""


class NeverTrigger(_QuietTrigger[T, W]):
    """Never fires: the default of global windows."""


class EventTimeTrigger(_QuietTrigger[T, TimeWindow]):
    """Fires when the watermark passes the end of the window, and for each late record after that."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> EventTimeTrigger[Any]:
        """Returns the trigger."""
        return EventTimeTrigger()


class ProcessingTimeTrigger(_QuietTrigger[T, TimeWindow]):
    """Fires when processing time passes the end of the window."""

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any]:
        """Returns the trigger."""
        return ProcessingTimeTrigger()


class _Min(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return min(value1, value2)


class _ContinuousTrigger(_QuietTrigger[T, TimeWindow]):
    """Fires at each multiple of the interval, and keeps the next time as state."""

    _in_event_time: ClassVar[bool]

    def __init__(self, interval: int) -> None:
        check_number("the interval of a continuous trigger", interval, "milliseconds")
        if interval <= 0:
            raise ConfigurationError(f"the interval of a continuous trigger must be positive, not {interval} ms")
        self.interval = interval
        self._next_fire = ReducingStateDescriptor("fire-time", _Min(), Types.LONG())

    def _register(self, time: int, ctx: Trigger.TriggerContext) -> None:
        (ctx.register_event_time_timer if self._in_event_time else ctx.register_processing_time_timer)(time)

    def _start(self, now: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        if ctx.get_partitioned_state(self._next_fire).get() is None:
            following, end = self._following(now), window.max_timestamp()
            self._fire_at(min(following, end) if now <= end else following, ctx)

    def _following(self, time: int) -> int:
        """Returns the next multiple of the interval."""
        return time - time % self.interval + self.interval

    def _fire_at(self, time: int, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self._next_fire).add(time)
        self._register(time, ctx)

    def _after(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> int:
        """Returns when a window fires next that fires at a time."""
        return min(time + self.interval, window.max_timestamp())

    def _on_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        next_fire = ctx.get_partitioned_state(self._next_fire)
        if next_fire.get() != time:
            return TriggerResult.CONTINUE
        next_fire.clear()
        self._fire_at(self._after(time, window, ctx), ctx)
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._next_fire)
        next_fire = ctx.get_partitioned_state(self._next_fire).get()
        if next_fire is not None:
            self._register(next_fire, ctx)

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        next_fire = ctx.get_partitioned_state(self._next_fire)
        time = next_fire.get()
        if time is not None:
            (ctx.delete_event_time_timer if self._in_event_time else ctx.delete_processing_time_timer)(time)
            next_fire.clear()


class ContinuousEventTimeTrigger(_ContinuousTrigger[T]):
    """Fires each time the watermark passes a multiple of the interval, and at the end of the window.

    Args:
        interval: Milliseconds.
    """

    _in_event_time = True

    @staticmethod
    def of(interval: Time | Duration) -> ContinuousEventTimeTrigger[Any]:
        """Returns a trigger with this interval."""
        return ContinuousEventTimeTrigger(to_millis(interval))

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._start(timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else self._on_time(time, window, ctx)

    def _after(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> int:
        end = window.max_timestamp()
        # When all input has ended, a global window would have trillions of intervals left.
        return end if end == ctx.get_current_watermark() == MAX_WATERMARK else super()._after(time, window, ctx)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger[T]):
    """Fires each time processing time passes a multiple of the interval.

    Args:
        interval: Milliseconds.
    """

    _in_event_time = False

    @staticmethod
    def of(interval: Time | Duration) -> ContinuousProcessingTimeTrigger[Any]:
        """Returns a trigger with this interval."""
        return ContinuousProcessingTimeTrigger(to_millis(interval))

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        self._start(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._on_time(time, window, ctx)

    def _after(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> int:
        if time < window.max_timestamp():
            return super()._after(time, window, ctx)
        # A window in event time may be open when processing time has passed its end, which must not come again.
        return self._following(ctx.get_current_processing_time())


class _Sum(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class CountTrigger(_QuietTrigger[T, W]):
    """Fires when this many records have arrived since it last fired.

    Args:
        window_size: The number of records.
    """

    def __init__(self, window_size: int) -> None:
        self.window_size = window_size
        """The number of records."""
        self.count_state = ReducingStateDescriptor("count", _Sum(), Types.LONG())
        """State with the number of records since it last fired."""

    @staticmethod
    def of(window_size: int) -> CountTrigger[Any, Any]:
        """Returns a trigger with this count."""
        return CountTrigger(window_size)

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(self.count_state)
        count.add(1)
        if count.get() < self.window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self.count_state)

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self.count_state).clear()


class PurgingTrigger(Trigger[T, W]):
    """Behaves like another trigger, but drops the contents of a window that fires.

    Args:
        nested_trigger: The other trigger.
    """

    def __init__(self, nested_trigger: Trigger[T, W]) -> None:
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger[Any, Any]) -> PurgingTrigger[Any, Any]:
        """Returns a trigger that purges whenever the other one fires."""
        return PurgingTrigger(nested_trigger)

    @staticmethod
    def _purging(result: TriggerResult) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result

    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)
