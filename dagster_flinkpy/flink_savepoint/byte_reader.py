"""Reads Java's ``DataOutput`` from bytes, and values as Java's serializers and PyFlink's coders write them alike.

Every length is checked against what is left before anything is allocated.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from typing import Any

from dagster_flinkpy.errors import CorruptStateError

__all__ = [
    "INT",
    "LONG",
    "MIN_LONG",
    "NUMBERS",
    "ByteReader",
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

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
Decode = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the value at a position of some bytes; returns it with the position after it. Of damaged bytes it raises a
``struct.error``, ``IndexError``, ``ValueError`` or ``OverflowError``."""
MIN_LONG = -(1 << 63)
_EPOCH = datetime.datetime(1970, 1, 1)


class ByteReader:
    """A position in bytes, which reads forward.

    Args:
        data: The bytes.
        what: What they are, for messages.

    Raises:
        CorruptStateError: All methods raise it if the bytes end too early, or a length is negative.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.position = data, what, 0

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self.data) - self.position

    def take(self, length: int) -> bytes:
        """Returns the next bytes."""
        start = self.position
        if not 0 <= length <= len(self.data) - start:
            raise self.corrupt(f"{length} bytes should follow, but {self.left} are left")
        self.position = start + length
        return self.data[start : self.position]

    def byte(self) -> int:
        """Returns the next byte, without sign."""
        return self.take(1)[0]

    def flag(self) -> bool:
        """Returns the next boolean."""
        value = self.byte()
        if value > 1:
            raise self.corrupt(f"{value} is not a boolean")
        return value == 1

    def int16(self) -> int:
        """Returns the next number of 16 bits."""
        return int(_SHORT.unpack(self.take(2))[0])

    def int32(self) -> int:
        """Returns the next number of 32 bits."""
        return int(_INT.unpack(self.take(4))[0])

    def int64(self) -> int:
        """Returns the next number of 64 bits."""
        return int(_LONG.unpack(self.take(8))[0])

    def longs(self, count: int) -> tuple[int, ...]:
        """Returns the next numbers of 64 bits."""
        return struct.unpack(f">{count}q", self.take(8 * count)) if count >= 0 else tuple(self.take(count))

    def count(self, least_bytes: int = 1) -> int:
        """Returns the next number of 32 bits, which counts what follows.

        Args:
            least_bytes: How many bytes each takes, at least.
        """
        return self.check_count(self.int32(), least_bytes)

    def check_count(self, count: int, least_bytes: int = 1) -> int:
        """Returns a number of things that follow, if there is room for them."""
        if not 0 <= count * least_bytes <= self.left:
            raise self.corrupt(f"{count} elements should follow, but {self.left} bytes are left")
        return count

    def utf(self) -> str:
        """Returns the next text, as ``writeUTF`` writes it."""
        data = self.take(int.from_bytes(self.take(2), "big"))
        try:  # Modified UTF-8: surrogates apart, and zero in two bytes.
            return data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"this is not text: {error}") from None

    def corrupt(self, problem: str) -> CorruptStateError:
        """Returns the error that names a problem at this position."""
        return CorruptStateError(f"{self.what}, byte {self.position:,}: {problem}")


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
