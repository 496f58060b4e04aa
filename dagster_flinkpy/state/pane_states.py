"""State of windows that many keys share, which is read and changed many cells at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dagster_flinkpy.common.copies import keeping, taking
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.state.cell_columns import Cells
from dagster_flinkpy.state.pane_table import PaneTable

__all__ = ["PaneAggregatingState", "PaneListState", "PaneReducingState", "PaneState"]


class PaneState(ABC):
    """State to which values are added.

    Args:
        table: The table.
        result: Returns the result of what a cell holds.
    """

    def __init__(self, table: PaneTable, result: Callable[[Any], Any]) -> None:
        self.table = table
        self._last_result, self._result, own = result, result, table.own
        """The result of what is dropped afterwards, and of what stays, which functions must not change."""
        if own is not None:
            self._result = lambda held: result(self._own(held))

    def _own(self, held: Any) -> Any:
        """Returns a copy of what a cell holds."""
        return held if self.table.own is None else self.table.own(held)

    def _keeping(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        assert self.table.value_type is not None
        return keeping(function, self.table.value_type)

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def get(self) -> Any:
        """Returns the result of the current key, or None."""
        return self.get_of(int(self.table.current()[0]))

    def add(self, value: Any) -> None:
        """Adds a value for the current key."""
        self.add_each([self.table.require_key()], self.table.current(), (value,))

    def clear(self) -> None:
        """Forgets the value of the current key."""
        self.clear_each(self.table.current())

    def add_each(self, slots: Sequence[int], cells: Cells, values: Iterable[Any]) -> None:
        """Adds values to cells, in order.

        Args:
            slots: The slot of each cell, which becomes the current key.
            cells: The cells; may repeat.
            values: A value for each cell, which nobody else has.
        """
        self._add_each(self.table.column.values, slots, cells.tolist(), values)
        self.table.mark(cells)

    def get_each(self, slots: Sequence[int], cells: Cells, *, last: bool = False) -> Iterator[Any]:
        """Yields the result of each cell that has one, while its slot is the current key.

        Args:
            slots: The slot of each cell.
            cells: The cells.
            last: Whether what they hold is dropped afterwards. Default: False.
        """
        keys, result = self.table.keys, self._last_result if last else self._result
        for keys.slot, value in zip(slots, self.table.column.get(cells), strict=True):
            if value is not None:
                yield result(value)  # not a local variable: the receiver need not copy what only it holds

    def get_of(self, cell: int, *, last: bool = False) -> Any:
        """Returns the result of a cell of the current key, or None; ``last`` as for :meth:`get_each`."""
        value = self.table.column.values[cell]
        if value is None:
            return None
        return self._last_result(value) if last else self._result(value)

    def clear_each(self, cells: Cells) -> None:
        """Forgets the values of cells."""
        self.table.delete(cells)

    @abstractmethod
    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        """Adds values."""


class PaneReducingState(PaneState):
    """A value per key and namespace, with which each added value is reduced."""

    def __init__(self, table: PaneTable, reduce_function: BaseReduceFunction) -> None:
        super().__init__(table, lambda value: value)
        self._reduce = self._keeping(reduce_function.reduce)

    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, reduce = self.table.keys, self._reduce
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = value if stored is None else reduce(stored, value)


class PaneAggregatingState(PaneState):
    """An accumulator per key and namespace."""

    def __init__(self, table: PaneTable, function: BaseAggregateFunction) -> None:
        super().__init__(table, function.get_result)
        assert table.value_type is not None
        self._create = taking(function.create_accumulator, table.value_type)
        self._add = self._keeping(function.add)

    def _add_each(self, held: list[Any], slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, add, create = self.table.keys, self._add, self._create
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = add(value, create() if stored is None else stored)


class PaneListState(PaneState):
    """A list per key and namespace."""

    def __init__(self, table: PaneTable) -> None:
        super().__init__(table, list)

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
