"""Reads data files of Delta Lake and Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.connectors.ranged_file import RangedFile
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import SourceReadError, StorageError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.table_source import TableSource

__all__ = ["count_rows", "read_table_file"]

_FIELD_ID = b"PARQUET:field_id"


def read_table_file(source: TableSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads a data file from the split's offset on.

    A column has the name that it has in the table, or, if both have ids, the id. A column that the file does not have
    has the file's partition value, or is null.
    """
    path, size = split.properties["path"], split.properties["size"]
    store = source.location.open()
    try:
        with pq.ParquetFile(RangedFile(store, path, size), pre_buffer=True) as file:
            columns = _columns(file.schema_arrow, split)
            stop, end = split.properties.get("stop", file.metadata.num_rows), 0
            for group in range(file.num_row_groups):
                start, end = end, end + file.metadata.row_group(group).num_rows
                if end <= split.offset:
                    continue
                if start >= stop:
                    return
                there = [columns[name] for name in source.produced_type.field_names if name in columns]
                for batch in file.iter_batches(source.batch_rows, row_groups=[group], columns=there):
                    rows = batch.slice(min(max(split.offset - start, 0), batch.num_rows))
                    start += batch.num_rows
                    rows = rows.slice(0, max(rows.num_rows - max(start - stop, 0), 0))
                    if rows.num_rows:
                        yield _struct(source, split, rows, columns), min(start, stop)
    except (pa.ArrowException, OSError, StorageError) as error:
        raise SourceReadError(f"cannot read {store.url}/{path}: {error}") from error


def count_rows(source: TableSource, split: SourceSplit) -> int:
    """Returns the number of rows of a data file. Only its footer is read."""
    path, size = split.properties["path"], split.properties["size"]
    store = source.location.open()
    try:
        with pq.ParquetFile(RangedFile(store, path, size)) as file:
            return int(file.metadata.num_rows)
    except (pa.ArrowException, OSError, StorageError) as error:
        raise SourceReadError(f"cannot read {store.url}/{path}: {error}") from error


def _columns(schema: pa.Schema, split: SourceSplit) -> dict[str, str]:
    """Returns the names of columns in the file, by their names in the table."""
    ids = {(field.metadata or {}).get(_FIELD_ID): field.name for field in schema}
    ids.pop(None, None)
    if not ids or "ids" not in split.properties:
        return {name: name for name in schema.names}
    named = {name: ids.get(str(number).encode()) for name, number in split.properties["ids"].items()}
    return {name: found for name, found in named.items() if found is not None}


def _struct(source: TableSource, split: SourceSplit, rows: pa.RecordBatch, columns: dict[str, str]) -> pa.Array:
    fields, constants, arrays = list(source.produced_type.arrow_type), split.properties.get("values", {}), []
    for field in fields:
        if field.name in columns:
            arrays.append(rows.column(columns[field.name]).cast(field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(constants.get(field.name)).cast(field.type), rows.num_rows))
    return pa.StructArray.from_arrays(arrays, fields=fields)
