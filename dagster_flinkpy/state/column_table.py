"""State with one value per cell, read and written many cells at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.cell_columns import CellColumn, Cells, grown, make_column
from dagster_flinkpy.state.cell_grid import CellGrid
from dagster_flinkpy.state.int_index import IntIndex
from dagster_flinkpy.state.keys import KeyCodec, KeySlots
from dagster_flinkpy.state.layout import distinct_rows
from dagster_flinkpy.state.runs import Match
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state.tables import OverlayTable

__all__ = ["ColumnTable", "NamespacedCells"]

Mask = npt.NDArray[np.bool_]

_SLOT_BITS = 32
_SPARE_CELLS = 65_536
"""Compaction waits until there are this many cells more than twice those in use."""


class NamespacedCells:
    """Numbers the pairs of key slot and namespace.

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
        self._grid: CellGrid | None = CellGrid()  # None when it would be too empty.
        self._index = IntIndex()
        self._codes: Cells = np.full(1, -1, dtype=np.int64)  # By cell; initially a code that no pair has.
        self._recent: Cells = np.zeros(0, dtype=np.int64)  # By slot: the cell that was requested last, or any.

    def __len__(self) -> int:
        return len(self._index if self._grid is None else self._grid)

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
        return None if self._grid is None else self._grid.row(namespace_id)

    def release(self, namespace_id: int) -> None:
        """Releases a namespace: the next new one gets its number and its cells."""
        name = self._names[namespace_id]
        if self._ids.get(name) == namespace_id:
            del self._ids[name]
            self._free.append(namespace_id)

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some, which are numbered anew in this order."""
        slots, ids, names = self.slots(cells), self.ids(cells), self._names
        self.clear()
        distinct, codes = np.unique(ids, return_inverse=True)
        self.of(slots, np.array([self._id(names[number]) for number in distinct.tolist()], dtype=np.int64)[codes])

    def of(self, slots: Cells, namespace_ids: Cells) -> tuple[Cells, Cells]:
        """Returns the cells of slots and namespaces, and the first position of each new cell, in order."""
        if not len(slots):
            return slots, slots
        codes = namespace_ids << _SLOT_BITS | slots
        if self._grid is not None and not self._grid.reserve(len(self._names), int(slots.max()) + 1, len(slots)):
            self._index.add(self._codes[: len(self._grid)])
            self._grid = None
        if self._grid is not None:
            cells, first = self._grid.add(namespace_ids, slots)
        else:
            cells, first = self._find(slots, codes)
        if len(first):
            self._codes = grown(self._codes, len(self), 0)
            self._codes[len(self) - len(first) : len(self)] = codes[first]
        return cells, first

    def _find(self, slots: Cells, codes: Cells) -> tuple[Cells, Cells]:
        """Returns the cells of pairs if few of the possible pairs exist."""
        self._recent = grown(self._recent, int(slots.max()) + 1, 0)
        # Most records of a key have the same cell as the previous record.
        cells = self._recent[slots]
        unknown = np.flatnonzero(self._codes[cells] != codes)
        found, first = self._index.add(codes[unknown])
        cells[unknown] = self._recent[slots[unknown]] = found
        return cells, unknown[first]

    def slots(self, cells: Cells) -> Cells:
        """Returns the slot of each cell."""
        return self._codes[cells] & ((1 << _SLOT_BITS) - 1)

    def ids(self, cells: Cells) -> Cells:
        """Returns the number of the namespace of each cell."""
        return self._codes[cells] >> _SLOT_BITS

    def namespaces(self) -> Sequence[Any]:
        """Returns the namespaces, by their numbers."""
        return self._codec.decode_all(self._names)

    def find(self, slots: Cells, namespaces: Sequence[Any], codes: Cells) -> Cells:
        """Returns the cells of slots and namespaces.

        Args:
            slots: The slot of each cell.
            namespaces: Some namespaces.
            codes: The index of each cell's namespace in ``namespaces``.
        """
        return self.of(slots, np.array(self.namespace_ids(namespaces), dtype=np.int64)[codes])[0]

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the namespace of each cell."""
        return self._type.to_arrow(self.namespaces()).take(pa.array(self.ids(cells)))

    def stored_at(self, slots: Cells, column: pa.Array[Any]) -> Cells:
        """Returns the cells of stored rows, given the slots and the column of their namespaces."""
        first, codes = distinct_rows(column)
        ids = self.namespace_ids(self._type.from_arrow(column.take(pa.array(first))))
        return self.of(slots, np.array(ids, dtype=np.int64)[codes])[0]


