"""What sources of Flink remember: which files they have found, and how far splits of numbers are read.

Source: Flink's ``SourceCoordinatorSerdeUtils``, ``PendingSplitsCheckpointSerializer``, ``IteratorSourceSplit`` and
``NumberSequenceSource.SplitSerializer``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["FoundFiles", "NumberSplit", "found_files", "number_splits"]

_VERSION = 1
_FILES_MAGIC = 0xDEADBEEF


class FoundFiles(NamedTuple):
    """The files that a ``FileSource`` has found."""

    paths: tuple[str, ...]
    """All of them, as Flink writes paths: ``file:/folder/name``."""
    pending: int
    """How many splits of them no reader has got yet."""


class NumberSplit(NamedTuple):
    """A part of a sequence of numbers."""

    next: int
    """The number that is read next."""
    last: int
    """The last number, which belongs to it."""


def _versioned(data: bytes, what: str) -> ByteReader:
    """Returns a reader of what follows a version and a length."""
    reader = ByteReader(data, what)
    if (version := reader.int32()) != _VERSION:
        raise UnsupportedSavepointError(f"{what}: it has version {version}; 1 is the one that is known")
    body = reader.take(reader.int32())
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    return ByteReader(body, what)


def _enumerator(data: bytes, what: str) -> ByteReader:
    reader = ByteReader(data, what)
    if (version := reader.int32()) != _VERSION:
        raise UnsupportedSavepointError(f"{what}: its coordinator has version {version}; 1 is the one that is known")
    return _versioned(reader.take(reader.left), what)


def found_files(coordinator: bytes, what: str) -> FoundFiles:
    """Decodes the state of the enumerator of a ``FileSource`` that watches folders.

    Args:
        coordinator: The coordinator's state.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another version, or of another source.
        CorruptStateError: It is damaged.
    """
    reader = _enumerator(coordinator, what)
    if reader.left < 16 or struct.unpack_from("<I", reader.data)[0] != _FILES_MAGIC:
        raise UnsupportedSavepointError(f"{what}: the state of its enumerator is not that of a FileSource")
    _, _, splits, paths = struct.unpack("<IiiI", reader.take(16))
    found = []
    for number in range(reader.check_count(splits, 4) + reader.check_count(paths, 4)):
        text = reader.take(int.from_bytes(reader.take(4), "little"))
        try:
            found += [text.decode("utf-8")] if number >= splits else []
        except UnicodeDecodeError as error:
            raise reader.corrupt(f"a path is not text: {error}") from None
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    return FoundFiles(tuple(found), splits)


def number_splits(coordinator: bytes, elements: Sequence[bytes], what: str) -> list[NumberSplit]:
    """Decodes the splits of a ``NumberSequenceSource`` that are not read to the end.

    Args:
        coordinator: The coordinator's state, which has the splits that no reader has got yet.
        elements: The splits of the readers.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another version.
        CorruptStateError: It is damaged.
    """
    found = [_number_split(_versioned(each, what)) for each in elements]
    reader = _enumerator(coordinator, what)
    found += [_number_split(reader) for _ in range(reader.count(18))]
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    unread = [split for split in found if split.next <= split.last]
    return sorted(unread)


def _number_split(reader: ByteReader) -> NumberSplit:
    reader.utf()
    split = NumberSplit(reader.int64(), reader.int64())
    if split.next > split.last + 1:
        raise CorruptStateError(f"{reader.what}: a split goes from {split.next} to {split.last}")
    return split
