"""Data streams and keyed streams (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from dagster_flinkpy.common.arguments import check_argument, check_count
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.former_names import missing_method
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream.adapters import (
    AccumulateType,
    Accumulation,
    KeyedFilterAdapter,
    KeyedFlatMapAdapter,
    KeyedMapAdapter,
    WithKey,
    projected_type,
)
from dagster_flinkpy.datastream.aggregations import (
    Aggregation,
    BuiltInAggregate,
    CountAggregate,
    MeanAggregate,
    aggregate_of,
    check_field,
    check_is_number,
    result_row,
    type_of_sum,
)
from dagster_flinkpy.datastream.batch_function import BatchAggregateFunction, KeyedBatchFunction
from dagster_flinkpy.datastream.connectors.base import Sink
from dagster_flinkpy.datastream.connectors.blocking_edge import check_blocking
from dagster_flinkpy.datastream.connectors.spark import SparkTransform, check_transform_types
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
from dagster_flinkpy.datastream.operator_specs import (
    FilterBatchSpec,
    FilterSpec,
    FlatMapSpec,
    KeyedBatchSpec,
    KeyedProcessSpec,
    MapBatchSpec,
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
    check_column_type,
    shown,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.program.event_time import check_timestamp_field
from dagster_flinkpy.datastream.program.execution import spark_row_type
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind, StreamPartitioner
from dagster_flinkpy.datastream.program.program import FORWARD, ExecutionEnvironment, Upstream
from dagster_flinkpy.datastream.program.transformation import Input, Transformation
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.datastream.streams.broadcast import BroadcastConnectedStream, BroadcastStream
from dagster_flinkpy.datastream.streams.closeable_iterator import CloseableIterator
from dagster_flinkpy.datastream.streams.connected_streams import ConnectedStreams, MultipleConnectedStreams
from dagster_flinkpy.datastream.streams.operator_settings import DataStreamSink, StreamSettings
from dagster_flinkpy.datastream.streams.windowed_stream import AllWindowedStream, WindowedStream
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_flinkpy.datastream.connectors.spark import DataFrameFunction

__all__ = [
    "AllWindowedStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "MultipleConnectedStreams",
    "WindowedStream",
]


class DataStream(StreamSettings):
    """A stream of records."""

    def __init__(self, upstream: Upstream[DataStream], transformation: Transformation) -> None:
        super().__init__(transformation)
        self._upstream = upstream

    @property
    def _operator(self) -> Transformation:
        if self._upstream.inputs != (Input(self._transformation, FORWARD),):
            raise JobGraphError(
                "a keyed, partitioned, united or side-output stream is not an operator: call uid(), name(), "
                "set_parallelism(), ... on the operator before or after it"
            )
        return self._transformation

    if not TYPE_CHECKING:  # type checkers report a missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            keyed = hasattr(KeyedStream, name) and not name.startswith("_")
            first = f"call key_by() first, such as stream.key_by(lambda record: ...).{name}(...)" if keyed else None
            raise missing_method(self, name, first)

    def get_name(self) -> str:
        """Returns the operator's name."""
        return self._operator.name

    def get_execution_config(self) -> ExecutionConfig:
        """Returns the settings of the environment."""
        return self._upstream.program.config

    def get_execution_environment(self) -> ExecutionEnvironment:
        """Returns the environment that created the stream."""
        return self._upstream.program.environment

    @property
    def is_keyed(self) -> bool:
        """Whether the records have a key."""
        return self._upstream.keyed

    # --- what follows ------------------------------------------------------------------------------------------------

    def get_type(self) -> TypeInformation:
        """Returns the type of the records."""
        return self._upstream.type_info

    def _then(self, name: str, spec: OperatorSpec, output_type: TypeInformation | None) -> DataStream:
        return self._upstream.then(name, spec, output_type)

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream:
        return DataStream(self._upstream.partitioned(partitioner), self._transformation)

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None) -> DataStream:
        """Turns each record into one record. Without ``output_type``, the new records are pickled."""
        as_callable(func, MapFunction, "map")
        return self._then("Map", MapSpec(func), output_type)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Turns each record into any number of records."""
        as_callable(func, FlatMapFunction, "flat_map")
        return self._then("FlatMap", FlatMapSpec(func), output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keeps the records for which the function returns true."""
        as_callable(func, FilterFunction, "filter")
        return self._then("Filter", FilterSpec(func), self.get_type())

    def map_batch(
        self, func: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table], output_type: TypeInformation
    ) -> DataStream:
        """Turns batches of records into as many records, as Arrow columns. Not in PyFlink.

        Args:
            func: Takes the records, with a column per field, or one column ``value`` if they are plain values. Returns
                a row for each of them, with a column per field of ``output_type``, in any order, or one column if it is
                not a row. Each row keeps the event time of its record. How many records a batch has is not defined.
            output_type: The type of the new records.
        """
        if not callable(func) or isinstance(func, type):
            raise ConfigurationError(f"map_batch() needs a function of a record batch, not {shown(func)}")
        check_column_type(output_type, "map_batch()")
        return self._then("MapBatch", MapBatchSpec(func), output_type)

    def filter_batch(self, func: Callable[[pa.RecordBatch], Any]) -> DataStream:
        """Keeps some records of each batch. Not in PyFlink.

        Args:
            func: Takes the records as `map_batch` does. Returns a boolean for each of them, as an Arrow or numpy array;
                those with null are dropped.
        """
        if not callable(func) or isinstance(func, type):
            raise ConfigurationError(f"filter_batch() needs a function of a record batch, not {shown(func)}")
        return self._then("FilterBatch", FilterBatchSpec(func), self.get_type())

    def process(self, func: ProcessFunction, output_type: TypeInformation | None = None) -> DataStream:
        """Turns each record into any number of records, with side outputs."""
        if not isinstance(func, ProcessFunction):
            keyed = "; for keyed state and timers call key_by() first" if isinstance(func, KeyedProcessFunction) else ""
            raise ConfigurationError(
                f"process() of a stream that is not keyed needs a ProcessFunction, not {shown(func)}{keyed}"
            )
        return self._then("Process", ProcessSpec(func), output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Keeps some fields of a stream of tuples, in the given order.

        Args:
            field_indexes: Indexes of the fields, from 0.
        """
        projected = projected_type(self.get_type(), field_indexes)
        return self.map(lambda value: tuple(value[i] for i in field_indexes), projected).name("Projection")

    def key_by(self, key_selector: Selector, key_type: TypeInformation | None = None) -> KeyedStream:
        """Partitions the stream by key: records with equal keys go to the same subtask.

        Args:
            key_selector: A function of the record, a `KeySelector`, or the name or names of its key fields. Names are
                the fastest, because whole columns are hashed.
            key_type: The type of the key. Default: LONG for ``int``, DOUBLE for ``float``, STRING for ``str``.
        """
        return KeyedStream(self._upstream.key_by(key_selector, key_type), self._transformation)

    def union(self, *streams: DataStream) -> DataStream:
        """Combines streams of one type into a stream of all their records."""
        for other in streams:
            check_argument("union()", other, DataStream, "streams")
            self._upstream.check_same_program(other._upstream)
            if other.get_type() != self.get_type():
                raise JobGraphError(f"union() needs streams of one type, not {self.get_type()} and {other.get_type()}")
        inputs = tuple(i for stream in (self, *streams) for i in stream._upstream.inputs)
        return self._with_inputs(inputs)

    def _with_inputs(self, inputs: tuple[Input, ...]) -> DataStream:
        return DataStream(Upstream(self._upstream.program, inputs), self._transformation)

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream[DataStream]:
        """Groups all records of the stream into windows, in one subtask."""
        return AllWindowedStream(self._upstream, window_assigner)

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams[DataStream]: ...

    @overload
    def connect(self, ds: DataStream, *streams: DataStream) -> MultipleConnectedStreams[DataStream]: ...

    @overload
    def connect(self, ds: BroadcastStream[DataStream]) -> BroadcastConnectedStream[DataStream]: ...

    def connect(
        self, ds: DataStream | BroadcastStream[DataStream], *streams: DataStream
    ) -> MultipleConnectedStreams[DataStream] | BroadcastConnectedStream[DataStream]:
        """Connects streams, which may differ in type, for one function that reads all of them.

        Args:
            ds: The second stream.
            streams: More streams, which PyFlink does not have. The function then has an input for each.

        Raises:
            ConfigurationError: An argument is not a stream, or a broadcast stream is not the only argument.
            JobGraphError: The streams belong to different environments.
        """
        if isinstance(ds, BroadcastStream) and not streams:
            return BroadcastConnectedStream(self._upstream, ds)
        wanted = "data streams" if streams else "a stream, or what broadcast(descriptor) returns"
        for each in (ds, *streams):
            check_argument("connect()", each, DataStream, wanted)
        if not streams:
            return ConnectedStreams(self._upstream, ds._upstream)
        return MultipleConnectedStreams(self._upstream, ds._upstream, *(each._upstream for each in streams))

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Assigns event times to the records, and generates watermarks. Raises as ``env.from_source()`` does."""
        wanted = "a WatermarkStrategy, such as WatermarkStrategy.for_monotonous_timestamps()"
        check_argument("assign_timestamps_and_watermarks()", watermark_strategy, WatermarkStrategy, wanted)
        check_timestamp_field(watermark_strategy, self.get_type())
        return self._then("Timestamps/Watermarks", TimestampsSpec(watermark_strategy), self.get_type())

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """Returns the side output of this operator with this tag. `JobGraphError` if it has none, as ``map()``."""
        check_argument("get_side_output()", output_tag, OutputTag, "an OutputTag, such as OutputTag('late', type_info)")
        if len(self._upstream.inputs) > 1:
            raise JobGraphError("united streams have no side outputs: call get_side_output() on each before union()")
        return self._with_inputs((Input(self._transformation, FORWARD, self._transformation.side_output(output_tag)),))

    # --- partitioning ------------------------------------------------------------------------------------------------

    def blocking(self, retain: timedelta | None = None) -> DataStream:
        """Writes the stream to the store once, for every operator that reads the result. Not in PyFlink.

        The operators after it form a separate pipelined region of the job. It reads what was written in an epoch while
        the operators before it run the next one. Call it before ``key_by()``, ``rebalance()`` and the like.

        Args:
            retain: How long the store keeps what was written, so that operators after it can be recomputed.
                Default: until they have read it.

        Raises:
            JobGraphError: The stream is keyed, its records have no type, or ``retain`` is not above 0.
        """
        check_blocking(self.get_type(), retain, keyed=self.is_keyed)
        return self._with_inputs(
            tuple(replace(i, blocking=True, retain=retain or i.retain) for i in self._upstream.inputs)
        )

    def transform_spark(self, func: DataFrameFunction, output_type: RowTypeInfo | None = None) -> DataStream:
        """Applies a function to the records as a Spark DataFrame. Not in PyFlink.

        The function runs on the driver, once in each epoch, with the records of that epoch
        only: an aggregation covers one epoch. Epochs without records are skipped. The stream is first written to the
        store, as by `blocking`, so the operators from here on form a separate pipelined region.

        The DataFrame has the fields of the records and a column ``rowtime``: the event time in milliseconds, or null.
        If the result also has a column ``rowtime``, it becomes the event time of the new records. Otherwise they have
        no event time.

        Args:
            func: Takes a DataFrame and returns another one.
            output_type: The columns to read, by name, and their types, which may be wider. Default: all columns; Spark
                is asked for their types when the program is declared. Required in a Dagster code location, which loads
                without Spark.

        Raises:
            JobGraphError: The stream is keyed or partitioned, or its records have no fields or a field ``rowtime``.
            ConfigurationError: No ``Types`` fits the type of a column, or the type is required and missing.
            UserFunctionError: The function failed on the empty DataFrame that was used to find the type.
            TypeMismatchError: The function did not return a DataFrame that can be read.
        """
        upstream = self.blocking()._upstream
        if any(i.partitioner.kind is not PartitionerKind.FORWARD for i in upstream.inputs):
            raise JobGraphError("transform_spark() cannot follow rebalance() and the like; call it before them")
        input_type = check_transform_types(self.get_type(), output_type)
        name = "Spark Transform"
        if output_type is None:
            output_type = spark_row_type("spark_transform_type", func, input_type, operator=name)
        source = SparkTransform("", output_type, function=func, input_type=input_type)
        spec = SparkTransformSpec(source, WatermarkStrategy.no_watermarks())
        return upstream.then(name, spec, output_type)

    def rescale(self) -> DataStream:
        """Sends records round robin to a share of the subtasks downstream, a different share for each subtask."""
        return self._partitioned(StreamPartitioner(PartitionerKind.RESCALE))

    def shuffle(self) -> DataStream:
        """Sends each record to a random subtask downstream. A replay sends it to the same one."""
        return self._partitioned(StreamPartitioner(PartitionerKind.SHUFFLE))

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelector | Callable[[Any], Any]
    ) -> DataStream:
        """Sends each record to the subtask that the partitioner chooses.

        Args:
            partitioner: Takes a key and the number of subtasks, and returns the index of one.
            key_selector: Returns the key of a record.
        """
        as_callable(partitioner, Partitioner, "partition")
        as_callable(key_selector, KeySelector, "get_key")
        return self._partitioned(StreamPartitioner(PartitionerKind.CUSTOM, key_selector, custom=partitioner))

    def forward(self) -> DataStream:
        """Sends the records of subtask i to subtask i. This is the default. It rebalances if parallelisms differ."""
        return self._partitioned(StreamPartitioner(PartitionerKind.FORWARD))

    def rebalance(self) -> DataStream:
        """Sends records round robin to all subtasks downstream."""
        return self._partitioned(StreamPartitioner(PartitionerKind.REBALANCE))

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self, broadcast_state_descriptor: MapStateDescriptor, *other_broadcast_state_descriptors: MapStateDescriptor
    ) -> BroadcastStream[DataStream]: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> DataStream | BroadcastStream[DataStream]:
        """Sends every record to every subtask downstream.

        Args:
            broadcast_state_descriptor: Broadcast state that a function keeps. The result can then be connected to
                another stream.
            other_broadcast_state_descriptors: Further broadcast state.
        """
        stream = self._partitioned(StreamPartitioner(PartitionerKind.BROADCAST))
        if broadcast_state_descriptor is None:
            return stream
        return BroadcastStream(stream._upstream, [broadcast_state_descriptor, *other_broadcast_state_descriptors])

    def global_(self) -> DataStream:
        """Sends all records to subtask 0."""
        return self._partitioned(StreamPartitioner(PartitionerKind.GLOBAL))

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Writes the stream to a sink."""
        check_argument("sink_to()", sink, Sink, "a sink, such as ParquetSink(location)")
        sink.validate(None if isinstance(self.get_type(), PickledBytesTypeInfo) else self.get_type())
        return DataStreamSink(self._then("Sink", SinkSpec(sink), self.get_type())._transformation)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Prints the records where the program was started, once the checkpoint that covers them is complete.

        Args:
            sink_identifier: The prefix of each line. With several subtasks, the number of the subtask follows it.
        """
        check_argument("print()", sink_identifier, (str, type(None)), "text as the prefix of the lines")
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
        """Runs the program and returns the records of this stream, for tests and notebooks.

        A keyed stream returns a ``Row(f0=key, f1=record)`` for each record, as in PyFlink.
        The program runs while the records are read. Afterwards the environment is empty, as after ``env.execute()``.

        Args:
            job_execution_name: The name of the job.
            limit: Return at most this many records, as a list.
        """
        if limit is not None:
            check_count("execute_and_collect()", "limit", limit, "records")
        upstream = self._to_collect()._upstream
        records = CloseableIterator(upstream.program.execute_and_collect(upstream, job_execution_name))
        if limit is None:
            return records
        with records:
            return list(islice(records, limit))

    def _to_collect(self) -> DataStream:
        return self


