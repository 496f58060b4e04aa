"""Writes what Java's serializers write: keys, namespaces, and the snapshots that describe the serializers.

Source: Flink's ``TypeSerializerSnapshot``, ``CompositeTypeSerializerSnapshot``, and the serializers by their names.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.serializers import Serializer, class_of, kind_of_type

__all__ = [
    "PACKED",
    "Encode",
    "encoder_of",
    "int32",
    "int64",
    "key_serializer",
    "millis_of",
    "row_encoder",
    "snapshot_of",
    "tuple_encoder",
    "utf",
]

Encode = Callable[[Any], bytes]
"""Encodes a value. Of one that does not have the type, it raises a ``TypeError``, ``ValueError``, ``struct.error``,
``AttributeError`` or ``OverflowError``."""

_VERSION, _FORM = 3, 2
_OUTER, _INNER, _INNER_VERSION = 911108, 1333245, 1
_OUTER_VERSIONS = {"List": 1, "Map": 1, "Row": 4, "Tuple": 2, "Ttl": 2, "Timer": 2}
_EPOCH = datetime.datetime(1970, 1, 1)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def int32(number: int) -> bytes:
    """Returns a number of 32 bits."""
    return number.to_bytes(4, "big", signed=True)


def int64(number: int) -> bytes:
    """Returns a number of 64 bits."""
    return number.to_bytes(8, "big", signed=True)


def utf(text: str) -> bytes:
    """Returns a text as ``writeUTF`` writes it: modified UTF-8, after its length in two bytes.

    Raises:
        OverflowError: It has more than 65,535 bytes.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = (chr(high << 8 | low) for high, low in zip(units[::2], units[1::2], strict=True))
    data = "".join(pairs).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    return len(data).to_bytes(2, "big") + data


def key_serializer(kind: TypeInformation) -> Serializer:
    """Returns the serializer that PyFlink has for keys of a type.

    Raises:
        UnsupportedSavepointError: It has none that can be written.
    """
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)):
        name = "Row" if isinstance(kind, RowTypeInfo) else "Tuple"
        return Serializer(name, tuple(map(key_serializer, kind.field_types)))
    found = kind_of_type(kind)
    if found is None:
        raise UnsupportedSavepointError(f"keys of type {kind} cannot be written for Flink")
    return Serializer(found)


def snapshot_of(serializer: Serializer) -> bytes:
    """Returns the snapshot of a serializer, for a header."""
    return int32(_FORM) + _versioned(serializer)


def _versioned(serializer: Serializer) -> bytes:
    written = utf(class_of(serializer.kind)) + int32(_VERSION)
    if serializer.kind not in _OUTER_VERSIONS:
        return written
    parts = serializer.parts if serializer.kind != "Ttl" else (Serializer("Long"), *serializer.parts)
    written += int32(_OUTER) + int32(_OUTER_VERSIONS[serializer.kind])
    if serializer.kind == "Row":
        written += bytes([serializer.with_row_kind])
    elif serializer.kind == "Tuple":
        written += utf(f"org.apache.flink.api.java.tuple.Tuple{len(parts)}")
    return written + b"".join((int32(_INNER), int32(_INNER_VERSION), int32(len(parts)), *map(_versioned, parts)))


def encoder_of(serializer: Serializer) -> Encode:
    """Returns the function that encodes values of a key or namespace.

    Raises:
        UnsupportedSavepointError: Such values cannot be written.
    """
    if serializer.kind == "Row":
        return row_encoder(list(map(encoder_of, serializer.parts)))
    if serializer.kind == "Tuple":
        return tuple_encoder(list(map(encoder_of, serializer.parts)))
    if serializer.kind not in _ENCODERS:
        raise UnsupportedSavepointError(f"values of {serializer} cannot be written for Flink")
    return _ENCODERS[serializer.kind]


def _string(text: str) -> bytes:
    # StringValue: one more than the length, then UTF-16 units, each a number of 7 bits per byte, lowest first.
    if text.isascii() and len(text) < 0x7F:
        return bytes([len(text) + 1]) + text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True)]
    return b"".join(map(_varying, (len(numbers) + 1, *numbers)))


def _varying(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return _big_int(unscaled) + int32(-exponent)


def _big_int(value: int) -> bytes:
    if value in (0, 1, 10):  # they have numbers of their own
        return int32((0, 1, 10).index(value) + 1)
    data = value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
    return int32(len(data) + 4) + data


def millis_of(value: datetime.datetime) -> int:
    """Returns milliseconds since 1970."""
    return (value - _EPOCH) // _MILLISECOND


def _date(value: datetime.date) -> bytes:
    return int64(millis_of(datetime.datetime(value.year, value.month, value.day)))


def _time(value: datetime.time) -> bytes:
    return int64(millis_of(datetime.datetime.combine(_EPOCH, value)))


def _timestamp(value: datetime.datetime) -> bytes:
    return int64(millis_of(value)) + int32(value.microsecond * 1000)


def _window(value: tuple[int, int]) -> bytes:
    return int64(value[0]) + int64(value[1])


PACKED: dict[str, Encode] = {
    "Byte": struct.Struct(">b").pack,
    "Short": struct.Struct(">h").pack,
    "Int": struct.Struct(">i").pack,
    "Long": struct.Struct(">q").pack,
    "Float": struct.Struct(">f").pack,
    "Double": struct.Struct(">d").pack,
}
"""Encodes numbers, by the names of Java's classes."""
_ENCODERS: dict[str, Encode] = {
    **PACKED,
    "Boolean": lambda value: bytes([value]),
    "Char": lambda value: ord(value).to_bytes(2, "big"),
    "String": _string,
    "BigDec": _decimal,
    "BigInt": _big_int,
    "SqlDate": _date,
    "SqlTime": _time,
    "SqlTimestamp": _timestamp,
    "Instant": lambda value: int64(value.seconds) + int32(value.nanos),
    "VoidNamespace": lambda value: b"\0",
    "TimeWindow": _window,
    "CountWindow": int64,
}


def tuple_encoder(parts: Sequence[Encode]) -> Encode:
    """Returns the encoder of tuples."""
    return lambda values: b"".join(part(value) for part, value in zip(parts, values, strict=True))


def row_encoder(parts: Sequence[Encode], kind_of: Callable[[Any], int] = lambda row: 0) -> Encode:
    """Returns the encoder of rows: two bits for the kind, and for each field whether it is null; then the others."""
    padding = -(len(parts) + 2) % 8
    width = (len(parts) + 2 + padding) // 8

    def encode(row: Iterable[Any]) -> bytes:
        mask, written = kind_of(row), []
        for part, value in zip(parts, row, strict=True):
            mask = mask << 1 | (value is None)
            if value is not None:
                written.append(part(value))
        return (mask << padding).to_bytes(width, "big") + b"".join(written)

    return encode
