"""Decodes values as PyFlink's process mode writes them, by their declared types.

Source: PyFlink's ``fn_execution/coders.py`` and ``coder_impl_slow.py``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.decoding import (
    INT,
    LONG,
    MIN_LONG,
    NUMBERS,
    Decode,
    elements_of,
    map_of,
    row_of,
    sized_bytes,
    time_of,
    tuple_of,
)
from dagster_flinkpy.flink_savepoint.pickled_data import load_data

__all__ = ["coder_of"]

_MIN_INT = -(1 << 31)
_DAY = 86_400_000


def coder_of(kind: TypeInformation) -> Decode:
    """Returns the function that decodes values of a declared type.

    Raises:
        UnsupportedSavepointError: PyFlink has no such type.
    """
    if isinstance(kind, PickledBytesTypeInfo):
        return _pickled
    if isinstance(kind, RowTypeInfo):
        return row_of(list(map(coder_of, kind.field_types)), 2, _rows(kind.field_names if kind.named else None))
    if isinstance(kind, TupleTypeInfo):
        return tuple_of(list(map(coder_of, kind.field_types)))
    if isinstance(kind, MapTypeInfo):
        return map_of(coder_of(kind.key_type), _boolean, coder_of(kind.value_type))
    if isinstance(kind, ListTypeInfo):
        element, primitive = coder_of(kind.elem_type), kind.to_json()["type"] == "PRIMITIVE_ARRAY"
        return elements_of(element if primitive else _or_none(element))
    if isinstance(kind, BasicTypeInfo) and not isinstance(kind, DecimalTypeInfo) and kind.name in _BASIC:
        return _BASIC[kind.name]
    raise UnsupportedSavepointError(f"PyFlink's DataStream API has no type like {kind}")


def _text(data: bytes, at: int) -> tuple[str, int]:
    value, at = sized_bytes(data, at)
    return value.decode("utf-8"), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    text, at = _text(data, at)
    return _EXACT.create_decimal(text), at


_EXACT = Context(prec=100_000, traps=[])


def _pickled(data: bytes, at: int) -> tuple[Any, int]:
    value, at = sized_bytes(data, at)
    return load_data(value), at


def _date(data: bytes, at: int) -> tuple[datetime.date, int]:
    days, at = INT(data, at)
    return time_of(days * _DAY).date(), at


def _time(data: bytes, at: int) -> tuple[datetime.time, int]:
    millis, at = INT(data, at)
    if not 0 <= millis < _DAY:
        raise ValueError(f"{millis} ms is not a time of the day")
    return time_of(millis).time(), at


def _timestamp(data: bytes, at: int) -> tuple[datetime.datetime, int]:
    millis, at = LONG(data, at)
    return time_of(millis), at


def _instant(data: bytes, at: int) -> tuple[Instant | None, int]:
    seconds, at = LONG(data, at)
    nanos, at = INT(data, at)
    return None if (seconds, nanos) == (MIN_LONG, _MIN_INT) else Instant(seconds, nanos), at


_BASIC: dict[str, Decode] = {
    "STRING": _text,
    "CHAR": _text,
    "BOOLEAN": _boolean,
    **{name.upper(): decode for name, decode in NUMBERS.items()},
    "BIG_INT": LONG,
    "BIG_DEC": _decimal,
    "BYTES": sized_bytes,
    "SQL_DATE": _date,
    "SQL_TIME": _time,
    "SQL_TIMESTAMP": _timestamp,
    "INSTANT": _instant,
}


def _rows(names: Sequence[str] | None) -> Callable[[int, list[Any]], Row]:
    def make(kind: int, values: list[Any]) -> Row:
        row = Row(*values)
        if names is not None:
            row.set_field_names(names)
        row.set_row_kind(RowKind(kind >> 1 | (kind & 1) << 1))  # the lower bit comes first
        return row

    return make


def _or_none(element: Decode) -> Decode:
    return lambda data, at: element(data, at + 1) if data[at] else (None, at + 1)
