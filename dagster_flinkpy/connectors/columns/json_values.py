"""Values of Arrow columns as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["to_json_lines", "to_json_text"]


def to_json_text(name: str, type_info: TypeInformation, value: Any) -> str:
    """Returns a value as JSON. Decimals and times become text, and so do the keys of maps."""
    try:
        return json.dumps(_plain(type_info, value), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise TypeMismatchError(f"column {name!r} has NaN or infinity, which JSON cannot contain: {value!r}") from error


def to_json_lines(types: dict[str, TypeInformation], table: pa.Table) -> str:
    """Returns a line with a JSON object for each row, as `to_json_text` writes it."""
    names = (encode_basestring(name).replace("%", "%%") for name in types)
    line = "{" + ", ".join(f"{name}: %s" for name in names) + "}\n"
    texts = [_texts(name, kind, table.column(name)) for name, kind in types.items()]
    return "".join([line % row for row in zip(*texts, strict=True)])


def _texts(name: str, type_info: TypeInformation, column: pa.ChunkedArray) -> list[str]:
    """Returns the values of a column as JSON."""
    kind, values = column.type, None
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = column.cast(pa.string()).to_pylist()
    elif pa.types.is_date(kind):
        values = [None if value is None else f'"{value}"' for value in column.cast(pa.string()).to_pylist()]
    elif pa.types.is_string(kind):
        values = [None if value is None else encode_basestring(value) for value in column.to_pylist()]
    elif pa.types.is_float64(kind) and pc.all(pc.is_finite(column)).as_py() is not False:
        values = [None if value is None else repr(value) for value in column.to_pylist()]
    if values is None:
        return [to_json_text(name, type_info, value) for value in column.to_pylist()]
    return values if not column.null_count else ["null" if value is None else value for value in values]


def _plain(type_info: TypeInformation, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_info, MapTypeInfo):
        key, item = type_info.key_type, type_info.value_type
        return {_key(_plain(key, k)): _plain(item, v) for k, v in value}
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return {field: _plain(kind, value[field]) for field, kind in columns_of(type_info).items()}
    if isinstance(type_info, ListTypeInfo):
        return [_plain(type_info.elem_type, each) for each in value]
    if type_info == Types.FLOAT():
        return float(str(np.float32(value)))  # the shortest digits, as in Java
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
