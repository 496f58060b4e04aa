"""Decodes and encodes values as PyFlink's process mode does, by their declared types.

Source: PyFlink's ``fn_execution/coders.py`` and ``coder_impl_slow.py``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from dagster_flinkpy.flink_savepoint.byte_reader import (
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
from dagster_flinkpy.flink_savepoint.java_encoders import (
    PACKED,
    Encode,
    int32,
    int64,
    millis_of,
    row_encoder,
    tuple_encoder,
)
from dagster_flinkpy.flink_savepoint.pickled_data import load_data

__all__ = ["coder_of", "encoder_of_type"]

_MIN_INT = -(1 << 31)
_DAY = 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1)
_OWN = b"dagster_flinkpy"


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
    if isinstance(kind, BasicTypeInfo) and not isinstance(kind, DecimalTypeInfo) and kind.name in _DECODERS:
        return _DECODERS[kind.name]
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


_DECODERS: dict[str, Decode] = {
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


def encoder_of_type(kind: TypeInformation) -> Encode:
    """Returns the function that encodes values of a declared type. It takes a pickled value as the bytes of its pickle.

    Raises:
        UnsupportedSavepointError: PyFlink has no such type, or values of it cannot be written.
    """
    return _pickle if isinstance(kind, PickledBytesTypeInfo) else _encoder(kind)


def _encoder(kind: TypeInformation) -> Encode:
    if isinstance(kind, RowTypeInfo):
        return row_encoder(list(map(_encoder, kind.field_types)), _kind_of)
    if isinstance(kind, TupleTypeInfo):
        return tuple_encoder(list(map(_encoder, kind.field_types)))
    if isinstance(kind, MapTypeInfo):
        return _map(_encoder(kind.key_type), _encoder(kind.value_type))
    if isinstance(kind, ListTypeInfo):
        element, primitive = _encoder(kind.elem_type), kind.to_json()["type"] == "PRIMITIVE_ARRAY"
        return _list(element if primitive else _null_or(element))
    if isinstance(kind, BasicTypeInfo) and not isinstance(kind, DecimalTypeInfo) and kind.name in _ENCODERS:
        return _ENCODERS[kind.name]
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


def _encode_text(value: str) -> bytes:
    return _bytes(value.encode("utf-8"))


def _encode_date(value: datetime.date) -> bytes:
    return int32((datetime.datetime(value.year, value.month, value.day) - _EPOCH).days)


def _encode_time(value: datetime.time) -> bytes:
    return int32(millis_of(datetime.datetime.combine(_EPOCH, value)))


def _encode_timestamp(value: datetime.datetime) -> bytes:
    return int64(millis_of(value))


def _encode_instant(value: Any) -> bytes:
    seconds, nanos = (MIN_LONG, _MIN_INT) if value is None else (value.seconds, value.nanos)
    return int64(seconds) + int32(nanos)


_ENCODERS: dict[str, Encode] = {
    "STRING": _encode_text,
    "CHAR": _encode_text,
    "BOOLEAN": lambda value: bytes([value]),  # struct.pack would take None for False
    **{name.upper(): encode for name, encode in PACKED.items()},
    "BIG_INT": PACKED["Long"],
    "BIG_DEC": lambda value: _encode_text(Decimal.__str__(value)),  # str would take None for a text
    "BYTES": _bytes,
    "SQL_DATE": _encode_date,
    "SQL_TIME": _encode_time,
    "SQL_TIMESTAMP": _encode_timestamp,
    "INSTANT": _encode_instant,
}


def _kind_of(row: Row) -> int:
    kind = row.get_row_kind().value
    return (kind & 1) << 1 | kind >> 1  # the lower bit comes first


def _null_or(encode: Encode) -> Encode:
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
