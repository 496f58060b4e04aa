"""What PyFlink's tests use to look at this library's results, and is not here: Java classes, plans, tables of one map.

A test that needs more of them is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any, NoReturn

import pytest

from dagster_flinkpy.common import Duration, Row, Types
from dagster_flinkpy.datastream import DataStream, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.functions import MapFunction
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.task.operator_task import OperatorTask

NO_JVM, TABLE_API = "needs a JVM", "needs the Table API"


def leave_out(reason: str) -> NoReturn:
    """Skips a test. The raised object is not an ``Exception``, so that ``assertRaises`` does not catch it."""
    pytest.skip(reason, allow_module_level=True)


# --- Java ------------------------------------------------------------------------------------------------------------


class _InItsSubtask(MapFunction):
    """Fails for a record that is not in the subtask of its second field."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.index = runtime_context.get_index_of_this_subtask()
        self.count = runtime_context.get_number_of_parallel_subtasks()

    def map(self, value: Any) -> Any:
        assert value[1] % self.count == self.index, f"{value} is in subtask {self.index}"
        return value


_AT_ONCE = Duration(-1)
"""The bound of a strategy whose watermark is the timestamp of the last record, and comes with each record."""
_JAVA = {
    "org.apache.flink.python.util.PartitionCustomTestMapFunction": _InItsSubtask,
    "org.apache.flink.api.common.eventtime.WatermarkStrategy.forGenerator": lambda supplier: supplier,
    "org.apache.flink.streaming.api.functions.python.eventtime.PerElementWatermarkGenerator.getSupplier": (
        lambda: _AT_ONCE
    ),
}


class _Java:
    """A package or class of Java."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}".lstrip(".")
        if path in _JAVA:
            return _JAVA[path]
        if not any(known.startswith(f"{path}.") for known in _JAVA):
            leave_out(NO_JVM)
        return _Java(path)


class _Gateway:
    jvm = _Java("")

    def __getattr__(self, name: str) -> Any:
        leave_out(NO_JVM)


class _JavaStream:
    """A stream that Java's functions read."""

    def __init__(self, stream: DataStream) -> None:
        self._stream = stream

    def map(self, function: MapFunction) -> Any:
        return self._stream.map(function, self._stream.get_type())

    def __getattr__(self, name: str) -> Any:
        leave_out(NO_JVM)


def get_gateway() -> Any:
    """Returns what has the Java classes that tests use."""
    return _Gateway()


def _on_records(task: OperatorTask, process: Callable[..., None], input_index: int, batch: StreamBatch) -> None:
    strategy = getattr(task.vertex.spec, "watermark_strategy", None)
    if strategy is None or strategy.max_out_of_orderness != _AT_ONCE:
        process(task, input_index, batch)
    else:
        for at in range(len(batch)):
            process(task, input_index, batch.record(at))


def _init_stream(stream: DataStream, init: Callable[..., None], upstream: Any, transformation: Any = None) -> None:
    if isinstance(upstream, DataStream):
        upstream, transformation = upstream._upstream, upstream._transformation
    init(stream, upstream, transformation)


# --- plans -----------------------------------------------------------------------------------------------------------


def get_execution_plan(env: StreamExecutionEnvironment) -> str:
    """Returns the operators and edges of a program as PyFlink shows them."""
    graph = env.get_job_graph()
    if any(edge.partitioner.kind is PartitionerKind.HASH for edge in graph.edges):
        leave_out("absent: operators that PyFlink adds to a plan for key_by()")
    ids = {vertex.uid: number for number, vertex in enumerate(graph.vertices, 1)}
    nodes = [
        {
            "id": ids[vertex.uid],
            "type": vertex.name,
            "pact": "Data Source" if not edges else "Operator" if graph.outputs(vertex.uid) else "Data Sink",
            "parallelism": vertex.parallelism,
            "predecessors": [{"id": ids[edge.source], "ship_strategy": edge.partitioner.kind.name} for edge in edges],
        }
        for vertex in graph.vertices
        for edges in [graph.inputs(vertex.uid)]
    ]
    return repr({"nodes": nodes})


# --- tables ----------------------------------------------------------------------------------------------------------


class _Table:
    """A table with one column, which is a stream."""

    def __init__(self, stream: DataStream) -> None:
        self.stream = stream

    def select(self, function: Callable[[Any], Any]) -> _Table:
        return _Table(self.stream.map(function, self.stream.get_type()))

    def execute(self) -> _Table:
        return self

    def collect(self) -> list[Row]:
        return [Row(value) for value in self.stream.execute_and_collect()]


class _TableEnvironment:
    """Turns a stream into a table, and back."""

    def from_data_stream(self, stream: DataStream, column: str) -> _Table:
        return _Table(stream)

    def to_append_stream(self, table: _Table, row_type: Any) -> DataStream:
        return table.stream.map(Row, row_type)

    def __getattr__(self, name: str) -> Any:
        leave_out(TABLE_API)


class DataTypes:
    """Types of columns."""

    BIGINT = staticmethod(Types.LONG)


class EnvironmentSettings:
    """Settings, of which there are none."""

    @staticmethod
    def in_streaming_mode() -> None:
        pass


class StreamTableEnvironment:
    """What makes a table environment."""

    @staticmethod
    def create(stream_execution_environment: Any, environment_settings: Any = None) -> _TableEnvironment:
        return _TableEnvironment()


def col(name: str) -> str:
    """Returns a column of a table, of which there is one."""
    return name


def udf(function: Callable[[Any], Any], result_type: Any) -> Callable[[str], Callable[[Any], Any]]:
    """Returns a function of columns, which selects a function of values."""
    return lambda column: function


# --- all of it -------------------------------------------------------------------------------------------------------


def install() -> None:
    """Lets the library's classes have what tests of PyFlink look at."""
    StreamExecutionEnvironment.get_execution_plan = get_execution_plan
    DataStream._j_data_stream = property(_JavaStream)
    DataStream.__init__ = partialmethod(_init_stream, DataStream.__init__)
    OperatorTask._on_records = partialmethod(_on_records, OperatorTask._on_records)
