"""The entries of one state in a key group of the canonical format, found many at a time.

Those whose keys and values are plain are decoded column by column. Only what is exactly as expected is decoded here;
everything else is left to the decoders of single values.

Source: Flink's ``FullSnapshotAsyncWriter``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["KEYS", "VALUES", "Bytes", "Entries", "Ints", "read_entries", "regular_columns"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_END_OF_STATE = 0x80
_LENGTH = struct.Struct(">I")
_ALIKE, _LONG_RUN = 4, 64
"""After so many entries of the same lengths, more are looked for at once; after twice as many if that found few."""
_NUMBERS: dict[str, tuple[str, int]] = {
    "BYTE": (">i1", 1),
    "SHORT": (">i2", 2),
    "INT": (">i4", 4),
    "LONG": (">i8", 8),
    "FLOAT": (">f4", 4),
    "DOUBLE": (">f8", 8),
}
KEYS = {"Byte": "BYTE", "Short": "SHORT", "Int": "INT", "Long": "LONG", "String": "STRING"}
"""The serializers of keys that are decoded here, with the names of their types."""
VALUES = frozenset({*_NUMBERS, "STRING"})
"""The names of the types of values that are decoded here."""
_ROW_OF_VALUE = 0
"""The mask of a row of one field that is not null."""


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


def regular_columns(
    entries: Entries, prefix: int, key: str, value: str, *, wrapped: bool
) -> tuple[pa.Array[Any], pa.Array[Any]] | None:
    """Returns the keys and the values; None if an entry is not as expected.

    Args:
        entries: Entries without a namespace, each with a list of one value of PyFlink's process mode.
        prefix: How many bytes the key group takes.
        key: Name of the type of the keys.
        value: Name of the type of the values.
        wrapped: Whether a key is a row of one field.
    """
    view = np.frombuffer(entries.data, np.uint8)
    starts, ends = entries.keys + prefix, entries.key_ends
    if wrapped:
        if (starts >= ends).any() or (view[starts] != _ROW_OF_VALUE).any():
            return None
        starts = starts + 1
    ends = ends - 1  # the namespace is empty: a zero
    if (starts > ends).any() or view[ends].any():
        return None
    keys = _java_texts(entries.data, starts, ends) if key == "STRING" else _numbers(view, starts, ends, key)
    starts, ends = entries.values + 4, entries.value_ends
    if keys is None or not _have_lengths(view, starts, ends):
        return None
    if value != "STRING":
        values = _numbers(view, starts, ends, value)
    else:
        starts = starts + 4
        values = _texts(entries.data, starts, ends) if _have_lengths(view, starts, ends) else None
    return None if values is None else (keys, values)


def _have_lengths(view: Bytes, starts: Ints, ends: Ints) -> bool:
    """Returns whether the length of each part, in four bytes, is before it."""
    if (starts > ends).any():
        return False
    rows = np.ascontiguousarray(sliding_window_view(view, 4)[starts - 4])
    return bool((rows.view(">i4")[:, 0] == ends - starts).all())


def _numbers(view: Bytes, starts: Ints, ends: Ints, kind: str) -> pa.Array[Any] | None:
    form, width = _NUMBERS[kind]
    if (ends - starts != width).any():
        return None
    packed = np.ascontiguousarray(sliding_window_view(view, width)[starts]).view(form)[:, 0]
    return pa.array(packed.astype(packed.dtype.newbyteorder("=")))


def _java_texts(data: bytes, starts: Ints, ends: Ints) -> pa.Array[Any] | None:
    """Returns texts as Java's serializer writes them, if they are short, and ASCII."""
    view = np.frombuffer(data, np.uint8)
    widths = ends - starts
    # One byte says one more than the length. Of more than 126 characters it would be two bytes.
    if ((widths < 1) | (widths > 0x7F)).any() or (view[starts] != widths).any():
        return None
    texts = _texts(data, starts + 1, ends)
    return texts if texts is not None and pc.all(pc.string_is_ascii(texts)).as_py() else None


def _texts(data: bytes, starts: Ints, ends: Ints) -> pa.Array[Any] | None:
    """Returns texts in UTF-8, or None if some are not."""
    # Parts of the data, of which each second is a text. Entries are in order.
    bounds = np.column_stack((starts, ends)).reshape(-1)
    parts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    try:
        return parts.take(pa.array(np.arange(0, len(bounds), 2))).cast(pa.string())
    except pa.ArrowInvalid:
        return None
