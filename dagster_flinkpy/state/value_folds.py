"""What reducing, aggregating and list state makes of the values that are added, and such state of windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import copied, keeping, taker, taking, unchanging_types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import CACHED, Cells
from dagster_flinkpy.state.keys import TouchedKeys

__all__ = ["PaneState", "ValueFold", "fold_values"]


class ValueFold(ABC):
    """Makes one value of those that are added.

    Args:
        merge: Merges two of what is held.
        result: Returns the result of what is held.
        held_type: The type of what is held.
    """

    def __init__(
        self, merge: Callable[[Any, Any], Any], result: Callable[[Any], Any], held_type: TypeInformation
    ) -> None:
        self.merge, self.result = keeping(merge, held_type), result

    @abstractmethod
    def add(self, held: Any, value: Any) -> Any:
        """Returns what is held, None if nothing was, after a value was added which others may have, too."""

    @abstractmethod
    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        """Adds values, in order.

        Args:
            keys: The keys, of which each becomes the current one.
            held: What each place holds; changed.
            each: The seat of the key, the place, which may repeat, and the value, which nobody else has.
        """


class _Reduced(ValueFold):
    def __init__(self, function: BaseReduceFunction, value_type: TypeInformation) -> None:
        super().__init__(function.reduce, lambda value: value, value_type)
        self._take, self._name_fields = taker(value_type), value_type.name_fields

    def add(self, held: Any, value: Any) -> Any:
        if self._take is not None:
            value = self._take(value)
        return value if held is None else self.merge(held, value)

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        reduce, name_fields = self.merge, self._name_fields
        for keys.seat, place, value in each:
            stored = held[place]
            held[place] = name_fields(value) if stored is None else reduce(stored, value)


class _Aggregated(ValueFold):
    def __init__(self, function: BaseAggregateFunction, accumulator_type: TypeInformation) -> None:
        super().__init__(function.merge, function.get_result, accumulator_type)
        self._add, self._changes = keeping(function.add, accumulator_type), taker(accumulator_type) is not None
        self._create = taking(function.create_accumulator, accumulator_type)

    def add(self, held: Any, value: Any) -> Any:
        held = self._create() if held is None else held
        return self._add(copied(value) if self._changes else value, held)

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        add, create = self._add, self._create
        for keys.seat, place, value in each:
            stored = held[place]
            held[place] = add(value, create() if stored is None else stored)


class _Listed(ValueFold):
    def __init__(self, list_type: TypeInformation) -> None:
        super().__init__(_extended, list, list_type)

    def add(self, held: Any, value: Any) -> Any:
        return [value] if held is None else _extended(held, [value])

    def add_each(self, keys: TouchedKeys, held: list[Any], each: Iterable[tuple[int, int, Any]]) -> None:
        for keys.seat, place, value in each:
            elements = held[place]
            if elements is None:
                held[place] = [value]
            else:
                elements.append(value)


def _extended(one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def fold_values(descriptor: StateDescriptor) -> ValueFold:
    """Returns what a reducing, aggregating or list state does with values."""
    if isinstance(descriptor, ReducingStateDescriptor):
        return _Reduced(descriptor.reduce_function, descriptor.type_info)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return _Aggregated(descriptor.agg_function, descriptor.type_info)
    return _Listed(descriptor.type_info)


class PaneState:
    """List, reducing or aggregating state of windows, which is read and changed many cells at a time.

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
