"""State of windows, which is read and changed many cells at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.value_folds import ValueFold

__all__ = ["PaneState"]


class PaneState:
    """List, reducing or aggregating state.

    Args:
        table: The table.
        fold: What is made of the values that are added.
    """

    def __init__(self, table: CellTable, fold: ValueFold) -> None:
        self.table, self._fold = table, fold
        self._last_result, self._result, own = fold.result, fold.result, table.own
        """The result of what is dropped afterwards, and of what stays, which functions must not change."""
        if own is not None:
            several = table.kind == "LIST"
            self._result = lambda held: list(map(own, held)) if several else fold.result(own(held))

    def add_each(
        self, seats: Sequence[int], cells: Cells, values: Iterable[Any], records: Sequence[int] | None = None
    ) -> None:
        """Adds values to cells, in order.

        Args:
            seats: The seat of each cell, which becomes the current key.
            cells: The cells; may repeat.
            values: A value for each cell, which nobody else has.
            records: The number of the record that each value is a copy of. Default: no two are of one record.
        """
        self.table.reserve()
        self._fold.add_each(self.table.keys, self.table.column.values, seats, cells.tolist(), values, records)
        self.table.mark(cells)

    def get_each(self, seats: Sequence[int], cells: Cells, *, last: bool = False) -> Iterator[Any]:
        """Yields the result of each cell, or None, while its seat is the current key.

        Args:
            seats: The seat of each cell.
            cells: The cells.
            last: Whether what they hold is dropped afterwards. Default: False.
        """
        keys, result = self.table.keys, self._last_result if last else self._result
        self.table.reserve()
        for keys.seat, value in zip(seats, self.table.column.get(cells), strict=True):
            yield None if value is None else result(value)  # No local variable: what only it holds need not be copied.

    def get_of(self, cell: int, *, last: bool = False) -> Any:
        """Returns the result of a cell of the current key, or None; ``last`` as for :meth:`get_each`."""
        value = self.table.column.values[cell]
        if value is None:
            return None
        return self._last_result(value) if last else self._result(value)

    def merge(self, cell: int, other: int) -> None:
        """Moves what another cell of the key holds to a cell."""
        self.table.reserve()
        held = self.table.column.values
        if held[other] is not None:
            held[cell] = held[other] if held[cell] is None else self._fold.merge(held[cell], held[other])
            self.table.mark(np.array([cell]))
        self.table.delete(np.array([other]))
