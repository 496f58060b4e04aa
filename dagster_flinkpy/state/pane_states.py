"""State of windows that many keys share: one value per key and window, to which a batch is added at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dagster_flinkpy.datastream.base_functions import BaseAggregateFunction, BaseReduceFunction
from dagster_flinkpy.datastream.state import AggregatingState, ReducingState
from dagster_flinkpy.state.pane_table import PaneTable

__all__ = ["PaneAggregatingState", "PaneReducingState"]


class _PaneState(ABC):
    """State to which values are added."""

    def __init__(self, table: PaneTable) -> None:
        self.table = table

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def clear(self) -> None:
        """Forgets the value of the current key."""
        self.table.remove((self.table.require_key(),))

    def clear_each(self, slots: Collection[int]) -> None:
        """Forgets the values of several keys, given by their slots."""
        self.table.remove(slots)

    def add(self, value: Any) -> None:
        """Adds a value for the current key."""
        self.add_each((self.table.require_key(),), (value,))

    def add_each(self, slots: Sequence[int], values: Iterable[Any]) -> set[int]:
        """Adds a value for each slot, in order, which becomes the current key; returns the slots that were empty."""
        pane = self.table.pane()
        new = set(slots).difference(pane.values)
        pane.changed.update(slots)
        self._add_each(pane.values, slots, values)
        return new

    @abstractmethod
    def _add_each(self, held: dict[int, Any], slots: Sequence[int], values: Iterable[Any]) -> None:
        """Adds values to those of a namespace."""

    @abstractmethod
    def get_each(self, slots: Iterable[int]) -> Iterator[Any]:
        """Yields the result of each slot that has a value, while it is the current key."""


class PaneReducingState(_PaneState, ReducingState[Any]):
    """A value per key and namespace, with which each added value is reduced."""

    def __init__(self, table: PaneTable, reduce_function: BaseReduceFunction) -> None:
        super().__init__(table)
        self._reduce = reduce_function.reduce

    def get(self) -> Any:
        return self.table.get()

    def _add_each(self, held: dict[int, Any], slots: Sequence[int], values: Iterable[Any]) -> None:
        keys, reduce, name_fields = self.table.keys, self._reduce, self.table.name_fields
        for slot, value in zip(slots, values, strict=True):
            keys.slot = slot
            stored = held.get(slot)
            held[slot] = name_fields(value if stored is None else reduce(stored, value))

    def get_each(self, slots: Iterable[int]) -> Iterator[Any]:
        keys, get = self.table.keys, self.table.pane().values.get
        for keys.slot in slots:
            stored = get(keys.slot)
            if stored is not None:
                yield stored


class PaneAggregatingState(_PaneState, AggregatingState[Any, Any]):
    """An accumulator per key and namespace."""

    def __init__(self, table: PaneTable, function: BaseAggregateFunction) -> None:
        super().__init__(table)
        self._function = function

    def get(self) -> Any:
        stored = self.table.get()
        return None if stored is None else self._function.get_result(stored)

    def _add_each(self, held: dict[int, Any], slots: Sequence[int], values: Iterable[Any]) -> None:
        keys, name_fields = self.table.keys, self.table.name_fields
        add, create_accumulator = self._function.add, self._function.create_accumulator
        for slot, value in zip(slots, values, strict=True):
            keys.slot = slot
            stored = held.get(slot)
            held[slot] = name_fields(add(value, create_accumulator() if stored is None else stored))

    def get_each(self, slots: Iterable[int]) -> Iterator[Any]:
        keys, get, get_result = self.table.keys, self.table.pane().values.get, self._function.get_result
        for keys.slot in slots:
            stored = get(keys.slot)
            if stored is not None:
                yield get_result(stored)  # not a local variable: the receiver need not copy what only it holds
