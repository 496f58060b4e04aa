"""The bytes of a state handle: in a file of the savepoint's folder, or in its metadata.

Flink compresses key groups in Snappy's framing format, if ``execution.checkpointing.snapshot-compression`` says so.
Source: google/snappy, ``framing_format.txt``; Flink's ``SnappyStreamCompressionDecorator``.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.flink_savepoint.metadata import StreamHandle
from dagster_flinkpy.storage import ObjectStore

__all__ = ["StoredBytes", "decompress"]
_MOST = 65536
"""The format allows no larger chunk."""


class StoredBytes:
    """The bytes of a handle, which are read in parts.

    Args:
        store: The savepoint's folder.
        handle: Where they are in it.
        what: Whose state it is, for messages.
    """

    def __init__(self, store: ObjectStore, handle: StreamHandle | None, what: str) -> None:
        self._store, self._handle = store, handle or StreamHandle(data=b"")
        self.what = f"{what}, file {handle.path}" if handle is not None and handle.path else what

    @cached_property
    def size(self) -> int:
        """How many there are.

        Raises:
            CorruptStateError: The file is missing, or has another size than the metadata says.
        """
        handle = self._handle
        if handle.data is not None:
            return len(handle.data)
        found = self._store.head(handle.path)
        if found is None:
            raise CorruptStateError(f"{self.what}: the file is missing")
        if found.size != handle.size:
            raise CorruptStateError(f"{self.what}: it has {found.size:,} bytes, and {handle.size:,} in the metadata")
        return handle.size

    def read(self, start: int, end: int) -> bytes:
        """Reads a part.

        Raises:
            CorruptStateError: The file is missing or too short.
        """
        if not 0 <= start <= end <= self.size:
            raise CorruptStateError(f"{self.what}: there are no bytes {start:,} to {end:,}")
        if self._handle.data is not None:
            return self._handle.data[start:end]
        try:
            data = self._store.get_range(self._handle.path, start, end - start)
        except ObjectNotFoundError:
            raise CorruptStateError(f"{self.what}: the file is missing") from None
        if len(data) != end - start:
            raise CorruptStateError(f"{self.what}: it ends after {start + len(data):,} bytes")
        return data


def decompress(data: bytes, what: str) -> bytes:
    """Returns the bytes that Snappy's framing format has compressed. The checksums of the format are not checked.

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
