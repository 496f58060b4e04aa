"""Copies of values that functions may change: their output, what they are given, and what state holds.

What a function gets is its own, and so is what it keeps of a value that it has passed on. If it changes such a value,
nobody else may see that: neither another function, nor state, nor the function itself when it asks again.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import dis
import inspect
import sys
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise, repeat
from sys import getrefcount
from types import CodeType, MemberDescriptorType
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
from dagster_flinkpy.errors import TypeMismatchError, shorten

__all__ = [
    "ALONE",
    "PASSED",
    "changes",
    "copied",
    "copier",
    "flat_rows",
    "keeper",
    "keeping",
    "only_reads",
    "plain_row",
    "taker",
    "taking",
    "unchanging_types",
    "whole_copy",
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

_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW"})
_SEE_LOCALS = frozenset({"eval", "exec", "locals", "vars", "_getframe", "currentframe"})


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


def only_reads(function: Any, type_info: TypeInformation) -> bool:
    """Returns whether a function certainly does nothing with a row, its first argument, but read fields by name.

    Of such a row nobody can tell that the function had it. False if the fields can change, and if it is hard to say.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not isinstance(type_info, RowTypeInfo) or not flat_rows(type_info):
        return False
    return _only_reads(code, inspect.ismethod(function), row_class(type_info.field_names, len(type_info.field_names)))


@lru_cache(maxsize=1024)
def _only_reads(code: CodeType, argument: int, row: type[Row]) -> bool:
    if code.co_argcount <= argument or not _SEE_LOCALS.isdisjoint(code.co_names):
        return False
    name, fields = code.co_varnames[argument], {n for n, m in vars(row).items() if isinstance(m, MemberDescriptorType)}
    for step, after in pairwise(dis.get_instructions(code)):
        if step.argval == name and step.opname in _LOADS and after.opname == "LOAD_ATTR" and after.argval in fields:
            continue
        uses = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if name in uses and step.opcode not in dis.hasname:  # an attribute or a global may have the same name
            return False
    return True


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
    take, unchanging = taker(type_info), unchanging_types(type_info)
    if take is None:
        return function
    return lambda: value if type(value := function()) in unchanging else take(value)


def copied(value: Any, made: dict[int, Any] | None = None, whole: bool = False) -> Any:
    """Returns a copy that shares nothing mutable with the value. What is one object in the value is one in the copy.

    A value that cannot be copied, such as a lock, is returned as it is; it cannot leave the task anyway.

    Args:
        value: The value.
        made: If the value is a part of another one, the copies of its other parts by identity. Default: it is not.
        whole: Whether it is an error if something cannot be copied. Default: False.
    """
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if made is not None and id(value) in made:
        return made[id(value)]
    result: Any
    if kind is tuple:
        if _UNCHANGING.issuperset(map(type, value)):
            return value
        made = {} if made is None else made
        result = tuple(map(copied, value, repeat(made), repeat(whole)))
    elif kind is list:
        if _UNCHANGING.issuperset(map(type, value)):
            result = value[:]
        else:
            made = {} if made is None else made
            made[id(value)] = result = []  # It may contain itself.
            result += map(copied, value, repeat(made), repeat(whole))
    elif kind is dict:
        parts = value.values()
        if _UNCHANGING.issuperset(map(type, parts)):
            result = value.copy()
        else:
            made = {} if made is None else made
            made[id(value)] = result = {}
            result.update(zip(value, map(copied, parts, repeat(made), repeat(whole)), strict=True))
    elif isinstance(value, Row):
        fields: Any = value._values
        if not _UNCHANGING.issuperset(map(type, fields)):
            made = {} if made is None else made
            fields = map(copied, fields, repeat(made), repeat(whole))
        result = kind._of(fields)
    elif kind in _SETS and _UNCHANGING.issuperset(map(type, value)):
        result = value if kind is frozenset else value.copy()
    else:
        made = {} if made is None else made
        result = _deep_copy(value, made, whole)
    if made is not None:
        made[id(value)] = result
    return result


def _deep_copy(value: Any, made: dict[int, Any], whole: bool) -> Any:
    known = len(made)
    try:
        return copy.deepcopy(value, made)
    except Exception:  # a user's class may raise anything
        while len(made) > known:  # Some of these copies are not complete.
            made.popitem()
        return _pickled(value, whole)


def _copied_parts(value: Any) -> Any:
    try:
        return copied(value)
    except RecursionError:  # a row or tuple that contains itself
        return copy.deepcopy(value)


def whole_copy(value: Any) -> Any:
    """Returns a copy of a value of which two owners will each change their own.

    Raises:
        TypeMismatchError: Something in it can be neither copied nor pickled.
    """
    try:
        return copied(value, None, True)
    except RecursionError:
        return copy.deepcopy(value)


def _pickled(value: Any, whole: bool) -> Any:
    """Returns a copy of a value that only the pickle of its records can copy, such as one that has a module."""
    kind = Types.PICKLED_BYTE_ARRAY()
    try:
        return kind.from_arrow(kind.to_arrow([value]))[0]
    except Exception as e:
        if whole:
            raise TypeMismatchError(
                f"windows that overlap cannot share {shorten(repr(value), 200)}, of type {type(value).__name__}: it "
                "can be neither copied nor pickled. Keep something in the accumulator that can be pickled: a "
                "checkpoint could not store it either"
            ) from e
        return value
