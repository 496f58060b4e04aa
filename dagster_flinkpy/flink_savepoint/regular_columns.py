"""Decodes entries whose keys and values are plain, column by column instead of one by one.

Only what is exactly as expected is decoded here; everything else is left to the decoders of single values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from dagster_flinkpy.flink_savepoint.entries import Bytes, Entries, Ints

__all__ = ["KEYS", "VALUES", "regular_columns"]

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
