"""The state objects of user functions, which are views of the current key's cell in the overlay."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from dagster_flinkpy.datastream.state import AggregatingState, ListState, MapState, ReducingState, ValueState
from dagster_flinkpy.errors import UnsupportedKeyTypeError
from dagster_flinkpy.state.list_table import ListTable
from dagster_flinkpy.state.map_table import MapTable
from dagster_flinkpy.state.tables import CellTable
from dagster_flinkpy.state.value_folds import ValueFold

__all__ = [
    "KeyedFoldState",
    "KeyedListState",
    "KeyedMapState",
    "KeyedValueState",
    "make_map_state",
]


class _CellState:
    """State with one value per cell (Flink: ``InternalKvState``)."""

    def __init__(self, table: CellTable) -> None:
        self.table = table

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def clear(self) -> None:
        """Forgets the value of the current key."""
        self.table.remove()


class KeyedValueState(_CellState, ValueState[Any]):
    """One value per key and namespace."""

    def value(self) -> Any:
        return self.table.get()

    def update(self, value: Any) -> None:
        if value is None:
            self.table.remove()
        else:
            self.table.put(value)


class KeyedFoldState(_CellState, ReducingState[Any], AggregatingState[Any, Any]):
    """A value per cell, which is made of all that are added, and whose namespaces can merge.

    (Flink: ``InternalMergingState``.)

    Args:
        table: The table.
        fold: What is made of the values.
    """

    def __init__(self, table: CellTable, fold: ValueFold) -> None:
        super().__init__(table)
        self._fold, self._add = fold, fold.add

    def get(self) -> Any:
        stored = self.table.get()
        return None if stored is None else self._fold.result(stored)

    def add(self, value: Any) -> None:
        self.table.hold(self._add(self.table.lend(), value))

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Moves the values of the current key from some namespaces to another one."""
        for source in sources:
            self.set_current_namespace(source)
            value = self.table.values.get(self.table.cell)
            if value is not None:
                self.table.remove()
                self.set_current_namespace(target)
                stored = self.table.values.get(self.table.cell)
                self.table.hold(value if stored is None else self._fold.merge(stored, value))


