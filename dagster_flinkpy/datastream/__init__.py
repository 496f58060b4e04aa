"""The DataStream API (``pyflink.datastream``)."""

from dagster_flinkpy.datastream.data_stream import (
    ConnectedStreams,
    DataStream,
    DataStreamSink,
    KeyedStream,
    WindowedStream,
)
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.stream_execution_environment import CheckpointConfig, StreamExecutionEnvironment
from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.datastream.timerservice import TimerService

__all__ = [
    "AggregateFunction",
    "CheckpointConfig",
    "CoProcessFunction",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimerService",
    "WindowedStream",
]
