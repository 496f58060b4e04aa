"""Decodes entries whose keys and values are plain, column by column instead of one by one.

Only what is exactly as expected is decoded here; everything else is left to the decoders of single values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.flink_savepoint.entries import Entries

__all__ = ["KEYS", "VALUES", "regular_columns"]

_Rows = npt.NDArray[np.uint8]

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


def regular_columns(
    entries: Entries, prefix: int, key: str, value: str, *, wrapped: bool
) -> tuple[pa.Array[Any], pa.Array[Any]] | None:
    """Returns the keys and the values, in any common order; None if an entry is not as expected.

    Args:
        entries: Entries without a namespace, each with a list of one value of PyFlink's process mode.
        prefix: How many bytes the key group takes.
        key: Name of the type of the keys.
        value: Name of the type of the values.
        wrapped: Whether a key is a row of one field.
    """
    view = np.frombuffer(entries.data, np.uint8)
    lengths, widths = entries.key_ends - entries.keys, entries.value_ends - entries.values
    shapes, shape_of = np.unique(lengths << np.int64(32) | widths, return_inverse=True)
    keys, values = [], []
    for number, shape in enumerate(shapes.tolist()):
        chosen = slice(None) if len(shapes) == 1 else shape_of == number
        length, width = shape >> 32, shape & 0xFFFFFFFF
        if width < 4:  # the length of the value
            return None
        mine = _key(_gathered(view, entries.keys[chosen], length)[:, prefix:], key, wrapped)
        own = _value(_gathered(view, entries.values[chosen], width), value)
        if mine is None or own is None:
            return None
        keys.append(mine)
        values.append(own)
    return pa.concat_arrays(keys), pa.concat_arrays(values)


def _gathered(view: _Rows, starts: npt.NDArray[np.int64], width: int) -> _Rows:
    """Returns the bytes from each start, a row each."""
    rows: _Rows = np.lib.stride_tricks.sliding_window_view(view, width)[starts]
    return rows


def _key(rows: _Rows, kind: str, wrapped: bool) -> pa.Array[Any] | None:
    if wrapped:
        if rows.shape[1] < 1 or (rows[:, 0] != _ROW_OF_VALUE).any():
            return None
        rows = rows[:, 1:]
    if rows.shape[1] < 1 or rows[:, -1].any():  # the namespace is empty: a zero
        return None
    rows = rows[:, :-1]
    if kind != "STRING":
        return _numbers(rows, kind)
    width = rows.shape[1] - 1  # one byte says one more than the length
    if not 0 <= width < 0x7F or (rows[:, 0] != width + 1).any():
        return None
    return _texts(rows[:, 1:])


def _value(rows: _Rows, kind: str) -> pa.Array[Any] | None:
    width = rows.shape[1] - 4
    if (_lengths(rows) != width).any():
        return None
    rows = rows[:, 4:]
    if kind != "STRING":
        return _numbers(rows, kind)
    if width < 4 or (_lengths(rows) != width - 4).any():
        return None
    return _texts(rows[:, 4:])


def _lengths(rows: _Rows) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(rows[:, :4]).view(">i4")[:, 0]


def _numbers(rows: _Rows, kind: str) -> pa.Array[Any] | None:
    form, width = _NUMBERS[kind]
    if rows.shape[1] != width:
        return None
    packed = np.ascontiguousarray(rows).view(form)[:, 0]
    return pa.array(packed.astype(packed.dtype.newbyteorder("=")))


def _texts(rows: _Rows) -> pa.Array[Any] | None:
    count, width = rows.shape
    if (rows >= 0x80).any() or count * width >= 1 << 31:
        return None
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(rows)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))
