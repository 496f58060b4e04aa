"""What each operator of a job graph is to do: plain declarations, executed on the runtime floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.aggregations import CountAggregate, MeanAggregate
from dagster_flinkpy.datastream.batch_function import KeyedBatchFunction
from dagster_flinkpy.datastream.checkpointed_function import CheckpointedFunction
from dagster_flinkpy.datastream.connectors.base import Sink, Source
from dagster_flinkpy.datastream.connectors.exchange import ExchangeSink, ExchangeSource
from dagster_flinkpy.datastream.connectors.spark import SparkSource, SparkTransform
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    BroadcastProcessFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from dagster_flinkpy.datastream.window import Trigger, WindowAssigner
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "BroadcastProcessSpec",
    "CoProcessSpec",
    "CollectSpec",
    "ExchangeSinkSpec",
    "ExchangeSourceSpec",
    "FilterSpec",
    "FlatMapSpec",
    "KeyedBatchSpec",
    "KeyedBroadcastProcessSpec",
    "KeyedCoProcessSpec",
    "KeyedProcessSpec",
    "MapSpec",
    "OperatorSpec",
    "PrintSpec",
    "ProcessSpec",
    "ReduceSpec",
    "RollingAggregateSpec",
    "SinkSpec",
    "SourceSpec",
    "SparkSourceSpec",
    "SparkTransformSpec",
    "TimestampsSpec",
    "WindowSpec",
    "as_callable",
]

Selector = KeySelector | Callable[[Any], Any] | str | tuple[str, ...]


def as_callable(function: Any, base: type, method: str) -> Callable[..., Any]:
    """The one method of a function object, or a plain callable as it is.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(function, base):
        bound: Callable[..., Any] = getattr(function, method)
        return bound
    if callable(function):
        return cast("Callable[..., Any]", function)
    raise ConfigurationError(f"need a {base.__name__} or a callable, not {function!r}")


@dataclass(frozen=True)
class OperatorSpec:
    """Base of the declarations. A subclass without more fields needs no decorator, which takes time to import."""

    kind: ClassVar[str] = "operator"
    stateful: ClassVar[bool] = False
    """Whether a checkpoint holds something of every operator of this kind."""
    keyed: ClassVar[bool] = False
    broadcast_inputs: ClassVar[frozenset[int]] = frozenset()
    """Inputs without keys of a keyed operator."""

    @property
    def keeps_state(self) -> bool:
        """Whether a checkpoint holds something of it, so that it needs a uid."""
        return self.stateful or any(isinstance(f, CheckpointedFunction) for f in self.user_functions())

    def user_functions(self) -> list[Any]:
        """What of the user's code is in it; decides what must be shipped to the workers."""
        return []


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Reads splits and makes watermarks."""

    source: Source
    watermark_strategy: WatermarkStrategy
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.source, self.watermark_strategy.timestamp_assigner]


@dataclass(frozen=True)
class TimestampsSpec(OperatorSpec):
    """Gives records timestamps and makes watermarks in the midst of a stream."""

    watermark_strategy: WatermarkStrategy
    kind: ClassVar[str] = "timestamps"

    def user_functions(self) -> list[Any]:
        return [self.watermark_strategy.timestamp_assigner]


@dataclass(frozen=True)
class _FunctionSpec(OperatorSpec):
    function: Any

    def user_functions(self) -> list[Any]:
        return [self.function]


class MapSpec(_FunctionSpec):
    """One record to one."""

    function: MapFunction | Callable[[Any], Any]
    kind: ClassVar[str] = "map"


class FilterSpec(_FunctionSpec):
    """Keeps or drops records."""

    function: FilterFunction | Callable[[Any], bool]
    kind: ClassVar[str] = "filter"


class FlatMapSpec(_FunctionSpec):
    """One record to any number."""

    function: FlatMapFunction | Callable[[Any], Any]
    kind: ClassVar[str] = "flat_map"


class ProcessSpec(_FunctionSpec):
    """A process function without keyed state."""

    function: ProcessFunction
    kind: ClassVar[str] = "process"


class CoProcessSpec(_FunctionSpec):
    """A process function of two inputs without keyed state."""

    function: CoProcessFunction
    kind: ClassVar[str] = "co_process"


class KeyedProcessSpec(_FunctionSpec):
    """A process function with keyed state and timers."""

    function: KeyedProcessFunction
    kind: ClassVar[str] = "keyed_process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


class KeyedCoProcessSpec(_FunctionSpec):
    """A process function of two inputs with shared keyed state and timers."""

    function: KeyedCoProcessFunction
    kind: ClassVar[str] = "keyed_co_process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


class BroadcastProcessSpec(_FunctionSpec):
    """A process function of a stream and a broadcast one, which share broadcast state."""

    function: BroadcastProcessFunction[Any, Any, Any]
    kind: ClassVar[str] = "broadcast_process"
    stateful: ClassVar[bool] = True


class KeyedBroadcastProcessSpec(_FunctionSpec):
    """Likewise, of a keyed stream, with keyed state and timers."""

    function: KeyedBroadcastProcessFunction[Any, Any, Any, Any]
    kind: ClassVar[str] = "keyed_broadcast_process"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True
    broadcast_inputs: ClassVar[frozenset[int]] = frozenset({1})


@dataclass(frozen=True)
class ReduceSpec(_FunctionSpec):
    """A running reduction per key."""

    function: ReduceFunction | Callable[[Any, Any], Any]
    type_info: TypeInformation
    final_only: bool = False
    """Whether a key's result comes once, when all input has ended (``RuntimeExecutionMode.BATCH``)."""
    kind: ClassVar[str] = "reduce"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


