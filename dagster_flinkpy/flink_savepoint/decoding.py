"""Decodes numbers, bytes and values with parts, as Java's serializers and PyFlink's coders write them alike."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "INT",
    "LONG",
    "MIN_LONG",
    "NUMBERS",
    "Decode",
    "elements_of",
    "map_of",
    "number",
    "row_of",
    "sized_bytes",
    "taken",
    "time_of",
    "tuple_of",
]

Decode = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the value at a position of some bytes; returns it with the position after it. Of damaged bytes it raises a
``struct.error``, ``IndexError``, ``ValueError`` or ``OverflowError``."""

MIN_LONG = -(1 << 63)
_EPOCH = datetime.datetime(1970, 1, 1)


def number(form: str) -> Decode:
    """Returns what reads a number of this form of `struct`."""
    packed = struct.Struct(form)
    size, unpack = packed.size, packed.unpack_from

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return decode


INT, LONG = number(">i"), number(">q")
NUMBERS: dict[str, Decode] = {
    "Byte": number(">b"),
    "Short": number(">h"),
    "Int": INT,
    "Long": LONG,
    "Float": number(">f"),
    "Double": number(">d"),
}
"""By the names of Java's classes."""


def _check_left(data: bytes, at: int, length: int) -> None:
    if not 0 <= length <= len(data) - at:
        raise ValueError(f"{length} bytes should follow, but {len(data) - at} are left")


def taken(data: bytes, at: int, length: int) -> bytes:
    """Returns the next bytes."""
    _check_left(data, at, length)
    return data[at : at + length]


def sized_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Decodes bytes after their number."""
    length, at = INT(data, at)
    return taken(data, at, length), at + length


def time_of(millis: int, micros: int = 0) -> datetime.datetime:
    """Returns a time by its distance from 1970."""
    return _EPOCH + datetime.timedelta(milliseconds=millis, microseconds=micros)


def tuple_of(parts: Sequence[Decode]) -> Decode:
    """Returns the decoder of tuples."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for part in parts:
            value, at = part(data, at)
            values.append(value)
        return tuple(values), at

    return decode


def row_of(parts: Sequence[Decode], kind_bits: int, make: Callable[[int, list[Any]], Any]) -> Decode:
    """Returns the decoder of rows: bits for the kind, and for each field whether it is null; then the other fields.

    Args:
        parts: The decoders of the fields.
        kind_bits: How many bits the kind has.
        make: Makes a row of its kind and its values.
    """
    bits = len(parts) + kind_bits
    width = (bits + 7) // 8

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        mask = int.from_bytes(taken(data, at, width), "big") >> width * 8 - bits
        at += width
        values: list[Any] = []
        for position, part in enumerate(parts, 1):
            value = None
            if not mask >> len(parts) - position & 1:
                value, at = part(data, at)
            values.append(value)
        return make(mask >> len(parts), values), at

    return decode


def elements_of(part: Decode) -> Decode:
    """Returns the decoder of lists: the number of elements, each of at least a byte, and then the elements."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        count, at = INT(data, at)
        _check_left(data, at, count)
        for _ in range(count):
            value, at = part(data, at)
            values.append(value)
        return values, at

    return decode


def map_of(key: Decode, is_null: Decode, value: Decode) -> Decode:
    """Returns the decoder of maps: the number of entries, and of each its key, whether its value is null, and that."""

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        entries: dict[Any, Any] = {}
        count, at = INT(data, at)
        _check_left(data, at, count)
        for _ in range(count):
            name, at = key(data, at)
            null, at = is_null(data, at)
            entries[name], at = (None, at) if null else value(data, at)
        return entries, at

    return decode
