"""Windows as Flink's ``WindowOperator`` has them, in plain Python: one record, one timer after the other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dagster_flinkpy.datastream import AggregateFunction, ProcessWindowFunction, ReduceFunction
from dagster_flinkpy.datastream.state import ListStateDescriptor, ReducingStateDescriptor
from dagster_flinkpy.datastream.window import MergingWindowAssigner, TriggerResult

__all__ = ["WindowModel"]

_MIN, _MAX = -(2**63), 2**63 - 1
Fired = tuple[str, int, Any]
"""Key, timestamp, record."""


class _State:
    """A value, a list or a reduction, of a key and namespace."""

    def __init__(self, descriptor: Any) -> None:
        self._list = isinstance(descriptor, ListStateDescriptor)
        self._reduce = descriptor.reduce_function if isinstance(descriptor, ReducingStateDescriptor) else None
        self.content: Any = None

    def value(self) -> Any:
        return self.content

    def get(self) -> Any:
        return self.content or [] if self._list else self.content

    def update(self, value: Any) -> None:
        self.content = value

    def add(self, value: Any) -> None:
        if self._list:
            self.content = [*(self.content or []), value]
        else:
            self.content = value if self.content is None else self._reduce.reduce(self.content, value)

    def clear(self) -> None:
        self.content = None

    def take(self, other: _State) -> None:
        for value in (other.get() if self._list else [other.content]) if other.content is not None else []:
            self.add(value)


class WindowModel:
    """The operator. It is also the context of the trigger, the assigner and the window function.

    Args:
        assigner: Assigns windows.
        trigger: Decides when they fire.
        lateness: How long state is kept after the end of a window, in milliseconds.
        fold: What aggregates the records of a window, or None: then it holds a list.
        function: Is called with what a window holds when it fires.
    """

    def __init__(
        self,
        assigner: Any,
        trigger: Any,
        lateness: int,
        fold: AggregateFunction | ReduceFunction | None,
        function: ProcessWindowFunction,
    ) -> None:
        self._assigner, self._trigger, self._fold, self._function = assigner, trigger, fold, function
        self._event_time = assigner.is_event_time()
        self._lateness = lateness if self._event_time else 0
        self._merges = isinstance(assigner, MergingWindowAssigner)
        self._watermark, self._clock = _MIN, 0
        self._states: dict[tuple[Any, ...], _State] = {}
        self._timers: set[tuple[bool, int, str, Any]] = set()
        """Whether of event time, time, key, window."""
        self._contents: dict[tuple[str, Any], Any] = {}
        """By key and state window."""
        self._sessions: dict[str, dict[Any, Any]] = {}
        """Key -> window -> its state window."""
        self._key, self._window, self._merged = "", None, list[Any]()
        self.fired, self.late = list[Fired](), list[Fired]()

    # --- the contexts -------------------------------------------------------------------------------------------------

    def get_current_watermark(self) -> int:
        return self._watermark

    def get_current_processing_time(self) -> int:
        return self._clock

    current_watermark, current_processing_time = get_current_watermark, get_current_processing_time

    def register_event_time_timer(self, time: int) -> None:
        self._timers.add((True, time, self._key, self._window))

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.add((False, time, self._key, self._window))

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.discard((True, time, self._key, self._window))

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.discard((False, time, self._key, self._window))

    def get_partitioned_state(self, descriptor: Any) -> _State:
        return self._state("trigger", self._window, descriptor)

    def merge_partitioned_state(self, descriptor: Any) -> None:
        for window in self._merged:
            self._state("trigger", self._window, descriptor).take(self._state("trigger", window, descriptor))
            self._state("trigger", window, descriptor).clear()

    def window(self) -> Any:
        return self._window

    def window_state(self) -> Any:
        return SimpleNamespace(get_state=lambda descriptor: self._state("window", self._window, descriptor))

    def global_state(self) -> Any:
        return SimpleNamespace(get_state=lambda descriptor: self._state("global", None, descriptor))

    def _state(self, kind: str, window: Any, descriptor: Any) -> _State:
        return self._states.setdefault((kind, self._key, window, descriptor.name), _State(descriptor))

    # --- the operator -------------------------------------------------------------------------------------------------

    def element(self, value: Any, timestamp: int) -> None:
        """Adds a record."""
        self._key, skipped = value.key, True
        for assigned in self._assigner.assign_windows(value, timestamp, self):
            window = self._placed(assigned) if self._merges else assigned
            if self._event_time and self._cleanup_time(window) <= self._watermark:
                self._sessions.get(self._key, {}).pop(window, None)
                continue
            skipped, self._window = False, window
            self._add((self._key, self._state_window(window)), value)
            self._act(lambda: self._trigger.on_element(value, timestamp, self._window, self), timestamp)
            if (cleanup := self._cleanup_time(window)) < _MAX:
                self._timers.add((self._event_time, cleanup, self._key, window))
        if skipped and self._event_time and timestamp + self._lateness <= self._watermark:
            self.late.append((self._key, timestamp, value))

    def watermark(self, watermark: int) -> None:
        """Advances event time."""
        if watermark > self._watermark:  # otherwise nobody hears of it, and timers that are overdue wait
            self._watermark = watermark
            self._fire(True, watermark, self._trigger.on_event_time)

    def processing_time(self, now: int) -> None:
        """Advances the clock."""
        self._clock = now
        self._fire(False, now, self._trigger.on_processing_time)

    def _fire(self, event_time: bool, until: int, on_time: Callable[..., TriggerResult]) -> None:
        while due := [timer for timer in self._timers if timer[0] == event_time and timer[1] <= until]:
            timer = min(due, key=lambda each: (each[1], each[2], each[3] if isinstance(each[3], tuple) else ()))
            self._timers.discard(timer)
            _, time, self._key, self._window = timer
            if self._merges and self._window not in self._sessions.get(self._key, {}):
                continue  # it was merged into another
            self._act(lambda time=time: on_time(time, self._window, self), time)
            if event_time == self._event_time and time == self._cleanup_time(self._window):
                self._end()

    def _act(self, ask: Callable[[], TriggerResult], timestamp: int) -> None:
        window, held = self._window, (self._key, self._state_window(self._window))
        result = ask()
        self._window = window
        if result.is_fire() and (contents := self._contents.get(held)) is not None:
            if isinstance(self._fold, AggregateFunction):
                contents = [self._fold.get_result(contents)]
            elif self._fold is not None:
                contents = [contents]
            for record in self._function.process(self._key, self, contents):  # type: ignore[arg-type]
                self.fired.append((self._key, timestamp, record))
        if result.is_purge():
            self._contents.pop(held, None)

    def _end(self) -> None:
        self._contents.pop((self._key, self._state_window(self._window)), None)
        self._trigger.clear(self._window, self)
        self._function.clear(self)  # type: ignore[arg-type]
        self._sessions.get(self._key, {}).pop(self._window, None)

    def _cleanup_time(self, window: Any) -> int:
        return min(window.max_timestamp() + self._lateness, _MAX)

    # --- contents -----------------------------------------------------------------------------------------------------

    def _add(self, held: tuple[str, Any], value: Any) -> None:
        before = self._contents.get(held)
        if isinstance(self._fold, AggregateFunction):
            after = self._fold.add(value, self._fold.create_accumulator() if before is None else before)
        elif self._fold is not None:
            after = value if before is None else self._fold.reduce(before, value)
        else:
            after = [*(before or []), value]
        self._contents[held] = after

    def _merge(self, into: tuple[str, Any], other: tuple[str, Any]) -> None:
        taken = self._contents.pop(other, None)
        if taken is None or (before := self._contents.get(into)) is None:
            merged = taken if taken is not None else self._contents.get(into)
        elif isinstance(self._fold, AggregateFunction):
            merged = self._fold.merge(before, taken)
        else:
            merged = before + taken if self._fold is None else self._fold.reduce(before, taken)
        if merged is not None:
            self._contents[into] = merged

    # --- windows that merge (Flink's MergingWindowSet) ----------------------------------------------------------------

    def _state_window(self, window: Any) -> Any:
        return self._sessions[self._key][window] if self._merges else window

    def _placed(self, new: Any) -> Any:
        """Puts a window among those of the key, and returns the one that it is part of."""
        sessions, found = self._sessions.setdefault(self._key, {}), list[tuple[set[Any], Any]]()
        callback = SimpleNamespace(merge=lambda parts, merged: found.append((set(parts), merged)))
        self._assigner.merge_windows([*sessions, new], callback)
        for parts, merged in found:
            old = [window for window in sessions if window in parts]
            kept, *others = [sessions.pop(window) for window in old]
            sessions[merged] = kept
            if old != [merged]:
                self._window, self._merged = merged, old
                self._trigger.on_merge(merged, self)
                for window in old:
                    self._window = window
                    self._trigger.clear(window, self)
                    self._timers.discard((self._event_time, self._cleanup_time(window), self._key, window))
                for other in others:
                    self._merge((self._key, kept), (self._key, other))
            if new in parts:
                return merged
        sessions.setdefault(new, new)
        return new
