"""The entries of one state in a key group of the canonical format, found many at a time.

Source: Flink's ``FullSnapshotAsyncWriter``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["Entries", "read_entries"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_END_OF_STATE = 0x80
_LENGTH = struct.Struct(">i")
_ALIKE = 4
"""After this many entries of the same lengths, more of them are looked for at once."""


@dataclass(frozen=True)
class Entries:
    """Where keys and values are in some bytes."""

    data: bytes
    keys: Ints
    """Where each key begins, with its key group."""
    key_ends: Ints
    values: Ints
    value_ends: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def key_and_value(self, at: int) -> tuple[bytes, bytes]:
        """Returns the bytes of one entry."""
        data = self.data
        return data[self.keys[at] : self.key_ends[at]], data[self.values[at] : self.value_ends[at]]


def read_entries(reader: ByteReader, prefix: bytes) -> Entries:
    """Reads the entries of a state up to the one that says that it is the last.

    Args:
        reader: Where they begin; it is moved behind them.
        prefix: The key group, with which each key begins.

    Raises:
        CorruptStateError: They are damaged.
    """
    data, at, size = reader.data, reader.position, len(reader.data)
    view = np.frombuffer(data, np.uint8)
    parts: list[Any] = []
    single: list[tuple[int, int, int, int]] = []
    before, alike, last = (0, 0), 0, False
    while not last:
        reader.position = at
        if size - at < 8:
            raise reader.corrupt("an entry is not complete")
        length = _LENGTH.unpack_from(data, at)[0]
        end = at + 4 + length
        if length < len(prefix) or end + 4 > size:
            raise reader.corrupt(f"a key has {length} bytes")
        width = _LENGTH.unpack_from(data, end)[0]
        if not 0 <= width <= size - end - 4:
            raise reader.corrupt(f"a value has {width} bytes")
        single.append((at + 4, end, end + 4, end + 4 + width))
        last = bool(data[at + 4] & _END_OF_STATE)
        alike = alike + 1 if (length, width) == before else 0
        before = (length, width)
        at = end + 4 + width
        if alike >= _ALIKE and not last:
            count, last = _run(view, at, length, width)
            stride = 8 + length + width
            starts = at + 4 + stride * np.arange(count, dtype=np.int64)
            parts += [
                np.array(single, dtype=np.int64),
                np.column_stack((starts, starts + length, starts + length + 4, starts + length + 4 + width)),
            ]
            single.clear()
            at, alike = at + stride * count, 0
    reader.position = at
    bounds = np.concatenate([*parts, np.array(single, dtype=np.int64).reshape(-1, 4)])
    keys = bounds[:, 0]
    wrong = (view[keys] & (_END_OF_STATE - 1)) != prefix[0]
    if len(prefix) > 1:
        wrong |= view[keys + 1] != prefix[1]
    if wrong.any():
        raise reader.corrupt("a key is of another key group")
    return Entries(data, keys, bounds[:, 1], bounds[:, 2], bounds[:, 3])


def _run(view: Bytes, at: int, length: int, width: int) -> tuple[int, bool]:
    """Returns how many entries with these lengths follow, and whether the last of them is the last of the state."""
    stride = 8 + length + width
    heads = np.frombuffer(_LENGTH.pack(length) + _LENGTH.pack(width), np.uint8)
    left, block, found = (len(view) - at) // stride, 64, 0
    while left:
        count = min(block, left)
        rows = view[at : at + count * stride].reshape(count, stride)
        same = (rows[:, :4] == heads[:4]).all(axis=1) & (rows[:, 4 + length : 8 + length] == heads[4:]).all(axis=1)
        good = count if same.all() else int(same.argmin())
        ends = np.flatnonzero(rows[:good, 4] & _END_OF_STATE)
        if len(ends):
            return found + int(ends[0]) + 1, True
        found += good
        if good < count:
            break
        at, left, block = at + count * stride, left - count, min(block * 4, 1 << 14)
    return found, False
