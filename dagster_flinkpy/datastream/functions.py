"""User functions (``pyflink.datastream.functions``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from dagster_flinkpy.datastream.async_retry_strategies import AsyncRetryPredicate, AsyncRetryStrategy
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReadOnlyBroadcastState,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.metrics import MetricGroup

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedMultipleInputProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "MultipleInputProcessFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimerService",
    "WindowFunction",
    "function_of",
]

IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W2 = TypeVar("W2")


class KeyedStateStore(ABC):
    """Provides access to keyed state."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Returns keyed value state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Returns keyed list state."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Returns keyed map state."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Returns keyed reducing state."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Returns keyed aggregating state."""


class RuntimeContext(KeyedStateStore):
    """Information about the task a function runs in, and access to its state."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Returns the name of the operator."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Returns the index of the subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Returns the parallelism of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Returns the max parallelism of the operator: its number of key groups."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """Returns the name of the operator and subtask, such as ``Map (2/4)``."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Returns a parameter set with ``env.get_config().set_global_job_parameters()``, or the default."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Returns the metrics of the function, which are reported with each checkpoint."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Returns the number of the execution attempt: 0 for the first one, and greater for each later one."""

    def send_event_to_coordinator(self, event: Any) -> None:
        """Sends an event to `OperatorCoordinator.handle_event_from_operator`. Only a `CoordinatedFunction` may call it.

        Args:
            event: A value of JSON.

        Raises:
            ConfigurationError: It is no value of JSON; or there is no coordinator.
        """
        raise ConfigurationError("there is no coordinator here: see CoordinatedFunction")


class Function:
    """A user function with a life cycle: ``open``, records, ``close``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Is called once in each subtask before the first record, and may request state."""

    def close(self) -> None:
        """Is called once in each subtask after the last record."""


class AsyncFunction(Function, Generic[IN, OUT]):
    """Calls something slow, such as a web service, for many records at once; for `AsyncDataStream`."""

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """Returns the records for a record. All calls of a subtask share one event loop.

        An exception fails the job, unless the retry strategy has the call tried again.
        """

    def timeout(self, value: IN) -> list[OUT]:
        """Returns the records for a record whose call has timed out. By default raises a ``TimeoutError``."""
        raise TimeoutError(f"the asynchronous call for {value!r} has timed out")


class MapFunction(Function, ABC):
    """Turns each record into one record."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Returns the record for this one."""


class FlatMapFunction(Function, ABC):
    """Turns each record into any number of records."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """Returns the records for this one."""


class CoMapFunction(Function, ABC):
    """Turns each record of either input into one record. Results that are None are dropped."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Returns the result for a record of the first input."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Returns the result for a record of the second input."""


class CoFlatMapFunction(Function, ABC):
    """Turns each record of either input into any number of records."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any]:
        """Returns the result for a record of the first input."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any]:
        """Returns the result for a record of the second input."""


class Partitioner(Function, ABC):
    """Chooses the subtask for a key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Returns the index of the subtask, from 0."""


class FilterFunction(Function, ABC):
    """Keeps or drops records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Returns whether to keep the record."""


class ReduceFunction(Function, BaseReduceFunction):
    """Combines two records into one of the same type."""


class AggregateFunction(Function, BaseAggregateFunction):
    """Folds records into an accumulator."""


class KeySelector(Function, ABC):
    """Extracts the key of a record."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Returns the key."""


class ProcessFunction(Function, ABC):
    """Turns each record into any number of records, with side outputs."""

    class Context(ABC):
        """The context of a record."""

        @abstractmethod
        def timestamp(self) -> int:
            """Returns the event time of the record in milliseconds, or ``-(2**63)`` if it has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Returns the service for time, and for timers if the stream is keyed."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record. Yields records, or ``(output_tag, record)`` for side outputs."""


class KeyedProcessFunction(Function, ABC):
    """A `ProcessFunction` with keyed state and timers."""

    class Context(ProcessFunction.Context):
        """The context of a record."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Returns the key of the record."""

    class OnTimerContext(Context):
        """The context of a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Returns whether the timer is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record. Yields records, or ``(output_tag, record)`` for side outputs."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Is called when a timer fires. Yields like ``process_element``."""


class CoProcessFunction(Function, ABC):
    """A `ProcessFunction` with two inputs."""

    class Context(ProcessFunction.Context):
        """The context of a record."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the first input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the second input."""


class KeyedCoProcessFunction(Function, ABC):
    """A `KeyedProcessFunction` with two inputs, which have keys of one type and share state and timers."""

    class Context(KeyedProcessFunction.Context):
        """The context of a record."""

    class OnTimerContext(Context):
        """The context of a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Returns whether the timer is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the first input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the second input."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Is called when a timer fires. Yields like ``process_element1``."""


