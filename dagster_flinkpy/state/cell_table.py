"""State with one value per cell: VALUE, REDUCING and AGGREGATING state, and the base of LIST and MAP state.

A cell of state with a namespace is a small number that stands for a pair of key seat and namespace.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.columns import Cells, Mask, NumberColumn, ObjectColumn, firsts_of, grown, make_column
from dagster_flinkpy.state.files.runs import Found
from dagster_flinkpy.state.index import IntIndex
from dagster_flinkpy.state.keys import KeyCodec, KeySeats
from dagster_flinkpy.state.layout import distinct_rows
from dagster_flinkpy.state.overlay_table import OverlayTable
from dagster_flinkpy.state.session_table import SessionTable

__all__ = ["CellTable", "NamespacedCells", "PairCells"]

_SEAT_BITS = 32


class PairCells:
    """Numbers the pairs one at a time, for state that is used record by record.

    Args:
        namespace_type: The type of the namespaces.
    """

    def __init__(self, namespace_type: TypeInformation) -> None:
        self._type, self._codec = namespace_type, KeyCodec(namespace_type)
        self._cells: dict[tuple[int, Hashable], int] = {}
        self._pairs: list[tuple[int, Hashable]] = []  # By cell.
        self._namespace: Hashable = None

    def __len__(self) -> int:
        return len(self._pairs)

    def set_namespace(self, namespace: Any) -> None:
        """Sets the current namespace."""
        encode = self._codec.encode
        self._namespace = namespace if encode is None else encode(namespace)

    def find(self, seat: int) -> int | None:
        """Returns the cell of a seat in the current namespace, or None if there is none yet."""
        return self._cells.get((seat, self._namespace))

    def add(self, seat: int) -> int:
        """Returns the cell of a seat in the current namespace, a new one if there is none yet."""
        return self._add((seat, self._namespace))

    def _add(self, pair: tuple[int, Hashable]) -> int:
        cell = self._cells.setdefault(pair, len(self._pairs))
        if cell == len(self._pairs):
            self._pairs.append(pair)
        return cell

    def clear(self) -> None:
        """Forgets all cells."""
        self._cells.clear()
        self._pairs.clear()

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some, which are numbered anew in this order."""
        self._pairs = list(map(self._pairs.__getitem__, cells.tolist()))
        self._cells = {pair: cell for cell, pair in enumerate(self._pairs)}

    def seats(self, cells: Cells) -> Cells:
        """Returns the seat of each cell."""
        return np.array([self._pairs[cell][0] for cell in cells.tolist()], dtype=np.int64)

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the namespace of each cell."""
        return self._type.to_arrow(self._codec.decode_all([self._pairs[cell][1] for cell in cells.tolist()]))

    def stored_at(self, seats: Cells, column: pa.Array[Any]) -> Cells:
        """Returns the cells of stored rows, given the seats and the column of their namespaces."""
        namespaces = self._codec.encode_all(self._type.from_arrow(column))
        return np.array(list(map(self._add, zip(seats.tolist(), namespaces, strict=True))), dtype=np.int64)


class NamespacedCells:
    """Numbers many pairs at a time.

    Args:
        namespace_type: The type of the namespaces.
    """

    def __init__(self, namespace_type: TypeInformation) -> None:
        self._type = namespace_type
        self._codec = KeyCodec(namespace_type)
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._ids: dict[Hashable, int] = {}
        self._names: list[Hashable] = []  # By number.
        self._free: list[int] = []  # Numbers of namespaces that were released.
        self._index = IntIndex()  # Of the namespace above so many bits of the seat: the fewer, the denser it is.
        self._bits = 0
        self._codes: Cells = np.zeros(0, dtype=np.int64)  # By cell.

    def __len__(self) -> int:
        return len(self._index)

    def namespace_ids(self, namespaces: Sequence[Any]) -> list[int]:
        """Returns a number for each namespace."""
        return [self._id(encoded) for encoded in self._codec.encode_all(namespaces)]

    def _id(self, encoded: Hashable) -> int:
        number = self._ids.get(encoded)
        if number is None:
            if not self._free:
                self._free.append(len(self._names))
                self._names.append(encoded)
            number = self._ids[encoded] = self._free.pop()
            self._names[number] = encoded
        return number

    def of_namespace(self, namespace_id: int) -> Cells | None:
        """Returns the cells of a namespace, or None if finding them would take long."""
        return self._index.within(namespace_id << self._bits, namespace_id + 1 << self._bits)

    def release(self, namespace_id: int) -> None:
        """Releases a namespace: the next new one gets its number and its cells."""
        name = self._names[namespace_id]
        if self._ids.get(name) == namespace_id:
            del self._ids[name]
            self._free.append(namespace_id)

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some, which are numbered anew in this order."""
        # seats, ids, codes: int64, one a cell. distinct: numbers of namespaces, ascending; codes are positions in it.
        seats, ids, names = self.seats(cells), self.ids(cells), self._names
        self.clear()
        distinct, codes = np.unique(ids, return_inverse=True)
        self.of(seats, np.array([self._id(names[number]) for number in distinct.tolist()], dtype=np.int64)[codes])

    def of(self, seats: Cells, namespace_ids: Cells) -> tuple[Cells, Cells]:
        """Returns the cells of seats and namespaces, and the first position of each new cell, in order."""
        # self._codes: int64, by cell: the namespace above the seat. first: positions, ascending.
        if not len(seats):
            return seats, seats
        bits = int(seats.max()).bit_length()
        if bits > self._bits:
            known, self._bits, self._index = np.arange(len(self)), bits, IntIndex()
            self._index.add_new(self.ids(known) << bits | self.seats(known))
        cells, first = self._index.add(namespace_ids << self._bits | seats)
        if len(first):
            self._codes = grown(self._codes, len(self), 0)
            self._codes[len(self) - len(first) : len(self)] = namespace_ids[first] << _SEAT_BITS | seats[first]
        return cells, first

    def seats(self, cells: Cells) -> Cells:
        """Returns the seat of each cell."""
        return self._codes[cells] & ((1 << _SEAT_BITS) - 1)

    def ids(self, cells: Cells) -> Cells:
        """Returns the number of the namespace of each cell."""
        return self._codes[cells] >> _SEAT_BITS

    def namespaces(self) -> Sequence[Any]:
        """Returns the namespaces, by their numbers."""
        return self._codec.decode_all(self._names)

    def find(self, seats: Cells, namespaces: Sequence[Any], codes: Cells) -> Cells:
        """Returns the cells of seats and namespaces.

        Args:
            seats: The seat of each cell.
            namespaces: Some namespaces.
            codes: The index of each cell's namespace in ``namespaces``.
        """
        return self.of(seats, np.array(self.namespace_ids(namespaces), dtype=np.int64)[codes])[0]

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the namespace of each cell."""
        return self._type.to_arrow(self.namespaces()).take(pa.array(self.ids(cells)))

    def stored_at(self, seats: Cells, column: pa.Array[Any]) -> Cells:
        """Returns the cells of stored rows, given the seats and the column of their namespaces."""
        first, codes = distinct_rows(column)
        ids = self.namespace_ids(self._type.from_arrow(column.take(pa.array(first))))
        return self.of(seats, np.array(ids, dtype=np.int64)[codes])[0]


CellNumbers = PairCells | NamespacedCells | SessionTable | None
"""What numbers the cells of a state, if a cell is not the seat of its key."""

_SPARE_CELLS = 65_536
"""Compaction waits until there are this many cells more than twice those in use."""


class CellTable(OverlayTable):
    """A value per cell. A cell is a small number: the seat of the key, or what stands for seat and namespace.

    Null, or None, means no value.

    Args:
        args: See :class:`OverlayTable`, like the other arguments.
        numbers: Numbers the cells of state with a namespace. If these are the windows in flight, their table must be
            declared before this one. Default: a cell is the seat of the key.
        column: What holds Python values; None if values are in columns of numbers and bytes. Default: one each.
    """

    exact = True
    column: Any
    """The values, a ``CellColumn``. Cells that are written in place must be marked with :meth:`mark`."""

    def __init__(
        self, *args: Any, numbers: CellNumbers = None, column: type[ObjectColumn] | None = ObjectColumn, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.cells: Any = None
        """The cells of state with a namespace, unless they are sessions."""
        if isinstance(numbers, SessionTable):
            numbers.follow(self)
        else:
            self.cells = numbers
        self._numbers = numbers
        assert self.value_type is not None
        self.column = make_column(self.value_type.arrow_type) if column is None else column(self.value_type)
        self.values: list[Any] = self.column.values if isinstance(self.column, ObjectColumn) else []
        """The Python value of each cell; it stays the same list."""
        self.expires: list[Any] | None = [] if self.ttl and self.kind not in ("LIST", "MAP") else None
        """The time at which the value of each cell expires, or None; if values do not expire as a whole, None."""
        self.changed = bytearray()
        """Whether the value of each cell may differ from the stored one; it stays the same object."""
        self._stored: Mask = np.zeros(0, dtype=np.bool_)
        """Whether storage has a value for the cell, perhaps a former one."""
        self._compacted = 0  # Cells in use when this was counted last.
        self._is_fixed = pa.types.is_primitive(self.value_type.arrow_type)
        """Whether copies of values are cheap."""
        self._shows_none = not isinstance(self.value_type, PickledBytesTypeInfo)
        """Whether no value is null in Arrow but None."""
        # So many cells take about the memory of a row of a table with dicts.
        self._cells_per_row = 4 if column is None else 2 if isinstance(numbers, NamespacedCells) else 1

    @property
    def form(self) -> Any:
        return type(self), type(self._numbers), type(self.column)

    # --- cells -------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        if isinstance(self._numbers, SessionTable):
            return 0  # They are counted themselves.
        return len(self._all_cells) // self._cells_per_row

    @property
    def _all_cells(self) -> Any:
        return self.keys if self._numbers is None else self._numbers

    @property
    def current(self) -> Any:
        """What has the cell of the current key, and namespace, as its ``seat``: the table, or the keys."""
        return self if self.namespaced else self.keys

    @property
    def seat(self) -> int | None:
        """The cell of the current key and namespace, or None if there is no current key."""
        seat, pairs = self.keys.seat, self.cells
        if seat is None:
            return None
        cell = pairs.find(seat)
        if cell is None:
            self.compact()
            cell = pairs.add(seat)
            self.reserve()
        found: int = cell
        return found

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        if not isinstance(self.cells, PairCells):
            raise ConfigurationError(f"state {self.name!r} has no namespace")
        self.cells.set_namespace(namespace)

    def reserve(self) -> None:
        """Makes room for all cells. Call it after keys were touched or cells were added."""
        size = len(self._all_cells)
        if size > len(self._stored):
            self._stored = grown(self._stored, size, 0)
            self._grow(len(self._stored))

    def _grow(self, cells: int) -> None:
        self.changed.extend(bytes(cells - len(self.changed)))
        self.column.grow(cells)
        if self.expires is not None:
            self.expires.extend(repeat(None, cells - len(self.expires)))

    def find(self, seats: Cells, namespaces: Sequence[Any], codes: Cells) -> Cells:
        """Returns the cells of seats and namespaces; see ``NamespacedCells.find``. They are valid until the next call.

        Args:
            seats: The seat of each cell.
            namespaces: Some namespaces.
            codes: The index of each cell's namespace in ``namespaces``.
        """
        self.compact()
        cells: Cells = self.cells.find(seats, namespaces, codes)
        self.reserve()
        return cells

    def release(self, namespace: Any) -> None:
        """Forgets a namespace whose cells have no values, in memory or in storage. Another one reuses the cells."""
        (namespace_id,) = self.cells.namespace_ids([namespace])
        cells = self.cells.of_namespace(namespace_id)
        if cells is not None and not self._used(cells).any():
            self.cells.release(namespace_id)

    def compact(self) -> None:
        """Numbers the cells anew if most of them have no values, in memory or in storage."""
        if self.cells is None or len(self.cells) < 2 * self._compacted + _SPARE_CELLS:
            return
        self._sync()
        used = np.flatnonzero(self._used(np.arange(len(self.cells))))
        if 2 * len(used) < len(self.cells):
            self.cells.keep(used)
            self.keep(used)
        self._compacted = len(used)

    def _used(self, cells: Cells) -> Mask:
        """Returns which cells have a value, in memory or in storage."""
        return self.contains(cells) | self._stored[cells]

    def in_storage(self, cells: Cells) -> Mask:
        """Returns for which cells storage has a value, perhaps a former one."""
        self.reserve()
        return self._stored[cells]

    def keep(self, used: Cells) -> None:
        """Drops what all cells have but some distinct ones, which are numbered anew in this order."""
        self.reserve()
        self.column.keep(used)
        self.changed[:] = self._flags()[used].tobytes()
        self._stored = self._stored[used]
        if self.expires is not None:
            self.expires[:] = list(map(self.expires.__getitem__, used.tolist()))

    # --- values ------------------------------------------------------------------------------------------------------

    def first_missing(self, cells: Cells) -> Cells:
        """Returns the first position of each cell that has no value, in order; cells may repeat."""
        # missing: positions in cells, ascending; places: their cells from the smallest one on.
        missing = np.flatnonzero(~self.contains(cells))
        places = cells[missing] - cells[missing].min(initial=2**62)
        first: Cells = missing[firsts_of(places)[places] == np.arange(len(missing))]
        return first

    def contains(self, cells: Cells) -> Mask:
        """Returns which cells have a value."""
        self.reserve()
        held: Mask = self.column.has(cells)
        return held

    def lookup(self, cells: Cells) -> pa.Array[Any]:
        """Returns the value of each cell, or null."""
        self.reserve()
        return self.column.take(cells)

    def update(self, cells: Cells, values: pa.Array[Any]) -> None:
        """Sets the value of each cell. If a cell repeats, its last value counts. A null deletes the value.

        Args:
            cells: The cells; may repeat.
            values: The values, with the Arrow type of the state.
        """
        self.reserve()
        self.column.put(cells, values)
        self._flags()[cells] = True

    def mark(self, cells: Cells) -> None:
        """Marks cells whose values were written in place."""
        self.column.valid[cells] = True
        self._flags()[cells] = True

    def _sync(self) -> None:
        """Looks which of the changed cells have Python values: functions write them in place, and may return None."""
        if isinstance(self.column, ObjectColumn):
            self.column.sync(np.flatnonzero(self._flags()))

    def _flags(self) -> npt.NDArray[np.bool_]:
        """Returns a view of :attr:`changed`, which cannot grow as long as the view exists."""
        return np.frombuffer(self.changed, dtype=np.bool_)

    def delete(self, cells: Cells) -> None:
        """Drops the values of cells."""
        self.reserve()
        self.column.drop(cells)
        self._flags()[cells] = True

    def forget(self, cell: int) -> None:
        """Drops the Python value of a cell, which must be marked, now or later."""
        self.values[cell] = None
        if self.expires is not None:
            self.expires[cell] = None

    # --- storage -----------------------------------------------------------------------------------------------------

    def load(self, keys: KeySeats) -> None:
        self.reserve()
        found, cells = self._newest(*self._loaded(keys))
        if not len(found):
            return
        live = ~found.deleted()
        self.column.drop(cells[~live])
        self._stored[cells] = live
        found, cells = found.filter(live), cells[live]
        if not len(found):
            return
        self.column.put(cells, found.take("value"))
        if self.expires is not None:
            for cell, time in zip(cells.tolist(), found.take("expires_at").to_pylist(), strict=True):
                self.expires[cell] = time

    def _loaded(self, keys: KeySeats) -> tuple[Found, Cells]:
        """Returns the stored rows of some keys with their cells, those of the oldest run first."""
        found = self._find(keys)
        cells = found.wanted + keys.first
        if self._numbers is not None and len(found):
            cells = self._numbers.stored_at(cells, found.take("namespace"))
            known = cells >= 0
            found, cells = found.filter(known), cells[known]
        self.reserve()
        return found, cells

    def _newest(self, found: Found, cells: Cells) -> tuple[Found, Cells]:
        """Returns what counts of stored rows: the newest one of each cell; of a list, also those that append to it."""
        # whole: the rows that replace older ones of their cell. last: int64, by cell: the newest of them. A row counts
        # unless it is older.
        at = np.arange(len(cells))
        whole = at if self.kind != "LIST" else at[~found.appends()]
        last = np.zeros(int(cells.max(initial=-1)) + 1, dtype=np.int64)
        last[cells[whole]] = whole
        newest = at >= last[cells]
        return found.filter(newest), cells[newest]

    def clear(self) -> None:
        if self.cells is not None:
            self.cells.clear()
        self.keep(np.zeros(0, dtype=np.int64))
        self._compacted = 0

    def _changes(self) -> pa.Table | None:
        # cells: int64, ascending at first. order: the places in cells by sort key. used: bool, one a cell.
        if isinstance(self._numbers, SessionTable) or not self._shows_none:
            self._sync()
        cells = np.flatnonzero(self._flags())
        if isinstance(self._numbers, SessionTable):
            cells = self._without_former(self._numbers, cells[self._used(cells)])
        if not len(cells):
            return None
        order = np.argsort(self.keys.sort_keys[self._seats(cells)])
        if not self._is_fixed:  # They are copied once if they are read in the order of the run.
            cells, order = cells[order], np.arange(len(cells))
        columns = self._value_columns(cells)
        if isinstance(self.column, ObjectColumn) and self._shows_none:
            self.column.valid[cells] = columns["value"].is_valid().to_numpy(zero_copy_only=False)
        # A value that was set and deleted since the last write needs no tombstone.
        used = self._used(cells)
        if not used.all():
            order = order[used[order]]
        if self._is_fixed or len(order) < len(cells):
            cells, columns = cells[order], {name: each.take(pa.array(order)) for name, each in columns.items()}
        return self._delta(cells, columns, ~self.column.has(cells))

    def _delta(self, cells: Cells, columns: dict[str, pa.Array[Any]], deleted: Any) -> pa.Table | None:
        """Builds the table of changed rows.

        Args:
            cells: The cell of each row.
            columns: The columns other than those of key and namespace.
            deleted: Whether each row is a tombstone.
        """
        if self._numbers is not None:
            columns["namespace"] = self._numbers.column(cells)
        return self._rows(self._seats(cells), columns, deleted)

    def _seats(self, cells: Cells) -> Cells:
        return cells if self._numbers is None else self._numbers.seats(cells)

    def _without_former(self, sessions: SessionTable, cells: Cells) -> Cells:
        """Leaves out what has been dropped of sessions if later ones have the same key and state window."""
        # put, gone: cells, ascending; ordered: both. first: positions in it, ascending; codes: int64, one a cell of it.
        present = self.column.has(cells)
        put, gone = cells[present], cells[~present]
        if not len(put) or not len(gone):
            return cells
        ordered = np.concatenate([put, gone])
        first, codes = distinct_rows(sessions.identities(ordered))
        self._replace(ordered[first[np.unique(codes[len(put) :])]])
        return ordered[first]

    def _replace(self, cells: Cells) -> None:
        """Notes that storage may have other values for cells."""

    def _value_columns(self, cells: Cells) -> dict[str, pa.Array[Any]]:
        """Returns what is to be stored of the values of cells."""
        assert self.value_type is not None
        if not isinstance(self.column, ObjectColumn):
            return {"value": self.column.take(cells)}
        value = self.column.column(cells) if isinstance(self.column, NumberColumn) else None
        if value is None:
            value = self._to_arrow(self.value_type, self.column.get(cells), self._seats(cells))
        columns = {"value": value}
        if self.expires is not None:
            times = list(map(self.expires.__getitem__, cells.tolist()))
            columns["expires_at"] = pa.array(times, type=pa.int64())
        return columns

    def _written(self) -> None:
        changed = np.flatnonzero(self._flags())
        self._stored[changed] = self.column.has(changed)
        self.changed[:] = bytes(len(self.changed))