class KeyedListState(ListState[Any]):
    """A list per key. ``get`` returns a copy, so changes to it are not kept."""

    def __init__(self, table: ListTable) -> None:
        self.table = table
        self._stored, self._added, self._unread = table.stored, table.added, table.unread
        self._changed = table.changed
        self._keys, self._namespaced = table.keys, table.namespaced
        self._own, self._take = table.own, table.take

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def clear(self) -> None:
        cell = self._keys.slot
        if self._namespaced or cell is None:
            cell = self.table.cell
        if self._unread or self._stored[cell] is not None or self._added[cell] is not None:
            self.table.remove(cell)

    def get(self) -> list[Any]:
        cell = self._keys.slot
        if self._namespaced or cell is None:
            cell = self.table.cell
        if self._unread:
            self.table.read()
        stored, added = self._stored[cell], self._added[cell]
        if self._own is not None:
            return list(map(self._own, chain(stored or (), added or ())))
        if stored is None:
            return [] if added is None else added[:]
        both: list[Any] = stored[:] if added is None else stored + added
        return both

    def add(self, value: Any) -> None:
        cell = self._keys.slot
        if self._namespaced or cell is None:
            cell = self.table.cell
        added = self._added[cell]
        if self._take is not None:
            value = self._take(value)
        if added is None:
            self._added[cell] = [value]
            self.table.lists += 1
            if not self._namespaced:
                self._changed[cell] = True
        else:
            added.append(value)

    def add_all(self, values: list[Any]) -> None:
        cell = self.table.cell
        if values:
            self.table.extend(cell, self._taken(values))

    def update(self, values: list[Any]) -> None:
        if not values:
            self.clear()
            return
        cell = self._keys.slot
        if self._namespaced or cell is None:
            cell = self.table.cell
        self.table.replace(cell, self._taken(values))

    def _taken(self, values: Iterable[Any]) -> list[Any]:
        return list(values if self._take is None else map(self._take, values))

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Moves the values of the current key from some namespaces to another one."""
        for source in sources:
            self.set_current_namespace(source)
            elements = self.table.elements(self.table.cell)
            if elements:
                self.clear()
                self.set_current_namespace(target)
                self.table.extend(self.table.cell, elements)


class KeyedMapState(MapState[Any, Any]):
    """A map per key. ``items``, ``keys`` and ``values`` return copies, so a loop may change the map."""

    def __init__(self, table: MapTable) -> None:
        self.table = table
        self._encode = table.codec.encode
        self._stored, self._changed, self._keys = table.stored, table.changed, table.keys
        self._marks = table.marks
        self._namespaced = table.namespaced
        self._own, self._take = table.own, table.take

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def get(self, key: Any) -> Any:
        if self._encode is not None:
            key = self._encode(key)
        cell = self.table.cell if self._namespaced else self._keys.slot
        try:
            entries = self._changed[cell]
            if entries is not None and key in entries:
                return entries[key]
            entries = self._stored[cell]
            if entries is not None:
                return entries.get(key)
            hash(key)  # a key of another type is an error in an empty map, too
        except TypeError as error:
            raise self._misuse(key, error) from error
        return None

    def put(self, key: Any, value: Any) -> None:
        if self._encode is not None:
            key = self._encode(key)
        cell = self.table.cell if self._namespaced else self._keys.slot
        if self._take is not None:
            value = self._take(value)
        try:
            entries = self._changed[cell]
            if entries is None:
                self._changed[cell] = {key: value}
                self.table.rows += 1
                if not self._namespaced:
                    self._marks[cell] = True
            else:
                if key not in entries:
                    self.table.rows += 1
                entries[key] = value
        except TypeError as error:
            raise self._misuse(key, error) from error

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self.table.put(self.table.cell, self._taken(dict_value))

    def remove(self, key: Any) -> None:
        self.table.remove(self.table.cell, self._encoded(key))

    def contains(self, key: Any) -> bool:
        return self._encoded(key) in self._entries()

    def items(self) -> Iterable[tuple[Any, Any]]:
        entries = self._entries()
        return list(zip(self.table.codec.decode_all(list(entries)), self._owned(entries), strict=True))

    def keys(self) -> Iterable[Any]:
        return list(self.table.codec.decode_all(list(self._entries())))

    def values(self) -> Iterable[Any]:
        return self._owned(self._entries())

    def is_empty(self) -> bool:
        return not self._entries()

    def clear(self) -> None:
        self.table.remove_all(self.table.cell)

    def _taken(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        """Returns entries that a function gives, by their dict keys."""
        take = self._take
        taken = {self._encoded(key): value for key, value in dict(entries).items()}
        return taken if take is None else {key: take(value) for key, value in taken.items()}

    def _owned(self, entries: dict[Any, Any]) -> list[Any]:
        """Returns the values of entries, for a function."""
        return list(entries.values() if self._own is None else map(self._own, entries.values()))

    def _entries(self) -> dict[Any, Any]:
        return self.table.entries(self.table.cell)

    def _encoded(self, key: Any) -> Any:
        encoded = key if self._encode is None else self._encode(key)
        try:
            hash(encoded)
        except TypeError as error:
            raise self._misuse(key, error) from error
        return encoded

    def _misuse(self, key: Any, error: TypeError) -> UnsupportedKeyTypeError:
        """Returns what an error means; raises a ConfigurationError if it means that there is no current key."""
        self.table.require_key()
        return UnsupportedKeyTypeError(f"map key {key!r} of state {self.table.name!r}: {error}")


class _ChangeableMapState(KeyedMapState):
    """A map per key, with values that functions may change."""

    def get(self, key: Any) -> Any:
        own = self._own
        assert own is not None
        return own(super().get(key))


def make_map_state(table: MapTable) -> KeyedMapState:
    """Returns the fastest state for the table."""
    return KeyedMapState(table) if table.own is None else _ChangeableMapState(table)
