"""Rows that a user's function has loaded, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.columns.column_casts import cast_rows
from dagster_flinkpy.errors import InputTypeError, SourceReadError, TypeMismatchError

__all__ = ["columns_of_rows"]

_BATCH_RECORDS = 8192


def columns_of_rows(rows: Any, row_type: RowTypeInfo, where: str) -> Iterator[pa.Array]:
    """Yields rows, batch by batch, of a table or record batch of Arrow, a pandas DataFrame, or an iterable of rows."""
    if type(rows).__module__.partition(".")[0] == "pandas":
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        if missing := [name for name in row_type.field_names if name not in rows.column_names]:
            raise SourceReadError(f"what {where} returned has no column {missing[0]!r}, only {rows.column_names}")
        for batch in rows.to_batches(max_chunksize=_BATCH_RECORDS):
            try:
                yield cast_rows(batch, row_type)
            except TypeMismatchError as error:
                raise InputTypeError(f"what {where} returned: {error}") from error
        return
    try:
        values = iter(rows)
    except TypeError:
        raise SourceReadError(
            f"{where} returned {type(rows).__name__}: return a pyarrow.Table, a pandas DataFrame, or rows"
        ) from None
    while batch := list(islice(values, _BATCH_RECORDS)):
        yield row_type.to_arrow(batch)
