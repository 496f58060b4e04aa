"""The serializers of Java that a savepoint names, and how to decode what they wrote.

A serializer snapshot is the name of a class and its data, whose length is not written: after an unknown class, nothing
of a header can be read.

Source: Flink's ``TypeSerializerSnapshot``, ``CompositeTypeSerializerSnapshot``, and the serializers by their names.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import (
    INT,
    LONG,
    MIN_LONG,
    NUMBERS,
    ByteReader,
    Decode,
    elements_of,
    map_of,
    row_of,
    sized_bytes,
    taken,
    time_of,
    tuple_of,
)

__all__ = ["Serializer", "class_of", "decoder_of", "kind_of_type", "read_serializer", "type_of"]

_BASE = "org.apache.flink.api.common.typeutils.base."
_SIMPLE = {
    **{
        f"{_BASE}{name}Serializer${name}SerializerSnapshot": name
        for name in (
            *("Boolean", "Byte", "Short", "Int", "Long", "Float", "Double", "Char", "String", "BigDec", "BigInt"),
            *("SqlDate", "SqlTime", "SqlTimestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime", "Void"),
        )
    },
    **{
        f"{_BASE}array.{name}ArraySerializer${name}ArraySerializerSnapshot": f"{name}Array"
        for name in (
            *("BooleanPrimitive", "BytePrimitive", "ShortPrimitive", "IntPrimitive", "LongPrimitive"),
            *("FloatPrimitive", "DoublePrimitive", "CharPrimitive", "String"),
        )
    },
    "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer$ByteArrayWrapperSerializerSnapshot": "Bytes",
    "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot": "VoidNamespace",
    **{
        f"org.apache.flink.{package}.{name}$Serializer${name}SerializerSnapshot": name
        for package in ("table.runtime.operators.window", "streaming.api.windowing.windows")
        for name in ("TimeWindow", "CountWindow", "GlobalWindow")
    },
}
_COMPOSITE = {
    f"{_BASE}ListSerializerSnapshot": "List",
    f"{_BASE}MapSerializerSnapshot": "Map",
    "org.apache.flink.api.java.typeutils.runtime.RowSerializer$RowSerializerSnapshot": "Row",
    "org.apache.flink.api.java.typeutils.runtime.TupleSerializerSnapshot": "Tuple",
    "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot": "Ttl",
    "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot": "Timer",
}
_SNAPSHOT_FORM = 2
_OUTER, _INNER, _INNER_VERSION = 911108, 1333245, 1


@dataclass(frozen=True)
class Serializer:
    """A serializer, as its snapshot describes it."""

    kind: str
    """Its class without ``Serializer``."""
    parts: tuple[Serializer, ...] = ()
    """The serializers of its parts, such as the fields of a row."""
    with_row_kind: bool = True
    """Of a row: whether the kind is written."""

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.parts))})" if self.parts else self.kind


def read_serializer(reader: ByteReader) -> Serializer:
    """Reads a serializer snapshot of a header.

    Raises:
        UnsupportedSavepointError: Its class, or one of a part, is unknown. The message names it.
        CorruptStateError: The bytes are damaged.
    """
    if (form := reader.int32()) != _SNAPSHOT_FORM:
        raise UnsupportedSavepointError(f"a serializer is written in form {form}; 2 is the one that can be read")
    return _versioned(reader, 0)


def _versioned(reader: ByteReader, depth: int) -> Serializer:
    if depth > 50:
        raise reader.corrupt("serializers are nested more than 50 deep")
    name, version = reader.utf(), reader.int32()
    if (simple := _SIMPLE.get(name)) is not None:
        if version == 2:  # before Flink 1.8 of some, the class was written again
            reader.utf()
        return Serializer(simple)
    kind = _COMPOSITE.get(name)
    if kind is None:
        raise UnsupportedSavepointError(f"its serializer cannot be read: {name}, version {version}")
    if reader.int32() != _OUTER:
        raise reader.corrupt(f"the snapshot of {name} is not that of a composite serializer")
    outer, with_row_kind = reader.int32(), False
    if kind == "Row" and outer >= 3:
        with_row_kind = reader.flag()
    elif kind == "Tuple":
        reader.utf()
    if reader.int32() != _INNER or reader.int32() != _INNER_VERSION:
        raise reader.corrupt(f"the parts of the snapshot of {name} do not follow")
    parts = tuple(_versioned(reader, depth + 1) for _ in range(reader.count(6)))
    if len(parts) != {"List": 1, "Map": 2, "Ttl": 2, "Timer": 2}.get(kind, len(parts)):
        raise reader.corrupt(f"{name} has {len(parts)} parts")
    if kind == "Ttl" and parts[0].kind == "Long":
        parts = parts[1:]  # the time of the last access is always a long
    elif kind == "Ttl":
        raise reader.corrupt(f"{name} has {parts[0]} for its time")
    return Serializer(kind, parts, with_row_kind)


def type_of(serializer: Serializer) -> TypeInformation | None:
    """Returns the type of the values; None if only the program knows it."""
    if serializer.kind in _TYPES:
        return _TYPES[serializer.kind]
    if serializer.kind not in ("Row", "Tuple", "List", "Map"):
        return None
    parts: list[Any] = [type_of(part) for part in serializer.parts]
    if None in parts:
        return None
    make: dict[str, Callable[[], TypeInformation]] = {
        "Row": lambda: Types.ROW(parts),
        "Tuple": lambda: Types.TUPLE(parts),
        "List": lambda: Types.LIST(parts[0]),
        "Map": lambda: Types.MAP(parts[0], parts[1]),
    }
    return make[serializer.kind]()


_TYPES = {
    "Boolean": Types.BOOLEAN(),
    "Byte": Types.BYTE(),
    "Short": Types.SHORT(),
    "Int": Types.INT(),
    "Long": Types.LONG(),
    "Float": Types.FLOAT(),
    "Double": Types.DOUBLE(),
    "Char": Types.CHAR(),
    "String": Types.STRING(),
    "BigDec": Types.BIG_DEC(),
    "BigInt": Types.BIG_INT(),
    "SqlDate": Types.SQL_DATE(),
    "SqlTime": Types.SQL_TIME(),
    "SqlTimestamp": Types.SQL_TIMESTAMP(),
    "Instant": Types.INSTANT(),
    "TimeWindow": Types.TUPLE([Types.LONG(), Types.LONG()]),
    "CountWindow": Types.LONG(),
}


_KINDS = {kind: name for name, kind in _TYPES.items() if not name.endswith("Window")}
_CLASSES = {kind: name for name, kind in reversed([*_SIMPLE.items(), *_COMPOSITE.items()])}


def kind_of_type(kind: TypeInformation) -> str | None:
    """Returns the class of the serializer of a basic type without ``Serializer``; None if there is none."""
    return _KINDS.get(kind)


def class_of(kind: str) -> str:
    """Returns the class of the snapshot of a serializer. Of windows it is the one that PyFlink has."""
    return _CLASSES[kind]


def decoder_of(serializer: Serializer) -> Decode:
    """Returns the function that decodes the values.

    Raises:
        UnsupportedSavepointError: Values of this serializer cannot be read.
    """
    if serializer.kind in _DECODERS:
        return _DECODERS[serializer.kind]
    parts = [decoder_of(part) for part in serializer.parts]
    if serializer.kind == "Row":
        return row_of(parts, 2 if serializer.with_row_kind else 0, _inserted)
    if serializer.kind == "Tuple":
        return tuple_of(parts)
    if serializer.kind == "List":
        return elements_of(parts[0])
    if serializer.kind == "Map":
        return map_of(parts[0], _boolean, parts[1])
    if serializer.kind == "Ttl":
        return _ttl(parts[0])
    raise UnsupportedSavepointError(f"values of its serializer cannot be read: {serializer}")


# --- values -----------------------------------------------------------------------------------------------------------


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError(f"{data[at]} is not a boolean")
    return data[at] == 1, at + 1


def _char(data: bytes, at: int) -> tuple[str, int]:
    return chr(int.from_bytes(taken(data, at, 2), "big")), at + 2


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    # StringValue: one more than the length, then UTF-16 units, each a number of 7 bits per byte, lowest first.
    length, at = _varying(data, at)
    if length <= 1:
        return (None if length == 0 else ""), at
    end = at + length - 1
    if (plain := data[at:end]).isascii():
        if end > len(data):
            raise ValueError("a text is longer than what is left")
        return plain.decode("ascii"), end
    units = []
    for _ in range(length - 1):  # ends with the data: each takes a byte
        unit, at = _varying(data, at)
        if unit > 0xFFFF:
            raise ValueError(f"{unit} is not a character")
        units.append(unit)
    return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", "surrogatepass"), at


def _varying(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 28:
            raise ValueError("a number is longer than 32 bits")
    return value | byte << shift, at + 1


def _array(form: str) -> Decode:
    width = struct.calcsize(form)

    def decode(data: bytes, at: int) -> tuple[list[Any], int]:
        count, at = INT(data, at)
        packed = taken(data, at, count * width)
        return [value for (value,) in struct.iter_unpack(form, packed)], at + count * width

    return decode


def _big_int(data: bytes, at: int) -> tuple[int | None, int]:
    length, at = INT(data, at)
    if 0 <= length < 4:  # null, and three numbers that are often used
        return (None, 0, 1, 10)[length], at
    return int.from_bytes(taken(data, at, length - 4), "big", signed=True), at + length - 4


def _big_dec(data: bytes, at: int) -> tuple[Decimal | None, int]:
    unscaled, at = _big_int(data, at)
    if unscaled is None:
        return None, at
    scale, at = INT(data, at)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), at


def _date(data: bytes, at: int) -> tuple[datetime.date | None, int]:
    millis, at = LONG(data, at)
    return None if millis == MIN_LONG else time_of(millis).date(), at


def _time(data: bytes, at: int) -> tuple[datetime.time | None, int]:
    millis, at = LONG(data, at)
    return None if millis == MIN_LONG else time_of(millis).time(), at


def _timestamp(data: bytes, at: int) -> tuple[datetime.datetime | None, int]:
    millis, at = LONG(data, at)
    nanos, at = INT(data, at)
    if millis == MIN_LONG:
        return None, at
    return time_of(millis, nanos % 1_000_000 // 1000), at


def _instant(data: bytes, at: int) -> tuple[Instant | None, int]:
    seconds, at = LONG(data, at)
    nanos, at = INT(data, at)
    return None if seconds == MIN_LONG else Instant(seconds, nanos), at


def _void_namespace(data: bytes, at: int) -> tuple[None, int]:
    if data[at]:
        raise ValueError(f"{data[at]} is not the empty namespace")
    return None, at + 1


def _window(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    start, at = LONG(data, at)
    end, at = LONG(data, at)
    return (start, end), at


_DECODERS: dict[str, Decode] = {
    "Boolean": _boolean,
    **NUMBERS,
    "Char": _char,
    "String": _string,
    "BigDec": _big_dec,
    "BigInt": _big_int,
    "SqlDate": _date,
    "SqlTime": _time,
    "SqlTimestamp": _timestamp,
    "Instant": _instant,
    "BytePrimitiveArray": sized_bytes,
    "ShortPrimitiveArray": _array(">h"),
    "IntPrimitiveArray": _array(">i"),
    "LongPrimitiveArray": _array(">q"),
    "FloatPrimitiveArray": _array(">f"),
    "DoublePrimitiveArray": _array(">d"),
    "Bytes": sized_bytes,
    "VoidNamespace": _void_namespace,
    "TimeWindow": _window,
    "CountWindow": LONG,
}


def _inserted(kind: int, values: list[Any]) -> Row:
    if kind:
        raise ValueError("a row is of another kind than INSERT")
    return Row(*values)


def _ttl(part: Decode) -> Decode:
    """Returns the decoder of a value with the time of its last access, in milliseconds."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        stamp, at = LONG(data, at)
        value, at = part(data, at)
        return (stamp, value), at

    return decode
