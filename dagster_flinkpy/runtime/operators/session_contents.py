"""The contents of sessions: all elements, a reduced value, or an accumulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import keeping, taking
from dagster_flinkpy.datastream.functions import AggregateFunction, ReduceFunction
from dagster_flinkpy.datastream.operator_specs import WindowSpec, as_callable
from dagster_flinkpy.state.cell_columns import Cells
from dagster_flinkpy.state.list_table import ListTable
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state.session_values import SessionValues

__all__ = ["SessionContents", "session_contents"]


class SessionContents(ABC):
    """Reads and changes the contents of sessions, which are given by number."""

    @abstractmethod
    def add_each(self, slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        """Adds records to sessions, in order.

        Args:
            slots: The slot of each session, which becomes the current key.
            cells: The sessions; may repeat.
            values: A record for each of them, which nobody else has.
        """

    @abstractmethod
    def get_each(self, slots: Sequence[int], cells: Cells, *, last: bool) -> Iterator[Any]:
        """Yields what each session has when it fires, or None, while its slot is the current key.

        Args:
            slots: The slot of each session.
            cells: The sessions.
            last: Whether their contents are dropped afterwards.
        """

    @abstractmethod
    def merge(self, cell: int, other: int) -> None:
        """Moves the contents of another session, which ends, to a session."""

    @abstractmethod
    def drop(self, cells: Cells) -> None:
        """Forgets the contents of sessions, which end."""


class _Elements(SessionContents):
    """All elements.

    Args:
        sessions: The sessions.
        table: The lists, by slot and state window.
    """

    def __init__(self, sessions: SessionTable, table: ListTable) -> None:
        self._sessions, self._table = sessions, table

    def add_each(self, slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        extend = self._table.extend
        for name, value in zip(self._names(np.array(cells, dtype=np.int64)), values, strict=True):
            extend(name, [value])

    def get_each(self, slots: Sequence[int], cells: Cells, *, last: bool) -> Iterator[Any]:
        keys, elements, own = self._table.keys, self._table.elements, None if last else self._table.own
        for keys.slot, name in zip(slots, self._names(cells), strict=True):
            found = elements(name)
            yield (found if own is None else list(map(own, found))) or None

    def merge(self, cell: int, other: int) -> None:
        name, other_name = self._names(np.array([cell, other]))
        elements = self._table.elements(other_name)
        self.drop(np.array([other]))
        if elements:
            self._table.extend(name, elements)

    def drop(self, cells: Cells) -> None:
        # Elements are stored with their session.
        for name, stored in zip(self._names(cells), self._sessions.stored[cells].tolist(), strict=True):
            if stored:
                self._table.remove(name)
            else:
                self._table.drop(name)

    def _names(self, cells: Cells) -> list[tuple[int, tuple[int, int]]]:
        """Returns the cells of the list table."""
        sessions = self._sessions
        windows = zip(sessions.state_start[cells].tolist(), sessions.state_end[cells].tolist(), strict=True)
        return list(zip(sessions.slot[cells].tolist(), windows, strict=True))


class _Values(SessionContents):
    """One value.

    Args:
        table: The values.
        merge: Merges two values.
        result: Returns the result of a value.
    """

    def __init__(self, table: SessionValues, merge: Callable[[Any, Any], Any], result: Callable[[Any], Any]) -> None:
        self._table, self._merge, self._result = table, keeping(merge, table.value_type), result

    def get_each(self, slots: Sequence[int], cells: Cells, *, last: bool) -> Iterator[Any]:
        keys, result, own = self._table.keys, self._result, None if last else self._table.own
        values = self._table.get(cells) if own is None else map(own, self._table.get(cells))
        for keys.slot, value in zip(slots, values, strict=True):
            yield None if value is None else result(value)  # Not a local variable: the receiver need not copy it.

    def merge(self, cell: int, other: int) -> None:
        held = self._table.values
        if held[cell] is None:
            held[cell] = held[other]
        elif held[other] is not None:
            held[cell] = self._merge(held[cell], held[other])
        held[other] = None

    def drop(self, cells: Cells) -> None:
        self._table.drop(cells)


class _Accumulators(_Values):
    def __init__(self, table: SessionValues, function: AggregateFunction) -> None:
        super().__init__(table, function.merge, function.get_result)
        self._create = taking(function.create_accumulator, table.value_type)
        self._add = keeping(function.add, table.value_type)

    def add_each(self, slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, held, add, create = self._table.keys, self._table.values, self._add, self._create
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = add(value, create() if stored is None else stored)


class _Reduced(_Values):
    def __init__(self, table: SessionValues, function: Any) -> None:
        super().__init__(table, as_callable(function, ReduceFunction, "reduce"), lambda value: value)
        self._name_fields = table.value_type.name_fields

    def add_each(self, slots: Sequence[int], cells: Sequence[int], values: Iterable[Any]) -> None:
        keys, held, reduce, name_fields = self._table.keys, self._table.values, self._merge, self._name_fields
        for keys.slot, cell, value in zip(slots, cells, values, strict=True):
            stored = held[cell]
            held[cell] = name_fields(value) if stored is None else reduce(stored, value)


def session_contents(spec: WindowSpec, sessions: SessionTable, table: Any) -> SessionContents:
    """Returns the contents of sessions.

    Args:
        spec: The window spec.
        sessions: The sessions.
        table: The values; the lists of elements if the spec has neither a reduction nor an aggregation.
    """
    if spec.aggregate is not None:
        return _Accumulators(table, spec.aggregate)
    if spec.reduce is not None:
        return _Reduced(table, spec.reduce)
    return _Elements(sessions, table)
