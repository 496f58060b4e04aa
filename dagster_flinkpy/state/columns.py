"""Values by cell number, in columns: the in-memory form of a ``CellTable``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.copies import whole_copy
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.number_values import Numbers, NumberValues

__all__ = [
    "CACHED",
    "CellColumn",
    "Cells",
    "FixedColumn",
    "Mask",
    "NumberColumn",
    "ObjectColumn",
    "SharedColumn",
    "StructColumn",
    "VariableColumn",
    "firsts_of",
    "grown",
    "make_column",
    "numbered",
]

Cells = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SPARE_ROWS = 1024
"""Compaction waits until there are this many unused rows more than live ones."""

_DENSE = 4
"""If at least one of so many values is read, in order, it costs less to go through all than to look up each."""
_SPARSE = 16
"""If less than one of so many integers is there, a hash table costs less than an array with a place for each."""
CACHED = 4096
"""So many values, and what is made of them, are in the processor's cache at a time."""
_MERGED, _MERGED_BYTES = 4, 64 << 20
"""If at least one of four rows is read at once, merging chunks of up to so many bytes costs less than reading each."""


class CellColumn(ABC):
    """A value per cell; null means no value. Cells are numbered from 0; call :meth:`grow` before using new ones."""

    def __init__(self) -> None:
        self.valid: Mask = np.zeros(0, dtype=np.bool_)
        """Whether each cell has a value."""

    def grow(self, cells: int) -> None:
        """Makes room for this many cells; new cells are null."""
        self.valid = grown(self.valid, cells, 0)

    @abstractmethod
    def take(self, cells: Cells) -> pa.Array[Any]:
        """Returns the values of some cells."""

    @abstractmethod
    def put(self, cells: Cells, values: pa.Array[Any]) -> None:
        """Sets the values of some cells; if a cell repeats, its last value counts."""

    def drop(self, cells: Cells) -> None:
        """Forgets the values of some cells."""
        self.valid[cells] = False

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some distinct ones, which are numbered anew in this order."""
        self.valid = self.valid[cells]

    def has(self, cells: Cells) -> Mask:
        """Returns which cells have a value."""
        return self.valid[cells]


def make_column(kind: pa.DataType) -> CellColumn:
    """Returns a column of an Arrow type, without cells."""
    if pa.types.is_struct(kind):
        return StructColumn(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return FixedColumn(kind)
    return VariableColumn(kind)


class FixedColumn(CellColumn):
    """Numbers, in place."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._kind = kind
        self.values: npt.NDArray[Any] = np.zeros(0, dtype=kind.to_pandas_dtype())
        """The values by cell; undefined for cells without a value."""

    def grow(self, cells: int) -> None:
        super().grow(cells)
        self.values = grown(self.values, cells, 0)

    def take(self, cells: Cells) -> pa.Array[Any]:
        valid = self.valid[cells]
        return pa.array(self.values[cells], type=self._kind, mask=None if valid.all() else ~valid)

    def put(self, cells: Cells, values: pa.Array[Any]) -> None:
        if values.null_count:
            self.values[cells] = values.fill_null(0).to_numpy()
            self.valid[cells] = values.is_valid().to_numpy(zero_copy_only=False)
        else:
            self.values[cells] = values.to_numpy()
            self.valid[cells] = True

    def keep(self, cells: Cells) -> None:
        super().keep(cells)
        self.values = self.values[cells]


