"""Rows of several integers, such as keys of two ids, as numbers.

The Java hash of such a row says little: with ids of 0 to n, n * n pairs share 32 * n hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.state.cell_columns import grown
from dagster_flinkpy.state.int_index import IntIndex

__all__ = ["IntegerRowIndex", "has_integer_rows", "integer_rows", "mixed"]

Integers = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_MOST_FIELDS = 62


def has_integer_rows(kind: pa.DataType) -> bool:
    """Returns whether values of a type are rows of integers, or of times and booleans, which are integers as well."""
    if not pa.types.is_struct(kind) or not 0 < kind.num_fields <= _MOST_FIELDS:
        return False
    return all(_is_integer(field.type) or _is_time(field.type) for field in kind)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def integer_rows(column: pa.Array[Any]) -> list[Integers]:
    """Returns the fields of rows, of a type with integer rows. The last array tells which of them are null, in bits."""
    rows: Any = column
    nulls = np.zeros(len(column), dtype=np.int64)
    if column.null_count:
        nulls += column.is_null().to_numpy(zero_copy_only=False)
    fields = []
    for i, field in enumerate(rows.flatten(), start=1):
        if field.null_count:
            nulls += field.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << i
        if pa.types.is_boolean(field.type):
            field = field.cast(pa.int8())
        elif _is_time(field.type):
            field = field.view(pa.int32() if field.type.bit_width == 32 else pa.int64())
        values = field.fill_null(0) if field.null_count else field
        fields.append(values.to_numpy().astype(np.int64, copy=False))
    return [*fields, nulls]


def mixed(fields: Sequence[Integers]) -> Integers:
    """Returns a hash of 64 bits for each row."""
    mix = np.zeros(len(fields[0]), dtype=np.uint64)
    for field in fields:
        mix ^= field.view(np.uint64)
        mix *= _MIX
        mix ^= mix >> _HALF
    return mix.view(np.int64)


class IntegerRowIndex:
    """Numbers distinct rows 0, 1, 2, ... in the order in which they are added."""

    def __init__(self) -> None:
        self._size = 0
        self._fields: list[Integers] = []
        """The values of each field, by number."""
        self._index = IntIndex()
        """Numbers the hashes."""
        self._first: Integers = np.zeros(0, dtype=np.int64)
        """The first row with each hash."""
        self._sharing: dict[tuple[int, ...], int] = {}
        """Rows that share their hash with an earlier row."""

    def add(self, column: pa.Array[Any]) -> None:
        """Adds distinct rows that are not in the index."""
        fields, before = integer_rows(column), self._size
        self._size += len(column)
        if not self._fields:
            self._fields = [np.zeros(0, dtype=np.int64) for _ in fields]
        self._fields = [grown(known, self._size, 0) for known in self._fields]
        for known, field in zip(self._fields, fields, strict=True):
            known[before : self._size] = field
        hashes = len(self._index)
        _, first = self._index.add(mixed(fields))
        self._first = grown(self._first, hashes + len(first), 0)
        self._first[hashes : hashes + len(first)] = before + first
        if len(first) < len(column):
            for row in np.setdiff1d(np.arange(len(column)), first).tolist():
                self._sharing[tuple(int(field[row]) for field in fields)] = before + row

    def find(self, column: pa.Array[Any]) -> Integers:
        """Returns the number of each row, or -1 if it was not added."""
        fields = integer_rows(column)
        found = self._index.find(mixed(fields))
        if not self._size:
            return found
        missing = found < 0
        numbers: Integers = np.where(missing, -1, self._first[found])
        same = np.ones(len(found), dtype=np.bool_)
        for known, field in zip(self._fields, fields, strict=True):
            same &= known[numbers] == field
        other = ~(same | missing)
        if other.any():
            for row in np.flatnonzero(other).tolist():
                numbers[row] = self._sharing.get(tuple(int(field[row]) for field in fields), -1)
        return numbers
