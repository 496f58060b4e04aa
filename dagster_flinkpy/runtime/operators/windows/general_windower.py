"""Windows of any assigner with any trigger, record by record. The state of a window is one value, or all elements."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import copied
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.state import MapState, MapStateDescriptor
from dagster_flinkpy.datastream.window import EventTimeSessionWindows, MergingWindowAssigner, TriggerResult
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.windows.window_operator import (
    MERGING_WINDOWS,
    Ints,
    TriggerContext,
    Windower,
    WindowOperator,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["GeneralWindower", "MergingWindowSet", "MergingWindower"]

Merge = Callable[[Any, list[Any], Any, list[Any]], None]
"""Takes the resulting window, the merged windows, the state window of the result, and the merged state windows."""


class _MergeResults(MergingWindowAssigner.MergeCallback[Any]):
    def __init__(self) -> None:
        self.results: dict[Any, list[Any]] = {}

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.results[merge_result] = list(to_be_merged)


class MergingWindowSet:
    """The windows in flight of one key (Flink: ``MergingWindowSet``).

    When windows merge, the contents stay in the namespace of one of them, the *state window*, so only the contents of
    the others are moved. The mapping from windows to state windows is state, too, as namespaces.
    """

    def __init__(
        self,
        assigner: MergingWindowAssigner[Any, Any],
        state: MapState[Any, Any],
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
    ) -> None:
        self._assigner, self._state, self._encode = assigner, state, encode
        self._mapping = {decode(window): decode(state_window) for window, state_window in state.items()}
        # Sessions in flight do not touch each other, so the sessions that a new one touches are neighbours.
        sessions = type(assigner).merge_windows is EventTimeSessionWindows.merge_windows
        self._sessions: list[Any] | None = sorted(self._mapping) if sessions else None

    def __len__(self) -> int:
        return len(self._mapping)

    def state_window(self, window: Any) -> Any:
        """Returns the state window of a window, or None if the window is not in flight."""
        return self._mapping.get(window)

    def retire(self, window: Any) -> Any:
        """Removes a window, and returns its state window."""
        if self._sessions is not None:
            del self._sessions[bisect_left(self._sessions, window)]
        self._state.remove(self._encode(window))
        return self._mapping.pop(window)

    def _put(self, window: Any, state_window: Any) -> None:
        if self._sessions is not None and window not in self._mapping:
            insort(self._sessions, window)
        self._state.put(self._encode(window), self._encode(state_window))
        self._mapping[window] = state_window

    def _candidates(self, window: Any) -> list[Any]:
        """Returns the windows in flight that a new one may merge with."""
        if self._sessions is None:
            return list(self._mapping)
        sessions = self._sessions
        first = last = bisect_left(sessions, window)
        while first and sessions[first - 1].intersects(window):
            first -= 1
        while last < len(sessions) and sessions[last].intersects(window):
            last += 1
        return sessions[first:last]

    def add(self, window: Any, merge: Merge) -> Any:
        """Adds a window, merges it with others, and returns the window that now contains it."""
        candidates = self._candidates(window)
        if not candidates:
            self._put(window, window)
            return window
        found = _MergeResults()
        self._assigner.merge_windows([*candidates, window], found)
        result = window
        for merge_result, parts in found.results.items():
            if window in parts:
                result = merge_result
            in_flight = [part for part in dict.fromkeys(parts) if part in self._mapping]
            if in_flight and in_flight != [merge_result]:
                state_windows = [self.retire(part) for part in in_flight]
                self._put(merge_result, state_windows[0])
                merge(merge_result, in_flight, state_windows[0], state_windows[1:])
        # A window that is in flight may come again, and then keeps its state window.
        if result not in self._mapping:
            self._put(result, result)
        return result


_MANY_WINDOWS = 100
"""The windows of a key that has more are kept from batch to batch, because it takes long to read them all."""


class GeneralWindower(Windower):
    """Windows that do not merge."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator, self._codec = operator, operator.codec
        self._spec, self._event_time = operator.spec, operator.event_time
        operator.open_timers(self._codec.namespace_type)
        self._contents: Any = operator.backend.get_state(operator.descriptor(), self._codec.namespace_type)
        self._trigger = trigger = TriggerContext(operator, self._codec, operator.get_window_state)
        # The timers that end windows.
        self._register, self._delete = trigger.register_processing_time_timer, trigger.delete_processing_time_timer
        if self._event_time:
            self._register, self._delete = trigger.register_event_time_timer, trigger.delete_event_time_timer

    def process(self, batch: StreamBatch, seats: Ints) -> None:
        operator, add = self._operator, self._add
        keys, context = operator.backend.key_context, operator.assigner_context
        assign = self._spec.assigner.assign_windows
        skipped = []
        value: Any = UNKNOWN
        records = zip(seats.tolist(), batch.each_value(), batch.each_timestamp(), strict=True)
        try:
            for row, (keys.seat, value, timestamp) in enumerate(records):
                late = True
                for window in assign(value, timestamp, context):
                    late &= not add(window, value, timestamp)
                if late:
                    skipped.append(row)
        except USER_EXCEPTIONS as e:
            raise operator.failed(e, value) from e
        operator.skip(batch, np.array(skipped, dtype=np.int64))

    def _add(self, window: Any, value: Any, timestamp: int) -> bool:
        """Adds a record to a window; returns False if the window is over."""
        if self._is_late(window):
            return False
        self._add_to(self._codec.encode(window), window, value, timestamp)
        return True

    def _add_to(self, namespace: Any, window: Any, value: Any, timestamp: int) -> None:
        """Adds a record to a window whose contents are in a namespace, and asks the trigger."""
        self._contents.set_current_namespace(namespace)
        # An aggregation may change the record, which may be in other windows; other contents take a copy anyway.
        self._contents.add(value if self._spec.aggregate is None else copied(value))
        self._trigger.select(window)
        self._act(self._spec.trigger.on_element(value, timestamp, window, self._trigger), window, timestamp)
        cleanup = self._cleanup_time(window)
        if cleanup != MAX_WATERMARK:
            self._register(cleanup)

    def advance(self, until: int, *, event_time: bool) -> None:
        operator, trigger = self._operator, self._spec.trigger
        on_time = trigger.on_event_time if event_time else trigger.on_processing_time
        for timestamp, key, namespace in operator.due(until, event_time=event_time):
            try:
                self._on_timer(timestamp, self._codec.decode(namespace), on_time, event_time is self._event_time)
            except USER_EXCEPTIONS as e:
                raise operator.user_error(e, "window function", key=key) from e

    def _on_timer(self, timestamp: int, window: Any, on_time: Callable[..., Any], cleans: bool) -> None:
        """Asks the trigger when a timer fires. ``cleans`` is whether timers of this kind end windows."""
        if (namespace := self._namespace(window)) is None:
            return
        self._contents.set_current_namespace(namespace)
        self._trigger.select(window)
        self._act(on_time(timestamp, window, self._trigger), window, timestamp)
        if cleans and timestamp == self._cleanup_time(window):
            self._contents.clear()
            self._trigger.select(window)
            self._spec.trigger.clear(window, self._trigger)
            self._operator.end(window)
            self._forget(window)

    def _namespace(self, window: Any) -> Any:
        """Returns the namespace of what a window holds; None if it is not in flight."""
        return self._codec.encode(window)

    def _forget(self, window: Any) -> None:
        """Forgets a window that has ended."""

    def _is_late(self, window: Any) -> bool:
        return self._event_time and self._cleanup_time(window) <= self._operator.context.watermark

    def _cleanup_time(self, window: Any) -> int:
        """Returns the time at which a window is over and its state is dropped."""
        end: int = window.max_timestamp()
        return min(end + self._operator.lateness, MAX_WATERMARK) if self._event_time else end

    def _act(self, result: TriggerResult, window: Any, timestamp: int) -> None:
        """Carries out the decision of the trigger."""
        if result is TriggerResult.CONTINUE:
            return
        if not isinstance(result, TriggerResult):
            trigger = type(self._spec.trigger).__name__
            raise TypeMismatchError(
                f"a method of the trigger {trigger} returned {result!r}: it must return a TriggerResult, such as "
                "TriggerResult.CONTINUE"
            )
        if result.is_fire():
            self._operator.fire(window, self._contents.get(), timestamp)
        if result.is_purge():
            self._contents.clear()


