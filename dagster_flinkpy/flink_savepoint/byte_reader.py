"""Reads Java's ``DataOutput`` from bytes. Every length is checked against what is left before anything is allocated."""

from __future__ import annotations

import struct

from dagster_flinkpy.errors import CorruptStateError

__all__ = ["ByteReader"]

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


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
