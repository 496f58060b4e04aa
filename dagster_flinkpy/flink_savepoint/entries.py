"""The entries of one state in a key group of the canonical format, found many at a time.

Source: Flink's ``FullSnapshotAsyncWriter``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
    starts, reader.position = _starts(reader, len(prefix))
    view = np.frombuffer(reader.data, np.uint8)
    keys = starts + 4
    key_ends = keys + _lengths_at(reader.data, starts)
    values = key_ends + 4
    wrong = (view[keys] & (_END_OF_STATE - 1)) != prefix[0]
    if len(prefix) > 1:
        wrong |= view[keys + 1] != prefix[1]
    if wrong.any():
        raise reader.corrupt("a key is of another key group")
    return Entries(reader.data, keys, key_ends, values, values + _lengths_at(reader.data, key_ends))


def _lengths_at(data: bytes, starts: Ints) -> Ints:
    """Returns the lengths that are written at some positions."""
    at_each_byte = np.ndarray(len(data) - 3, ">u4", data, strides=1)
    return at_each_byte[starts].astype(np.int64)


def _starts(reader: ByteReader, prefix: int) -> tuple[Ints, int]:
    """Returns where entries begin, the last one included, and where the last one ends."""
    data, at, size = reader.data, reader.position, len(reader.data)
    view = np.frombuffer(data, np.uint8)
    parts: list[Ints] = []
    single = array("q")
    length, head = 1, _head(1)
    before, alike, enough, last = -1, 0, _ALIKE, 0
    while not last:
        try:
            found, first, width = head(data, at)
        except struct.error:  # it is the last, and its key is shorter, or it is not complete
            found = -1
        if found != length:
            reader.position = at
            length, before = reader.int32(), -1
            if not prefix <= length <= size - at - 8:
                raise reader.corrupt(f"a key has {length} bytes")
            head = _head(length)
            _, first, width = head(data, at)
        single.append(at)
        last = first & _END_OF_STATE
        at += 8 + length + width
        if width != before:
            before, alike = width, 0
            continue
        alike += 1
        if alike >= enough and not last:
            count, last = _run(view, at, length, width)
            stride = 8 + length + width
            parts += [np.array(single), at + stride * np.arange(count, dtype=np.int64)]
            single = array("q")
            at, alike = at + stride * count, 0
            enough = _ALIKE if count > _LONG_RUN else enough * 2
    if at > size:
        raise reader.corrupt(f"a value of {width} bytes is not complete")
    return np.concatenate([*parts, np.array(single)]), at


@lru_cache(maxsize=64)
def _head(length: int) -> Callable[[bytes, int], tuple[int, int, int]]:
    """Returns what reads the length of a key, its first byte, and the length of the value, of keys of a length."""
    read: Callable[[bytes, int], tuple[int, int, int]] = struct.Struct(f">IB{length - 1}xI").unpack_from
    return read


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