class KeyedStream(DataStream):
    """A stream whose records have keys."""

    def _to_collect(self) -> DataStream:
        # In front of the shuffle and with the parallelism there, so that the order of the records is kept.
        selector = self._upstream.inputs[0].partitioner.selector
        keyed = self._partitioned(StreamPartitioner(PartitionerKind.FORWARD)).map(WithKey(selector)).name("With key")
        keyed._transformation.parallelism = self._transformation.parallelism
        keyed._transformation.default_parallelism = self._transformation.default_parallelism
        return keyed

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None) -> DataStream:
        """Turns each record into one record; a MapFunction may use keyed state."""
        if isinstance(func, MapFunction):
            return self.process(KeyedMapAdapter(func), output_type).name("Map")
        return super().map(func, output_type)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """Turns each record into any number of records; a FlatMapFunction may use keyed state."""
        if isinstance(func, FlatMapFunction):
            return self.process(KeyedFlatMapAdapter(func), output_type).name("FlatMap")
        return super().flat_map(func, output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keeps the records for which the function returns true; a FilterFunction may use keyed state."""
        if isinstance(func, FilterFunction):
            return self.process(KeyedFilterAdapter(func), self.get_type()).name("Filter")
        return super().filter(func)

    def process(
        self, func: KeyedProcessFunction | ProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Applies a function with keyed state and timers to each record."""
        if not isinstance(func, (KeyedProcessFunction, ProcessFunction)):
            raise ConfigurationError(f"process() of a keyed stream needs a KeyedProcessFunction, not {shown(func)}")
        if isinstance(func, ProcessFunction):
            return self._then("Process", ProcessSpec(func), output_type)
        return self._then("KeyedProcess", KeyedProcessSpec(func), output_type)

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Reduces the records of each key, and emits the result so far after each record."""
        as_callable(func, ReduceFunction, "reduce")
        return self._then("Reduce", ReduceSpec(func, self.get_type()), self.get_type())

    def shuffle(self) -> DataStream:
        """Raises `JobGraphError`: the records of a key cannot be sent to another subtask."""
        raise JobGraphError("the records of a keyed stream go to the subtask of their key; call this before key_by()")

    rescale = rebalance = forward = shuffle

    def broadcast(self, *args: MapStateDescriptor) -> DataStream:  # type: ignore[override]
        """Raises `JobGraphError`, like `shuffle`."""
        return self.shuffle()

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeySelector | Callable[[Any], Any]
    ) -> DataStream:
        """Raises `JobGraphError`, like `shuffle`."""
        return self.shuffle()

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Emits the sum of a field per key after each record. The other fields are those of the key's first record.

        Args:
            position_to_sum: The index or name of the field; 0 if the records are plain values.
        """
        return self._accumulate("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """Emits the least value of a field per key so far. The other fields are those of the key's first record."""
        return self._accumulate("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """Emits the greatest value of a field per key so far. The other fields are those of the key's first record."""
        return self._accumulate("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """Emits the record with the least value of a field per key so far. If values are equal, the first record."""
        return self._accumulate("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """Emits the record with the greatest value of a field per key so far. If values are equal, the first record."""
        return self._accumulate("max_by", position_to_max_by)

    def _accumulate(self, fold: AccumulateType, position: int | str) -> DataStream:
        check_field(self.get_type(), position, f"{fold}()")
        result_type = type_of_sum(self.get_type(), position) if fold == "sum" else self.get_type()
        return self._then(fold.title(), ReduceSpec(Accumulation(fold, position), result_type), result_type)

    def count(self) -> DataStream:
        """Emits the number of records per key so far: rows with the key's fields and ``count``."""
        return self._rolling(CountAggregate())

    def mean(self, field: int | str = 0) -> DataStream:
        """Emits the mean of a field per key so far: rows with the key's fields and ``mean``, a double.

        Args:
            field: The index or name of the field; 0 if the records are plain values.
        """
        check_is_number(self.get_type(), field, "mean()")
        return self._rolling(MeanAggregate(field))

    def agg(self, function: BatchAggregateFunction | None = None, /, **aggregations: Aggregation) -> DataStream:
        """Emits aggregations per key so far: the key's fields and those of the results. Not in PyFlink.

        Args:
            function: An aggregation in columns. Default: built-in ones.
            aggregations: The built-in aggregations, by the name of their field.

        Raises:
            ConfigurationError: An aggregation does not fit the records; or two fields would have one name.
        """
        return self._rolling(aggregate_of(function, aggregations, self.get_type()))

    def _rolling(self, aggregate: BuiltInAggregate) -> DataStream:
        names, types, flat = self._upstream.key_fields(f"{aggregate.name}()")
        spec = RollingAggregateSpec(aggregate, self.get_type(), flat=flat)
        return self._then(aggregate.name.title(), spec, result_row(names, types, aggregate.results))

    def process_batch(self, func: KeyedBatchFunction, output_type: TypeInformation) -> DataStream:
        """Applies a function with keyed state to batches of records, as Arrow columns.

        Args:
            func: The function.
            output_type: The type of the records it returns.
        """
        if not isinstance(func, KeyedBatchFunction):
            raise ConfigurationError(f"process_batch() needs a KeyedBatchFunction, not {shown(func)}")
        check_column_type(output_type)
        return self._then("ProcessBatch", KeyedBatchSpec(func), output_type)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream[DataStream]:
        """Groups the records of each key into windows."""
        return WindowedStream(self._upstream, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[DataStream]:
        """Groups the records of each key into windows by count.

        Args:
            size: The number of records in a window.
            slide: A new window starts after this many records. Default: when the previous one is full.
        """
        return self.window(CountSlidingWindowAssigner(size, slide) if slide else CountTumblingWindowAssigner(size))
