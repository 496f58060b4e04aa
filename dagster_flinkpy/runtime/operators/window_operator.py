"""Windows: the records of a key are gathered by window, and a trigger decides when a window is evaluated.

Mirrors Flink's ``WindowOperator``. As in PyFlink, a result has the timestamp of the record or timer that fired the
window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dagster_flinkpy.common.copies import copied
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.functions import (
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from dagster_flinkpy.datastream.window import (
    MergingWindowAssigner,
    TriggerResult,
)
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedOperator, KeyedTimerService
from dagster_flinkpy.runtime.operators.merging_windows import MergingWindowSet
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.runtime_context import TaskRuntimeContext
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot
from dagster_flinkpy.runtime.operators.window_contexts import (
    AssignerContext,
    TriggerContext,
    WindowCodec,
    WindowContext,
    WindowStates,
    evaluator,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["MERGING_WINDOWS", "MergingWindowOperator", "WindowOperator"]

MERGING_WINDOWS = "merging-window-set"
"""The name of the state in which windows that merge are stored."""


class _ReduceCallable(ReduceFunction):
    """Wraps a plain callable as a ReduceFunction."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    @property
    def reduce(self) -> Callable[[Any, Any], Any]:
        """The callable itself, because a method that calls it would double the cost of a call."""
        return self._function


