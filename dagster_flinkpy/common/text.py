"""Values as Flink prints them: typed values like ``toString()`` of the Java value, others with ``str()``."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from dagster_flinkpy.common.types import Row

__all__ = ["to_printed", "to_text"]


def to_printed(type_info: TypeInformation, value: Any) -> str:
    """Returns the value as ``print()`` shows it. PyFlink formats rows in Python, and everything else in Java."""
    if isinstance(type_info, RowTypeInfo) and isinstance(value, Row):
        return f"{value.get_row_kind()}[{','.join(str(_plain(field)) for field in value)}]"
    return str(value) if isinstance(type_info, PickledBytesTypeInfo) else to_text(type_info, value)


def _plain(value: Any) -> Any:
    """Returns the value with Python's numbers in place of numpy's, as it would be after a shuffle."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def to_text(type_info: TypeInformation, value: Any) -> str:
    """Returns the value as Java writes it."""
    if value is None:
        return "null"
    if isinstance(type_info, BasicTypeInfo):
        return _basic(type_info, value)
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        fields = [to_text(t, v) for t, v in zip(type_info.field_types, value, strict=True)]
        if isinstance(type_info, TupleTypeInfo):
            return f"({','.join(fields)})"
        kind = value.get_row_kind() if isinstance(value, Row) else "+I"
        return f"{kind}[{', '.join(fields)}]"
    if isinstance(type_info, ListTypeInfo):
        return f"[{', '.join(to_text(type_info.elem_type, v) for v in value)}]"
    if isinstance(type_info, MapTypeInfo):
        key, item = type_info.key_type, type_info.value_type
        return "{" + ", ".join(f"{to_text(key, k)}={to_text(item, v)}" for k, v in value.items()) + "}"
    return str(value)


def _basic(type_info: BasicTypeInfo, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (float, np.floating)):
        return _floating(np.float32(value) if type_info.name == "FLOAT" else np.float64(value))
    if isinstance(value, datetime.datetime):
        fraction = f"{value.microsecond:06d}".rstrip("0") or "0"
        return f"{value:%Y-%m-%d %H:%M:%S}.{fraction}"
    if isinstance(value, datetime.time):
        return value.strftime("%H:%M:%S")
    if isinstance(value, Instant):
        second = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=value.seconds)
        digits = next(n for n in (0, 3, 6, 9) if value.nanos % 10 ** (9 - n) == 0)  # the fewest groups of three
        return f"{second.isoformat()}{f'.{value.nanos:09d}'[: digits + 1] if digits else ''}Z"
    return str(value)


def _floating(value: Any) -> str:
    """Returns the shortest digits that identify the number, in the layout of ``Double.toString``."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, unique=True, trim="0"))
    text = np.format_float_scientific(value, unique=True, min_digits=1, trim="0", exp_digits=1)
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}E{int(exponent)}"
