"""State of windows as Python values, to which a whole batch is added at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.state.cell_columns import Cells, ObjectColumn, grown
from dagster_flinkpy.state.column_table import ColumnTable, NamespacedCells
from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.layout import APPEND

__all__ = ["PaneListTable", "PaneTable"]


class PaneTable(ColumnTable):
    """One value per key and namespace: REDUCING and AGGREGATING state. It is stored in the same form as a CellTable."""

    column: ObjectColumn
    """The values. Those of changed cells must be marked with :meth:`mark`."""
    cells: NamespacedCells
    cells_per_row = 2

    def _make_column(self) -> ObjectColumn:
        assert self.value_type is not None
        return ObjectColumn(self.value_type)

    def forget(self, cell: int) -> None:
        """Drops the value of a cell, which must be marked later."""
        self.column.values[cell] = None

    def _changes(self) -> pa.Table | None:
        changed = np.flatnonzero(self._changed)
        # A function may have returned None, which is no value.
        self._present[changed] = [value is not None for value in self.column.get(changed)]
        return super()._changes()

    def _value_columns(self, cells: Cells) -> dict[str, pa.Array[Any]]:
        assert self.value_type is not None
        return {"value": self._to_arrow(self.value_type, self.column.get(cells), self._slots(cells))}

    def _slots(self, cells: Cells) -> list[int]:
        assert self._numbers is not None
        slots: list[int] = self._numbers.slots(cells).tolist()
        return slots


class PaneListTable(PaneTable):
    """A list per key and namespace. As with a ListTable, only added elements are written."""

    def _reset(self) -> None:
        super()._reset()
        self._kept: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # How many elements of the cell are in storage.
        self._replaced: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # Whether storage has another list.

    def reserve(self) -> None:
        super().reserve()
        self._kept = grown(self._kept, len(self._present), 0)
        self._replaced = grown(self._replaced, len(self._present), 0)

    def keep(self, used: Cells, numbers: Cells | None = None) -> None:
        super().keep(used)
        self._kept, self._replaced = self._kept[used], self._replaced[used]

    def forget(self, cell: int) -> None:
        super().forget(cell)
        self._kept[cell], self._replaced[cell] = 0, True

    def delete(self, cells: Cells) -> None:
        super().delete(cells)
        self._kept[cells] = 0
        self._replaced[cells] = True

    def _replace(self, cells: Cells) -> None:
        self._kept[cells], self._replaced[cells] = 0, True

    def load(self, keys: KeySlots) -> None:
        for match, cells in self._loaded(keys):
            held, deleted = self.column.values, match.run.take("deleted", match.rows).to_pylist()
            rows = zip(cells.tolist(), deleted, match.appends().tolist(), self._stored_values(match), strict=True)
            for cell, gone, append, elements in rows:
                known = held[cell] if append else None
                if known is None:
                    held[cell] = None if gone else elements
                else:
                    known.extend(elements)
            lists = self.column.get(cells)
            self._kept[cells] = [0 if elements is None else len(elements) for elements in lists]
            self._present[cells] = self._stored[cells] = self._kept[cells] > 0

    def _value_columns(self, cells: Cells) -> dict[str, pa.Array[Any]]:
        assert self.value_type is not None
        lists = zip(self.column.get(cells), self._kept[cells].tolist(), strict=True)
        added = [elements[kept:] if kept else elements for elements, kept in lists]
        return {
            "value": self._to_arrow(self.value_type, added, self._slots(cells)),
            APPEND: pa.array(~self._replaced[cells]),
        }

    def _written(self) -> None:
        changed = np.flatnonzero(self._changed)
        self._kept[changed] = [0 if elements is None else len(elements) for elements in self.column.get(changed)]
        self._replaced[changed] = False
        super()._written()
