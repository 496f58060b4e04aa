"""Windows: the records of a key are gathered by window; a window is evaluated when it fires, and dropped when it ends.

Mirrors Flink's ``WindowOperator``. As in PyFlink, a result has the timestamp of the record or timer that fired the
window. Which windows there are, and when they fire, is up to a :class:`Windower`. Functions, triggers and assigners
get a context.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.common.serializer import TypeSerializer
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.aggregations import BatchAggregate
from dagster_flinkpy.datastream.functions import (
    AllWindowFunction,
    KeyedStateStore,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.datastream.window import (
    CountWindow,
    CountWindowSerializer,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindowSerializer,
    MergingWindowAssigner,
    ProcessingTimeTrigger,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    WindowAssigner,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED, MetricGroup
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.batch_fold import BatchFold, ColumnFold, RecordAggregate
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedOperator, KeyedTimerService
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, OperatorSnapshot, TaskRuntimeContext
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.timers.timer_queue import TimerQueue

__all__ = [
    "MERGING_WINDOWS",
    "AssignerContext",
    "Ints",
    "TriggerContext",
    "WindowCodec",
    "WindowContext",
    "WindowOperator",
    "Windower",
    "evaluator",
    "has_default_trigger",
]

GetState = Callable[[StateDescriptor], Any]
"""Returns a state by its descriptor."""


class WindowCodec:
    """Converts windows to namespaces of state, and back. The namespaces of Flink's own windows are readable numbers."""

    namespace_type: TypeInformation
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        if isinstance(serializer, TimeWindowSerializer):
            self.namespace_type = Types.TUPLE([Types.LONG(), Types.LONG()])
            self.encode = tuple  # A plain one, which is known not to change, is never copied.
            self.decode = lambda namespace: TimeWindow(*namespace)
        elif isinstance(serializer, CountWindowSerializer):
            self.namespace_type = Types.LONG()
            self.encode, self.decode = lambda window: window.id, CountWindow
        elif isinstance(serializer, GlobalWindowSerializer):
            self.namespace_type = Types.BYTE()
            self.encode, self.decode = lambda window: 0, lambda namespace: GlobalWindow()
        else:
            self.namespace_type = Types.PRIMITIVE_ARRAY(Types.BYTE())
            self.encode = lambda window: _to_bytes(serializer, window)
            self.decode = lambda namespace: serializer.deserialize(BytesIO(namespace))


def _to_bytes(serializer: TypeSerializer[Any], window: Any) -> bytes:
    stream = BytesIO()
    serializer.serialize(window, stream)
    return stream.getvalue()


class WindowContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """The window that fires or ends."""

    def __init__(self, operator: KeyedOperator, codec: WindowCodec, get_state: GetState | None) -> None:
        self._timer_service, self._codec = KeyedTimerService(operator), codec
        self._runtime, self._get_state = operator.runtime_context(), get_state
        self._store = TaskRuntimeContext(operator.context, self._state)
        self.current: Any = None

    def _state(self, descriptor: StateDescriptor) -> Any:
        """Returns a state of the window."""
        assert self._get_state is not None
        state = self._get_state(descriptor)
        state.set_current_namespace(self._codec.encode(self.current))
        return state

    def window(self) -> Any:
        return self.current

    def current_processing_time(self) -> int:
        return self._timer_service.current_processing_time()

    def current_watermark(self) -> int:
        return self._timer_service.current_watermark()

    def window_state(self) -> KeyedStateStore:
        if self._get_state is None:
            raise ConfigurationError(
                "windows that merge, such as sessions, have no window_state(); use global_state() instead"
            )
        return self._store

    def global_state(self) -> KeyedStateStore:
        return self._runtime


class AssignerContext(WindowAssigner.WindowAssignerContext):
    """Time and state of the current key."""

    def __init__(self, timer_service: TimerService, runtime: RuntimeContext) -> None:
        self._timer_service, self._runtime = timer_service, runtime

    def get_current_processing_time(self) -> int:
        return self._timer_service.current_processing_time()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime


