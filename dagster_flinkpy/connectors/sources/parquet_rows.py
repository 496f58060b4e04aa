"""Opens a Parquet file, and reads a part of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["open_parquet", "rows_from"]

_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Spark writes them into files whose times it has counted as Java's old calendar does (``rebaseMode`` ``LEGACY``)."""


def open_parquet(
    store: ObjectStore,
    key: str,
    size: int,
    footer: pq.FileMetaData | None = None,
    check: Callable[[], object] = lambda: None,
) -> pq.ParquetFile:
    """Opens a file. INT96 is read as Spark does it: nanoseconds would overflow in years that are far away.

    ``check`` is called after each range that is read of it.
    """
    import pyarrow.parquet as pq

    file = RangedFile(store, key, size, check)
    return pq.ParquetFile(file, metadata=footer, pre_buffer=True, coerce_int96_timestamp_unit="us")


def rows_from(
    file: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str], batch_rows: int, offset: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields rows of some row groups, from an offset that counts over these, with the offset after them."""
    end, told = 0, file.metadata.metadata or {}
    is_old = told.get(b"org.apache.spark.version", b"").startswith(b"2.") or any(name in told for name in _OLD_CALENDAR)
    for group in groups:
        start, end = end, end + file.metadata.row_group(group).num_rows
        if end <= offset:
            continue
        # One row group at a time, because Arrow keeps what it has fetched until the next call. Without threads: a task
        # has one core, and they take up to half as much CPU time again.
        for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(columns), use_threads=False):
            if is_old:
                _check_times(batch)
            start += batch.num_rows
            if start > offset:
                yield batch.slice(max(batch.num_rows - (start - offset), 0)), start


def _check_times(batch: pa.RecordBatch) -> None:
    """Refuses times that Spark would move when it reads such a file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = list(zip(batch.schema.names, batch.columns, strict=True))
    for name, column in columns:
        if pa.types.is_struct(column.type):
            columns += [(name, each) for each in column.flatten()]
        elif pa.types.is_map(column.type):
            columns += [(name, column.keys), (name, column.items)]
        elif pa.types.is_list(column.type):
            columns.append((name, column.flatten()))
        elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            first = date(1582, 10, 15) if pa.types.is_date(column.type) else date(1900, 1, 1)
            found = pc.min(column.cast(pa.date32(), safe=False))
            if found.is_valid and pc.less(found, pa.scalar(first)).as_py():
                raise SourceReadError(
                    f"column {name!r} has times before {first}, and Spark has written them in its old calendar (by "
                    "version 2, or with rebaseMode LEGACY), in which they are other days: let Spark read the file and "
                    "write it again, or leave the column out of row_type"
                )
