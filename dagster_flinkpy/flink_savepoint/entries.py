"""The entries of one state in a key group of the canonical format, found many at a time.

Source: Flink's ``FullSnapshotAsyncWriter``.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["Bytes", "Entries", "Ints", "read_entries"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_END_OF_STATE = 0x80
_LENGTH = struct.Struct(">I")
_ALIKE, _LONG_RUN = 4, 64
"""After so many entries of the same lengths, more are looked for at once; after twice as many if that found few."""


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
    starts, reader.position = _starts(reader)
    view = np.frombuffer(reader.data, np.uint8)
    keys = starts + 4
    lengths = _lengths_at(view, starts)
    key_ends = keys + lengths
    values = key_ends + 4
    if (lengths < len(prefix)).any():
        raise reader.corrupt(f"a key has {lengths.min()} bytes")
    wrong = (view[keys] & (_END_OF_STATE - 1)) != prefix[0]
    if len(prefix) > 1:
        wrong |= view[keys + 1] != prefix[1]
    if wrong.any():
        raise reader.corrupt("a key is of another key group")
    return Entries(reader.data, keys, key_ends, values, values + _lengths_at(view, key_ends))


def _lengths_at(view: Bytes, starts: Ints) -> Ints:
    """Returns the lengths that are written at some positions."""
    rows = np.ascontiguousarray(sliding_window_view(view, 4)[starts])
    return rows.view(">u4")[:, 0].astype(np.int64)


def _starts(reader: ByteReader) -> tuple[Ints, int]:
    """Returns where entries begin, the last one included, and where the last one ends."""
    data, at = reader.data, reader.position
    view, unpack = np.frombuffer(data, np.uint8), _LENGTH.unpack_from
    parts: list[Ints] = []
    single = array("q")
    before, alike, enough, last = (-1, -1), 0, _ALIKE, 0
    while not last:
        try:  # A length without sign leads behind the data if it is negative, or too great.
            (length,) = unpack(data, at)
            (width,) = unpack(data, at + 4 + length)
        except struct.error:
            reader.position = at
            raise reader.corrupt("an entry is not complete") from None
        single.append(at)
        last = data[at + 4] & _END_OF_STATE
        at += 8 + length + width
        if (length, width) != before:
            before, alike = (length, width), 0
            continue
        alike += 1
        if alike >= enough and not last:
            count, last = _run(view, at, length, width)
            stride = 8 + length + width
            parts += [np.array(single), at + stride * np.arange(count, dtype=np.int64)]
            single = array("q")
            at, alike = at + stride * count, 0
            enough = _ALIKE if count > _LONG_RUN else enough * 2
    if at > len(data):
        reader.position = at
        raise reader.corrupt(f"a value has {width} bytes")
    return np.concatenate([*parts, np.array(single)]), at


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
