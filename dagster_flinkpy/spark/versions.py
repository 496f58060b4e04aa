"""What not every version of PySpark has, from 3.5 on, and what takes its place.

| | from |
| --- | --- |
| a Spark Connect server in the package; tags of classic sessions; resource profiles of ``mapInArrow`` | 4.0 |
| DataFrames from Arrow and to Arrow | 4.0 |
| ``repartitionById``; the gRPC status of an error | 4.1 |
| zones of timestamps in ``to_arrow_type``; threads that outlive a session | 4.2 |
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.errors import NoResourceAvailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "arrow_schema",
    "arrow_type",
    "channel_builder",
    "condition_of",
    "data_frame",
    "frame_of_parts",
    "grpc_status",
    "has_connect_server",
    "has_stopped",
    "interrupt_tag",
    "is_classic",
    "map_in_arrow",
    "set_retries",
    "tagged",
    "to_arrow",
    "with_targets",
]

Function = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]

_STATUS = re.compile(r"StatusCode\.([A-Z_]+)")


def has_connect_server() -> bool:
    """Returns whether the installed PySpark can start a Spark Connect server. It is not imported for that."""
    return int(importlib.metadata.version("pyspark").partition(".")[0]) >= 4


def map_in_arrow(frame: DataFrame, function: Function, schema: Any, profile: Any) -> DataFrame:
    """Returns ``frame.mapInArrow`` with a resource profile, or None for the default one.

    Raises:
        NoResourceAvailableError: This PySpark takes no profile.
    """
    if profile is None:
        return frame.mapInArrow(function, schema)
    try:
        return frame.mapInArrow(function, schema, profile=profile)
    except TypeError as error:
        raise NoResourceAvailableError(
            f"tasks with cores or resources of their own need PySpark 4.0 or newer, not {_version()}: give the "
            "slot-sharing groups none"
        ) from error


def to_arrow(frame: DataFrame) -> pa.Table:
    """Runs a DataFrame, and returns its rows."""
    if hasattr(type(frame), "toArrow"):  # the frame itself would look for such a column, on the server
        return frame.toArrow()
    import pyarrow as pa

    return pa.Table.from_pylist([row.asDict() for row in frame.collect()], schema=arrow_schema(frame.schema))


def data_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """Returns a table of this process as a DataFrame."""
    schema = _spark_schema(table.schema)
    if has_connect_server():
        return session.createDataFrame(table, schema)
    return session.createDataFrame(list(zip(*(column.to_pylist() for column in table.columns), strict=True)), schema)


def _spark_schema(schema: pa.Schema) -> StructType:
    """Returns the columns of a DataFrame. By itself, PySpark would take times without a zone for local ones."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    types = [from_arrow_type(field.type, prefer_timestamp_ntz=True) for field in schema]
    return StructType([StructField(name, kind) for name, kind in zip(schema.names, types, strict=True)])


def frame_of_parts(
    session: SparkSession, schema: pa.Schema, read: Callable[[int], Iterable[pa.RecordBatch]], parts: int
) -> DataFrame:
    """Returns rows that Spark reads as a DataFrame, with one task for each part.

    Args:
        session: Its executors have this library.
        schema: The columns.
        read: Reads the rows of a part, in a task.
        parts: The number of parts.
    """
    spark_schema = _spark_schema(schema)
    if not parts:
        return session.createDataFrame([], spark_schema)
    return session.range(0, parts, 1, parts).mapInArrow(partial(_read_parts, read), spark_schema)


