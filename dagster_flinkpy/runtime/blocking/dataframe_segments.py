"""Writes the rows of a Spark DataFrame as segments, and reads segments as a DataFrame; both run on the executors.

Spark may retry a task or run it twice at the same time. So each try uses its own file names, and only files in the
result of the Spark job are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import cast_column
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import InputTypeError, TypeMismatchError
from dagster_flinkpy.runtime.blocking.segments import SegmentWriter, in_order, open_segments, read_segment
from dagster_flinkpy.runtime.failure import reported
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP
from dagster_flinkpy.spark.versions import arrow_schema, data_frame, to_arrow
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import check_shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["PartsTarget", "read_on_driver", "read_parts", "write_on_driver", "write_parts"]

_PART_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("number", pa.int32()),
        ("key", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
    ]
)
_PART_COLUMNS = "partition int, number int, key string, bytes bigint, rows bigint"


@dataclass(frozen=True)
class PartsTarget:
    """The place and the type with which the rows of a DataFrame are stored."""

    location: StorageLocation
    """Location of the operator's segments."""
    prefix: str
    """Prefix of the keys of the parts: a folder for each DataFrame."""
    operator: str
    """Uid of the operator, for error messages."""
    type_info: TypeInformation
    """Type of the records: the columns of the DataFrame in their order. If there is a ``rowtime``, it follows them."""

    @property
    def fields(self) -> list[pa.Field]:
        """The stored columns."""
        return list(cast(pa.StructType, self.type_info.arrow_type))


def write_parts(frame: DataFrame, target: PartsTarget) -> list[Json]:
    """Runs a DataFrame, stores its rows as segments, and returns the segments in order of the partitions.

    Raises:
        PySparkException: The Spark job failed; with a StoreUnreachableError if executors have no way to the store.
    """
    table = to_arrow(frame.mapInArrow(partial(_write_partition, target), _PART_COLUMNS))
    parts = sorted(table.to_pylist(), key=lambda part: (part["partition"], part["number"]))
    order = {partition: i for i, partition in enumerate(dict.fromkeys(part["partition"] for part in parts))}
    return [{"subtask": order[p["partition"]], **{name: p[name] for name in ("key", "bytes", "rows")}} for p in parts]


def write_on_driver(frame: DataFrame, target: PartsTarget) -> list[Json]:
    """Runs a DataFrame like :func:`write_parts`, and stores its rows from here, as those of one partition.

    Raises:
        PySparkException: The Spark job failed.
    """
    return [{"subtask": 0, **segment} for segment in _store(target, 0, to_arrow(frame).to_batches())]


def read_on_driver(
    spark: SparkSession, location: StorageLocation, folder: str, segments: Sequence[Json], schema: StructType
) -> DataFrame:
    """Returns segments like :func:`read_parts`, but reads them here."""
    store, columns = open_segments(location, folder), arrow_schema(schema)
    batches = [_frame_rows(rows, columns, folder) for each in segments for rows in read_segment(store, folder, each)]
    return data_frame(spark, pa.Table.from_batches(batches)) if batches else spark.createDataFrame([], schema)


def read_parts(
    spark: SparkSession, location: StorageLocation, folder: str, segments: Sequence[Json], schema: StructType
) -> DataFrame:
    """Returns segments as a DataFrame with one partition for each segment, and event time as the last column."""
    columns = arrow_schema(schema)
    numbers = spark.range(0, len(segments), 1, max(len(segments), 1))
    return numbers.mapInArrow(partial(_read_partition, location, folder, list(segments), columns), schema)


# --- on the executors -------------------------------------------------------------------------------------------------


def _write_partition(target: PartsTarget, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    with reported():
        check_shared(target.location.parent.parent)
        segments = _store(target, partition, batches)
    parts = [{"partition": partition, "number": i, **segment} for i, segment in enumerate(segments)]
    yield pa.RecordBatch.from_pylist(parts, schema=_PART_SCHEMA)


def _store(target: PartsTarget, partition: int, batches: Iterable[pa.RecordBatch]) -> list[Json]:
    name = f"{target.prefix}{partition:06d}.{uuid.uuid4().hex}"
    writer = SegmentWriter(target.location.open(), name, target.type_info)
    for batch in batches:
        if batch.num_rows:
            writer.write(*_records(target, batch))
    return writer.finish()


def _records(target: PartsTarget, batch: pa.RecordBatch) -> tuple[pa.StructArray, pa.Array]:
    """Converts rows to records and their event times."""
    try:
        columns = [cast_column(f.name, column, f.type) for f, column in zip(target.fields, batch.columns, strict=False)]
    except TypeMismatchError as error:
        raise InputTypeError(f"operator {target.operator!r}, the DataFrame: {error}") from error
    if len(columns) < batch.num_columns:
        timestamps = pc.fill_null(batch.columns[-1], NO_TIMESTAMP)
    else:
        timestamps = pa.array(np.full(batch.num_rows, NO_TIMESTAMP, dtype=np.int64))
    return pa.StructArray.from_arrays(columns, fields=target.fields), timestamps


def _read_partition(
    location: StorageLocation,
    folder: str,
    segments: Sequence[Json],
    columns: pa.Schema,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    store = open_segments(location, folder)
    with reported():
        check_shared(location.parent)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for records in read_segment(store, folder, segments[number]):
                    yield _frame_rows(records, columns, folder)


def _frame_rows(records: pa.RecordBatch, columns: pa.Schema, edge: str) -> pa.RecordBatch:
    """Converts records to rows of a DataFrame: their fields and event time."""
    timestamps = records.column("timestamp")
    rowtime = pc.if_else(pc.equal(timestamps, NO_TIMESTAMP), pa.scalar(None, pa.int64()), timestamps)
    values = in_order(records.column("value"), columns.names[:-1], edge)
    arrays = [*cast(pa.StructArray, values).flatten(), rowtime]
    cast_arrays = [array.cast(field.type) for array, field in zip(arrays, columns, strict=True)]
    return pa.RecordBatch.from_arrays(cast_arrays, names=columns.names)
