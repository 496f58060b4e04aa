"""State of windows, which is read and changed many cells at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import unchanging_types
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import CACHED, Cells
from dagster_flinkpy.state.value_folds import ValueFold

__all__ = ["PaneState"]


class PaneState:
    """List, reducing or aggregating state.

    Args:
        table: The table.
        fold: What is made of the values that are added.
    """

    def __init__(self, table: CellTable, fold: ValueFold) -> None:
        self.table, self._fold, own = table, fold, table.own
        self._copy = own or _itself
        """Copies what a cell holds, which functions must not change."""
        if own is not None and table.kind == "LIST":
            self._copy = lambda held: list(map(own, held))
        assert table.value_type is not None
        self._unchanging = unchanging_types(table.value_type)

    def add_each(self, seats: Sequence[int], cells: Cells, values: Iterable[Any]) -> None:
        """Adds values to cells, in order.

        Args:
            seats: The seat of each cell, which becomes the current key.
            cells: The cells; may repeat.
            values: A value for each cell, which nobody else has.
        """
        self.table.reserve()
        places = self.table.column.alone(cells).tolist()
        self._fold.add_each(self.table.keys, self.table.column.values, zip(seats, places, values, strict=True))
        self.table.mark(cells)

    def get_each(self, seats: Sequence[int], cells: Cells, *, last: bool = False) -> Iterator[Any]:
        """Yields the result of each cell, or None, while its seat is the current key.

        Args:
            seats: The seat of each cell.
            cells: The cells.
            last: Whether what they hold is dropped afterwards. Default: False.
        """
        keys, result = self.table.keys, self._fold.result
        self.table.reserve()
        column = self.table.column
        for first in range(0, len(cells), CACHED):
            some = cells[first : first + CACHED]
            values = column.get(some)
            for i in np.flatnonzero(column.shares(some)).tolist() if last else range(len(some)):
                if type(values[i]) not in self._unchanging:
                    values[i] = self._copy(values[i])
            for keys.seat, value in zip(seats[first : first + CACHED], values, strict=True):
                # The result is in no local variable: what only it holds need not be copied.
                yield None if value is None else result(value)

    def get_of(self, cell: int, *, last: bool = False) -> Any:
        """Returns the result of a cell of the current key, or None; ``last`` as for :meth:`get_each`."""
        value = self.table.column.get_one(cell)
        if value is None:
            return None
        return self._fold.result(value if last else self._copy(value))

    def merge(self, cell: int, other: int) -> None:
        """Moves what another cell of the key holds to a cell."""
        self.table.reserve()
        self.table.column.alone(np.array([cell, other]))
        held = self.table.column.values
        if held[other] is not None:
            held[cell] = held[other] if held[cell] is None else self._fold.merge(held[cell], held[other])
            self.table.mark(np.array([cell]))
        self.table.delete(np.array([other]))


def _itself(held: Any) -> Any:
    return held
