"""Records as functions of batches take and return them: record batches with a column per field."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.errors import TypeMismatchError, shorten

__all__ = ["check_table", "record_batch", "shown_value", "table_column"]


def check_table(returned: Any, what: str, wanted: str = "a record batch or a table") -> None:
    """Checks that a function has returned columns."""
    if not isinstance(returned, (pa.RecordBatch, pa.Table)):
        raise TypeMismatchError(f"{what} returned {shown_value(returned)}; it must return {wanted}")


def table_column(table: Any, kind: TypeInformation, what: str) -> pa.Array[Any]:
    """Returns the records of a table as a column of the declared type. An error names what does not fit."""
    if not isinstance(kind, RowTypeInfo):
        if table.num_columns != 1:
            raise TypeMismatchError(f"{what}: declared {kind}, got the columns {table.schema.names}")
        return fit_column(table.column(0), kind, what)
    if sorted(table.schema.names) != sorted(kind.field_names):
        raise TypeMismatchError(
            f"{what}: declared the fields {list(kind.field_names)}, got the columns {table.schema.names}"
        )
    columns = [
        fit_column(table.column(name), field, f"{what}, field {name!r}")
        for name, field in zip(kind.field_names, kind.field_types, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind.arrow_type))


def record_batch(records: pa.Array[Any], kind: TypeInformation) -> pa.RecordBatch:
    """Returns a column of records as a batch with a column per field, or one column ``value``."""
    column: Any = records
    if not isinstance(kind, RowTypeInfo):
        return pa.RecordBatch.from_arrays([column], names=["value"])
    if column.null_count:
        record = pc.index(column.is_null(), True).as_py()
        raise TypeMismatchError(f"record {record} of a batch is None; filter such records out first")
    return pa.RecordBatch.from_arrays(column.flatten(), names=list(kind.field_names))


def shown_value(value: Any) -> str:
    """Returns a value as a message shows it: columns and tables, which take many lines, by their type."""
    text = repr(value)
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>" if "\n" in text else shorten(text, 200)
