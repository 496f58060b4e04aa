"""User functions (``pyflink.datastream.functions``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.metrics import MetricGroup

if TYPE_CHECKING:
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

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
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
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimerService",
    "WindowFunction",
]

IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
W2 = TypeVar("W2")


class KeyedStateStore(ABC):
    """Gives keyed state by its descriptor."""

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Keyed value state."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Keyed list state."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Keyed map state."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Keyed reducing state."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Keyed aggregating state."""


class RuntimeContext(KeyedStateStore):
    """What a function may ask of the task it runs in."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Index of the subtask, from 0."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism: the number of key groups."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """Name of the operator and its subtask: ``Map (2/4)``."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """A parameter of ``env.get_config().set_global_job_parameters()``, or the default."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Metrics of the function, which are reported with each checkpoint."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """Number of the execution attempt: 0 for the first one, greater than that of every attempt before."""


class Function:
    """A user function with a life: ``open``, records, ``close``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once in each subtask before the first record; the place to get state."""

    def close(self) -> None:
        """Called once in each subtask after the last record."""


class MapFunction(Function, ABC):
    """One record to one."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that follows from this one."""


class FlatMapFunction(Function, ABC):
    """One record to any number."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any]:
        """The records that follow from this one."""


class CoMapFunction(Function, ABC):
    """One record of either input to one; None is left out."""

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """What follows from a record of the first input."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """What follows from a record of the second input."""


class CoFlatMapFunction(Function, ABC):
    """One record of either input to any number."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any]:
        """What follows from a record of the first input."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any]:
        """What follows from a record of the second input."""


class Partitioner(Function, ABC):
    """Chooses the subtask for a key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Index of the subtask, from 0."""


class FilterFunction(Function, ABC):
    """Keeps or drops records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether to keep the record."""


class ReduceFunction(Function, ABC):
    """Two records to one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Both in one."""


class AggregateFunction(Function, ABC):
    """Folds records into an accumulator."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """An empty accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with the record in it."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result for an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Two accumulators in one."""


class KeySelector(Function, ABC):
    """Gives a record its key."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key."""


class ProcessFunction(Function, ABC):
    """One record to any number, with side outputs."""

    class Context(ABC):
        """Where and when the record is."""

        @abstractmethod
        def timestamp(self) -> int:
            """Event time of the record in milliseconds; ``-(2**63)`` where it has none."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time; timers where the stream is keyed."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yields records, or ``(output_tag, record)`` pairs for side outputs."""


class KeyedProcessFunction(Function, ABC):
    """Like :class:`ProcessFunction`, with keyed state and timers."""

    class Context(ProcessFunction.Context):
        """Where and when the record is."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Key of the record."""

    class OnTimerContext(Context):
        """Where and when the timer is."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Whether it is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yields records, or ``(output_tag, record)`` pairs for side outputs."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Called when a timer fires; yields like ``process_element``."""


class CoProcessFunction(Function, ABC):
    """Like :class:`ProcessFunction`, for two inputs."""

    class Context(ProcessFunction.Context):
        """Where and when the record is."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """A record of the first input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """A record of the second input."""


class KeyedCoProcessFunction(Function, ABC):
    """Like :class:`KeyedProcessFunction`, for two inputs with keys of one type; they share state and timers."""

    class Context(KeyedProcessFunction.Context):
        """Where and when the record is."""

    class OnTimerContext(Context):
        """Where and when the timer is."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Whether it is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """A record of the first input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """A record of the second input."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Called when a timer fires; yields like ``process_element1``."""


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Turns the contents of a window of a key into records."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """Yields records; ``inputs`` holds the one aggregate where the window aggregates."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Turns the contents of a window of a stream without keys into records."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """Yields records; ``inputs`` holds the one aggregate where the window aggregates."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """Turns the contents of a window of a key into records, and may keep state."""

    class Context(ABC, Generic[W2]):
        """The window, time and state."""

        @abstractmethod
        def window(self) -> W2:
            """The window that fires."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Milliseconds since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Event time in milliseconds."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State of the key and window; to be cleared in :meth:`ProcessWindowFunction.clear`.

            A name has to differ from those of ``global_state()``. Windows that merge have none.
            """

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State of the key, whatever the window."""

    @abstractmethod
    def process(self, key: KEY, context: ProcessWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]:
        """Yields records; ``elements`` holds the one aggregate where the window aggregates."""

    def clear(self, context: ProcessWindowFunction.Context[W]) -> None:
        """Called when a window is over; the place to clear its state."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """Turns the contents of a window of a stream without keys into records, and may keep state."""

    class Context(ABC, Generic[W2]):
        """The window and state."""

        @abstractmethod
        def window(self) -> W2:
            """The window that fires."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State of the window; to be cleared in :meth:`ProcessAllWindowFunction.clear`."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State, whatever the window."""

    @abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]:
        """Yields records; ``elements`` holds the one aggregate where the window aggregates."""

    def clear(self, context: ProcessAllWindowFunction.Context[W]) -> None:
        """Called when a window is over; the place to clear its state."""


class BaseBroadcastProcessFunction(Function):
    """Base of the functions of a stream and a broadcast one."""

    class BaseContext(ABC):
        """Where and when the record or timer is."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the record, or the time of the timer, in milliseconds, or None."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Milliseconds since 1970."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Event time in milliseconds."""

    class Context(BaseContext):
        """For a record of the broadcast stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
            """Broadcast state, to be read and written."""

    class ReadOnlyContext(BaseContext):
        """For a record of the other stream."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
            """Broadcast state, to be read."""


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[IN1, IN2, OUT]):
    """A function of a stream without keys and a broadcast one."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """For a record of the broadcast stream."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """For a record of the other stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: Any) -> Iterable[Any] | None:
        """A record of the stream; yields records, or ``(output_tag, record)`` pairs for side outputs."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: Any) -> Iterable[Any] | None:
        """A record of the broadcast stream: at every subtask, which must all do the same to the broadcast state."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[KEY, IN1, IN2, OUT]):
    """A function of a keyed stream and a broadcast one, with keyed state and timers."""

    class Context(BaseBroadcastProcessFunction.Context, ABC):
        """For a record of the broadcast stream."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
            """Calls ``function(key, state)`` for each key of this subtask that has the state, which it may change.

            Flink has it, PyFlink does not. Reads all keys of the state from storage.

            Args:
                state_descriptor: Of the keyed state.
                function: A callable, or an object with such a method ``process``.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext, ABC):
        """For a record of the keyed stream."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and timers of the key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Key of the record."""

    class OnTimerContext(ReadOnlyContext, ABC):
        """For a timer."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Whether it is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: Any) -> Iterable[Any] | None:
        """A record of the keyed stream; yields records, or ``(output_tag, record)`` pairs for side outputs."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: Any) -> Iterable[Any] | None:
        """A record of the broadcast stream: at every subtask, which must all do the same to the broadcast state."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Called when a timer fires; yields like ``process_element``."""
