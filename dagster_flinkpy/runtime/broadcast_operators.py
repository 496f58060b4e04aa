"""Operators of a stream and a broadcast one.

Mirrors Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream.operators import BroadcastProcessSpec, KeyedBroadcastProcessSpec
from dagster_flinkpy.datastream.state import BroadcastState, MapStateDescriptor, ReadOnlyBroadcastState, StateDescriptor
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.batch import StreamBatch
from dagster_flinkpy.runtime.keyed_operators import KeyedContext, KeyedFunctionOperator, KeyedTimerService
from dagster_flinkpy.runtime.operator_state import OperatorStateBackend
from dagster_flinkpy.runtime.operators import (
    Collector,
    FunctionOperator,
    OperatorContext,
    RecordContext,
    StreamOperator,
    UnkeyedTimerService,
)
from dagster_flinkpy.state.keys import TouchedKeys

__all__ = ["BroadcastProcessOperator", "KeyedBroadcastProcessOperator"]


class _Time(ABC):
    """The time of day and of the stream, on a context."""

    @abstractmethod
    def timer_service(self) -> Any:
        """Time and timers."""

    def current_processing_time(self) -> int:
        """Milliseconds since 1970."""
        now: int = self.timer_service().current_processing_time()
        return now

    def current_watermark(self) -> int:
        """Event time in milliseconds."""
        watermark: int = self.timer_service().current_watermark()
        return watermark


class _ReadOnlyContext(RecordContext, _Time):
    """Of a record of the stream without keys."""

    def __init__(self, timer_service: UnkeyedTimerService, backend: OperatorStateBackend) -> None:
        super().__init__(timer_service)
        self._backend = backend

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Broadcast state, to be read."""
        return self._backend.get_read_only_broadcast_state(state_descriptor)


class _Context(_ReadOnlyContext):
    """Of a record of the broadcast stream."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Broadcast state, to be read and written."""
        return self._backend.get_broadcast_state(state_descriptor)


class _KeyedReadOnlyContext(KeyedContext, _Time):
    """Of a record of the keyed stream, or a timer."""

    def __init__(self, timer_service: KeyedTimerService, keys: TouchedKeys, backend: OperatorStateBackend) -> None:
        super().__init__(timer_service, keys)
        self._backend = backend

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Broadcast state, to be read."""
        return self._backend.get_read_only_broadcast_state(state_descriptor)


class _KeyedSideContext(_Context):
    """Of a record of the broadcast stream beside a keyed one."""

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
    """Gives the records of the broadcast stream to the function."""
    try:
        for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
            context.time = timestamp
            collector.collect(function.process_broadcast_element(value, context), timestamp)
    except Exception as e:
        raise operator.user_error(e, "process_broadcast_element()") from e
    collector.flush()


class BroadcastProcessOperator(FunctionOperator):
    """A process function of a stream without keys and a broadcast one."""

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
        try:
            for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
                record.time = timestamp
                collect(function(value, record), timestamp)
        except Exception as e:
            raise self.user_error(e, "process_element()") from e
        self._collector.flush()


class KeyedBroadcastProcessOperator(KeyedFunctionOperator):
    """A process function of a keyed stream and a broadcast one, with keyed state and timers."""

    def __init__(self, context: OperatorContext, spec: KeyedBroadcastProcessSpec) -> None:
        super().__init__(context, spec)
        backend = context.state.backend
        self._record = _KeyedReadOnlyContext(self._timer_service, self.backend.key_context, backend)
        self._broadcast_record = _KeyedSideContext(UnkeyedTimerService(context), backend, self._apply)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if input_index == 0:
            self._each(batch, self.function.process_element)
            return
        self.backend.key_context.slot = None  # so that keyed state cannot be used without a key
        _broadcast(self, self.function, self._broadcast_record, self.collector, batch)

    def _apply(self, descriptor: StateDescriptor, process: Callable[[Any, Any], Any]) -> None:
        state = self.backend.get_state(descriptor)
        if not self._has_keys:
            return
        for key in self.backend.keys(descriptor.name):
            self.backend.set_current_key(key)
            process(key, state)
        self.backend.key_context.slot = None
