"""Copies of values that pass from one function to the next.

PyFlink pickles what a function hands over before it calls it again. Here a batch of values is gathered first: what the
function changes meanwhile, say a list that it keeps in state, must not change in the batch.
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

__all__ = ["ALONE", "copied", "flat_rows", "unchanging_types"]

ALONE = 1 if sys.version_info >= (3, 14) else 2
"""What ``getrefcount`` says of a value that only a local variable holds. Since Python 3.14 an argument is borrowed."""

_NUMBERS = frozenset({bool, int, float, complex, decimal.Decimal})
_TIMES = frozenset({datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Instant})
_UNCHANGING: frozenset[type] = _NUMBERS | _TIMES | {type(None), str, bytes}
_WITH_TUPLE: frozenset[type] = _UNCHANGING | {tuple}


def unchanging_types(type_info: TypeInformation) -> frozenset[type]:
    """The types of Python values that need no copy where they are records of this type."""
    basic = isinstance(type_info, TupleTypeInfo) and all(isinstance(t, BasicTypeInfo) for t in type_info.field_types)
    return _WITH_TUPLE if basic else _UNCHANGING


def flat_rows(type_info: TypeInformation) -> frozenset[type]:
    """The types of rows that need no copy where they are records of this type and nobody else refers to them."""
    if not isinstance(type_info, RowTypeInfo) or not all(isinstance(t, BasicTypeInfo) for t in type_info.field_types):
        return frozenset()
    width = len(type_info.field_types)
    return frozenset({row_class(None, width), row_class(type_info.field_names, width)})


def copied(value: Any) -> Any:
    """A copy that shares nothing with the value that can be changed.

    What cannot be copied, a lock say, is given as it is: it cannot leave the task either.
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
        row = copy.copy(value)
        fields = tuple(row)
        if not _UNCHANGING.issuperset(map(type, fields)):
            row[:] = [copied(field) for field in fields]
        return row
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever a class of the user's says to that
        return value
