"""Snappy's framing format, in which Flink compresses key groups (``execution.checkpointing.snapshot-compression``).

Source: google/snappy, ``framing_format.txt``; Flink's ``SnappyStreamCompressionDecorator``.
"""

from __future__ import annotations

import pyarrow as pa

from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["decompress"]

_MOST = 65536
"""The format allows no larger chunk."""


def decompress(data: bytes, what: str) -> bytes:
    """Returns the uncompressed bytes. The checksums of the format are not checked.

    Args:
        data: A stream in the framing format.
        what: What it is, for messages.

    Raises:
        CorruptStateError: It is damaged.
    """
    reader = ByteReader(data, what)
    if not reader.left:
        return b""
    if reader.take(10) != b"\xff\x06\x00\x00sNaPpY":
        raise reader.corrupt("this is not a compressed stream of snappy")
    parts = []
    while reader.left:
        kind = reader.byte()
        body = reader.take(int.from_bytes(reader.take(3), "little"))
        if kind in (0, 1):
            if len(body) < 4:
                raise reader.corrupt("a chunk of snappy has no checksum")
            parts.append(body[4:] if kind else _uncompressed(reader, body[4:]))
        elif kind < 0x80:
            raise reader.corrupt(f"there is no chunk of snappy of type {kind}")
    return b"".join(parts)


def _uncompressed(reader: ByteReader, block: bytes) -> bytes:
    size = shift = 0
    for byte in block[:3]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if not 0 < size <= _MOST:
        raise reader.corrupt(f"a chunk of snappy has {size} bytes")
    try:
        plain: bytes = pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptStateError(f"{reader.what}, byte {reader.position:,}: {error}") from None
    return plain