class MultipleInputProcessFunction(Function, ABC):
    """A `ProcessFunction` with any number of inputs. Not in PyFlink; Flink's ``MultipleInputStreamOperator``."""

    class Context(ProcessFunction.Context):
        """The context of a record."""

    @abstractmethod
    def get_inputs(self) -> Sequence[Callable[[Any, Any], Iterable[Any] | None]]:
        """Returns a function for each input, in the order of the connected streams; usually methods of this object.

        It takes a record and a `Context`, and yields records, or ``(output_tag, record)`` for side outputs. This method
        is called when the program is built, and again in each subtask after ``open``.
        """


class KeyedMultipleInputProcessFunction(Function, ABC):
    """A `KeyedProcessFunction` with any number of inputs, which have keys of one type and share state and timers.

    Not in PyFlink. Flink has it as a ``MultipleInputStreamOperator`` in a ``KeyedMultipleInputTransformation``.
    """

    class Context(KeyedProcessFunction.Context):
        """The context of a record."""

    class OnTimerContext(Context):
        """The context of a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Returns whether the timer is an event-time or a processing-time timer."""

    @abstractmethod
    def get_inputs(self) -> Sequence[Callable[[Any, Any], Iterable[Any] | None]]:
        """Returns a function for each input, in the order of the connected streams; usually methods of this object.

        It takes a record and a `Context`, and yields records, or ``(output_tag, record)`` for side outputs. This method
        is called when the program is built, and again in each subtask after ``open``.
        """

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Is called when a timer fires; yields like the functions of the inputs."""


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Turns the contents of each window into records."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """Yields records. ``inputs`` has only the aggregate if the window aggregates."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Turns the contents of each window of a stream without keys into records."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """Yields records. ``inputs`` has only the aggregate if the window aggregates."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Turns the contents of each window into records, and may keep state."""

    class Context(ABC, Generic[W2]):
        """The window, time and state."""

        @abstractmethod
        def window(self) -> W2:
            """Returns the window that fires."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Returns the current processing time in milliseconds since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Returns the current watermark in milliseconds."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Returns state of the current key and window. Clear it in `ProcessWindowFunction.clear`.

            Names of states must differ from those in ``global_state()``. Windows that merge have no such state.
            """

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Returns state of the current key that all windows share."""

    @abstractmethod
    def process(self, key: KEY, context: ProcessWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]:
        """Yields records. ``elements`` has only the aggregate if the window aggregates."""

    def clear(self, context: ProcessWindowFunction.Context[W]) -> None:
        """Is called when a window ends, and should clear its state."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Turns the contents of each window of a stream without keys into records, and may keep state."""

    class Context(ABC, Generic[W2]):
        """The window and state."""

        @abstractmethod
        def window(self) -> W2:
            """Returns the window that fires."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Returns state of the current window. Clear it in `ProcessAllWindowFunction.clear`."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Returns state that all windows share."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]:
        """Yields records. ``elements`` has only the aggregate if the window aggregates."""

    def clear(self, context: ProcessAllWindowFunction.Context[W]) -> None:
        """Is called when a window ends, and should clear its state."""


class BaseBroadcastProcessFunction(Function):
    """Base class of the functions that read a stream and a broadcast stream."""

    class BaseContext(ABC):
        """The context of a record or timer."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Returns the event time of the record, or the time of the timer, in milliseconds, or None."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Returns the current processing time in milliseconds since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Returns the current watermark in milliseconds."""

    class Context(BaseContext):
        """The context of a record of the broadcast stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
            """Returns broadcast state that can be read and written."""

    class ReadOnlyContext(BaseContext):
        """The context of a record of the other stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
            """Returns read-only broadcast state."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[IN1, IN2, OUT]):
    """Reads a stream without keys and a broadcast stream."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """The context of a record of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """The context of a record of the other stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the stream; yields records, or ``(output_tag, record)`` for side outputs."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the broadcast stream. All subtasks must change broadcast state in the same way."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[KEY, IN1, IN2, OUT]):
    """Reads a keyed stream and a broadcast stream, with keyed state and timers."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """The context of a record of the broadcast stream."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
            """Calls ``function(key, state)`` for each key of this subtask that has a value. It may change the value.

            This is in Flink, but not in PyFlink. It reads all keys of the state from storage.

            Args:
                state_descriptor: The descriptor of the keyed state.
                function: A callable, or an object with a method ``process`` of that form.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """The context of a record of the keyed stream."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Returns the service for time, and for timers of the current key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Returns the key of the record."""

    class OnTimerContext(ReadOnlyContext, ABC):
        """The context of a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Returns whether the timer is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the keyed stream; yields records, or ``(output_tag, record)`` for side outputs."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: Any) -> Iterable[Any] | None:
        """Processes a record of the broadcast stream. All subtasks must change broadcast state in the same way."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Is called when a timer fires. Yields like ``process_element``."""


def function_of(spec: Any, kind: type) -> Any:
    """Returns the function of an operator if it is of a kind, also one that another function wraps; otherwise None.

    Args:
        spec: The spec of the operator.
        kind: A class that functions extend besides their own, such as `InputSelectable`.
    """
    function = getattr(spec, "function", None)
    while isinstance(function, Function) and not isinstance(function, kind):
        function = getattr(function, "function", None)
    return function if isinstance(function, kind) else None
