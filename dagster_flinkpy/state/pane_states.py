"""State of windows, which is read and changed many cells at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import keeping, taking
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from dagster_flinkpy.state.cell_columns import Cells
from dagster_flinkpy.state.pane_table import PaneListTable, PaneTable

__all__ = ["PaneState", "make_panes"]


class PaneState(ABC):
    """State to which values are added.

    Args:
        table: The table.
        result: Returns the result of what a cell holds.
        merge: Merges what two cells hold.
    """

    def __init__(self, table: PaneTable, result: Callable[[Any], Any], merge: Callable[[Any, Any], Any]) -> None:
        assert table.value_type is not None
        self.table, self._merge = table, keeping(merge, table.value_type)
        self._last_result, self._result, own = result, result, table.own
        """The result of what is dropped afterwards, and of what stays, which functions must not change."""
        if own is not None:
            self._result = lambda held: result(self._own(held))

    def _own(self, held: Any) -> Any:
        """Returns a copy of what a cell holds."""
        return held if self.table.own is None else self.table.own(held)

    def add_each(self, slots: Sequence[int], cells: Cells, values: Iterable[Any]) -> None:
        """Adds values to cells, in order.

        Args:
            slots: The slot of each cell, which becomes the current key.
            cells: The cells; may repeat.
            values: A value for each cell, which nobody else has.
        """
        self.table.reserve()
        self._add_each(self.table.column.values, slots, cells.tolist(), values)
        self.table.mark(cells)

    def get_each(self, slots: Sequence[int], cells: Cells, *, last: bool = False) -> Iterator[Any]:
        """Yields the result of each cell, or None, while its slot is the current key.

        Args:
            slots: The slot of each cell.
            cells: The cells.
            last: Whether what they hold is dropped afterwards. Default: False.
        """
        keys, result = self.table.keys, self._last_result if last else self._result
        self.table.reserve()
        for keys.slot, value in zip(slots, self.table.column.get(cells), strict=True):
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
            held[cell] = held[other] if held[cell] is None else self._merge(held[cell], held[other])
            self.table.mark(np.array([cell]))
        self.table.delete(np.array([other]))

    @abstractmethod
    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        """Adds values."""


class PaneReducingState(PaneState):
    """A value per key and namespace, with which each added value is reduced."""

    def __init__(self, table: PaneTable, reduce_function: BaseReduceFunction) -> None:
        super().__init__(table, lambda value: value, reduce_function.reduce)
        assert table.value_type is not None
        self._name_fields = table.value_type.name_fields

    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, reduce, name_fields = self.table.keys, self._merge, self._name_fields
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = name_fields(value) if stored is None else reduce(stored, value)


class PaneAggregatingState(PaneState):
    """An accumulator per key and namespace."""

    def __init__(self, table: PaneTable, function: BaseAggregateFunction) -> None:
        super().__init__(table, function.get_result, function.merge)
        assert table.value_type is not None
        self._create = taking(function.create_accumulator, table.value_type)
        self._add = keeping(function.add, table.value_type)

    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, add, create = self.table.keys, self._add, self._create
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = add(value, create() if stored is None else stored)


class PaneListState(PaneState):
    """A list per key and namespace."""

    def __init__(self, table: PaneTable) -> None:
        super().__init__(table, list, _extended)

    def _own(self, held: Any) -> Any:
        own = self.table.own
        return held if own is None else map(own, held)

    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys = self.table.keys
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            elements = held[cell]
            if elements is None:
                held[cell] = [value]
            else:
                elements.append(value)


def _extended(one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def make_panes(descriptor: StateDescriptor, *where: Any, **types: Any) -> PaneState:
    """Returns the list, reducing or aggregating state of a descriptor, with its table; see ``make_state``."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return PaneReducingState(PaneTable(*where, "REDUCING", **types), descriptor.reduce_function)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return PaneAggregatingState(PaneTable(*where, "AGGREGATING", **types), descriptor.agg_function)
    assert isinstance(descriptor, ListStateDescriptor)
    return PaneListState(PaneListTable(*where, "LIST", **types))
