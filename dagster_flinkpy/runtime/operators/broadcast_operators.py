"""Operators that connect a stream with a broadcast stream.

Mirrors Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream.operator_specs import BroadcastProcessSpec, KeyedBroadcastProcessSpec
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateDescriptor
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.operators.function_operators import (
    ProcessOperator,
    RecordContext,
    UnkeyedTimerService,
    process_each,
)
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedContext, KeyedProcessOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["BroadcastProcessOperator", "KeyedBroadcastProcessOperator"]


class _Context(RecordContext):
    """The context of a record of one of the two streams."""

    def __init__(self, timer_service: TimerService, *rest: Any, get_state: Callable[[MapStateDescriptor], Any]) -> None:
        super().__init__(timer_service, *rest)
        self._get_state = get_state

    def current_processing_time(self) -> int:
        """Returns milliseconds since 1970."""
        return self._timer_service.current_processing_time()

    def current_watermark(self) -> int:
        """Returns event time in milliseconds."""
        return self._timer_service.current_watermark()

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> Any:
        """Returns broadcast state."""
        return self._get_state(state_descriptor)


class _KeyedReadOnlyContext(_Context, KeyedContext):
    """The context of a record of the keyed stream, or of a timer."""


class _KeyedSideContext(_Context):
    """The context of a record of the broadcast stream if the other stream has keys."""

    def __init__(self, operator: KeyedBroadcastProcessOperator) -> None:
        context = operator.context
        super().__init__(UnkeyedTimerService(context), get_state=context.state.backend.get_broadcast_state)
        self._operator = operator

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Any) -> None:
        """Calls a function for each key that has the state."""
        process = getattr(function, "process", function)
        if not callable(process):
            raise ConfigurationError(
                f"apply_to_keyed_state() needs a callable or an object with a method process(), not {function!r}"
            )
        self._operator.apply(state_descriptor, process)


class BroadcastProcessOperator(ProcessOperator):
    """A process function of a broadcast stream and a stream without keys."""

    def __init__(self, context: OperatorContext, spec: BroadcastProcessSpec) -> None:
        super().__init__(context, spec)
        time, backend = UnkeyedTimerService(context), context.state.backend
        self._records = (
            _Context(time, get_state=backend.get_read_only_broadcast_state),
            _Context(time, get_state=backend.get_broadcast_state),
        )

    def process(self, input_index: int, batch: StreamBatch) -> None:
        process_each(self, self.inputs[input_index], batch, self._records[input_index], self._collector)


class KeyedBroadcastProcessOperator(KeyedProcessOperator):
    """A process function of a broadcast stream and a keyed stream, with keyed state and timers."""

    def __init__(self, context: OperatorContext, spec: KeyedBroadcastProcessSpec) -> None:
        super().__init__(context, spec)
        get_state = context.state.backend.get_read_only_broadcast_state
        self._record = _KeyedReadOnlyContext(self._timer_service, self.backend.key_context, get_state=get_state)
        self._broadcast_record = _KeyedSideContext(self)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if input_index == 0:
            super().process(input_index, batch)
            return
        self.backend.key_context.seat = None  # keyed state cannot be used without a key
        process_each(self, self.inputs[input_index], batch, self._broadcast_record, self.collector)

    def apply(self, descriptor: StateDescriptor, process: Callable[[Any, Any], Any]) -> None:
        """Calls a function with each key that has a state, and with that state."""
        state = self.backend.get_state(descriptor)
        if not self._has_keys:
            return
        for key in self.backend.keys(descriptor.name):
            self.backend.set_current_key(key)
            process(key, state)
        self.backend.key_context.seat = None
