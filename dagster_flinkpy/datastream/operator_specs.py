"""The specs of operators: plain declarations of what they do, which the runtime executes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.aggregations import BatchAggregate, BuiltInAggregate
from dagster_flinkpy.datastream.async_retry_strategies import AsyncRetryStrategy
from dagster_flinkpy.datastream.batch_function import KeyedBatchFunction, KeyedMultipleInputBatchFunction
from dagster_flinkpy.datastream.checkpointed_function import CheckpointedFunction
from dagster_flinkpy.datastream.connectors.base import Sink, Source
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSink, BlockingEdgeSource
from dagster_flinkpy.datastream.connectors.spark import SparkSource, SparkTransform
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MultipleInputProcessFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.datastream.window import Trigger, WindowAssigner
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "AsyncWaitSpec",
    "BlockingEdgeSinkSpec",
    "BlockingEdgeSourceSpec",
    "BroadcastProcessSpec",
    "CoProcessSpec",
    "CollectSpec",
    "FilterBatchSpec",
    "FilterSpec",
    "FlatMapSpec",
    "InputsSpec",
    "KeyedBatchSpec",
    "KeyedBroadcastProcessSpec",
    "KeyedCoProcessSpec",
    "KeyedMultipleInputBatchSpec",
    "KeyedMultipleInputProcessSpec",
    "KeyedProcessSpec",
    "MapBatchSpec",
    "MapSpec",
    "MultipleInputProcessSpec",
    "OperatorSpec",
    "PrintSpec",
    "ProcessSpec",
    "ReduceSpec",
    "RollingAggregateSpec",
    "Selector",
    "SinkSpec",
    "SourceSpec",
    "SparkSourceSpec",
    "SparkTransformSpec",
    "TimestampsSpec",
    "WindowSpec",
    "as_callable",
    "check_column_type",
    "shown",
]

Selector = KeySelector | Callable[[Any], Any] | str | tuple[str, ...]


def shown(function: Any) -> str:
    """Describes the value that was passed as a function, for a message. For a class, asks for an instance."""
    if isinstance(function, type):
        return f"the class {function.__name__}: pass an instance, {function.__name__}()"
    return repr(function)


def as_callable(function: Any, base: type, method: str) -> Callable[..., Any]:
    """Returns the only method of a function object, or a plain callable unchanged.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(function, base):
        bound: Callable[..., Any] = getattr(function, method)
        return bound
    if callable(function) and not (isinstance(function, type) and issubclass(function, Function)):
        return cast("Callable[..., Any]", function)
    raise ConfigurationError(f"need a {base.__name__} or a callable, not {shown(function)}")


def check_column_type(output_type: Any, call: str = "process_batch()") -> None:
    """Raises `ConfigurationError` if the output type of a function of batches is not that of a column."""
    if not isinstance(output_type, TypeInformation) or isinstance(output_type, PickledBytesTypeInfo):
        raise ConfigurationError(f"{call} needs an output_type that is a column, not {output_type!r}")


