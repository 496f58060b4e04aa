"""State with one value per cell, read and written many cells at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.cell_columns import CellColumn, Cells, grown, make_column
from dagster_flinkpy.state.cell_grid import CellGrid
from dagster_flinkpy.state.int_index import IntIndex
from dagster_flinkpy.state.keys import KeyCodec, KeySlots
from dagster_flinkpy.state.layout import APPEND, distinct_rows
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

    def ids_of(self, column: pa.Array[Any]) -> Cells:
        """Returns the numbers of a column of namespaces."""
        first, codes = distinct_rows(column)
        ids = self.namespace_ids(self._type.from_arrow(column.take(pa.array(first))))
        return np.array(ids, dtype=np.int64)[codes]


class ColumnTable(OverlayTable):
    """VALUE, REDUCING and AGGREGATING state in columns. It is stored in the same form as :class:`CellTable`.

    A cell is a number: the slot of the key, or the number of slot and namespace in :attr:`cells`. Null means no value.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cells = None if self.namespace_type is None else NamespacedCells(self.namespace_type)
        """The cells of state with a namespace."""
        self._reset()

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
        return len(self.keys) if self.cells is None else len(self.cells)

    def reserve(self) -> None:
        """Makes room for all cells. Call it after keys were touched or cells were added."""
        size = len(self.keys) if self.cells is None else len(self.cells)
        if size > len(self._present):
            self._present = grown(self._present, size, 0)
            self._changed = grown(self._changed, size, 0)
            self._stored = grown(self._stored, size, 0)
            self.column.grow(len(self._present))

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

    def release(self, namespace_id: int) -> None:
        """Forgets a namespace whose cells have no values, in memory or in storage. Another one reuses the cells."""
        assert self.cells is not None
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
            self._keep(used)
        self._compacted = len(used)

    def _keep(self, used: Cells) -> None:
        """Drops all cells but some."""
        assert self.cells is not None
        self.cells.keep(used)
        self.column.keep(used)
        self._present, self._changed, self._stored = self._present[used], self._changed[used], self._stored[used]

    def load(self, keys: KeySlots) -> None:
        for match in self._matches(keys):
            slots = match.wanted + keys.first
            if self.cells is None:
                cells = slots
            else:
                cells, _ = self.cells.of(slots, self.cells.ids_of(match.run.take("namespace", match.rows)))
            self.reserve()
            live = ~match.run.take("deleted", match.rows).to_numpy(zero_copy_only=False)
            self.column.put(cells[live], match.run.take("value", match.rows[live]))
            self.column.drop(cells[~live])
            self._present[cells] = live
            self._stored[cells] = live

    def clear(self) -> None:
        if self.cells is not None:
            self.cells.clear()
        self._reset()

    def _changes(self) -> pa.Table | None:
        keys = self.keys.all()
        # A value that was set and deleted since the last write needs no tombstone.
        cells = np.flatnonzero(self._changed & (self._present | self._stored))
        if not len(cells) or keys is None:
            return None
        slots = cells if self.cells is None else self.cells.slots(cells)
        sort_keys = keys.sort_keys[slots]
        order = np.argsort(sort_keys)  # Values are read in the order of the run, so that they are copied once.
        cells, slots = cells[order], slots[order]
        arrays: dict[str, pa.Array[Any]] = {
            "sort_key": pa.array(sort_keys[order]),
            "key": keys.column.take(pa.array(slots)),
            "deleted": pa.array(~self._present[cells]),
            **self._value_columns(cells),
        }
        if self.cells is not None:
            arrays["namespace"] = self.cells.column(cells)
        schema = self.layout.append_schema if APPEND in arrays else self.layout.local_schema
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _value_columns(self, cells: Cells) -> dict[str, pa.Array[Any]]:
        """Returns what is to be stored of the values of cells."""
        return {"value": self.lookup(cells)}

    def _written(self) -> None:
        self._stored[self._changed] = self._present[self._changed]
        self._changed[:] = False