class ColumnTable(OverlayTable):
    """VALUE, REDUCING and AGGREGATING state in columns. It is stored in the same form as :class:`CellTable`.

    A cell is a number: the slot of the key, or the number of slot and namespace in :attr:`cells`, or of a session. Null
    means no value.

    Args:
        sessions: The windows in flight, of which each is a cell. Their table must be declared before this one.
    """

    cells_per_row = 4
    """So many cells take about the memory of a row of other overlays, which have dicts."""

    def __init__(self, *args: Any, sessions: SessionTable | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cells: NamespacedCells | None = None
        """The cells of state with a namespace, unless they are sessions."""
        if self.namespace_type is not None and sessions is None:
            self.cells = NamespacedCells(self.namespace_type)
        self._sessions, self._numbers = sessions, self.cells if sessions is None else sessions
        self._reset()
        if sessions is not None:
            sessions.follow(self)

    def _reset(self) -> None:
        self.column: CellColumn = self._make_column()
        """The values. One that is written in place must be marked with :meth:`mark`."""
        self._present: Mask = np.zeros(0, dtype=np.bool_)  # Whether the cell has a value.
        self._changed: Mask = np.zeros(0, dtype=np.bool_)
        self._stored: Mask = np.zeros(0, dtype=np.bool_)  # Whether storage has a value for the cell.
        self._compacted = 0  # Cells in use when this was counted last.

    def _make_column(self) -> CellColumn:
        assert self.value_type is not None
        return make_column(self.value_type.arrow_type)

    @property
    def size(self) -> int:
        if self._sessions is not None:
            return 0  # They are counted themselves.
        return (len(self.keys) if self.cells is None else len(self.cells)) // self.cells_per_row

    def reserve(self) -> None:
        """Makes room for all cells. Call it after keys were touched or cells were added."""
        size = len(self.keys) if self._numbers is None else len(self._numbers)
        if size > len(self._present):
            self._present = grown(self._present, size, 0)
            self._changed = grown(self._changed, size, 0)
            self._stored = grown(self._stored, size, 0)
            self.column.grow(len(self._present))

    def find(self, slots: Cells, namespaces: Sequence[Any], codes: Cells) -> Cells:
        """Returns the cells of slots and namespaces; see ``NamespacedCells.find``. They are valid until the next call.

        Args:
            slots: The slot of each cell.
            namespaces: Some namespaces.
            codes: The index of each cell's namespace in ``namespaces``.
        """
        assert self.cells is not None
        self.compact()
        cells = self.cells.find(slots, namespaces, codes)
        self.reserve()
        return cells

    def first_missing(self, cells: Cells) -> Cells:
        """Returns the first position of each cell that has no value, in order; cells may repeat."""
        # missing: positions in cells, ascending; places: their cells from the smallest one on. owners: by place, the
        # first position of a cell; undefined elsewhere.
        missing = np.flatnonzero(~self.contains(cells))
        places = cells[missing] - cells[missing].min(initial=2**62)
        owners = np.empty(int(places.max(initial=-1)) + 1, dtype=np.int64)
        owners[places[::-1]] = missing[::-1]  # The last write wins.
        first: Cells = missing[owners[places] == missing]
        return first

    def contains(self, cells: Cells) -> Mask:
        """Returns which cells have a value."""
        self.reserve()
        return self._present[cells]

    def lookup(self, cells: Cells) -> pa.Array[Any]:
        """Returns the value of each cell, or null."""
        self.reserve()
        values = self.column.take(cells)
        missing = ~self._present[cells]
        return values.take(pa.array(np.arange(len(cells)), mask=missing)) if missing.any() else values

    def update(self, cells: Cells, values: pa.Array[Any]) -> None:
        """Sets the value of each cell. If a cell repeats, its last value counts. A null deletes the value.

        Args:
            cells: The cells; may repeat.
            values: The values, with the Arrow type of the state.
        """
        self.reserve()
        self.column.put(cells, values)
        self._present[cells] = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else True
        self._changed[cells] = True

    def mark(self, cells: Cells) -> None:
        """Marks cells whose values were written in place."""
        self._present[cells] = True
        self._changed[cells] = True

    def delete(self, cells: Cells) -> None:
        """Drops the values of cells."""
        self.reserve()
        self.column.drop(cells)
        self._present[cells] = False
        self._changed[cells] = True

    def release(self, namespace: Any) -> None:
        """Forgets a namespace whose cells have no values, in memory or in storage. Another one reuses the cells."""
        assert self.cells is not None
        (namespace_id,) = self.cells.namespace_ids([namespace])
        cells = self.cells.of_namespace(namespace_id)
        if cells is None:
            return
        self.reserve()
        if not (self._present[cells] | self._stored[cells]).any():
            self.cells.release(namespace_id)

    def compact(self) -> None:
        """Numbers the cells anew if most of them have no values, in memory or in storage."""
        if self.cells is None or len(self.cells) < 2 * self._compacted + _SPARE_CELLS:
            return
        self.reserve()
        used = np.flatnonzero(self._present | self._stored)
        if 2 * len(used) < len(self.cells):
            self.cells.keep(used)
            self.keep(used)
        self._compacted = len(used)

    def in_storage(self, cells: Cells) -> Mask:
        """Returns for which cells storage has a value, perhaps a former one."""
        self.reserve()
        return self._stored[cells]

    def keep(self, used: Cells, numbers: Cells | None = None) -> None:
        """Drops what all cells have but some distinct ones, which are numbered anew in this order."""
        self.reserve()
        self.column.keep(used)
        self._present, self._changed, self._stored = self._present[used], self._changed[used], self._stored[used]

    def load(self, keys: KeySlots) -> None:
        for match, cells in self._loaded(keys):
            live = ~match.run.take("deleted", match.rows).to_numpy(zero_copy_only=False)
            self.column.put(cells[live], match.run.take("value", match.rows[live]))
            self.column.drop(cells[~live])
            self._present[cells] = live
            self._stored[cells] = live

    def _loaded(self, keys: KeySlots) -> Iterator[tuple[Match, Cells]]:
        """Yields the stored rows of some keys with their cells, oldest run first."""
        for match in self._matches(keys):
            cells = match.wanted + keys.first
            if self._numbers is not None:
                cells = self._numbers.stored_at(cells, match.run.take("namespace", match.rows))
                known = np.flatnonzero(cells >= 0)
                match, cells = Match(match.run, match.wanted[known], match.rows[known]), cells[known]
            self.reserve()
            yield match, cells

    def clear(self) -> None:
        if self.cells is not None:
            self.cells.clear()
        self._reset()

    def _changes(self) -> pa.Table | None:
        # A value that was set and deleted since the last write needs no tombstone.
        # cells, slots: int64, by cell first, and then by sort key, which are uint64.
        cells = np.flatnonzero(self._changed & (self._present | self._stored))
        if not len(cells):
            return None
        if self._sessions is not None:
            cells = self._without_former(self._sessions, cells)
        slots = cells if self._numbers is None else self._numbers.slots(cells)
        # Values are read in the order of the run, so that they are copied once.
        order = np.argsort(self.keys.sort_keys[slots])
        cells, slots = cells[order], slots[order]
        columns = self._value_columns(cells)
        if self._numbers is not None:
            columns["namespace"] = self._numbers.column(cells)
        return self._rows(slots, columns, ~self._present[cells])

    def _without_former(self, sessions: SessionTable, cells: Cells) -> Cells:
        """Leaves out what has been dropped of sessions if later ones have the same key and state window."""
        present = self._present[cells]
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
        return {"value": self.lookup(cells)}

    def _written(self) -> None:
        self._stored[self._changed] = self._present[self._changed]
        self._changed[:] = False
