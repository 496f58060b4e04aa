"""Spark DataFrames in a program: one as a bounded source, and a stream that passes through one.

What executes them is found by the registry. Their functions run on the driver, so they do not travel with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.exchange import ExchangeSource
from dagster_flinkpy.registry import resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    DataFrameFactory = Callable[[SparkSession], DataFrame]
    DataFrameFunction = Callable[[DataFrame], DataFrame]

__all__ = ["ROWTIME", "SparkSource", "SparkTransform"]

ROWTIME = "rowtime"
"""Column of a record's event time in `transform_spark`: milliseconds, null where it has none (Flink: ``rowtime``)."""


@dataclass(frozen=True)
class SparkSource(Source):
    """Reads a DataFrame, all of it in one epoch."""

    df_factory: DataFrameFactory | None
    """Makes the DataFrame; None on the workers."""
    type_info: TypeInformation
    location: Any = None
    """The job's prefix of segments, a ``StorageLocation``; set when the job runs."""
    uid: str = ""
    """Uid of the operator; set when the job runs."""

    @property
    def produced_type(self) -> TypeInformation:
        return self.type_info

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        enumerator: SplitEnumerator = resolve("spark_source_enumerator")(self, restored)
        return enumerator

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Yields structs of ``value`` and ``timestamp``."""
        batches: Iterator[tuple[pa.Array, int]] = resolve("exchange_reader")(self.location, self.uid, split)
        return batches

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, self.type_info, self.location, self.uid)


@dataclass(frozen=True)
class SparkTransform(ExchangeSource):
    """Reads what an exchange sink has written as a DataFrame, and what a function makes of it."""

    function: DataFrameFunction | None = None
    """Is given the records of one checkpoint; None on the workers."""
    input_type: RowTypeInfo | TupleTypeInfo | None = None
    """Of the stream; None on the workers."""
    uid: str = ""
    """Uid of the operator; set when the job runs."""

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        enumerator: SplitEnumerator = resolve("spark_transform_enumerator")(self, restored)
        return enumerator

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Yields structs of ``value`` and ``timestamp``."""
        batches: Iterator[tuple[pa.Array, int]] = resolve("exchange_reader")(self.location, self.uid, split)
        return batches

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.sink_uid, self.type_info, self.location, None, None, self.uid)