class MergingWindower(GeneralWindower):
    """Windows that merge, such as sessions."""

    def __init__(self, operator: WindowOperator) -> None:
        super().__init__(operator)
        self._mapping: Any = operator.backend.get_state(
            MapStateDescriptor(MERGING_WINDOWS, self._codec.namespace_type, self._codec.namespace_type)
        )
        self._sets: dict[int, MergingWindowSet] = {}
        """The windows of the batch's keys, and of others that have many, by seat."""
        self._cleared = 0

    def process(self, batch: StreamBatch, seats: Ints) -> None:
        self._sets = {seat: windows for seat, windows in self._kept().items() if len(windows) > _MANY_WINDOWS}
        super().process(batch, seats)

    def _kept(self) -> dict[int, MergingWindowSet]:
        """Returns the windows of keys, as long as the seats still stand for these keys."""
        cleared = self._operator.backend.key_context.cleared
        if cleared != self._cleared:
            self._sets, self._cleared = {}, cleared
        return self._sets

    def _windows(self) -> MergingWindowSet:
        """Returns the windows of the current key."""
        seat = self._operator.backend.key_context.seat
        if (windows := self._sets.get(seat)) is None:
            assigner: Any = self._spec.assigner
            windows = MergingWindowSet(assigner, self._mapping, self._codec.encode, self._codec.decode)
            self._sets[seat] = windows
        return windows

    def _add(self, window: Any, value: Any, timestamp: int) -> bool:
        windows = self._windows()
        window = windows.add(window, self._merge)
        late = self._is_late(window)
        if late:
            windows.retire(window)
        else:
            self._add_to(self._codec.encode(windows.state_window(window)), window, value, timestamp)
        return not late

    def _merge(self, result: Any, merged: list[Any], state_window: Any, state_windows: list[Any]) -> None:
        """Moves trigger, timers and contents to the merged window (Flink: ``WindowOperator.processElement``)."""
        operator, trigger = self._operator, self._trigger
        now = operator.context.watermark if self._event_time else trigger.get_current_processing_time()
        if self._cleanup_time(result) <= now:
            raise ValueError(f"windows cannot merge into {result}, which was over at {now}")
        trigger.select(result, merged)
        self._spec.trigger.on_merge(result, trigger)
        for window in merged:
            trigger.select(window)
            self._spec.trigger.clear(window, trigger)
            self._delete(self._cleanup_time(window))
        encode = self._codec.encode
        self._contents.merge_namespaces(encode(state_window), [encode(window) for window in state_windows])

    def _namespace(self, window: Any) -> Any:
        return self._mapping.get(self._codec.encode(window))  # A trigger may keep a timer of a merged window.

    def _forget(self, window: Any) -> None:
        windows = self._kept().get(self._operator.backend.key_context.seat)
        if windows is None:
            self._mapping.remove(self._codec.encode(window))
        else:
            windows.retire(window)
