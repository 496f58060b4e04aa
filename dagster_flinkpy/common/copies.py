"""Copies of values that functions may change: their output, what they are given, and what state holds.

What a function gets is its own, and so is what it keeps of a value that it has passed on. If it changes such a value,
nobody else may see that: neither another function, nor state, nor the function itself when it asks again.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import sys
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.common.types import Row, row_class

__all__ = [
    "ALONE",
    "PASSED",
    "changes",
    "copied",
    "copier",
    "flat_rows",
    "keeper",
    "keeping",
    "plain_row",
    "taker",
    "taking",
    "unchanging_types",
]

ALONE = 1 if sys.version_info >= (3, 14) else 2
"""The result of ``getrefcount`` for a value that one local variable holds. Since Python 3.14 arguments are borrowed."""
PASSED = 1 if sys.version_info >= (3, 14) else 3
"""The same for an argument that is held by a local variable of the caller, too."""

_NUMBERS = frozenset({bool, int, float, complex, decimal.Decimal})
_TIMES = frozenset({datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Instant})
_UNCHANGING: frozenset[type] = _NUMBERS | _TIMES | {type(None), str, bytes}
_SETS: frozenset[type] = frozenset({set, frozenset, deque, bytearray})
_WITH_TUPLE: frozenset[type] = _UNCHANGING | {tuple}

_KEPT = frozenset({"BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "DOUBLE", "STRING", "CHAR"})
"""Basic types whose values do not change, and are the same when they have been in a column."""


def unchanging_types(type_info: TypeInformation) -> frozenset[type]:
    """Returns the Python types whose values need no copy as records of this type."""
    flat = isinstance(type_info, TupleTypeInfo) and all(map(_is_unchanging, type_info.field_types))
    return _WITH_TUPLE if flat else _UNCHANGING


def changes(type_info: TypeInformation) -> bool:
    """Returns whether values of this type can change."""
    return not _is_unchanging(type_info) and tuple not in unchanging_types(type_info)


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


def copier(type_info: TypeInformation) -> Callable[[Any], Any] | None:
    """Returns what copies values of a type, as :func:`copied` does; None if such values cannot change."""
    if _is_unchanging(type_info):
        return None
    rows, unchanging = flat_rows(type_info), unchanging_types(type_info)
    if rows:

        def copy_row(value: Any) -> Any:
            kind = type(value)
            return kind._of(value._values) if kind in rows else copied(value)

        return copy_row
    if tuple in unchanging:
        return lambda value: value if type(value) is tuple else copied(value)
    if isinstance(type_info, ListTypeInfo) and _is_unchanging(type_info.elem_type):
        return lambda value: value[:] if type(value) is list else copied(value)
    if isinstance(type_info, MapTypeInfo) and _is_unchanging(type_info.value_type):
        return lambda value: value.copy() if type(value) is dict else copied(value)
    return _copied_parts


def taker(type_info: TypeInformation) -> Callable[[Any], Any] | None:
    """Returns what state makes of a value that it is given: a copy whose rows have the field names of their type.

    None if it can keep the value itself, because such values cannot change.
    """
    copy_value, name_fields = copier(type_info), type_info.name_fields
    if copy_value is None or not type_info.names_fields:
        return copy_value
    return lambda value: name_fields(copy_value(value))


def keeper(type_info: TypeInformation) -> Callable[[Any, Any, Any], Any] | None:
    """Returns what state makes of the result of a function of two values, which are the function's own.

    It takes the result and the two values. What the function has made of one of them is kept as it is, and so is a row
    that nobody else refers to. Anything else is copied, because it may be shared, such as a constant.

    None if state can keep each result itself, because such values cannot change.
    """
    copy_value, name_fields = copier(type_info), type_info.name_fields
    if copy_value is None or not changes(type_info):
        return None
    flat, unchanging = flat_rows(type_info), unchanging_types(type_info)

    def keep(result: Any, one: Any, other: Any) -> Any:
        kind = type(result)
        if kind in unchanging:
            return result
        if result is one or result is other or (kind in flat and getrefcount(result) <= PASSED):
            return name_fields(result)
        return name_fields(copy_value(result))

    return keep


def keeping(function: Callable[[Any, Any], Any], type_info: TypeInformation) -> Callable[[Any, Any], Any]:
    """Returns a function of two values whose result state may keep: what :func:`keeper` makes of it."""
    keep = keeper(type_info)
    if keep is None:
        return function
    row = None
    if isinstance(type_info, RowTypeInfo) and flat_rows(type_info):
        row = row_class(type_info.field_names, len(type_info.field_names))

    def kept(one: Any, other: Any) -> Any:
        result = function(one, other)
        if type(result) is row and getrefcount(result) <= ALONE:
            return result
        return keep(result, one, other)

    return kept


def taking(function: Callable[[], Any], type_info: TypeInformation) -> Callable[[], Any]:
    """Returns a function that makes values which state may keep. What the function returns may be shared."""
    take = taker(type_info)
    return function if take is None else lambda: take(function())


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
        return value[:] if _UNCHANGING.issuperset(map(type, value)) else list(map(copied, value))
    if kind is dict:
        fields = value.values()
        flat = _UNCHANGING.issuperset(map(type, fields))
        return value.copy() if flat else dict(zip(value, map(copied, fields), strict=True))
    if isinstance(value, Row):
        fields = value._values
        return kind._of(fields if _UNCHANGING.issuperset(map(type, fields)) else map(copied, fields))
    if kind in _SETS and _UNCHANGING.issuperset(map(type, value)):
        return value if kind is frozenset else value.copy()
    try:
        return copy.deepcopy(value)
    except Exception:  # a user's class may raise anything
        return _pickled(value)


def _copied_parts(value: Any) -> Any:
    try:
        return copied(value)
    except RecursionError:  # a value that contains itself
        return copy.deepcopy(value)


def _pickled(value: Any) -> Any:
    """Returns a copy of a value that only the pickle of its records can copy, such as one that has a module."""
    kind = Types.PICKLED_BYTE_ARRAY()
    try:
        return kind.from_arrow(kind.to_arrow([value]))[0]
    except Exception:
        return value
