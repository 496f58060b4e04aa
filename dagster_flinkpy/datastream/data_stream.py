"""Streams and what can be done with them (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.connectors.base import Sink
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.job_graph import Partitioner as EdgePartitioner
from dagster_flinkpy.datastream.job_graph import PartitionerKind
from dagster_flinkpy.datastream.operators import (
    CoProcessSpec,
    FilterSpec,
    FlatMapSpec,
    KeyedCoProcessSpec,
    KeyedProcessSpec,
    MapSpec,
    OperatorSpec,
    ProcessSpec,
    ReduceSpec,
    Selector,
    SinkSpec,
    TimestampsSpec,
    WindowSpec,
    as_callable,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.transformation import Input, Transformation
from dagster_flinkpy.datastream.window import WindowAssigner
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["ConnectedStreams", "DataStream", "DataStreamSink", "KeyedStream", "WindowedStream"]

_FORWARD = EdgePartitioner(PartitionerKind.FORWARD)
S = TypeVar("S", bound="_Configurable")


class _Configurable:
    """The settings every operator has."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    @property
    def _operator(self) -> Transformation:
        """What the settings are of."""
        return self._transformation

    def uid(self: S, uid: str) -> S:
        """Sets the operator's id, under which its state is stored and found again."""
        self._operator.uid = uid
        return self

    def name(self: S, name: str) -> S:
        """Sets the operator's name, for people."""
        self._operator.name = name
        return self

    def set_parallelism(self: S, parallelism: int) -> S:
        """Sets the number of subtasks."""
        self._operator.parallelism = parallelism
        return self

    def set_max_parallelism(self: S, max_parallelism: int) -> S:
        """Sets the number of key groups, which no parallelism can exceed."""
        self._operator.max_parallelism = max_parallelism
        return self

    def slot_sharing_group(self: S, slot_sharing_group: str) -> S:
        """Puts the operator into a slot-sharing group."""
        self._operator.slot_sharing_group = slot_sharing_group
        return self


class DataStreamSink(_Configurable):
    """The end of a stream."""


