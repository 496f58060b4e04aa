"""The contexts of window functions, triggers and assigners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from dagster_flinkpy.common.serializer import TypeSerializer
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.functions import (
    AllWindowFunction,
    KeyedStateStore,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.datastream.window import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    WindowAssigner,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedOperator, KeyedTimerService
from dagster_flinkpy.runtime.operators.stream_operator import TaskRuntimeContext
from dagster_flinkpy.state.timers.timer_queue import TimerQueue

__all__ = ["AssignerContext", "TriggerContext", "WindowCodec", "WindowContext", "evaluator"]


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