class WindowOperator(KeyedOperator):
    """Windows that do not merge, with any trigger. The state of a window is one accumulator, or all its elements."""

    shared_windows = False
    """Whether the keys have the same windows."""

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        self._codec = WindowCodec(spec.assigner.get_window_serializer())
        self._spec = spec
        self._keeps_elements = spec.aggregate is None and spec.reduce is None
        self._event_time = spec.assigner.is_event_time()
        super().__init__(context, self._codec.namespace_type)
        self._contents = self._open_contents(self._descriptor(spec))
        window_states = WindowStates(lambda d: self.backend.get_state(d, self._codec.namespace_type))
        self._states = WindowStates(self.backend.get_state)
        timer_service, runtime = KeyedTimerService(self), self.runtime_context()
        merging = isinstance(spec.assigner, MergingWindowAssigner)
        self._trigger = TriggerContext(self, timer_service, self._codec, window_states, runtime)
        self._window = WindowContext(timer_service, self._codec, None if merging else window_states, runtime)
        self._assigner = AssignerContext(timer_service, runtime)
        self._evaluate = evaluator(spec.window_function, self._window)
        self._clears = _clears(spec.window_function)
        self._late = 0

    def _open_contents(self, descriptor: StateDescriptor) -> Any:
        """Opens the state of the records in windows."""
        shared = self.shared_windows
        return self.backend.get_state(descriptor, self._codec.namespace_type, shared_namespaces=shared)

    @staticmethod
    def _descriptor(spec: WindowSpec) -> StateDescriptor:
        name = "window-contents"  # as in Flink's WindowOperatorBuilder
        if spec.aggregate is not None:
            return AggregatingStateDescriptor(name, spec.aggregate, spec.accumulator_type)
        if spec.reduce is not None:
            reduce = spec.reduce if isinstance(spec.reduce, ReduceFunction) else _ReduceCallable(spec.reduce)
            return ReducingStateDescriptor(name, reduce, spec.accumulator_type)
        return ListStateDescriptor(name, spec.element_type)

    def runtime_context(self) -> RuntimeContext:
        return TaskRuntimeContext(self.context, self._states.get)

    def _functions(self) -> Iterable[Any]:
        return (self._spec.aggregate, self._spec.reduce, self._spec.window_function)

    def open(self) -> None:
        for function in self._functions():
            self.open_function(function)

    def close(self) -> None:
        for function in self._functions():
            self.close_function(function)

    # --- records and timers ------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        records = self.touch(batch)
        keys, assign, add = self.backend.key_context, self._spec.assigner.assign_windows, self._add
        value: Any = UNKNOWN
        try:
            for keys.slot, value, timestamp in records:
                skipped = True
                for window in assign(value, timestamp, self._assigner):
                    skipped &= not add(window, value, timestamp)
                if skipped:
                    self._skip(value, timestamp)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window", key=keys.current_key(), value=value) from e
        self.collector.flush()

    def _add(self, window: Any, value: Any, timestamp: int) -> bool:
        """Adds a record to a window; returns False if the window is over."""
        if self._is_late(window):
            return False
        self._contents.set_current_namespace(self._codec.encode(window))
        # An aggregation may change the record, which may be in other windows; other contents take a copy anyway.
        self._contents.add(value if self._spec.aggregate is None else copied(value))
        self._on_element(window, value, timestamp)
        return True

    def _on_element(self, window: Any, value: Any, timestamp: int) -> None:
        """Asks the trigger after a record was added. The contents state must be set to the window."""
        self._trigger.select(window)
        self._act(self._spec.trigger.on_element(value, timestamp, window, self._trigger), window, timestamp)
        cleanup = self._cleanup_time(window)
        if cleanup == MAX_WATERMARK:
            return
        if self._event_time:
            self._trigger.register_event_time_timer(cleanup)
        else:
            self._trigger.register_processing_time_timer(cleanup)

    def _skip(self, value: Any, timestamp: int) -> None:
        """Counts or emits a late record. A record between two sliding windows is in no window, but not late."""
        if self._event_time and timestamp + self._spec.allowed_lateness <= self.context.watermark:
            if self._spec.late_tag is None:
                self._late += 1
            else:
                self.collector.collect_side(self._spec.late_tag, value, timestamp)

    def on_watermark(self, watermark: int) -> None:
        self._on_timers(self.due_timers(watermark), self._spec.trigger.on_event_time, self._event_time)

    def on_processing_time(self, now: int) -> None:
        timers = self.due_processing_timers(now)
        self._on_timers(timers, self._spec.trigger.on_processing_time, not self._event_time)

    def _on_timers(self, timers: Iterable[tuple[int, Any, Any]], on_time: Callable[..., Any], cleans: bool) -> None:
        for timestamp, key, namespace in timers:
            try:
                self._on_timer(timestamp, self._codec.decode(namespace), on_time, cleans)
            except USER_EXCEPTIONS as e:
                raise self.user_error(e, "window function", key=key) from e
        self.collector.flush()

    def _on_timer(self, timestamp: int, window: Any, on_time: Callable[..., Any], cleans: bool) -> None:
        """Asks the trigger when a timer fires. ``cleans`` is whether timers of this kind end windows."""
        self._contents.set_current_namespace(self._codec.encode(window))
        self._trigger.select(window)
        self._act(on_time(timestamp, window, self._trigger), window, timestamp)
        if cleans and timestamp == self._cleanup_time(window):
            self._clear(window)

    # --- windows -----------------------------------------------------------------------------------------------------

    def _is_late(self, window: Any) -> bool:
        return self._event_time and self._cleanup_time(window) <= self.context.watermark

    def _cleanup_time(self, window: Any) -> int:
        """Returns the time at which a window is over and its state is dropped."""
        end: int = window.max_timestamp()
        return min(end + self._spec.allowed_lateness, MAX_WATERMARK) if self._event_time else end

    def _act(self, result: TriggerResult, window: Any, timestamp: int) -> None:
        """Carries out the decision of the trigger."""
        if result is TriggerResult.CONTINUE:
            return
        if result.is_fire():
            self._fire(window, timestamp)
        if result.is_purge():
            self._contents.clear()

    def _fire(self, window: Any, timestamp: int) -> None:
        """Evaluates a window of the current key."""
        self._fire_with(window, self._contents.get(), timestamp)

    def _fire_with(self, window: Any, contents: Any, timestamp: int) -> None:
        """Evaluates a window of the current key that has these contents: None, a result, or a list of elements."""
        if self._keeps_elements:
            if not contents:
                return
        elif contents is None:
            return
        else:
            contents = (contents,)
        self._window.current = window
        key = self.backend.key_context.current_key()
        self.collector.collect(self._evaluate(key, window, contents), timestamp)

    def _clear(self, window: Any) -> None:
        """Drops all state of a window."""
        self._contents.clear()
        self._trigger.select(window)
        self._spec.trigger.clear(window, self._trigger)
        self._end(window)

    def _end(self, window: Any) -> None:
        """Lets the window function drop its state of a window."""
        function = self._spec.window_function
        if isinstance(function, (ProcessWindowFunction, ProcessAllWindowFunction)):
            self._window.current = window
            function.clear(self._window)

    def snapshot(self) -> OperatorSnapshot:
        snapshot = super().snapshot()
        snapshot.metrics[LATE_RECORDS_DROPPED] = self._late
        self._late = 0
        return snapshot