def _read_parts(
    read: Callable[[int], Iterable[pa.RecordBatch]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column(0).to_pylist():
            yield from read(part)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema of the rows of a DataFrame; timestamps are in UTC."""
    import pyarrow as pa

    return pa.schema([pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable) for each in schema])


def arrow_type(kind: DataType) -> pa.DataType:
    """Returns the Arrow type of a column of a DataFrame; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        return to_arrow_type(kind, timezone="UTC")
    except TypeError:  # before 4.2 they always are
        return to_arrow_type(kind)


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Gives the Spark jobs that this thread starts inside the context a tag."""
    if _tags_sessions(session):
        session.addTag(tag)
        try:
            yield
        finally:
            with suppress(AttributeError):  # a classic session that was stopped has no tags
                session.removeTag(tag)
        return
    session.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        with suppress(AttributeError):
            session.sparkContext.removeJobTag(tag)


def interrupt_tag(session: SparkSession, tag: str) -> None:
    """Ends the Spark jobs that have a tag. Any thread may call it."""
    if _tags_sessions(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)


def _tags_sessions(session: SparkSession) -> bool:
    return has_connect_server() or not is_classic(session)


def is_classic(session: SparkSession) -> bool:
    """Returns whether the driver of a session is in this process."""
    from pyspark.sql.session import SparkSession as ClassicSession

    return isinstance(session, ClassicSession)


def has_stopped(session: SparkSession) -> bool:
    """Returns whether the driver of a classic session has ended: its program or its cluster has stopped it."""
    context = session.sparkContext._jsc  # None if Python has stopped it
    if context is not None and context.sc().isStopped():
        session.stop()  # if only Java knows it, PySpark would give this session to whoever asks for one
        return True
    return context is None


def with_targets(rows: DataFrame, width: int) -> DataFrame:
    """Gives each row to the task ``target % width``, of ``width`` tasks.

    Args:
        rows: They have a column ``target``.
        width: The number of tasks.
    """
    from pyspark.sql import functions as F

    if hasattr(type(rows), "repartitionById"):
        return rows.repartitionById(width, F.expr(f"pmod(target, {width})"))
    # Spark hashes what it partitions by, so a task is addressed by a number whose hash it has.
    addresses = ", ".join(map(str, _addresses(width)))
    return rows.repartition(width, F.expr(f"array({addresses})[pmod(target, {width})]"))


@cache
def _addresses(width: int) -> Sequence[int]:
    """Returns numbers of which Spark puts the first one into the first of so many partitions, and so on."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(_spark_hash(number) % width, number)
        if len(found) == width:
            return [found[place] for place in range(width)]
    raise AssertionError


def _spark_hash(number: int) -> int:
    """Returns Spark's hash of an integer (Spark: ``Murmur3_x86_32.hashInt``, with the seed 42)."""
    mask = 0xFFFFFFFF
    k = number * 0xCC9E2D51 & mask
    k = (k << 15 | k >> 17) * 0x1B873593 & mask
    h = 42 ^ k
    h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & mask
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def channel_builder(url: str, options: list[tuple[str, Any]] | None) -> Any:
    """Returns what opens channels to a Spark Connect server.

    Args:
        url: The server.
        options: Options of gRPC.
    """
    from pyspark.sql.connect import client
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Results

    # Before 4.2, a session that is closed ends the threads with which all sessions release what they have read.
    if hasattr(Results, "shutdown"):
        Results.shutdown = classmethod(lambda cls: None)
    builder: Any = getattr(client, "DefaultChannelBuilder", None) or client.ChannelBuilder
    return builder(url, options)


def set_retries(session: SparkSession, tries: int, most_ms: int | None = None) -> None:
    """Sets how often, and after how long, a call to a Spark Connect server is repeated.

    Args:
        session: The session.
        tries: How often.
        most_ms: The longest wait between two tries, in milliseconds. Default: PySpark's.
    """
    longest = {} if most_ms is None else {"max_backoff": most_ms}
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy
    except ImportError:
        session.client._retry_policy.update(max_retries=tries, **longest)
        return
    session.client.set_retry_policies([DefaultPolicy(max_retries=tries, **longest)])


def grpc_status(error: BaseException) -> str | None:
    """Returns the name of the gRPC status of an error of Spark Connect, or of gRPC; None if it has none."""
    for method in ("getGrpcStatusCode", "code"):  # of an error of PySpark, and of gRPC itself
        if hasattr(error, method):
            return str(getattr(error, method)().name)
    found = _STATUS.search(str(error))  # older versions have only a text
    return None if found is None else found[1]


def condition_of(error: Any) -> str:
    """Returns the condition of an error of PySpark, such as ``NO_ACTIVE_SESSION``; empty if it has none."""
    for method in ("getCondition", "getErrorClass"):
        if hasattr(error, method):
            return str(getattr(error, method)() or "")
    return ""


def _version() -> str:
    return importlib.metadata.version("pyspark")
