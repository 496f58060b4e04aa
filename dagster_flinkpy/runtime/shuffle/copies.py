"""Copies of values that are passed from one function to the next.

PyFlink pickles the output of a function before it calls the function again. Here, the output of many calls is gathered
first. If the function later changes a value, such as a list that it keeps in state, the gathered value must not change.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import sys
from typing import Any

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import BasicTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.common.types import Row, row_class

__all__ = ["ALONE", "PASSED", "copied", "flat_rows", "plain_row", "unchanging_types"]

ALONE = 1 if sys.version_info >= (3, 14) else 2
"""The result of ``getrefcount`` for a value that one local variable holds. Since Python 3.14 arguments are borrowed."""
PASSED = 1 if sys.version_info >= (3, 14) else 3
"""The same for an argument that is held by a local variable of the caller, too."""

_NUMBERS = frozenset({bool, int, float, complex, decimal.Decimal})
_TIMES = frozenset({datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Instant})
_UNCHANGING: frozenset[type] = _NUMBERS | _TIMES | {type(None), str, bytes}
_WITH_TUPLE: frozenset[type] = _UNCHANGING | {tuple}

_KEPT = frozenset({"BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "DOUBLE", "STRING", "CHAR"})
"""Basic types whose values do not change, and are the same when they have been in a column."""


def unchanging_types(type_info: TypeInformation) -> frozenset[type]:
    """Returns the Python types whose values need no copy as records of this type."""
    flat = isinstance(type_info, TupleTypeInfo) and all(map(_is_unchanging, type_info.field_types))
    return _WITH_TUPLE if flat else _UNCHANGING


def flat_rows(type_info: TypeInformation) -> frozenset[type]:
    """Returns the row types whose values need no copy as records of this type if nothing else refers to them."""
    if not isinstance(type_info, RowTypeInfo) or not all(map(_is_unchanging, type_info.field_types)):
        return frozenset()
    width = len(type_info.field_types)
    return frozenset({row_class(None, width), row_class(type_info.field_names, width)})


def _is_unchanging(type_info: TypeInformation) -> bool:
    return isinstance(type_info, BasicTypeInfo) and type_info.name != "BYTES"  # which may be a bytearray


def plain_row(type_info: TypeInformation) -> type[Row] | None:
    """Returns the class of rows of this type, if their fields cannot change and a column keeps them as they are."""
    if not isinstance(type_info, RowTypeInfo):
        return None
    names = {t.name for t in type_info.field_types if isinstance(t, BasicTypeInfo)}
    if not names <= _KEPT or not all(isinstance(t, BasicTypeInfo) for t in type_info.field_types):
        return None
    return row_class(type_info.field_names, len(type_info.field_types))


def copied(value: Any) -> Any:
    """Returns a copy that shares nothing mutable with the value.

    A value that cannot be copied, such as a lock, is returned as it is; it cannot leave the task anyway.
    """
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is tuple:
        return value if _UNCHANGING.issuperset(map(type, value)) else tuple(map(copied, value))
    if kind is list:
        return list(map(copied, value))
    if kind is dict:
        return dict(zip(value, map(copied, value.values()), strict=True))
    if isinstance(value, Row):
        fields = value._values
        return kind._of(fields if _UNCHANGING.issuperset(map(type, fields)) else map(copied, fields))
    try:
        return copy.deepcopy(value)
    except Exception:  # a user's class may raise anything
        return value