@dataclass(frozen=True)
class OperatorSpec:
    """Base class of the specs. Subclasses without further fields omit the decorator, which costs import time."""

    kind: ClassVar[str] = "operator"
    stateful: ClassVar[bool] = False
    """Whether every operator of this kind has state in a checkpoint, though it is not keyed."""
    keyed: ClassVar[bool] = False
    broadcast_inputs: ClassVar[frozenset[int]] = frozenset()
    """The inputs of a keyed operator that are not keyed."""
    batch_calls: ClassVar[bool] = False
    """Whether its function takes batches."""
    side_outputs: ClassVar[bool] = False
    """Whether its function may send records to side outputs."""

    @property
    def at_once(self) -> int:
        """How many records it may take as long for as for one of them: a call of a model may take a second for any."""
        return 64 if self.batch_calls else 1

    @property
    def keeps_state(self) -> bool:
        """Whether the operator has state in a checkpoint, and so needs a uid."""
        return self.stateful or self.keyed or any(isinstance(f, CheckpointedFunction) for f in self.user_functions())

    def user_functions(self) -> list[Any]:
        """Returns the user's code in it, which has to be shipped to the workers."""
        return []

    def on_workers(self) -> OperatorSpec:
        """Returns it without code that runs on the driver only."""
        return self


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Reads splits and generates watermarks."""

    source: Source
    watermark_strategy: WatermarkStrategy
    static: bool = False
    """Whether all of it is read at once, before what other inputs of an operator bring."""
    timed_later: bool = False
    """Whether an operator behind it assigns event time, so what it has yet to read may be late."""
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.source, self.watermark_strategy.timestamp_assigner]


@dataclass(frozen=True)
class TimestampsSpec(OperatorSpec):
    """Assigns timestamps and generates watermarks in the middle of a stream."""

    watermark_strategy: WatermarkStrategy
    kind: ClassVar[str] = "timestamps"

    def __post_init__(self) -> None:
        if self.watermark_strategy.alignment is not None:
            no_effect("with_watermark_alignment() behind a source", "only sources wait: give it to from_source()", 5)

    def user_functions(self) -> list[Any]:
        return [self.watermark_strategy.timestamp_assigner]


@dataclass(frozen=True)
class _FunctionSpec(OperatorSpec):
    function: Any

    def user_functions(self) -> list[Any]:
        return [self.function]


class MapSpec(_FunctionSpec):
    """Turns each record into one record."""

    function: MapFunction | Callable[[Any], Any]
    kind: ClassVar[str] = "map"


class FilterSpec(_FunctionSpec):
    """Keeps or drops records."""

    function: FilterFunction | Callable[[Any], bool]
    kind: ClassVar[str] = "filter"


class FlatMapSpec(_FunctionSpec):
    """Turns each record into any number of records."""

    function: FlatMapFunction | Callable[[Any], Any]
    kind: ClassVar[str] = "flat_map"
    side_outputs: ClassVar[bool] = True


@dataclass(frozen=True)
class AsyncWaitSpec(_FunctionSpec):
    """Calls an asynchronous function for many records at once."""

    function: AsyncFunction[Any, Any]
    timeout_ms: int
    """After this time, ``timeout()`` of the function says what the records are; 0: never."""
    capacity: int
    """How many calls a subtask makes at once."""
    retry_strategy: AsyncRetryStrategy[Any]
    ordered: bool = False
    """Whether results have the order of the records."""
    kind: ClassVar[str] = "async_wait"
    side_outputs: ClassVar[bool] = True

    @property
    def at_once(self) -> int:
        return self.capacity

    def user_functions(self) -> list[Any]:
        return [self.function, self.retry_strategy]


class MapBatchSpec(_FunctionSpec):
    """Turns batches of records into as many records, as columns."""

    function: Callable[[Any], Any]
    kind: ClassVar[str] = "map_batch"
    batch_calls: ClassVar[bool] = True


class FilterBatchSpec(_FunctionSpec):
    """Keeps or drops records, by a column of booleans."""

    function: Callable[[Any], Any]
    kind: ClassVar[str] = "filter_batch"
    batch_calls: ClassVar[bool] = True


class InputsSpec(_FunctionSpec):
    """Base class of the specs whose function has a method for each input."""

    methods: ClassVar[tuple[str, ...]]
    side_outputs: ClassVar[bool] = True

    def inputs(self) -> Sequence[Callable[..., Any]]:
        """Returns what processes a record, or a batch, of each input."""
        return [getattr(self.function, method) for method in self.methods]


class _MultipleInputSpec(InputsSpec):
    function: MultipleInputProcessFunction | KeyedMultipleInputProcessFunction | KeyedMultipleInputBatchFunction

    def inputs(self) -> Sequence[Callable[..., Any]]:
        functions = self.function.get_inputs()
        name = type(self.function).__name__
        if not isinstance(functions, (list, tuple)):
            raise ConfigurationError(f"{name}.get_inputs() must return a list of functions, not {functions!r}")
        for function in functions:
            if not callable(function):
                raise ConfigurationError(f"{name}.get_inputs() must return functions, not {function!r}")
        return functions


class ProcessSpec(InputsSpec):
    """A process function without keyed state."""

    function: ProcessFunction
    kind: ClassVar[str] = "process"
    methods: ClassVar[tuple[str, ...]] = ("process_element",)


class CoProcessSpec(InputsSpec):
    """A process function with two inputs, without keyed state."""

    function: CoProcessFunction
    kind: ClassVar[str] = "co_process"
    methods: ClassVar[tuple[str, ...]] = ("process_element1", "process_element2")


class MultipleInputProcessSpec(_MultipleInputSpec):
    """A process function with any number of inputs, without keyed state."""

    function: MultipleInputProcessFunction
    kind: ClassVar[str] = "multiple_input_process"


class KeyedProcessSpec(InputsSpec):
    """A process function with keyed state and timers."""

    function: KeyedProcessFunction
    kind: ClassVar[str] = "keyed_process"
    keyed: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process_element",)


class KeyedCoProcessSpec(InputsSpec):
    """A process function with two inputs, which share keyed state and timers."""

    function: KeyedCoProcessFunction
    kind: ClassVar[str] = "keyed_co_process"
    keyed: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process_element1", "process_element2")


class KeyedMultipleInputProcessSpec(_MultipleInputSpec):
    """A process function with any number of inputs, which share keyed state and timers."""

    function: KeyedMultipleInputProcessFunction
    kind: ClassVar[str] = "keyed_multiple_input_process"
    keyed: ClassVar[bool] = True


@dataclass(frozen=True)
class BroadcastProcessSpec(InputsSpec):
    """A process function of a stream and a broadcast stream, with broadcast state."""

    function: BroadcastProcessFunction[Any, Any, Any]
    broadcast_state: tuple[MapStateDescriptor, ...] = ()
    """The descriptors given to ``broadcast()``; the function may use others."""
    kind: ClassVar[str] = "broadcast_process"
    stateful: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process_element", "process_broadcast_element")


@dataclass(frozen=True)
class KeyedBroadcastProcessSpec(InputsSpec):
    """A process function of a keyed stream and a broadcast stream, with keyed state and timers."""

    function: KeyedBroadcastProcessFunction[Any, Any, Any, Any]
    broadcast_state: tuple[MapStateDescriptor, ...] = ()
    """The descriptors given to ``broadcast()``; the function may use others."""
    kind: ClassVar[str] = "keyed_broadcast_process"
    keyed: ClassVar[bool] = True
    broadcast_inputs: ClassVar[frozenset[int]] = frozenset({1})
    methods: ClassVar[tuple[str, ...]] = ("process_element", "process_broadcast_element")


@dataclass(frozen=True)
class ReduceSpec(_FunctionSpec):
    """A running reduction per key."""

    function: ReduceFunction | Callable[[Any, Any], Any]
    type_info: TypeInformation
    final_only: bool = False
    """Whether each key has a single result at the end of all input (``RuntimeExecutionMode.BATCH``)."""
    mini_batch: bool = False
    """Whether a built-in aggregation of numbers has one result per key and epoch, instead of one per record."""
    kind: ClassVar[str] = "reduce"
    keyed: ClassVar[bool] = True


class KeyedBatchSpec(InputsSpec):
    """A process function with keyed state that takes batches."""

    function: KeyedBatchFunction
    kind: ClassVar[str] = "keyed_batch"
    batch_calls: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    methods: ClassVar[tuple[str, ...]] = ("process_batch",)


class KeyedMultipleInputBatchSpec(_MultipleInputSpec):
    """A process function with any number of inputs, which share keyed state, that takes batches."""

    function: KeyedMultipleInputBatchFunction
    kind: ClassVar[str] = "keyed_multiple_input_batch"
    batch_calls: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


@dataclass(frozen=True)
class RollingAggregateSpec(OperatorSpec):
    """A running aggregation per key, which emits the key and the result."""

    aggregate: BuiltInAggregate
    record_type: TypeInformation
    flat: bool
    """Whether the key is a tuple whose elements become fields of the result."""
    mini_batch: bool = False
    """Whether there is one result per key and epoch, instead of one per record."""
    kind: ClassVar[str] = "rolling_aggregate"
    keyed: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.aggregate.function] if isinstance(self.aggregate, BatchAggregate) else []


@dataclass(frozen=True)
class WindowSpec(OperatorSpec):
    """Windows of keyed records, with ``reduce``, ``aggregate`` or neither. Without them, all elements are kept."""

    assigner: WindowAssigner[Any, Any]
    element_type: TypeInformation
    """The type of the records of a window without aggregation."""
    trigger: Trigger[Any, Any]
    aggregate: AggregateFunction | BatchAggregate | None = None
    reduce: ReduceFunction | Callable[[Any, Any], Any] | None = None
    accumulator_type: TypeInformation = field(default_factory=PickledBytesTypeInfo)
    window_function: (
        WindowFunction[Any, Any, Any, Any]
        | AllWindowFunction[Any, Any, Any]
        | ProcessWindowFunction[Any, Any, Any, Any]
        | ProcessAllWindowFunction[Any, Any, Any]
        | None
    ) = None
    allowed_lateness: int = 0
    """How long the state of a window is kept after its end, in milliseconds."""
    late_tag: str | None = None
    """The side output of records that arrive later than that."""
    kind: ClassVar[str] = "window"
    side_outputs: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        aggregate = self.aggregate.function if isinstance(self.aggregate, BatchAggregate) else self.aggregate
        return [aggregate, self.reduce, self.window_function, self.assigner, self.trigger]


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """Writes records, in two phases if the sink supports it."""

    sink: Sink
    kind: ClassVar[str] = "sink"
    stateful: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.sink]


class BlockingEdgeSinkSpec(SinkSpec):
    """The end of a pipelined region at a blocking edge."""

    sink: BlockingEdgeSink
    kind: ClassVar[str] = "exchange_sink"  # stored: part of the fingerprint


class BlockingEdgeSourceSpec(SourceSpec):
    """The start of a pipelined region at a blocking edge."""

    source: BlockingEdgeSource
    kind: ClassVar[str] = "exchange_source"  # stored likewise


class SparkSourceSpec(SourceSpec):
    """Reads a Spark DataFrame."""

    source: SparkSource
    kind: ClassVar[str] = "spark_source"

    def user_functions(self) -> list[Any]:
        return [self.source.df_factory, self.watermark_strategy.timestamp_assigner]

    def on_workers(self) -> SparkSourceSpec:
        return replace(self, source=self.source.on_workers())


class SparkTransformSpec(BlockingEdgeSourceSpec):
    """A function of Spark DataFrames at the start of a pipelined region; its input edges are blocking."""

    source: SparkTransform
    kind: ClassVar[str] = "spark_transform"

    def user_functions(self) -> list[Any]:
        return [self.source.function]

    def on_workers(self) -> SparkTransformSpec:
        return replace(self, source=self.source.on_workers())


@dataclass(frozen=True)
class PrintSpec(OperatorSpec):
    """Prints records where the program was started, after the checkpoint that covers them has completed."""

    identifier: str
    """The prefix of each line, which may be empty."""
    kind: ClassVar[str] = "print"


class CollectSpec(OperatorSpec):
    """Returns records to the caller of ``execute_and_collect``."""

    kind: ClassVar[str] = "collect"