def _clears(function: Any) -> bool:
    """Returns whether a window function drops state when a window ends."""
    return any(
        isinstance(function, kind) and type(function).clear is not kind.clear
        for kind in (ProcessWindowFunction, ProcessAllWindowFunction)
    )


class MergingWindowOperator(WindowOperator):
    """Windows that merge, such as sessions."""

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        super().__init__(context, spec)
        self._mapping: Any = self.backend.get_state(
            MapStateDescriptor(MERGING_WINDOWS, self._codec.namespace_type, self._codec.namespace_type)
        )
        self._sets: dict[int, MergingWindowSet] = {}
        """The windows of the batch's keys, by slot."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        self._sets.clear()
        super().process(input_index, batch)

    def _windows(self) -> MergingWindowSet:
        """Returns the windows of the current key."""
        slot = self.backend.key_context.slot
        windows = self._sets.get(slot)
        if windows is None:
            assigner: Any = self._spec.assigner
            windows = MergingWindowSet(assigner, self._mapping, self._codec.encode, self._codec.decode)
            self._sets[slot] = windows
        return windows

    def _add(self, window: Any, value: Any, timestamp: int) -> bool:
        windows = self._windows()
        window = windows.add(window, self._merge)
        late = self._is_late(window)
        if late:
            windows.retire(window)
        else:
            self._contents.set_current_namespace(self._codec.encode(windows.state_window(window)))
            self._contents.add(value if self._spec.aggregate is None else copied(value))
            self._on_element(window, value, timestamp)
        windows.persist()
        return not late

    def _merge(self, result: Any, merged: list[Any], state_window: Any, state_windows: list[Any]) -> None:
        """Moves trigger, timers and contents to the merged window (Flink: ``WindowOperator.processElement``)."""
        now = self.context.watermark if self._event_time else self._assigner.get_current_processing_time()
        if self._cleanup_time(result) <= now:
            raise ValueError(f"windows cannot merge into {result}, which was over at {now}")
        self._trigger.select(result, merged)
        self._spec.trigger.on_merge(result, self._trigger)
        for window in merged:
            self._trigger.select(window)
            self._spec.trigger.clear(window, self._trigger)
            if self._event_time:
                self._trigger.delete_event_time_timer(self._cleanup_time(window))
            else:
                self._trigger.delete_processing_time_timer(self._cleanup_time(window))
        encode = self._codec.encode
        self._contents.merge_namespaces(encode(state_window), [encode(window) for window in state_windows])

    def _on_timer(self, timestamp: int, window: Any, on_time: Callable[..., Any], cleans: bool) -> None:
        namespace = self._codec.encode(window)
        state_window = self._mapping.get(namespace)
        if state_window is None:
            return  # the trigger did not delete a timer of a merged window
        self._contents.set_current_namespace(state_window)
        self._trigger.select(window)
        self._act(on_time(timestamp, window, self._trigger), window, timestamp)
        if cleans and timestamp == self._cleanup_time(window):
            self._clear(window)
            self._mapping.remove(namespace)
