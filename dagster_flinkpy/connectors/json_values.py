"""Values of Arrow columns as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from dagster_flinkpy.common.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.column_types import columns_of
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["to_json_text"]


def to_json_text(name: str, type_info: TypeInformation, value: Any) -> str:
    """Returns a value as JSON. Decimals and times become text, and so do the keys of maps.

    Args:
        name: The column, for messages.
        type_info: Type of the value.
        value: The value, as ``to_pylist()`` of a column returns it.

    Raises:
        TypeMismatchError: It has NaN or infinity, which JSON cannot contain.
    """
    try:
        return json.dumps(_plain(type_info, value), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise TypeMismatchError(f"column {name!r} has NaN or infinity, which JSON cannot contain: {value!r}") from error


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
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
