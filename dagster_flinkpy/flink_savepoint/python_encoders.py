"""Encodes values as PyFlink's process mode does, by their declared types.

Source: PyFlink's ``fn_execution/coders.py`` and ``coder_impl_slow.py``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

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
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.java_encoders import (
    PACKED,
    Encode,
    int32,
    int64,
    millis_of,
    row_of,
    tuple_of,
)

__all__ = ["encoder_of_type"]

_MIN_LONG, _MIN_INT = -(1 << 63), -(1 << 31)
_EPOCH = datetime.datetime(1970, 1, 1)
_OWN = b"dagster_flinkpy"


def encoder_of_type(kind: TypeInformation) -> Encode:
    """Returns the function that encodes values of a declared type. It takes a pickled value as the bytes of its pickle.

    Raises:
        UnsupportedSavepointError: PyFlink has no such type, or values of it cannot be written.
    """
    if isinstance(kind, PickledBytesTypeInfo):
        return _pickle
    return _encoder(kind)


def _encoder(kind: TypeInformation) -> Encode:
    if isinstance(kind, RowTypeInfo):
        return row_of(list(map(_encoder, kind.field_types)), _kind_of)
    if isinstance(kind, TupleTypeInfo):
        return tuple_of(list(map(_encoder, kind.field_types)))
    if isinstance(kind, MapTypeInfo):
        return _map(_encoder(kind.key_type), _encoder(kind.value_type))
    if isinstance(kind, ListTypeInfo):
        element, primitive = _encoder(kind.elem_type), kind.to_json()["type"] == "PRIMITIVE_ARRAY"
        return _list(element if primitive else _or_none(element))
    if isinstance(kind, BasicTypeInfo) and not isinstance(kind, DecimalTypeInfo) and kind.name in _BASIC:
        return _BASIC[kind.name]
    if isinstance(kind, PickledBytesTypeInfo):
        raise UnsupportedSavepointError("a pickled value inside of another one cannot be written for Flink")
    raise UnsupportedSavepointError(f"PyFlink's DataStream API has no type like {kind}")


def _pickle(data: bytes) -> bytes:
    if _OWN in data:
        raise UnsupportedSavepointError(
            "a pickled value has an object of this library in it, such as a Row, which PyFlink cannot load"
        )
    return _bytes(data)


def _bytes(data: bytes) -> bytes:
    return int32(len(data)) + data


def _text(value: str) -> bytes:
    return _bytes(value.encode("utf-8"))


def _date(value: datetime.date) -> bytes:
    return int32((datetime.datetime(value.year, value.month, value.day) - _EPOCH).days)


def _time(value: datetime.time) -> bytes:
    return int32(millis_of(datetime.datetime.combine(_EPOCH, value)))


def _timestamp(value: datetime.datetime) -> bytes:
    return int64(millis_of(value))


def _instant(value: Any) -> bytes:
    seconds, nanos = (_MIN_LONG, _MIN_INT) if value is None else (value.seconds, value.nanos)
    return int64(seconds) + int32(nanos)


_BASIC: dict[str, Encode] = {
    "STRING": _text,
    "CHAR": _text,
    "BOOLEAN": lambda value: bytes([value]),  # struct.pack would take None for False
    **{name.upper(): encode for name, encode in PACKED.items()},
    "BIG_INT": PACKED["Long"],
    "BIG_DEC": lambda value: _text(Decimal.__str__(value)),  # str would take None for a text
    "BYTES": _bytes,
    "SQL_DATE": _date,
    "SQL_TIME": _time,
    "SQL_TIMESTAMP": _timestamp,
    "INSTANT": _instant,
}


def _kind_of(row: Row) -> int:
    kind = row.get_row_kind().value
    return (kind & 1) << 1 | kind >> 1  # the lower bit comes first


def _or_none(encode: Encode) -> Encode:
    return lambda value: b"\0" if value is None else b"\1" + encode(value)


def _list(element: Encode) -> Encode:
    return lambda values: int32(len(values)) + b"".join(map(element, values))


def _map(key: Encode, value: Encode) -> Encode:
    def entries(values: Iterable[tuple[Any, Any]]) -> Iterable[bytes]:
        for name, held in values:
            yield key(name)
            yield b"\1" if held is None else b"\0" + value(held)

    def encode(values: Mapping[Any, Any]) -> bytes:
        return int32(len(values)) + b"".join(entries(values.items()))

    return encode
