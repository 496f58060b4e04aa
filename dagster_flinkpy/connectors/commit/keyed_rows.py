"""Rows that replace those with the same key. Subtasks stage them, and the driver writes them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.staged_rows import StagedRowsWriter
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.datastream.connectors.base import WriterInitContext
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["KeyedRowsWriter", "last_of_each", "without"]

_ROW = "__row"


class KeyedRowsWriter(StagedRowsWriter):
    """Stages rows whose key is not null.

    Args:
        files: The folder, and how to write into it.
        key: The columns of the key.
        table: The table, for messages.
        context: Who is writing.
        type_info: Type of the records.
    """

    def __init__(
        self,
        files: TableSink,
        key: Sequence[str],
        table: str,
        context: WriterInitContext,
        type_info: TypeInformation,
    ) -> None:
        super().__init__(files, context, type_info)
        self._key, self._table, self._columns = key, table, list(columns_of(type_info))

    def write(self, column: pa.Array) -> None:
        arrays = column.flatten() if pa.types.is_struct(column.type) else [column]
        for name, array in zip(self._columns, arrays, strict=True):
            if name in self._key and array.null_count:
                raise TypeMismatchError(
                    f"a row for {self._table} has null in column {name!r}, which is part of its key: filter() it out"
                )
        super().write(column)


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the last row of each key, in the order of the rows."""
    last = _numbered(rows, key).group_by(list(key)).aggregate([(_ROW, "max")])
    return rows.take(last.column(f"{_ROW}_max").sort())


def without(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the rows whose key none of the others has."""
    numbered = _numbered(rows, key)
    numbered = numbered.cast(pa.schema([*(others.schema.field(name) for name in key), numbered.schema.field(_ROW)]))
    # Only the key is joined: PyArrow cannot carry nested columns through a join.
    kept = numbered.join(others.select(list(key)), keys=list(key), join_type="left anti")
    return rows.take(kept.column(_ROW).sort())


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.select(list(key)).append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
