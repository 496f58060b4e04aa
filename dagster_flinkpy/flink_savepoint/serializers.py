"""The serializers of Java that a savepoint names, and how to decode what they wrote.

A serializer snapshot is the name of a class and its data, whose length is not written: after an unknown class, nothing
of a header can be read.

Source: Flink's ``TypeSerializerSnapshot``, ``CompositeTypeSerializerSnapshot``, and the serializers by their names.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = [
    "Decode",
    "Serializer",
    "class_of",
    "decoder_of",
    "kind_of_type",
    "number",
    "read_serializer",
    "type_of",
]

Decode = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the value at a position of some bytes; returns it with the position after it. Of damaged bytes it raises a
``struct.error``, ``IndexError``, ``ValueError`` or ``OverflowError``."""

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
        return _row(parts, 2 if serializer.with_row_kind else 0)
    if serializer.kind == "Tuple":
        return _tuple(parts)
    if serializer.kind == "List":
        return _list(parts[0])
    if serializer.kind == "Map":
        return _map(*parts)
    if serializer.kind == "Ttl":
        return _ttl(parts[0])
    raise UnsupportedSavepointError(f"values of its serializer cannot be read: {serializer}")


# --- values -----------------------------------------------------------------------------------------------------------

_MIN_LONG = -(1 << 63)
_EPOCH = datetime.datetime(1970, 1, 1)


def number(form: str) -> Decode:
    """Returns what reads a number of this form of `struct`."""
    packed = struct.Struct(form)
    size, unpack = packed.size, packed.unpack_from

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return decode


_int, _long = number(">i"), number(">q")


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError(f"{data[at]} is not a boolean")
    return data[at] == 1, at + 1


def _char(data: bytes, at: int) -> tuple[str, int]:
    return chr(int.from_bytes(_taken(data, at, 2), "big")), at + 2


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


def _taken(data: bytes, at: int, length: int) -> bytes:
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"{length} bytes should follow, but {len(data) - at} are left")
    return data[at : at + length]


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _int(data, at)
    return _taken(data, at, length), at + length


def _array(form: str) -> Decode:
    width = struct.calcsize(form)

    def decode(data: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _int(data, at)
        packed = _taken(data, at, count * width)
        return [value for (value,) in struct.iter_unpack(form, packed)], at + count * width

    return decode


def _big_int(data: bytes, at: int) -> tuple[int | None, int]:
    length, at = _int(data, at)
    if 0 <= length < 4:  # null, and three numbers that are often used
        return (None, 0, 1, 10)[length], at
    return int.from_bytes(_taken(data, at, length - 4), "big", signed=True), at + length - 4


def _big_dec(data: bytes, at: int) -> tuple[Decimal | None, int]:
    unscaled, at = _big_int(data, at)
    if unscaled is None:
        return None, at
    scale, at = _int(data, at)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), at


def _time_of(millis: int, micros: int = 0) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=millis, microseconds=micros)


def _date(data: bytes, at: int) -> tuple[datetime.date | None, int]:
    millis, at = _long(data, at)
    return None if millis == _MIN_LONG else _time_of(millis).date(), at


def _time(data: bytes, at: int) -> tuple[datetime.time | None, int]:
    millis, at = _long(data, at)
    return None if millis == _MIN_LONG else _time_of(millis).time(), at


def _timestamp(data: bytes, at: int) -> tuple[datetime.datetime | None, int]:
    millis, at = _long(data, at)
    nanos, at = _int(data, at)
    if millis == _MIN_LONG:
        return None, at
    return _time_of(millis, nanos % 1_000_000 // 1000), at


def _instant(data: bytes, at: int) -> tuple[Instant | None, int]:
    seconds, at = _long(data, at)
    nanos, at = _int(data, at)
    return None if seconds == _MIN_LONG else Instant(seconds, nanos), at


def _void_namespace(data: bytes, at: int) -> tuple[None, int]:
    if data[at]:
        raise ValueError(f"{data[at]} is not the empty namespace")
    return None, at + 1


def _window(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    start, at = _long(data, at)
    end, at = _long(data, at)
    return (start, end), at


_DECODERS: dict[str, Decode] = {
    "Boolean": _boolean,
    "Byte": number(">b"),
    "Short": number(">h"),
    "Int": _int,
    "Long": _long,
    "Float": number(">f"),
    "Double": number(">d"),
    "Char": _char,
    "String": _string,
    "BigDec": _big_dec,
    "BigInt": _big_int,
    "SqlDate": _date,
    "SqlTime": _time,
    "SqlTimestamp": _timestamp,
    "Instant": _instant,
    "BytePrimitiveArray": _bytes,
    "ShortPrimitiveArray": _array(">h"),
    "IntPrimitiveArray": _array(">i"),
    "LongPrimitiveArray": _array(">q"),
    "FloatPrimitiveArray": _array(">f"),
    "DoublePrimitiveArray": _array(">d"),
    "Bytes": _bytes,
    "VoidNamespace": _void_namespace,
    "TimeWindow": _window,
    "CountWindow": _long,
}


def _tuple(parts: Sequence[Decode]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for part in parts:
            value, at = part(data, at)
            values.append(value)
        return tuple(values), at

    return decode


def _row(parts: Sequence[Decode], kind_bits: int) -> Decode:
    """Returns the decoder of rows: bits for the kind, and for each field whether it is null; then the other fields."""
    bits = len(parts) + kind_bits
    width = (bits + 7) // 8

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        mask = int.from_bytes(_taken(data, at, width), "big") >> width * 8 - bits
        at += width
        values: list[Any] = []
        for position, part in enumerate(parts):
            if mask >> len(parts) - 1 - position & 1:
                values.append(None)
            else:
                value, at = part(data, at)
                values.append(value)
        if mask >> len(parts):
            raise ValueError("a row is of another kind than INSERT")
        return Row(*values), at

    return decode


def _list(part: Decode) -> Decode:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        count, at = _int(data, at)
        _taken(data, at, count)
        for _ in range(count):
            value, at = part(data, at)
            values.append(value)
        return values, at

    return decode


def _map(key: Decode, value: Decode) -> Decode:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        entries: dict[Any, Any] = {}
        count, at = _int(data, at)
        _taken(data, at, count)
        for _ in range(count):
            name, at = key(data, at)
            is_null, at = _boolean(data, at)
            entries[name], at = (None, at) if is_null else value(data, at)
        return entries, at

    return decode


def _ttl(part: Decode) -> Decode:
    """Returns the decoder of a value with the time of its last access, in milliseconds."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        stamp, at = _long(data, at)
        value, at = part(data, at)
        return (stamp, value), at

    return decode
