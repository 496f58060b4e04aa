"""Operators that connect a stream with a broadcast stream.

Mirrors Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream.operator_specs import BroadcastProcessSpec, KeyedBroadcastProcessSpec
from dagster_flinkpy.datastream.state import BroadcastState, MapStateDescriptor, ReadOnlyBroadcastState, StateDescriptor
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.collector import Collector
from dagster_flinkpy.runtime.operators.function_operators import FunctionOperator, RecordContext, UnkeyedTimerService
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedContext, KeyedProcessOperator, KeyedTimerService
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.stream_operator import StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.keys import TouchedKeys
from dagster_flinkpy.state.operator_state_backend import OperatorStateBackend

__all__ = ["BroadcastProcessOperator", "KeyedBroadcastProcessOperator"]


class _Time(ABC):
    """Adds methods that return the time to a context."""

    @abstractmethod
    def timer_service(self) -> Any:
        """Returns the timer service."""

    def current_processing_time(self) -> int:
        """Returns milliseconds since 1970."""
        now: int = self.timer_service().current_processing_time()
        return now

    def current_watermark(self) -> int:
        """Returns event time in milliseconds."""
        watermark: int = self.timer_service().current_watermark()
        return watermark


class _Reading(_Time):
    """Adds broadcast state for reading to a context."""

    _backend: OperatorStateBackend
    _state: ReadOnlyBroadcastState[Any, Any]
    _descriptor: MapStateDescriptor | None = None
    """The descriptor of the state that was requested last: functions ask for it with each record."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Returns broadcast state for reading."""
        if state_descriptor is not self._descriptor:
            self._state = self._backend.get_read_only_broadcast_state(state_descriptor)
            self._descriptor = state_descriptor
        return self._state


class _ReadOnlyContext(RecordContext, _Reading):
    """The context of a record of the stream that is not broadcast."""

    def __init__(self, timer_service: UnkeyedTimerService, backend: OperatorStateBackend) -> None:
        super().__init__(timer_service)
        self._backend = backend


class _Context(RecordContext, _Time):
    """The context of a record of the broadcast stream."""

    def __init__(self, timer_service: UnkeyedTimerService, backend: OperatorStateBackend) -> None:
        super().__init__(timer_service)
        self._backend = backend

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Returns broadcast state for reading and writing."""
        return self._backend.get_broadcast_state(state_descriptor)


class _KeyedReadOnlyContext(KeyedContext, _Reading):
    """The context of a record of the keyed stream, or of a timer."""

    def __init__(self, timer_service: KeyedTimerService, keys: TouchedKeys, backend: OperatorStateBackend) -> None:
        super().__init__(timer_service, keys)
        self._backend = backend


class _KeyedSideContext(_Context):
    """The context of a record of the broadcast stream if the other stream has keys."""

    def __init__(
        self,
        timer_service: UnkeyedTimerService,
        backend: OperatorStateBackend,
        apply: Callable[[StateDescriptor, Callable[[Any, Any], Any]], None],
    ) -> None:
        super().__init__(timer_service, backend)
        self._apply = apply

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Any) -> None:
        """Calls a function for each key that has the state."""
        process = getattr(function, "process", function)
        if not callable(process):
            raise ConfigurationError(
                f"apply_to_keyed_state() needs a callable or an object with a method process(), not {function!r}"
            )
        self._apply(state_descriptor, process)


def _broadcast(
    operator: StreamOperator, function: Any, context: _Context, collector: Collector, batch: StreamBatch
) -> None:
    """Calls the function with the records of the broadcast stream."""
    value: Any = UNKNOWN
    try:
        for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
            context.time = timestamp
            collector.collect(function.process_broadcast_element(value, context), timestamp)
    except USER_EXCEPTIONS as e:
        raise operator.user_error(e, "process_broadcast_element()", value=value) from e
    collector.flush()


class BroadcastProcessOperator(FunctionOperator):
    """A process function of a broadcast stream and a stream without keys."""

    def __init__(self, context: OperatorContext, spec: BroadcastProcessSpec) -> None:
        super().__init__(context)
        self.function = spec.function
        self._collector = Collector(context)
        time, backend = UnkeyedTimerService(context), context.state.backend
        self._record, self._broadcast_record = _ReadOnlyContext(time, backend), _Context(time, backend)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if input_index == 1:
            _broadcast(self, self.function, self._broadcast_record, self._collector, batch)
            return
        function, collect, record = self.function.process_element, self._collector.collect, self._record
        value: Any = UNKNOWN
        try:
            for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
                record.time = timestamp
                collect(function(value, record), timestamp)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "process_element()", value=value) from e
        self._collector.flush()


class KeyedBroadcastProcessOperator(KeyedProcessOperator):
    """A process function of a broadcast stream and a keyed stream, with keyed state and timers."""

    def __init__(self, context: OperatorContext, spec: KeyedBroadcastProcessSpec) -> None:
        super().__init__(context, spec)
        backend = context.state.backend
        self._record = _KeyedReadOnlyContext(self._timer_service, self.backend.key_context, backend)
        self._broadcast_record = _KeyedSideContext(UnkeyedTimerService(context), backend, self._apply)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if input_index == 0:
            super().process(input_index, batch)
            return
        self.backend.key_context.slot = None  # keyed state cannot be used without a key
        _broadcast(self, self.function, self._broadcast_record, self.collector, batch)

    def _apply(self, descriptor: StateDescriptor, process: Callable[[Any, Any], Any]) -> None:
        state = self.backend.get_state(descriptor)
        if not self._has_keys:
            return
        for key in self.backend.keys(descriptor.name):
            self.backend.set_current_key(key)
            process(key, state)
        self.backend.key_context.slot = None
