"""Decodes values as PyFlink's process mode writes them, by their declared types.

Source: PyFlink's ``fn_execution/coders.py`` and ``coder_impl_slow.py``.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
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
from dagster_flinkpy.flink_savepoint.pickled_data import load_data
from dagster_flinkpy.flink_savepoint.serializers import Decode, number

__all__ = ["coder_of"]

_MIN_LONG, _MIN_INT = -(1 << 63), -(1 << 31)
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY = 86_400_000


def coder_of(kind: TypeInformation) -> Decode:
    """Returns the function that decodes values of a declared type.

    Raises:
        UnsupportedSavepointError: PyFlink has no such type.
    """
    if isinstance(kind, PickledBytesTypeInfo):
        return _pickled
    if isinstance(kind, RowTypeInfo):
        return _row([coder_of(each) for each in kind.field_types], kind.field_names if kind.named else None)
    if isinstance(kind, TupleTypeInfo):
        return _tuple([coder_of(each) for each in kind.field_types])
    if isinstance(kind, MapTypeInfo):
        return _map(coder_of(kind.key_type), coder_of(kind.value_type))
    if isinstance(kind, ListTypeInfo):
        primitive = kind.to_json()["type"] == "PRIMITIVE_ARRAY"
        return (_elements if primitive else _list)(coder_of(kind.elem_type))
    if isinstance(kind, BasicTypeInfo) and not isinstance(kind, DecimalTypeInfo) and kind.name in _BASIC:
        return _BASIC[kind.name]
    raise UnsupportedSavepointError(f"PyFlink's DataStream API has no type like {kind}")


_int, _long = number(">i"), number(">q")


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _int(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"{length} bytes should follow, but {len(data) - at} are left")
    return data[at : at + length], at + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    value, at = _bytes(data, at)
    return value.decode("utf-8"), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    text, at = _text(data, at)
    return _EXACT.create_decimal(text), at


_EXACT = Context(prec=100_000, traps=[])


def _pickled(data: bytes, at: int) -> tuple[Any, int]:
    value, at = _bytes(data, at)
    return load_data(value), at


def _date(data: bytes, at: int) -> tuple[datetime.date, int]:
    days, at = _int(data, at)
    return (_EPOCH + datetime.timedelta(days=days)).date(), at


def _time(data: bytes, at: int) -> tuple[datetime.time, int]:
    millis, at = _int(data, at)
    if not 0 <= millis < _DAY:
        raise ValueError(f"{millis} ms is not a time of the day")
    return (_EPOCH + datetime.timedelta(milliseconds=millis)).time(), at


def _timestamp(data: bytes, at: int) -> tuple[datetime.datetime, int]:
    millis, at = _long(data, at)
    return _EPOCH + datetime.timedelta(milliseconds=millis), at


def _instant(data: bytes, at: int) -> tuple[Instant | None, int]:
    seconds, at = _long(data, at)
    nanos, at = _int(data, at)
    return None if (seconds, nanos) == (_MIN_LONG, _MIN_INT) else Instant(seconds, nanos), at


_BASIC: dict[str, Decode] = {
    "STRING": _text,
    "CHAR": _text,
    "BOOLEAN": _boolean,
    "BYTE": number(">b"),
    "SHORT": number(">h"),
    "INT": _int,
    "LONG": _long,
    "BIG_INT": _long,
    "FLOAT": number(">f"),
    "DOUBLE": number(">d"),
    "BIG_DEC": _decimal,
    "BYTES": _bytes,
    "SQL_DATE": _date,
    "SQL_TIME": _time,
    "SQL_TIMESTAMP": _timestamp,
    "INSTANT": _instant,
}


def _tuple(fields: Sequence[Decode]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for field in fields:
            value, at = field(data, at)
            values.append(value)
        return tuple(values), at

    return decode


def _row(fields: Sequence[Decode], names: Sequence[str] | None) -> Decode:
    bits = len(fields) + 2  # two for the kind
    width = (bits + 7) // 8

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        if len(data) - at < width:
            raise ValueError("a row ends in its mask")
        mask = int.from_bytes(data[at : at + width], "big")
        at += width
        values = []
        for position, field in enumerate(fields, 3):
            value = None
            if not mask >> width * 8 - position & 1:
                value, at = field(data, at)
            values.append(value)
        row = Row(*values)
        if names is not None:
            row.set_field_names(names)
        kind = mask >> width * 8 - 2  # the lower bit comes first
        row.set_row_kind(RowKind(kind >> 1 | (kind & 1) << 1))
        return row, at

    return decode


def _elements(read: Decode) -> Decode:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        count, at = _int(data, at)
        if not 0 <= count <= len(data) - at:
            raise ValueError(f"{count} elements should follow, but {len(data) - at} bytes are left")
        values = []
        for _ in range(count):
            value, at = read(data, at)
            values.append(value)
        return values, at

    return decode


def _list(element: Decode) -> Decode:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        return element(data, at + 1) if data[at] else (None, at + 1)

    return _elements(read)


def _map(key: Decode, value: Decode) -> Decode:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        name, at = key(data, at)
        return ((name, None), at + 1) if data[at] else _paired(name, *value(data, at + 1))

    entries = _elements(read)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        pairs, at = entries(data, at)
        return dict(pairs), at

    return decode


def _paired(name: Any, value: Any, at: int) -> tuple[Any, int]:
    return (name, value), at
