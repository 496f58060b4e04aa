"""Columns of local copies of runs. Their integers take as few bytes as they need, and are read in place.

A packed column of integers is a struct: ``top``, the distance from the smallest value in 8, 16 or 32 bits, and, if that
is not enough, ``rest``, the lowest 8 or 16 bits of the distance. Metadata of ``top`` has what a reader needs.

A lookup finds a few rows in each of many runs. So what a run costs counts, and not what a row costs: a column of rows
that lie in several runs is gathered at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.state.layout import SortKeys

__all__ = [
    "ColumnReader",
    "PackedColumn",
    "PackedIntegers",
    "PackedStruct",
    "SortKeyColumn",
    "gather",
    "pack",
    "pack_rows",
    "packing_of",
    "reader_of",
]

Indices = npt.NDArray[np.int64]
Column = Any  # of Arrow

_INTEGERS = (pa.int32(), pa.int64(), pa.uint64())
_TOPS = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_RESTS = {8: np.uint8, 16: np.uint16}
_MASK = (1 << 64) - 1
_PART = 1 << 14
_DENSE = 4
"""If at least one row in so many is looked for, sort keys are unpacked before: then few look alike."""
_LINE = 16
"""Sort keys of a line. The first ones of all lines fit in the cache of the processor."""
_SPARSE = 100
"""If fewer than one row in so many are looked for, their lines are found first. For more, that takes longer."""
_SELDOM = 1 << 10
"""Marks are made when one row in so many was looked for: by then, most pages of the file have been read anyway."""


@dataclass(frozen=True)
class PackedIntegers:
    """How a column of integers is packed."""

    kind: pa.DataType
    """The type of the integers."""
    base: int
    shift: int
    """How many bits ``rest`` has; 0 without it."""

    def unpack(self, column: Any) -> Column:
        """Returns the integers of a column."""
        # top, rest: unsigned, values: uint64, one a row.
        top, rest = column.field(0).to_numpy(), column.field(1).to_numpy() if self.shift else None
        values = np.empty(len(top), dtype=np.uint64)
        for part in _parts(len(top)):
            own = values[part]
            np.left_shift(top[part], np.uint64(self.shift), out=own, dtype=np.uint64)
            if rest is not None:
                own |= rest[part]
            own += np.uint64(self.base & _MASK)
        mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        signed = values if self.kind == pa.uint64() else values.view(np.int64)
        return pa.array(signed.astype(self.kind.to_pandas_dtype(), copy=False), mask=mask)


@dataclass(frozen=True)
class PackedStruct:
    """How the fields of a column of structs are packed."""

    kind: pa.StructType
    """The type of the structs."""
    fields: Sequence[PackedColumn | None]
    """None for fields that are not packed."""

    def unpack(self, column: Any) -> Column:
        """Returns the structs of a column."""
        fields = [
            each if packing is None else packing.unpack(each)
            for packing, each in zip(self.fields, _fields(column), strict=True)
        ]
        return _struct(fields, self.kind, column)


PackedColumn = PackedIntegers | PackedStruct


def _fields(column: Any) -> list[Column]:
    return [column.field(i) for i in range(column.type.num_fields)]


def _struct(fields: list[Column], kind: Any, nulls_of: Column) -> Column:
    mask = nulls_of.is_null() if nulls_of.null_count else None
    return pa.StructArray.from_arrays(fields, fields=[*kind], mask=mask)


def _parts(rows: int) -> Iterator[slice]:
    """Yields slices so small that what is computed of one stays in the cache of the processor."""
    return (slice(start, start + _PART) for start in range(0, rows, _PART))


def packing_of(kind: Any) -> PackedColumn | None:
    """Returns how a column with this type in a file is packed; None if it is not."""
    if not pa.types.is_struct(kind) or not kind.num_fields:
        return None
    metadata = kind.field(0).metadata or {}
    if b"base" in metadata:
        alias = metadata[b"type"].decode()
        return PackedIntegers(pa.type_for_alias(alias), int(metadata[b"base"]), int(metadata[b"shift"]))
    packings = [packing_of(field.type) for field in kind]
    if not any(packings):
        return None
    fields = [
        field if packing is None else field.with_type(packing.kind)
        for field, packing in zip(kind, packings, strict=True)
    ]
    return PackedStruct(pa.struct(fields), packings)


def pack_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Packs the columns of a run."""
    columns, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.append(pack(column))
        fields.append(field.with_type(columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def pack(column: Any) -> Column:
    """Packs the integers of a column, or of the fields of its structs. Others stay as they are."""
    if pa.types.is_struct(column.type) and column.type.num_fields:
        packed = [pack(each) for each in _fields(column)]
        fields = [field.with_type(each.type) for field, each in zip(column.type, packed, strict=True)]
        return _struct(packed, fields, column)
    bounds = pc.min_max(column) if column.type in _INTEGERS else None
    if bounds is None or not bounds[0].is_valid:
        return column
    base, high = (bound.as_py() for bound in bounds.values())
    bits = (high - base).bit_length()
    top = next(size for size in _TOPS if bits <= size or size == max(_TOPS))
    shift = next((size for size in (0, *_RESTS) if bits <= top + size), None)
    if shift is None or top + shift >= column.type.bit_width:
        return column
    # values: the integers; tops, rests: unsigned; distances: uint64. One a row.
    values = (column.fill_null(base) if column.null_count else column).to_numpy().astype(np.int64, copy=False)
    tops = np.empty(len(values), dtype=_TOPS[top])
    rests = np.empty(len(values), dtype=_RESTS[shift]) if shift else None
    for part in _parts(len(values)):
        distances = values[part].view(np.uint64) - np.uint64(base & _MASK)
        if rests is not None:
            rests[part] = distances
            distances >>= np.uint64(shift)
        tops[part] = distances
    parts = [pa.array(each) for each in (tops, rests) if each is not None]
    metadata = {"base": str(base), "shift": str(shift), "type": str(column.type)}
    names = [pa.field("top", parts[0].type, nullable=False, metadata=metadata)]
    names += [pa.field("rest", each.type, nullable=False) for each in parts[1:]]
    return _struct(parts, names, column)


class SortKeyColumn:
    """The sort keys of a run, in ascending order.

    Args:
        column: The column ``sort_key``, packed or not.
    """

    def __init__(self, column: Any) -> None:
        packing = packing_of(column.type)
        # top: uint64 if it is not packed, as others are with this base and this shift.
        self._base = self._shift = 0
        self._rest: npt.NDArray[Any] | None = None
        if isinstance(packing, PackedIntegers):
            self._base, self._shift = packing.base, packing.shift
            self._top: npt.NDArray[Any] = column.field(0).to_numpy()
            self._rest = column.field(1).to_numpy() if packing.shift else None
        else:
            self._top = column.to_numpy()
        self._most = int(np.iinfo(self._top.dtype).max)
        self._sought = 0
        self._marks: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self._top)

    def __getitem__(self, row: int) -> int:
        rest = 0 if self._rest is None else int(self._rest[row])
        return self._base + (int(self._top[row]) << self._shift | rest)

    def place(self, sort_key: int, start: int, stop: int) -> int:
        """Returns the first row from ``start`` to ``stop`` with this sort key or a larger one, ``stop`` for none."""
        # own, ties: unsigned, ascending. ties: of the rows whose tops are equal to that of the sort key.
        distance, own = sort_key - self._base, self._top[start:stop]
        if distance <= 0:
            return start
        if distance >> self._shift > self._most:
            return stop
        top = own.dtype.type(distance >> self._shift)
        first = start + int(np.searchsorted(own, top))
        if self._rest is None:
            return first
        ties = self._rest[first : start + int(np.searchsorted(own, top, side="right"))]
        return first + int(np.searchsorted(ties, ties.dtype.type(distance & (1 << self._shift) - 1)))

    def find(self, sort_keys: SortKeys, start: int, stop: int) -> tuple[Indices, Indices]:
        """Finds the rows with given sort keys among those from ``start`` to ``stop``.

        Returns:
            Pairs of an index into ``sort_keys`` and a row, counted from ``start``.
        """
        # own: unsigned, ascending. distances, places: uint64, sought: as own, one a sort key. low: int64, its place in
        # own. wanted: positions in sort_keys, ascending; rows: the row of each of them.
        own, rest, shift = self._top[start:stop], self._rest, self._shift
        if rest is not None and len(own) <= _DENSE * len(sort_keys):
            own, rest, shift = own.astype(np.uint64) << np.uint64(shift) | rest[start:stop], None, 0
        distances = sort_keys - np.uint64(self._base)
        places = distances >> np.uint64(shift)
        sought = places.astype(own.dtype)
        low = np.searchsorted(own, sought) if rest is not self._rest else self._places(sought, start, stop)
        wanted = np.flatnonzero((low < len(own)) & (places == sought))
        wanted = wanted[own[low[wanted]] == sought[wanted]]
        rows = low[wanted]
        # Few rows share their sort key, so most need no second search.
        many = rows + 1 < len(own)
        many[many] = own[rows[many] + 1] == sought[wanted[many]]
        if many.any():
            counts = np.ones(len(rows), dtype=np.int64)
            counts[many] = np.searchsorted(own, sought[wanted[many]], side="right") - rows[many]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            wanted, rows = np.repeat(wanted, counts), np.repeat(rows, counts) + within
        if rest is None:
            return wanted, rows
        same = rest[start:stop][rows] == distances[wanted].astype(rest.dtype)
        return (wanted, rows) if same.all() else (wanted[same], rows[same])

    def _places(self, sought: npt.NDArray[Any], start: int, stop: int) -> Indices:
        """Returns where tops are, or would be, among those from ``start`` to ``stop``, counted from ``start``."""
        # lines: as top, 16 rows in a line, without those that fill none. marks: as top, the first of each line. line:
        # int64, one a top that is sought, the line in or after which it is. late: positions in sought.
        top, most = self._top, len(self._top) // _LINE * _LINE
        self._sought += len(sought)
        if stop - start < _SPARSE * len(sought) or len(top) > _SELDOM * self._sought:
            return np.searchsorted(top[start:stop], sought)
        lines = top[:most].reshape(-1, _LINE)
        if self._marks is None:
            self._marks = lines[:, 0].copy()
        line = np.maximum(np.searchsorted(self._marks, sought) - 1, 0)
        places: Indices = line * _LINE + np.count_nonzero(lines.take(line, axis=0) < sought[:, None], axis=1)
        late = np.flatnonzero(places == most)
        places[late] += np.searchsorted(top[most:], sought[late])
        return np.clip(places, start, stop) - start


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
