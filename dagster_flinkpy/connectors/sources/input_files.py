"""The files that a source finds in a folder, and the rows of those that are Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import (
    ConfigurationError,
    InputChangedError,
    InputTypeError,
    PathEscapesPrefixError,
    SourceReadError,
    StorageError,
    TypeMismatchError,
)
from dagster_flinkpy.storage import ObjectInfo, ObjectStore
from dagster_flinkpy.storage.object_store import RangedFile, check_relative

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["input_files", "is_hidden", "open_parquet", "reading", "rows_from"]


def is_hidden(key: str) -> bool:
    """Returns whether a source ignores a file: a part of its path begins with ``_`` or ``.``.

    As in Spark, a folder of the rows with a value in a column is no such part, even if the column is ``_day``.
    """
    *folders, name = key.split("/")
    return name.startswith((".", "_")) or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in folders
    )


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turns errors with a file into SourceReadErrors that name it."""
    import pyarrow as pa

    try:
        yield
    except TypeMismatchError as error:
        raise InputTypeError(f"cannot read {url}: {error}") from error
    except InputChangedError as error:
        raise InputChangedError(f"cannot read {url}: {error}") from error
    except (pa.ArrowException, OSError, ValueError, StorageError, SourceReadError, ConfigurationError) as error:
        raise SourceReadError(f"cannot read {url}: {error}") from error


def input_files(
    store: ObjectStore, selects: Callable[[str], bool] = lambda key: True, prefix: str = ""
) -> list[ObjectInfo]:
    """Lists the files of a source that are not hidden, sorted by name. Links in a local folder are followed.

    What cannot be read as a file, would be read twice, or has a name that cannot be part of a position is an error.
    """
    found = [
        info
        for info in store.list_input(lambda key: not is_hidden(key) and (key.endswith("/") or selects(key)), prefix)
        # S3 consoles make an empty object for a folder.
        if selects(info.key) and (info.size or info.key.rpartition("/")[2])
    ]
    for info in found:
        try:
            check_relative(info.key).encode()
        except (PathEscapesPrefixError, UnicodeEncodeError) as error:
            raise InputChangedError(
                f"the file {info.key!r} in {store.url} has a name that sources do not read: rename it to one of UTF-8 "
                "without line ends, other control characters, backslashes and empty parts, or move it away"
            ) from error
    return found


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
