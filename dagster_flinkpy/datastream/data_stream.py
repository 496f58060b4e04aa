"""Streams and what can be done with them (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.adapters import (
    Accumulation,
    Fold,
    KeyedFilterAdapter,
    KeyedFlatMapAdapter,
    KeyedMapAdapter,
)
from dagster_flinkpy.datastream.aggregations import CountAggregate, MeanAggregate, check_is_number, key_fields
from dagster_flinkpy.datastream.batch_function import KeyedBatchFunction
from dagster_flinkpy.datastream.broadcast import BroadcastConnectedStream, BroadcastStream
from dagster_flinkpy.datastream.closeable_iterator import CloseableIterator
from dagster_flinkpy.datastream.connected_streams import ConnectedStreams
from dagster_flinkpy.datastream.connectors.base import Sink
from dagster_flinkpy.datastream.connectors.spark import ROWTIME, SparkTransform
from dagster_flinkpy.datastream.execution import spark_row_type
from dagster_flinkpy.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
)
from dagster_flinkpy.datastream.job_graph import Partitioner as EdgePartitioner
from dagster_flinkpy.datastream.job_graph import PartitionerKind
from dagster_flinkpy.datastream.operators import (
    FilterSpec,
    FlatMapSpec,
    KeyedBatchSpec,
    KeyedProcessSpec,
    MapSpec,
    OperatorSpec,
    PrintSpec,
    ProcessSpec,
    ReduceSpec,
    RollingAggregateSpec,
    Selector,
    SinkSpec,
    SparkTransformSpec,
    TimestampsSpec,
    as_callable,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.datastream.transformation import Input, Transformation
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from dagster_flinkpy.datastream.windowed_stream import AllWindowedStream, WindowedStream
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.connectors.spark import DataFrameFunction
    from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = [
    "AllWindowedStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]

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

    def set_description(self: S, description: str) -> S:
        """Sets a longer text than the name; it is not shown here."""
        self._operator.description = description
        return self

    def disable_chaining(self: S) -> S:
        """Accepted without effect: what is chained follows from the edges, and has no effect on results."""
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

    def start_new_chain(self: S) -> S:
        """Accepted without effect, as :meth:`disable_chaining`."""
        return self

    def set_buffer_timeout(self: S, timeout_millis: int) -> S:
        """Accepted without effect: buffers are sent when they are full, and at barriers."""
        return self

    def force_non_parallel(self: S) -> S:
        """Sets parallelism and max parallelism to 1."""
        self.set_parallelism(1)
        return self.set_max_parallelism(1)

    def get_name(self) -> str:
        """The operator's name."""
        return self._operator.name

    def get_execution_config(self) -> ExecutionConfig:
        """The settings of the environment."""
        return self._env.get_config()

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment the stream was made with."""
        return self._env

    @property
    def is_keyed(self) -> bool:
        """Whether records have a key."""
        return False

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

    def project(self, *field_indexes: int) -> DataStream:
        """Some fields of a stream of tuples, in this order.

        Args:
            field_indexes: From 0.
        """
        tuple_type = self.get_type()
        if not isinstance(tuple_type, TupleTypeInfo):
            raise JobGraphError(f"project() needs a stream of Types.TUPLE(...), not {tuple_type}")
        if not all(0 <= i < len(tuple_type.field_types) for i in field_indexes):
            raise JobGraphError(f"project{field_indexes}: the stream has {len(tuple_type.field_types)} fields")
        projected = Types.TUPLE([tuple_type.field_types[i] for i in field_indexes])
        return self.map(lambda value: tuple(value[i] for i in field_indexes), projected).name("Projection")

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

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Groups all records of the stream into windows, in one subtask."""
        return AllWindowedStream(self, window_assigner)

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams for one function; they may differ in type."""
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
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

    def blocking(self) -> DataStream:
        """Writes the stream to the store, once, for all that reads the result; not in PyFlink.

        What follows is a pipelined region of its own: a job and a Dagster step, which can be run again, and at another
        parallelism, without what is before it. Call it before ``key_by()``, ``rebalance()`` and the like.

        Raises:
            JobGraphError: The stream has keys, or records without a type: what is stored is not pickled.
        """
        if self.is_keyed:
            raise JobGraphError(
                "call blocking() before key_by(): the records are partitioned after they are read again"
            )
        if isinstance(self.get_type(), PickledBytesTypeInfo):
            raise JobGraphError(
                "blocking() stores records, and these have no type: declare output_type=..., such as "
                "Types.ROW_NAMED([...], [...]), on the operator before it"
            )
        inputs = tuple(replace(i, blocking=True) for i in self._inputs)
        return DataStream(self._env, self._transformation, inputs=inputs)

    def transform_spark(self, func: DataFrameFunction, output_type: RowTypeInfo | None = None) -> DataStream:
        """The records as a Spark DataFrame, and what a function makes of it; not in PyFlink.

        The function is called on the driver for each checkpoint that has completed upstream, with the records of that
        epoch alone: an aggregation is one of the epoch. An epoch without records is left out. The stream is written to
        the store before, as by :meth:`blocking`, so what follows is a pipelined region of its own.

        Beside the fields of the records the DataFrame has a column ``rowtime``: event time in milliseconds, null where
        a record has none. It is that of the result, if that has such a column, too; else records come out without.

        Args:
            func: Given a DataFrame, gives another one.
            output_type: Columns to take of it, by name, with the types to cast them to. Default: all of them, for which
                Spark is asked when the program is declared; a Dagster code location, which loads without Spark, has to
                say.

        Raises:
            JobGraphError: The stream has keys, is partitioned, or its records have no fields, or one called rowtime.
            ConfigurationError: A column has a type that no ``Types`` holds, or the type is to be said.
            UserFunctionError: The function failed on a DataFrame without rows, which Spark was asked about.
            TypeMismatchError: It did not give a DataFrame that can be read.
        """
        inputs, input_type = self.blocking()._inputs, self.get_type()
        if any(i.partitioner.kind is not PartitionerKind.FORWARD for i in inputs):
            raise JobGraphError("transform_spark() takes a stream as a whole: call it before rebalance() and the like")
        if not isinstance(input_type, (RowTypeInfo, TupleTypeInfo)):
            raise JobGraphError(
                f"transform_spark() needs records with fields, not {input_type}: declare "
                "output_type=Types.ROW_NAMED(...) on the operator before it"
            )
        if any(ROWTIME in t.field_names for t in (input_type, output_type) if t is not None):
            raise JobGraphError(f"transform_spark(): {ROWTIME!r} is the column of event time; rename the field")
        name = "Spark Transform"
        if output_type is None:
            output_type = spark_row_type("spark_transform_type", func, input_type, operator=name)
        source = SparkTransform("", output_type, function=func, input_type=input_type)
        spec = SparkTransformSpec(source, WatermarkStrategy.no_watermarks())
        return self._env._add(name, spec, [inputs], output_type)

    def rescale(self) -> DataStream:
        """Round robin over a share of the subtasks downstream; the shares of all subtasks make up the whole."""
        return self._partitioned(PartitionerKind.RESCALE)

    def shuffle(self) -> DataStream:
        """Each record to any subtask downstream; a replay finds it where it was."""
        return self._partitioned(PartitionerKind.SHUFFLE)

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelector | Callable[[Any], Any]
    ) -> DataStream:
        """Each record to the subtask that the partitioner names.

        Args:
            partitioner: Given a key and the number of subtasks, the index of one.
            key_selector: Gives a record its key.
        """
        as_callable(partitioner, Partitioner, "partition")
        as_callable(key_selector, KeySelector, "get_key")
        edge = EdgePartitioner(PartitionerKind.CUSTOM, key_selector, custom=partitioner)
        return DataStream(self._env, self._transformation, inputs=tuple(i.with_partitioner(edge) for i in self._inputs))

    def forward(self) -> DataStream:
        """Subtask i to subtask i; the default. Between different parallelisms it rebalances."""
        return self._partitioned(PartitionerKind.FORWARD)

    def rebalance(self) -> DataStream:
        """Round robin over all subtasks downstream."""
        return self._partitioned(PartitionerKind.REBALANCE)

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> BroadcastStream: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> DataStream | BroadcastStream:
        """Every record to every subtask downstream.

        Args:
            broadcast_state_descriptor: Broadcast state that a function keeps; then the stream can be connected to
                another one.
            other_broadcast_state_descriptors: More of it.
        """
        stream = self._partitioned(PartitionerKind.BROADCAST)
        if broadcast_state_descriptor is None:
            return stream
        return BroadcastStream(stream, [broadcast_state_descriptor, *other_broadcast_state_descriptors])

    def global_(self) -> DataStream:
        """Everything to subtask 0."""
        return self._partitioned(PartitionerKind.GLOBAL)

    # --- ends --------------------------------------------------------------------------------------------------------

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Writes the stream to a sink."""
        sink.validate(None if isinstance(self.get_type(), PickledBytesTypeInfo) else self.get_type())
        return DataStreamSink(self._then("Sink", SinkSpec(sink), self.get_type())._transformation)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Prints the records where the program was started, each after the checkpoint that covers it is complete.

        Args:
            sink_identifier: Put before each line; with more than one subtask the subtask's number is, too.
        """
        return DataStreamSink(self._then("Print", PrintSpec(sink_identifier or ""), self.get_type())._transformation)

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, limit: None = None) -> CloseableIterator: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[Any]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Any]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Runs the program and brings this stream's records back; for tests and notebooks.

        The program runs while the records are read, and what was declared is forgotten, as by ``env.execute()``.

        Args:
            job_execution_name: Name of the job.
            limit: At most so many records, as a list.
        """
        records = CloseableIterator(self._env._execute_and_collect(self._inputs, job_execution_name))
        if limit is None:
            return records
        with records:
            return list(islice(records, limit))


