"""Opens a Parquet file, and reads a part of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["open_parquet", "rows_from"]


def open_parquet(store: ObjectStore, key: str, size: int, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Opens a file. INT96 is read as Spark does it: nanoseconds would overflow in years that are far away."""
    import pyarrow.parquet as pq

    file = RangedFile(store, key, size)
    return pq.ParquetFile(file, metadata=footer, pre_buffer=True, coerce_int96_timestamp_unit="us")


def rows_from(
    file: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str], batch_rows: int, offset: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields rows of some row groups, from an offset that counts over these, with the offset after them."""
    end = 0
    for group in groups:
        start, end = end, end + file.metadata.row_group(group).num_rows
        if end <= offset:
            continue
        # One row group at a time, because Arrow keeps what it has fetched until the next call. Without threads: a task
        # has one core, and they take up to half as much CPU time again.
        for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(columns), use_threads=False):
            start += batch.num_rows
            if start > offset:
                yield batch.slice(max(batch.num_rows - (start - offset), 0)), start