class StructColumn(CellColumn):
    """Structs; each field has its own column."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._fields = list(kind)
        self.children = [make_column(field.type) for field in kind]
        """The column of each field."""

    def grow(self, cells: int) -> None:
        super().grow(cells)
        for child in self.children:
            child.grow(cells)

    def take(self, cells: Cells) -> pa.Array[Any]:
        return self.with_children(cells, [child.take(cells) for child in self.children])

    def with_children(self, cells: Cells, children: list[pa.Array[Any]]) -> pa.Array[Any]:
        """Returns the structs of some cells, made from the columns of their fields."""
        missing = ~self.valid[cells]
        mask = pa.array(missing) if missing.any() else None
        if not children:
            return pa.array([None if gone else {} for gone in missing.tolist()], type=pa.struct(self._fields))
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)

    def put(self, cells: Cells, values: pa.Array[Any]) -> None:
        structs: Any = values
        self.valid[cells] = structs.is_valid().to_numpy(zero_copy_only=False) if structs.null_count else True
        for child, column in zip(self.children, structs.flatten(), strict=True):
            child.put(cells, column)

    def drop(self, cells: Cells) -> None:
        super().drop(cells)
        for child in self.children:
            child.drop(cells)

    def keep(self, cells: Cells) -> None:
        super().keep(cells)
        for child in self.children:
            child.keep(cells)


class VariableColumn(CellColumn):
    """Values of any size. They are appended, and compacted when most of them are outdated.

    There are few chunks, because a new one is merged with the preceding ones that are not larger.
    """

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._kind = kind
        self._chunks: list[pa.Array[Any]] = []
        self._appended = 0  # Rows of all chunks.
        self._rows: Cells = np.zeros(0, dtype=np.int64)  # By cell; -1 for null.
        self._live = 0

    def grow(self, cells: int) -> None:
        super().grow(cells)
        self._rows = grown(self._rows, cells, -1)

    def take(self, cells: Cells) -> pa.Array[Any]:
        # rows: int64, one a cell: its row in all chunks together, -1 for null. starts: where each chunk begins.
        # position: the row of each cell in the concatenated parts.
        rows = self._rows[cells]
        wanted = rows >= 0
        if not wanted.any():
            return pa.nulls(len(cells), self._kind)
        if len(self._chunks) > 1 and len(cells) >= self._appended // _MERGED:
            self._merge()
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(rows, mask=None if wanted.all() else ~wanted))
        starts = np.cumsum([0, *map(len, self._chunks)])
        of_chunk = np.where(wanted, np.searchsorted(starts, rows, side="right") - 1, -1)
        parts: list[pa.Array[Any]] = []
        position = np.full(len(cells), -1, dtype=np.int64)
        taken = 0
        for i, chunk in enumerate(self._chunks):
            at = np.flatnonzero(of_chunk == i)
            parts.append(chunk.take(pa.array(rows[at] - starts[i])))
            position[at] = taken + np.arange(len(at))
            taken += len(at)
        return pa.concat_arrays(parts).take(pa.array(position, mask=~wanted))

    def put(self, cells: Cells, values: pa.Array[Any]) -> None:
        if not len(cells):
            return
        self.valid[cells] = valid = values.is_valid().to_numpy(zero_copy_only=False)
        self._rows[cells] = np.where(valid, self._appended + np.arange(len(values)), -1)
        self._append(values)
        if self._appended > 2 * self._live + _SPARE_ROWS:
            self._compact()

    def drop(self, cells: Cells) -> None:
        super().drop(cells)
        self._rows[cells] = -1

    def keep(self, cells: Cells) -> None:
        super().keep(cells)
        self._rows = self._rows[cells]
        self._compact()

    def _append(self, values: pa.Array[Any]) -> None:
        self._appended += len(values)
        self._chunks.append(values)
        while len(self._chunks) > 1 and len(self._chunks[-2]) <= len(self._chunks[-1]):
            last = self._chunks.pop()
            self._chunks[-1] = pa.concat_arrays([self._chunks[-1], last])

    def _merge(self) -> None:
        if sum(chunk.nbytes for chunk in self._chunks) <= _MERGED_BYTES:
            self._chunks = [pa.concat_arrays(self._chunks)]

    def _compact(self) -> None:
        used = np.flatnonzero(self._rows >= 0)
        values = self.take(used)
        self._rows[used] = np.arange(len(used))
        self._chunks, self._appended, self._live = [values], len(values), len(values)


class ObjectColumn(CellColumn):
    """Python values, for user functions.

    Args:
        kind: The type of the values.
    """

    def __init__(self, kind: TypeInformation) -> None:
        super().__init__()
        self._kind = kind
        self.values: list[Any] = []
        """The value of each cell; None means no value. It stays the same list. Who writes to it calls :meth:`sync`."""

    def grow(self, cells: int) -> None:
        super().grow(cells)
        self.values.extend(repeat(None, cells - len(self.values)))

    def get(self, cells: Cells) -> list[Any]:
        """Returns the values of some cells, as they are."""
        size = len(self.values)
        if _DENSE * len(cells) > size and (cells[1:] > cells[:-1]).all():
            chosen = bytearray(size)
            np.frombuffer(chosen, dtype=np.uint8)[cells] = 1
            return list(compress(self.values, chosen))
        return list(map(self.values.__getitem__, cells.tolist()))

    def get_one(self, cell: int) -> Any:
        """Returns the value of a cell, as it is."""
        return self.values[cell]

    def alone(self, cells: Cells) -> Cells:
        """Returns a place in :attr:`values` for each cell that no other cell shares."""
        return cells

    def shares(self, cells: Cells) -> Mask:
        """Returns which cells share their values with others."""
        return np.zeros(len(cells), dtype=np.bool_)

    def take(self, cells: Cells) -> pa.Array[Any]:
        return self._kind.to_arrow(self.get(cells))

    def sync(self, cells: Cells) -> None:
        """Looks which of some cells have a value."""
        self.valid[cells] = [value is not None for value in self.get(cells)]

    def put(self, cells: Cells, values: pa.Array[Any]) -> None:
        self.put_each(cells, self._kind.from_arrow(values))

    def put_each(self, cells: Cells, values: Sequence[Any]) -> None:
        """Sets the values of some cells, as they are; if a cell repeats, its last value counts."""
        held = self.values
        self.valid[cells] = [value is not None for value in values]
        for place, value in zip(cells.tolist(), values, strict=True):
            held[place] = value

    def drop(self, cells: Cells) -> None:
        super().drop(cells)
        held = self.values
        for cell in cells.tolist():
            held[cell] = None

    def keep(self, cells: Cells) -> None:
        super().keep(cells)
        self.values[:] = self.get(cells)


class NumberColumn(ObjectColumn):
    """Python values; numbers, and tuples and rows of numbers, become objects only when they are needed.

    The objects of many keys are not in the processor's cache. Those of a part of a batch are, until they are numbers
    again. That ends with the first value that would not come back as it was.
    """

    def __init__(self, kind: TypeInformation) -> None:
        super().__init__(kind)
        self._numbers = NumberValues(kind) if NumberValues.fits(kind) else None  # By place, instead of `values`.

    def grow(self, cells: int) -> None:
        super().grow(cells)
        if self._numbers is not None:
            self._numbers.grow(cells)

    def get(self, cells: Cells) -> list[Any]:
        return super().get(self.places(cells)) if self._numbers is None else self._numbers.get(self.places(cells))

    def get_one(self, cell: int) -> Any:
        if self._numbers is None:
            place: Any = cell
            return self.values[self.places(place)]
        return self.get(np.array([cell]))[0]

    def places(self, cells: Cells) -> Cells:
        """Returns the place of each cell."""
        return cells

    def changing(
        self, places: Cells, of: Cells | None = None, numbers: Callable[[slice], Numbers | None] = lambda part: None
    ) -> Iterator[tuple[slice, list[Any], list[int]]]:
        """Yields what some places hold, a cache full at a time; what it is changed to counts.

        Args:
            places: The place for each value that is to be added; if ``of`` is given, distinct places.
            of: For each value that is to be added, the position of its place.
            numbers: Returns the :meth:`numbers` that each value of a slice has made of its place; or None if what is
                held says it. Only without ``of``. Default: it says it.

        Yields:
            A slice of the values that are to be added, what is held, and for each of these values a position in it.
        """
        for first in range(0, len(places if of is None else of), CACHED):
            part = slice(first, first + CACHED)
            if self._numbers is None:
                yield part, self.values, (places[part] if of is None else places[of[part]]).tolist()
                continue
            some, codes = numbered(places[part]) if of is None else numbered(of[part], len(places))
            some = some if of is None else places[some]
            held = self._numbers.get(some)
            yield part, held, codes.tolist()
            changed = numbers(part)
            if changed is None:
                self._hold(some, held)
            else:
                self._numbers.put_numbers(places[part], changed)

    def column(self, cells: Cells) -> pa.Array[Any] | None:
        """Returns the values of some cells as a column, if that needs no objects."""
        return None if self._numbers is None else self._numbers.column(self.places(cells))

    def numbers(self, columns: Sequence[Sequence[Any]]) -> Numbers | None:
        """Returns columns, one a field, as arrays; None if a value would not come back as it is."""
        return None if self._numbers is None else self._numbers.numbers(columns)

    def _hold(self, places: Cells, values: Sequence[Any]) -> None:
        """Sets the values at some places, as they are; if a place repeats, its last value counts."""
        if self._numbers is not None:
            if self._numbers.put(places, values):
                return
            self._make_objects()
        held = self.values
        for place, value in zip(places.tolist(), values, strict=True):
            held[place] = value

    def _make_objects(self) -> None:
        """Keeps all values in :attr:`values` from now on."""
        if self._numbers is not None:
            self.values[:] = self._numbers.get(np.arange(len(self.values)))
            self._numbers = None

    def alone(self, cells: Cells) -> Cells:
        self._make_objects()
        return self._apart(cells)

    def _apart(self, cells: Cells) -> Cells:
        """Returns a place for each cell that no other cell shares."""
        return cells

    def sync(self, cells: Cells) -> None:
        if self._numbers is None:
            super().sync(cells)
        else:
            self.valid[cells] = self._numbers.has(self.places(cells))

    def put_each(self, cells: Cells, values: Sequence[Any]) -> None:
        self.valid[cells] = [value is not None for value in values]
        self._hold(self._apart(cells), values)

    def drop(self, cells: Cells) -> None:
        if self._numbers is None:
            super().drop(cells)
        else:
            self.valid[cells] = False
            self._numbers.drop(cells)

    def keep(self, cells: Cells) -> None:
        if self._numbers is not None:
            self._numbers.keep(cells)
            self.values[len(cells) :] = []
            self.valid = self.valid[cells]
        else:
            super().keep(cells)


class SharedColumn(NumberColumn):
    """Python values, each of which several cells may share, such as windows of a key that have the same records."""

    def __init__(self, kind: TypeInformation) -> None:
        super().__init__(kind)
        self.values.append(None)  # The place of cells without a value.
        self._places: Cells = np.zeros(0, dtype=np.int64)  # By cell.
        self._sharers: Cells = np.zeros(1, dtype=np.int64)  # By place: how many cells have it.
        self._free: list[int] = []  # Places that no cell has.

    def grow(self, cells: int) -> None:
        self._places, self.valid = grown(self._places, cells, 0), grown(self.valid, cells, 0)

    def places(self, cells: Cells) -> Cells:
        return self._places[cells]

    def _apart(self, cells: Cells) -> Cells:
        distinct, codes = numbered(cells, len(self._places))
        return self.divide(distinct, np.arange(len(distinct)), self._places[distinct])[codes]

    def shares(self, cells: Cells) -> Mask:
        if self._numbers is not None:  # Who reads a value gets one of its own.
            return super().shares(cells)
        shared: Mask = self._sharers[self._places[cells]] > 1
        return shared

    def divide(self, cells: Cells, parts: Cells, places: Cells) -> Cells:
        """Lets cells share values only with the cells of their part.

        Args:
            cells: Distinct cells.
            parts: The number of the part of each; the cells of a part have the same place.
            places: The place of each part.

        Returns:
            The place of each part from now on. A new one has a copy of the value.
        """
        # counts: int64, one a part. left: positions of the parts that leave some cells behind, ascending.
        counts = np.bincount(parts, minlength=len(places))
        left = np.flatnonzero((places == 0) | (self._sharers[places] != counts))
        if not len(left):
            return places
        former, fresh = places[left], self._reserve(len(left))
        places = places.copy()
        places[left] = fresh
        self._places[cells] = places[parts]
        self._sharers[fresh] = counts[left]
        if self._numbers is not None:
            self._numbers.copy(fresh, former)
        else:
            self._hold(fresh, list(map(whole_copy, map(self.values.__getitem__, former.tolist()))))
        self._leave(former, counts[left])
        return places

    def drop(self, cells: Cells) -> None:
        # Of a cell that repeats, the last position stays, which is where it is counted.
        places, positions = self._places[cells], np.arange(len(cells))
        self.valid[cells], self._places[cells] = False, positions
        places = places[self._places[cells] == positions]
        self._places[cells] = 0
        self._leave(places, np.ones(len(places), dtype=np.int64))

    def keep(self, cells: Cells) -> None:
        places, self._places = numbered(np.append(0, self._places[cells]), len(self.values))
        self.values[:] = list(map(self.values.__getitem__, places.tolist()))
        if self._numbers is not None:
            self._numbers.keep(places)
        self._sharers = np.bincount(self._places)
        self._places, self._free, self.valid = self._places[1:], [], self.valid[cells]

    def _reserve(self, count: int) -> Cells:
        """Returns places that no cell has."""
        missing = count - len(self._free)
        if missing > 0:
            size = len(self.values)
            self._free += range(size, size + missing)
            self.values += repeat(None, missing)
            self._sharers = grown(self._sharers, size + missing, 0)
            if self._numbers is not None:
                self._numbers.grow(size + missing)
        places = np.array(self._free[len(self._free) - count :], dtype=np.int64)
        del self._free[len(self._free) - count :]
        return places

    def _leave(self, places: Cells, counts: Cells) -> None:
        """Lets so many cells leave each place; places may repeat."""
        np.subtract.at(self._sharers, places, counts)
        self._sharers[0] = 1  # Never free.
        empty = numbered(places[self._sharers[places] == 0], len(self._sharers))[0].tolist()
        self._free += empty
        if self._numbers is None:
            held = self.values
            for place in empty:
                held[place] = None


def numbered(integers: Cells, size: int = 2**63) -> tuple[Cells, Cells]:
    """Returns the distinct integers, in order, and the position among them of each integer; all are below ``size``."""
    if size > _SPARSE * len(integers):
        encoded = pa.array(integers).dictionary_encode()
        return encoded.dictionary.to_numpy(), encoded.indices.to_numpy().astype(np.int64)
    # owners: int64, by integer: its first position, and then its number; undefined elsewhere.
    owners, positions = firsts_of(integers), np.arange(len(integers))
    distinct = integers[owners[integers] == positions]
    owners[distinct] = positions[: len(distinct)]
    return distinct, owners[integers]


def firsts_of(integers: Cells) -> Cells:
    """Returns by integer its first position; undefined for an integer that is not there."""
    first = np.empty(int(integers.max(initial=-1)) + 1, dtype=np.int64)
    first[integers[::-1]] = np.arange(len(integers))[::-1]  # The last write wins.
    return first


def grown(array: npt.NDArray[Any], cells: int, fill: int) -> npt.NDArray[Any]:
    """Returns the array with room for this many cells. Its size at least doubles, so growing is cheap per cell."""
    if cells <= len(array):
        return array
    larger = np.zeros(max(cells, 2 * len(array), 1024), dtype=array.dtype)  # Untouched memory is free.
    larger[: len(array)] = array
    if fill:
        larger[len(array) :] = fill
    return larger
