"""The types of keys whose type was not declared."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import UnsupportedKeyTypeError

__all__ = ["infer_key_type"]

_KEY_TYPES: dict[type, Callable[[], TypeInformation]] = {
    bool: Types.BOOLEAN,
    int: Types.LONG,
    float: Types.DOUBLE,
    str: Types.STRING,
    decimal.Decimal: Types.BIG_DEC,
    datetime.date: Types.SQL_DATE,
    datetime.time: Types.SQL_TIME,
    datetime.datetime: Types.SQL_TIMESTAMP,
    np.int8: Types.BYTE,
    np.int16: Types.SHORT,
    np.int32: Types.INT,
    np.int64: Types.LONG,
    np.float32: Types.FLOAT,
    np.float64: Types.DOUBLE,
    np.bool_: Types.BOOLEAN,
}


def infer_key_type(key: Any, field: str = "key") -> TypeInformation:
    """Returns the type of a key for which none was declared: ``int`` is LONG, ``float`` DOUBLE, ``str`` STRING.

    Raises:
        UnsupportedKeyTypeError: The key, or a field of it, has no stable hash; the message names the field.
    """
    kind = _KEY_TYPES.get(type(key))
    if kind is not None:
        return kind()
    if isinstance(key, Row) and len(key):
        names = list(key._names or [f"f{i}" for i in range(len(key))])
        values = list(key)
        types = [infer_key_type(v, f"{field}.{n}") for n, v in zip(names, values, strict=True)]
        return RowTypeInfo(types, None if key._names is None else names)
    if isinstance(key, tuple) and key:
        return TupleTypeInfo([infer_key_type(v, f"{field}[{i}]") for i, v in enumerate(key)])
    if isinstance(key, (bytes, list, dict, set)):
        hint = "use a str, an int or a tuple of them"
    else:
        hint = "keys may be bool, int, float, str, Decimal, date, time, datetime, or tuples and Rows of some of them"
    shown = "None" if key is None else f"{type(key).__name__}: {key!r}"
    raise UnsupportedKeyTypeError(f"{field} is {shown}; {hint}")