class KeyedBatchSpec(_FunctionSpec):
    """A process function with keyed state that takes a batch at a time."""

    function: KeyedBatchFunction
    kind: ClassVar[str] = "keyed_batch"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


@dataclass(frozen=True)
class RollingAggregateSpec(OperatorSpec):
    """A running aggregation per key; gives key and result."""

    aggregate: CountAggregate | MeanAggregate
    record_type: TypeInformation
    flat: bool
    """Whether the key is a tuple, to be spread over as many fields."""
    kind: ClassVar[str] = "rolling_aggregate"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True


@dataclass(frozen=True)
class WindowSpec(OperatorSpec):
    """Records of a key in windows; exactly one of ``reduce``, ``aggregate`` or neither (all elements are kept)."""

    assigner: WindowAssigner[Any, Any]
    element_type: TypeInformation
    """Type of the records of a window without aggregation."""
    trigger: Trigger[Any, Any]
    aggregate: AggregateFunction | None = None
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
    """Milliseconds a window's state is kept after its end."""
    late_tag: str | None = None
    """Side output of records that came after that."""
    kind: ClassVar[str] = "window"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.aggregate, self.reduce, self.window_function, self.assigner, self.trigger]


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """Writes records; two-phase where the sink can."""

    sink: Sink
    kind: ClassVar[str] = "sink"
    stateful: ClassVar[bool] = True

    def user_functions(self) -> list[Any]:
        return [self.sink]


class ExchangeSinkSpec(SinkSpec):
    """The end of a pipelined region at a blocking edge."""

    sink: ExchangeSink
    kind: ClassVar[str] = "exchange_sink"


class ExchangeSourceSpec(SourceSpec):
    """The beginning of a pipelined region at a blocking edge."""

    source: ExchangeSource
    kind: ClassVar[str] = "exchange_source"


class SparkSourceSpec(SourceSpec):
    """Reads a Spark DataFrame."""

    source: SparkSource
    kind: ClassVar[str] = "spark_source"

    def user_functions(self) -> list[Any]:
        return [self.source.df_factory, self.watermark_strategy.timestamp_assigner]


class SparkTransformSpec(ExchangeSourceSpec):
    """A function of Spark DataFrames at the head of a pipelined region; its input edges are blocking."""

    source: SparkTransform
    kind: ClassVar[str] = "spark_transform"

    def user_functions(self) -> list[Any]:
        return [self.source.function]


@dataclass(frozen=True)
class PrintSpec(OperatorSpec):
    """Prints records where the program was started, after the checkpoint that covers them is complete."""

    identifier: str
    """Put before each line; may be empty."""
    kind: ClassVar[str] = "print"


class CollectSpec(OperatorSpec):
    """Brings records back to the caller of ``execute_and_collect``."""

    kind: ClassVar[str] = "collect"