class TriggerContext(Trigger.OnMergeContext):
    """Timers and state of a window of the current key."""

    def __init__(self, operator: KeyedOperator, codec: WindowCodec, get_state: GetState) -> None:
        self._operator, self._timer_service = operator, KeyedTimerService(operator)
        self._codec, self._get_state, self._runtime = codec, get_state, operator.runtime_context()
        self._namespace: Any = None
        self._merged: Sequence[Any] = ()

    def select(self, window: Any, merged: Sequence[Any] = ()) -> None:
        """Sets the window, and the windows that were merged into it."""
        self._namespace = self._codec.encode(window)
        self._merged = merged

    def get_current_processing_time(self) -> int:
        return self._timer_service.current_processing_time()

    def get_metric_group(self) -> MetricGroup:
        return self._runtime.get_metrics_group()

    def get_current_watermark(self) -> int:
        return self._timer_service.current_watermark()

    def _timers(self) -> TimerQueue:
        self._operator.timers.set_current_namespace(self._namespace)
        return self._operator.timers

    def _processing_timers(self) -> TimerQueue:
        self._operator.processing_timers.set_current_namespace(self._namespace)
        return self._operator.processing_timers

    def register_processing_time_timer(self, time: int) -> None:
        self._processing_timers().register(time)

    def register_event_time_timer(self, time: int) -> None:
        self._timers().register(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._processing_timers().delete(time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timers().delete(time)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        state = self._get_state(state_descriptor)
        state.set_current_namespace(self._namespace)
        return state

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        if isinstance(state_descriptor, (ValueStateDescriptor, MapStateDescriptor)):
            raise ConfigurationError(
                f"state {state_descriptor.name!r} of the trigger cannot be merged; only list, reducing and aggregating "
                "state can"
            )
        if self._merged:
            merged = [self._codec.encode(window) for window in self._merged]
            self._get_state(state_descriptor).merge_namespaces(self._namespace, merged)


def evaluator(function: Any, context: WindowContext) -> Callable[[Any, Any, Sequence[Any]], Any]:
    """Returns a callable that takes key, window and contents, and calls a window function."""
    if isinstance(function, ProcessWindowFunction):
        return lambda key, window, contents: function.process(key, context, contents)
    if isinstance(function, ProcessAllWindowFunction):
        return lambda key, window, contents: function.process(context, contents)
    if isinstance(function, WindowFunction):
        return function.apply
    if isinstance(function, AllWindowFunction):
        return lambda key, window, contents: function.apply(window, contents)
    return lambda key, window, contents: contents


MERGING_WINDOWS = "merging-window-set"
"""The name of the state in which windows that merge are stored."""

Ints = npt.NDArray[np.int64]


class Windower(ABC):
    """Adds records to windows of one kind, fires them, and ends them."""

    @abstractmethod
    def process(self, batch: StreamBatch, seats: Ints) -> None:
        """Adds records, at least one, to their windows."""

    @abstractmethod
    def advance(self, until: int, *, event_time: bool) -> None:
        """Fires and ends the windows that are due up to a time, inclusive, of event time or of processing time."""


class WindowOperator(KeyedOperator):
    """Windows of keyed records."""

    def __init__(
        self,
        context: OperatorContext,
        spec: WindowSpec,
        kind: Callable[[WindowOperator], Windower],
        fold: ColumnFold | None = None,
    ) -> None:
        super().__init__(context)  # The windower opens the timers that it needs.
        aggregate = spec.aggregate
        if isinstance(aggregate, BatchAggregate):
            aggregate = RecordAggregate(BatchFold(aggregate, context.vertex.uid), aggregate)
        self.spec, self.fold, self.aggregate = spec, fold, aggregate
        self.functions = (self.aggregate, spec.reduce, spec.window_function)
        self.event_time = spec.assigner.is_event_time()
        self.lateness = spec.allowed_lateness if self.event_time else 0
        """How long the state of a window is kept after its end, in milliseconds."""
        self.codec = WindowCodec(spec.assigner.get_window_serializer())
        self.get_window_state = partial(self.backend.get_state, namespace_type=self.codec.namespace_type)
        merging = isinstance(spec.assigner, MergingWindowAssigner)
        self._window = WindowContext(self, self.codec, None if merging else self.get_window_state)
        self.assigner_context = AssignerContext(KeyedTimerService(self), self.runtime_context())
        self._evaluate = evaluator(spec.window_function, self._window)
        self._one = spec.aggregate is not None or spec.reduce is not None  # Otherwise a window holds a list.
        of_window, kinds = type(spec.window_function), (ProcessWindowFunction, ProcessAllWindowFunction)
        self.clears = any(issubclass(of_window, kind) and of_window.clear is not kind.clear for kind in kinds)
        """Whether the window function drops state when a window ends."""
        self._late = 0
        self._current_key = self.backend.key_context.current_key
        self._windower = kind(self)

    def descriptor(self) -> StateDescriptor:
        """Returns the state of what windows hold: one value, or all elements."""
        name, spec = "window-contents", self.spec  # as in Flink's WindowOperatorBuilder
        if self.aggregate is not None:
            return AggregatingStateDescriptor(name, self.aggregate, spec.accumulator_type)
        if spec.reduce is not None:
            return ReducingStateDescriptor(name, spec.reduce, spec.accumulator_type)
        return ListStateDescriptor(name, spec.element_type)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        seats = self.seats(batch)
        if len(seats):
            self._windower.process(batch, seats)
            self.collector.flush()

    def on_watermark(self, watermark: int) -> None:
        self._advance(watermark, event_time=True)

    def on_processing_time(self, now: int) -> None:
        self._advance(now - 1, event_time=False)

    @property
    def heeds_time(self) -> bool:
        return not (self.event_time and has_default_trigger(self.spec))

    def _advance(self, until: int, *, event_time: bool) -> None:
        if self._has_keys:
            self._windower.advance(until, event_time=event_time)
            self.collector.flush()

    def check_times(self, batch: StreamBatch, seats: Ints) -> None:
        """Raises the assigner's error about a record without event time, if there is one."""
        timeless = np.flatnonzero(batch.timestamps == NO_TIMESTAMP)
        if len(timeless):
            row = int(timeless[0])
            self.backend.key_context.seat, value = int(seats[row]), batch.value_at(row)
            try:
                self.spec.assigner.assign_windows(value, NO_TIMESTAMP, self.assigner_context)
            except USER_EXCEPTIONS as e:
                raise self.failed(e, value) from e

    def failed(self, error: BaseException, value: Any) -> Exception:
        """Returns the error to raise for an exception of a user function that got a record of the current key."""
        return self.user_error(error, "window", key=self.backend.key_context.current_key(), value=value)

    def skip(self, batch: StreamBatch, rows: Ints) -> None:
        """Counts or emits records that are in no open window. One between two sliding windows is not late."""
        if not self.event_time or not len(rows):
            return
        late = np.zeros(len(batch), dtype=np.bool_)
        late[rows] = batch.timestamps[rows] <= self.context.watermark - self.spec.allowed_lateness
        assert not (batch.combined and late.any()), "a record that might be late was combined with others"
        if self.spec.late_tag is None:
            self._late += int(late.sum())
        elif dict(self.context.vertex.side_outputs).get(self.spec.late_tag) == batch.type_info:
            if late.any():
                self.context.emit(self.spec.late_tag, batch.filter(late))
        else:
            rows = np.flatnonzero(late)
            for value, timestamp in zip(batch.values_at(rows), batch.timestamps[rows].tolist(), strict=True):
                self.collector.collect_side(self.spec.late_tag, value, timestamp)

    def fire(self, window: Any, contents: Any, timestamp: int) -> None:
        """Evaluates a window of the current key. Its contents are None, a result, or a list of elements."""
        if self._one:
            if contents is None:
                return
            contents = (contents,)
        elif not contents:
            return
        self._window.current = window
        self.collector.collect(self._evaluate(self._current_key(), window, contents), timestamp)

    def end(self, window: Any) -> None:
        """Lets the window function drop its state of a window of the current key."""
        if self.clears:
            self._window.current = window
            self.spec.window_function.clear(self._window)  # type: ignore[union-attr]

    def snapshot(self) -> OperatorSnapshot:
        snapshot = super().snapshot()
        snapshot.metrics[LATE_RECORDS_DROPPED] = self._late
        self._late = 0
        return snapshot


def has_default_trigger(spec: WindowSpec) -> bool:
    """Returns whether windows in time fire when they end, and not otherwise."""
    return type(spec.trigger) is (EventTimeTrigger if spec.assigner.is_event_time() else ProcessingTimeTrigger)
