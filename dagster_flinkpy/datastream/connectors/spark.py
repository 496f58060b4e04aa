"""Spark DataFrames in a program: as a source, and as a transformation of a stream.

The registry names the code that executes them. Their functions run on the driver, so they are not sent to the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.blocking_edge import BlockingEdgeSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import JobGraphError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    DataFrameFactory = Callable[[SparkSession], DataFrame] | Callable[[SparkSession, TimePartition], DataFrame]
    DataFrameFunction = Callable[[DataFrame], DataFrame]

__all__ = ["ROWTIME", "PartitionedSparkSource", "SparkSource", "SparkTransform", "check_transform_types"]

ROWTIME = "rowtime"
"""The column with the event time of records in `transform_spark`: milliseconds or null (Flink: ``rowtime``)."""


@dataclass(frozen=True)
class SparkSource(Source):
    """Reads a whole DataFrame in one epoch: once, or once in each run."""

    df_factory: Callable[..., DataFrame] | None
    """Function that returns the DataFrame; None on the workers."""
    type_info: TypeInformation
    location: Any = None
    """The storage prefix of the job's segments, a ``StorageLocation``; set when the job runs."""
    uid: str = ""
    """The uid of the operator; set when the job runs."""
    bounded: bool | None = None
    """Whether the input ends when the DataFrame has been read. If not, each run reads it again. None: it ends if
    ``env.execute()`` runs the program, and in Dagster each run reads it again."""

    @property
    def produced_type(self) -> TypeInformation:
        return self.type_info

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered("spark_source_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Yields structs of ``value`` and ``timestamp``."""
        return call_registered("blocking_edge_reader", self.location, self.uid, split, self.produced_type)

    def continuous(self) -> SparkSource:
        return replace(self, bounded=False) if self.bounded is None else self

    def on_workers(self) -> SparkSource:
        """Returns the source without the function."""
        return replace(self, df_factory=None)


@dataclass(frozen=True)
class PartitionedSparkSource(SparkSource, PartitionedSource):
    """Reads the DataFrame of a time partition, which the factory takes as its second argument."""

    def for_partition(self, partition: TimePartition) -> SparkSource:
        factory = self.df_factory
        assert factory is not None, "partitions are read on the driver"
        return SparkSource(
            lambda spark: factory(spark, partition), self.type_info, self.location, self.uid, bounded=True
        )


@dataclass(frozen=True)
class SparkTransform(BlockingEdgeSource):
    """Reads what the sink of a blocking edge has written as a DataFrame, and applies a function to it."""

    function: DataFrameFunction | None = None
    """Function of the records of one epoch; None on the workers."""
    input_type: RowTypeInfo | TupleTypeInfo | None = None
    """The type of the stream; None on the workers."""
    uid: str = ""
    """The uid of the operator; set when the job runs."""

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered("spark_transform_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Yields structs of ``value`` and ``timestamp``."""
        return call_registered("blocking_edge_reader", self.location, self.uid, split, self.produced_type)

    def on_workers(self) -> SparkTransform:
        """Returns the source without the function."""
        return replace(self, function=None, input_type=None)


def check_transform_types(input_type: TypeInformation, output_type: RowTypeInfo | None) -> RowTypeInfo | TupleTypeInfo:
    """Checks the types of a function of DataFrames, and returns that of its input.

    Raises:
        JobGraphError: The records have no fields, or there is a field ``rowtime``.
        ConfigurationError: A decimal number has no scale.
    """
    if not isinstance(input_type, (RowTypeInfo, TupleTypeInfo)):
        raise JobGraphError(
            f"transform_spark() needs records with fields, not {input_type}: declare "
            "output_type=Types.ROW_NAMED(...) on the operator before it"
        )
    for each in (input_type, output_type):
        if each is not None:
            wanted = "Types.ROW_NAMED(...) as output_type"
            check_argument("transform_spark()", each, (RowTypeInfo, TupleTypeInfo), wanted)
            if ROWTIME in each.field_names:
                raise JobGraphError(f"transform_spark(): {ROWTIME!r} is the column of event time; rename the field")
            check_has_scale(each, "transform_spark()")
    return input_type
