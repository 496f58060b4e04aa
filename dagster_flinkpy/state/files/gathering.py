"""A column of rows that lie in several runs, taken at once.

A lookup finds a few rows in each of many runs. So what a run costs counts, and not what a row costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.state.files.packed_columns import PackedColumn, PackedIntegers, PackedStruct

__all__ = ["ColumnReader", "gather", "reader_of"]

Indices = npt.NDArray[np.int64]
Column = Any  # of Arrow
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class _Floats:
    """Floating-point numbers."""

    values: npt.NDArray[Any]


@dataclass(frozen=True)
class _Integers:
    """Integers; see `packed_columns`. Those that are stored as they are have no rest, no shift and the base 0."""

    top: npt.NDArray[Any]
    rest: npt.NDArray[Any] | None
    packing: PackedIntegers


@dataclass(frozen=True)
class _Flags:
    """Booleans, eight a byte; None if all are false."""

    bits: npt.NDArray[np.uint8] | None
    offset: int


@dataclass(frozen=True)
class _Structs:
    fields: Sequence[ColumnReader]


ColumnReader = _Floats | _Integers | _Flags | _Structs
"""What reads some rows of a column without Arrow, whose calls take longer than a few rows."""


def reader_of(column: Any, packing: PackedColumn | None) -> ColumnReader | None:
    """Returns what reads a column, or None if only Arrow can: it has nulls, or values of any size.

    Args:
        column: The column as it is stored.
        packing: How it is packed; None if it is not.
    """
    kind = column.type
    if column.null_count:
        return None
    if isinstance(packing, PackedIntegers):
        return _Integers(column.field(0).to_numpy(), column.field(1).to_numpy() if packing.shift else None, packing)
    if pa.types.is_struct(kind):
        packings = packing.fields if isinstance(packing, PackedStruct) else [None] * kind.num_fields
        fields = [reader_of(column.field(i), each) for i, each in enumerate(packings)]
        known = [each for each in fields if each is not None]
        return _Structs(known) if known and len(known) == len(fields) else None
    if pa.types.is_boolean(kind):
        bits = np.frombuffer(column.buffers()[1], dtype=np.uint8) if column.true_count else None
        return _Flags(bits, column.offset)
    if pa.types.is_integer(kind):
        return _Integers(column.to_numpy(), None, PackedIntegers(kind, 0, 0))
    if pa.types.is_floating(kind):
        return _Floats(column.to_numpy())
    return None


def gather(readers: Sequence[Any], rows: Sequence[Indices], kind: Any) -> Column:
    """Returns the values in some rows of several columns of one type, one column after the other.

    Args:
        readers: A reader of each column, at least one.
        rows: The rows of each.
        kind: The type of the values.
    """
    if isinstance(readers[0], _Structs):
        fields = [gather([reader.fields[i] for reader in readers], rows, field.type) for i, field in enumerate([*kind])]
        return pa.StructArray.from_arrays(fields, fields=[*kind])
    if pa.types.is_boolean(kind):
        return pa.array(_flags(readers, rows))
    if pa.types.is_floating(kind):
        return pa.array(_floats(readers, rows))
    return pa.array(_integers(readers, rows, np.dtype(kind.to_pandas_dtype())))


def _places(rows: Sequence[Indices]) -> Iterator[slice]:
    """Yields where the rows of each column are in the result."""
    ends = np.cumsum([0, *map(len, rows)]).tolist()
    return (slice(start, end) for start, end in pairwise(ends))


def _flags(readers: Sequence[_Flags], rows: Sequence[Indices]) -> npt.NDArray[np.bool_]:
    values = np.zeros(sum(map(len, rows)), dtype=np.bool_)
    for reader, own, place in zip(readers, rows, _places(rows), strict=True):
        if reader.bits is not None:
            bits = own + reader.offset
            values[place] = reader.bits[bits >> 3] >> (bits & 7) & 1
    return values


def _floats(readers: Sequence[_Floats], rows: Sequence[Indices]) -> npt.NDArray[Any]:
    return np.concatenate([reader.values[own] for reader, own in zip(readers, rows, strict=True)])


def _integers(readers: Sequence[_Integers], rows: Sequence[Indices], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    # tops, rests: uint64, one a value. shifts, bases: uint64, one a column. Negative integers and bases count modulo
    # 2^64.
    counts = [*map(len, rows)]
    tops = np.empty(sum(counts), dtype=np.uint64)
    rests = np.zeros(len(tops), dtype=np.uint64)
    shifts, bases = np.zeros((2, len(readers)), dtype=np.uint64)
    for i, (reader, own, place) in enumerate(zip(readers, rows, _places(rows), strict=True)):
        tops[place] = reader.top[own]
        shifts[i], bases[i] = reader.packing.shift, reader.packing.base & _MASK
        if reader.rest is not None:
            rests[place] = reader.rest[own]
    tops <<= np.repeat(shifts, counts)
    tops |= rests
    tops += np.repeat(bases, counts)
    return tops.view(np.int64).astype(kind, copy=False) if kind.kind == "i" else tops.astype(kind, copy=False)