class DataStream(_Configurable):
    """A stream of records."""

    def __init__(
        self,
        env: StreamExecutionEnvironment,
        transformation: Transformation,
        *,
        inputs: tuple[Input, ...] | None = None,
    ) -> None:
        super().__init__(transformation)
        self._env = env
        # What the next operator reads: this operator's main output, unless partitioned, united or a side output.
        self._inputs = inputs or (Input(transformation, _FORWARD),)

    @property
    def _operator(self) -> Transformation:
        if self._inputs != (Input(self._transformation, _FORWARD),):
            raise JobGraphError(
                "a keyed, partitioned, united or side-output stream is no operator of its own: call uid(), name(), "
                "set_parallelism(), ... on the operator before or behind it"
            )
        return self._transformation

    # --- what follows ------------------------------------------------------------------------------------------------

    def get_type(self) -> TypeInformation:
        """Type of the records."""
        return self._inputs[0].type_info

    def _then(self, name: str, spec: OperatorSpec, output_type: TypeInformation | None) -> DataStream:
        return self._env._add(name, spec, [self._inputs], output_type)

    def _partitioned(self, kind: PartitionerKind) -> DataStream:
        partitioner = EdgePartitioner(kind)
        return DataStream(
            self._env, self._transformation, inputs=tuple(i.with_partitioner(partitioner) for i in self._inputs)
        )

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None) -> DataStream:
        """One record to one. Without ``output_type`` records travel pickled."""
        as_callable(func, MapFunction, "map")
        return self._then("Map", MapSpec(func), output_type)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """One record to any number."""
        as_callable(func, FlatMapFunction, "flat_map")
        return self._then("FlatMap", FlatMapSpec(func), output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keeps the records for which the function is true."""
        as_callable(func, FilterFunction, "filter")
        return self._then("Filter", FilterSpec(func), self.get_type())

    def process(self, func: ProcessFunction, output_type: TypeInformation | None = None) -> DataStream:
        """One record to any number, with side outputs."""
        if not isinstance(func, ProcessFunction):
            raise ConfigurationError(f"process() of a stream without key needs a ProcessFunction, not {func!r}")
        return self._then("Process", ProcessSpec(func), output_type)

    def key_by(self, key_selector: Selector, key_type: TypeInformation | None = None) -> KeyedStream:
        """Gives each record a key; equal keys go to one subtask.

        Args:
            key_selector: A function of the record, a :class:`KeySelector`, or the name (names) of its field (fields),
                which is fastest: whole columns are hashed.
            key_type: Type of the key; by default ``int`` is LONG, ``float`` DOUBLE, ``str`` STRING.
        """
        if isinstance(key_selector, (str, tuple)):
            self._check_fields((key_selector,) if isinstance(key_selector, str) else key_selector)
        else:
            as_callable(key_selector, KeySelector, "get_key")
        partitioner = EdgePartitioner(PartitionerKind.HASH, key_selector, key_type)
        return KeyedStream(
            self._env, self._transformation, inputs=tuple(i.with_partitioner(partitioner) for i in self._inputs)
        )

    def _check_fields(self, names: tuple[str, ...]) -> None:
        row_type = self.get_type()
        if not isinstance(row_type, RowTypeInfo):
            raise JobGraphError(
                f"key_by({names!r}) needs records with fields, not {row_type}: declare "
                "output_type=Types.ROW_NAMED(...) on the operator before it, or give a function"
            )
        unknown = [name for name in names if name not in row_type.field_names]
        if unknown or not names:
            raise JobGraphError(f"key_by({names!r}): no field {unknown}; the stream has {row_type.get_field_names()}")

    def union(self, *streams: DataStream) -> DataStream:
        """All records of streams of one type."""
        for other in streams:
            self._check_same_program(other)
            if other.get_type() != self.get_type():
                raise JobGraphError(f"union() needs streams of one type, not {self.get_type()} and {other.get_type()}")
        inputs = self._inputs + tuple(i for s in streams for i in s._inputs)
        return DataStream(self._env, self._transformation, inputs=inputs)

    def _check_same_program(self, other: DataStream) -> None:
        if other._env is not self._env:
            raise JobGraphError("streams of two environments cannot be joined; make both with one")

    def connect(self, ds: DataStream) -> ConnectedStreams:
        """Two streams for one function; they may differ in type."""
        self._check_same_program(ds)
        return ConnectedStreams(self._env, self, ds)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Gives records event time and the stream watermarks."""
        return self._then("Timestamps/Watermarks", TimestampsSpec(watermark_strategy), self.get_type())

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The side output of this operator with this tag."""
        declared = self._transformation.side_outputs
        type_info = output_tag.type_info or declared.get(output_tag.tag_id) or PickledBytesTypeInfo()
        declared[output_tag.tag_id] = type_info
        side = Input(self._transformation, _FORWARD, output_tag.tag_id)
        return DataStream(self._env, self._transformation, inputs=(side,))

    # --- partitioning ------------------------------------------------------------------------------------------------

    def forward(self) -> DataStream:
        """Subtask i to subtask i; the default. Between different parallelisms it rebalances."""
        return self._partitioned(PartitionerKind.FORWARD)

    def rebalance(self) -> DataStream:
        """Round robin over all subtasks downstream."""
        return self._partitioned(PartitionerKind.REBALANCE)

    def broadcast(self) -> DataStream:
        """Every record to every subtask downstream."""
        return self._partitioned(PartitionerKind.BROADCAST)

    def global_(self) -> DataStream:
        """Everything to subtask 0."""
        return self._partitioned(PartitionerKind.GLOBAL)

    # --- ends --------------------------------------------------------------------------------------------------------

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Writes the stream to a sink."""
        sink.validate(None if isinstance(self.get_type(), PickledBytesTypeInfo) else self.get_type())
        return DataStreamSink(self._then("Sink", SinkSpec(sink), self.get_type())._transformation)

    def execute_and_collect(self, job_execution_name: str | None = None, limit: int | None = None) -> Iterator[Any]:
        """Runs the program and brings this stream's records back; for tests and notebooks.

        Args:
            job_execution_name: Name of the job.
            limit: At most so many records.
        """
        return self._env._execute_and_collect(self._inputs, job_execution_name, limit)


class KeyedStream(DataStream):
    """A stream whose records have a key."""

    def process(
        self, func: KeyedProcessFunction | ProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """A function with keyed state and timers."""
        if not isinstance(func, (KeyedProcessFunction, ProcessFunction)):
            raise ConfigurationError(f"process() of a keyed stream needs a KeyedProcessFunction, not {func!r}")
        if isinstance(func, ProcessFunction):
            return self._then("Process", ProcessSpec(func), output_type)
        return self._then("KeyedProcess", KeyedProcessSpec(func), output_type)

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """A running reduction per key; emits after each record."""
        as_callable(func, ReduceFunction, "reduce")
        return self._then("Reduce", ReduceSpec(func, self.get_type()), self.get_type())

    def window(self, window_assigner: WindowAssigner) -> WindowedStream:
        """Groups the records of a key by time."""
        return WindowedStream(self, window_assigner)


class ConnectedStreams:
    """Two streams for one function."""

    def __init__(self, env: StreamExecutionEnvironment, first: DataStream, second: DataStream) -> None:
        self._env, self._first, self._second = env, first, second

    def key_by(
        self, key_selector1: Selector, key_selector2: Selector, key_type: TypeInformation | None = None
    ) -> ConnectedStreams:
        """Gives the records of both streams keys of one type."""
        return ConnectedStreams(
            self._env, self._first.key_by(key_selector1, key_type), self._second.key_by(key_selector2, key_type)
        )

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """A function of both streams; with keyed state and timers where both are keyed."""
        keyed = isinstance(self._first, KeyedStream) and isinstance(self._second, KeyedStream)
        inputs = [self._first._inputs, self._second._inputs]
        if isinstance(func, KeyedCoProcessFunction):
            if not keyed:
                raise JobGraphError("a KeyedCoProcessFunction needs two keyed streams; call key_by() on both")
            return self._env._add("KeyedCoProcess", KeyedCoProcessSpec(func), inputs, output_type)
        if isinstance(func, CoProcessFunction):
            return self._env._add("CoProcess", CoProcessSpec(func), inputs, output_type)
        raise ConfigurationError(f"process() needs a CoProcessFunction or a KeyedCoProcessFunction, not {func!r}")


class WindowedStream:
    """Records of a key grouped by time."""

    def __init__(self, stream: KeyedStream, assigner: WindowAssigner) -> None:
        self._stream, self._assigner = stream, assigner
        self._lateness = 0
        self._late_tag: OutputTag | None = None

    def allowed_lateness(self, time_ms: int) -> WindowedStream:
        """Keeps a window's state so many milliseconds after its end; late records make it fire again."""
        if time_ms < 0:
            raise ConfigurationError(f"allowed lateness is negative: {time_ms} ms")
        self._lateness = time_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Sends records that come too late to a side output, where they are dropped otherwise."""
        self._late_tag = output_tag
        return self

    def _then(self, name: str, spec: WindowSpec, output_type: TypeInformation | None) -> DataStream:
        stream = self._stream._then(name, spec, output_type)
        if self._late_tag is not None:
            stream._transformation.side_outputs[self._late_tag.tag_id] = self._stream.get_type()
        return stream

    def _spec(self, **how: Any) -> WindowSpec:
        return WindowSpec(
            self._assigner,
            self._stream.get_type(),
            allowed_lateness=self._lateness,
            late_tag=None if self._late_tag is None else self._late_tag.tag_id,
            **how,
        )

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: ProcessWindowFunction[Any] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """One reduced record per window; only that is kept as state."""
        as_callable(reduce_function, ReduceFunction, "reduce")
        spec = self._spec(
            reduce=reduce_function, window_function=window_function, accumulator_type=self._stream.get_type()
        )
        return self._then("Window", spec, output_type if window_function else self._stream.get_type())

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: ProcessWindowFunction[Any] | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """One result per window; only the accumulator is kept as state."""
        if not isinstance(aggregate_function, AggregateFunction):
            raise ConfigurationError(f"aggregate() needs an AggregateFunction, not {aggregate_function!r}")
        spec = self._spec(
            aggregate=aggregate_function,
            window_function=window_function,
            accumulator_type=accumulator_type or PickledBytesTypeInfo(),
        )
        return self._then("Window", spec, output_type)

    def process(
        self, process_window_function: ProcessWindowFunction[Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """A function of all elements of a window; they are kept as state."""
        if not isinstance(process_window_function, ProcessWindowFunction):
            raise ConfigurationError(f"process() needs a ProcessWindowFunction, not {process_window_function!r}")
        return self._then("Window", self._spec(window_function=process_window_function), output_type)