class KeyedStream(DataStream):
    """A stream whose records have a key."""

    @property
    def is_keyed(self) -> bool:
        """Whether records have a key."""
        return True

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None) -> DataStream:
        """One record to one; a MapFunction may use keyed state."""
        if isinstance(func, MapFunction):
            return self.process(KeyedMapAdapter(func), output_type).name("Map")
        return super().map(func, output_type)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """One record to any number; a FlatMapFunction may use keyed state."""
        if isinstance(func, FlatMapFunction):
            return self.process(KeyedFlatMapAdapter(func), output_type).name("FlatMap")
        return super().flat_map(func, output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keeps the records for which the function is true; a FilterFunction may use keyed state."""
        if isinstance(func, FilterFunction):
            return self.process(KeyedFilterAdapter(func), self.get_type()).name("Filter")
        return super().filter(func)

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

    def shuffle(self) -> DataStream:
        """Refused, as all that would send the records of a key elsewhere."""
        raise JobGraphError("the records of a keyed stream go to the subtask of their key; call this before key_by()")

    rescale = rebalance = forward = shuffle

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelector | Callable[[Any], Any]
    ) -> DataStream:
        """Refused likewise."""
        return self.shuffle()

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """A running sum of a field per key; the other fields are those of the first record.

        Args:
            position_to_sum: Index or name of the field; 0 for records that are plain values.
        """
        return self._accumulate("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """The least value of a field per key so far; the other fields are those of the first record."""
        return self._accumulate("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """The greatest value of a field per key so far; the other fields are those of the first record."""
        return self._accumulate("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The record with the least value of a field per key so far; the first of equal ones."""
        return self._accumulate("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The record with the greatest value of a field per key so far; the first of equal ones."""
        return self._accumulate("max_by", position_to_max_by)

    def _accumulate(self, fold: Fold, position: int | str) -> DataStream:
        if not isinstance(position, (int, str)):
            raise ConfigurationError(f"{fold}() needs the index or the name of a field, not {position!r}")
        return self.reduce(Accumulation(fold, position)).name(fold.title())

    def count(self) -> DataStream:
        """The number of records per key so far: rows of the key's fields and ``count``."""
        return self._rolling(CountAggregate())

    def mean(self, field: int | str = 0) -> DataStream:
        """The mean of a field per key so far: rows of the key's fields and ``mean``, a double.

        Args:
            field: Index or name of the field; 0 for records that are plain values.
        """
        check_is_number(self.get_type(), field, "mean()")
        return self._rolling(MeanAggregate(field))

    def _rolling(self, aggregate: CountAggregate | MeanAggregate) -> DataStream:
        names, types = self._key_fields(f"{aggregate.name}()")
        spec = RollingAggregateSpec(aggregate, self.get_type(), flat=len(names) > 1)
        output_type = RowTypeInfo([*types, aggregate.result_type], [*names, aggregate.name])
        return self._then(aggregate.name.title(), spec, output_type)

    def _key_fields(self, what: str) -> tuple[list[str], list[TypeInformation]]:
        partitioner = self._inputs[0].partitioner
        return key_fields(partitioner.selector, partitioner.key_type, self.get_type(), what)

    def process_batch(self, func: KeyedBatchFunction, output_type: TypeInformation) -> DataStream:
        """A function with keyed state that takes a batch of records at a time, as Arrow columns.

        Args:
            func: The function.
            output_type: Type of what it gives.
        """
        if not isinstance(func, KeyedBatchFunction):
            raise ConfigurationError(f"process_batch() needs a KeyedBatchFunction, not {func!r}")
        if not isinstance(output_type, TypeInformation) or isinstance(output_type, PickledBytesTypeInfo):
            raise ConfigurationError(f"process_batch() needs a type that is a column, not {output_type!r}")
        return self._then("ProcessBatch", KeyedBatchSpec(func), output_type)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Groups the records of a key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Groups the records of a key by their number.

        Args:
            size: Records of a window.
            slide: A window begins each so many records. Default: when the one before is full.
        """
        if slide == 0:
            return WindowedStream(self, CountTumblingWindowAssigner(size))
        return WindowedStream(self, CountSlidingWindowAssigner(size, slide))
