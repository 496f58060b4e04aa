"""The state objects of user functions, which are views of the cell of the current key in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.errors import ConfigurationError, UnsupportedKeyTypeError
from dagster_flinkpy.state.cell_table import CellTable, PairCells
from dagster_flinkpy.state.handles import StateKind
from dagster_flinkpy.state.layout import UNBOUND, TableLayout
from dagster_flinkpy.state.map_table import ListTable, MapTable
from dagster_flinkpy.state.value_folds import ValueFold, fold_values

__all__ = [
    "InternalState",
    "KeyedFoldState",
    "KeyedListState",
    "KeyedMapState",
    "KeyedValueState",
    "is_same_state",
    "kind_of",
    "layout_of",
    "make_state",
]


class TtlRules:
    """When state expires, and whether it may still be read (Flink: ``AbstractTtlDecorator``).

    Each value, list element or map entry is stored with the time at which it expires. Expired values are dropped when
    they are read and when runs are merged.

    Args:
        config: The time to live that the user declared.
        now: Returns processing time in milliseconds.
    """

    def __init__(self, config: StateTtlConfig, now: Callable[[], int]) -> None:
        self.now, self._ttl = now, config.ttl_millis
        self.on_read = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        """Whether reading state restarts its time to live."""
        visibility = config.get_state_visibility()
        self.return_expired = visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        """Whether expired state that was not cleaned up yet may still be returned, once."""

    def expiry(self) -> int:
        """Returns the time at which a value that is written now expires."""
        return self.now() + self._ttl


class KeyedState:
    """State of the current key, and namespace (Flink: ``InternalKvState``).

    Args:
        table: The table.
        rules: The time to live. Default: values do not expire.
    """

    table: CellTable

    def __init__(self, table: CellTable, rules: TtlRules | None = None) -> None:
        self.table, self._rules = table, rules
        self._current, self._values, self._changed = table.current, table.values, table.changed
        self._expires, self._own, self._take = table.expires, table.own, table.take

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def _cell(self) -> int:
        """Returns the current cell, or raises a ConfigurationError."""
        cell: int | None = self._current.seat
        return self.table.require_key() if cell is None else cell


class _OneValue(KeyedState):
    """State with one value per cell, or one list."""

    def clear(self) -> None:
        """Forgets the value of the current key."""
        cell = self._cell()
        if self._values[cell] is not None:
            self._drop(cell)

    def _drop(self, cell: int) -> None:
        self.table.forget(cell)
        self._changed[cell] = True

    def _get(self) -> Any:
        """Returns the value of the current cell, if it may be read."""
        try:
            value = self._values[self._current.seat]
        except TypeError:
            self.table.require_key()
            raise
        if self._rules is not None and value is not None and not self._is_live(self._current.seat, self._rules):
            return value if self._rules.return_expired else None
        return value if self._own is None else self._own(value)

    def _is_live(self, cell: int, rules: TtlRules) -> bool:
        """Returns whether a value has not expired, or drops it (Flink: ``getWrappedWithTtlCheckAndUpdate``)."""
        expires = self._expires
        assert expires is not None
        if expires[cell] <= rules.now():
            self._drop(cell)
            return False
        if rules.on_read:
            expires[cell] = rules.expiry()
            self._changed[cell] = True
        return True

    def _put(self, cell: int, value: Any) -> None:
        """Sets the value of a cell to one that nobody else has."""
        self._values[cell] = value
        if self._expires is not None:
            self._set_expiry(cell, value)
        self._changed[cell] = True

    def _set_expiry(self, cell: int, value: Any) -> None:
        assert self._expires is not None and self._rules is not None
        self._expires[cell] = None if value is None else self._rules.expiry()


class KeyedValueState(_OneValue, ValueState[Any]):
    """One value per key and namespace, which most programs use for each record."""

    value = _OneValue._get

    def update(self, value: Any) -> None:
        cell = self._current.seat
        if self._take is not None and value is not None:
            value = self._take(value)
        try:
            self._values[cell] = value
        except TypeError:
            self.table.require_key()
            raise
        self._changed[cell] = True
        if self._expires is not None:
            self._set_expiry(cell, value)


class _Merging(_OneValue):
    """State whose namespaces can merge (Flink: ``InternalMergingState``)."""

    def __init__(self, table: CellTable, fold: ValueFold, rules: TtlRules | None = None) -> None:
        super().__init__(table, rules)
        self._fold, self._add = fold, fold.add

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Moves the values of the current key from some namespaces to another one."""
        for source in sources:
            self.set_current_namespace(source)
            value = self._held(self._cell())
            self.clear()
            if value is not None:
                self.set_current_namespace(target)
                cell = self._cell()
                stored = self._held(cell)
                self._put(cell, value if stored is None else self._fold.merge(stored, value))

    def _held(self, cell: int) -> Any:
        """Returns what a cell holds to which something is added; None if it has expired and must not be read."""
        held, expires, rules = self._values[cell], self._expires, self._rules
        if held is None or expires is None or rules is None or rules.return_expired:
            return held
        return held if expires[cell] > rules.now() else None


class KeyedFoldState(_Merging, ReducingState[Any], AggregatingState[Any, Any]):
    """A value per cell, which is made of all that are added.

    Args:
        table: The table.
        fold: What is made of the values.
        rules: The time to live. Default: values do not expire.
    """

    def get(self) -> Any:
        stored = self._get()
        return None if stored is None else self._fold.result(stored)

    def add(self, value: Any) -> None:
        cell = self._cell()
        self._changed[cell] = True  # If the function fails, what it has changed by then counts.
        self._put(cell, self._add(self._held(cell), value))


class KeyedListState(_Merging, ListState[Any]):
    """A list per key, whose elements expire separately. ``get`` returns a copy, so changes to it are not kept."""

    table: ListTable

    def __init__(self, table: ListTable, fold: ValueFold, rules: TtlRules | None = None) -> None:
        super().__init__(table, fold, rules)
        self._unread = table.unread

    def clear(self) -> None:
        cell = self._cell()
        if self._unread or self._values[cell] is not None:
            self.table.replace(cell, None)

    def get(self) -> list[Any]:
        cell = self._cell()
        if self._unread:
            self.table.read()
        elements = self._values[cell]
        if elements is None:
            return []
        if self._rules is not None:
            elements = self._live(cell, elements, self._rules)
        return elements[:] if self._own is None else list(map(self._own, elements))

    def _live(self, cell: int, stamped: list[Any], rules: TtlRules) -> list[Any]:
        """Returns the elements that may be read; drops expired ones."""
        now = rules.now()
        live = [each for each in stamped if each[1] > now]
        if not live:
            self.table.replace(cell, None)
        elif rules.on_read:
            expires = rules.expiry()
            self.table.replace(cell, [(value, expires) for value, _ in live])
        elif len(live) < len(stamped):
            self.table.replace(cell, live)
        return [value for value, _ in (stamped if rules.return_expired else live)]

    def add(self, value: Any) -> None:
        cell = self._current.seat
        if cell is None:
            cell = self.table.require_key()
        if self._take is not None:
            value = self._take(value)
        if self._rules is not None:
            value = value, self._rules.expiry()
        elements = self._values[cell]
        if elements is None:
            self._values[cell] = [value]
        else:
            elements.append(value)
        self._changed[cell] = True

    def add_all(self, values: list[Any]) -> None:
        cell = self._cell()
        if values:
            self.table.extend(cell, self._taken(values))

    def update(self, values: list[Any]) -> None:
        if values:
            self.table.replace(self._cell(), self._taken(values))
        else:
            self.clear()

    def _taken(self, values: Iterable[Any]) -> list[Any]:
        """Returns elements that a function gives, as they are kept."""
        taken = list(values if self._take is None else map(self._take, values))
        if self._rules is None:
            return taken
        expires = self._rules.expiry()
        return [(value, expires) for value in taken]

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        if self._unread:
            self.table.read()
        super().merge_namespaces(target, sources)


class KeyedMapState(KeyedState, MapState[Any, Any]):
    """A map per key, whose entries expire separately.

    ``items``, ``keys`` and ``values`` go over copies, so a loop may change the map.
    """

    table: MapTable

    def __init__(self, table: MapTable, rules: TtlRules | None = None) -> None:
        super().__init__(table, rules)
        self._encode, self._pending = table.codec.encode, table.pending

    def get(self, key: Any) -> Any:
        if self._rules is not None:
            encoded = self._encoded(key)
            value = self._entries([encoded]).get(encoded)
            return value if self._own is None else self._own(value)
        if self._encode is not None:
            key = self._encode(key)
        cell = self._current.seat
        try:
            entries = self._pending[cell]
            if entries is not None and key in entries:
                value = entries[key]
            else:
                entries = self._values[cell]
                if entries is None:
                    hash(key)  # a key of another type is an error in an empty map, too
                    return None
                value = entries.get(key)
        except TypeError as error:
            raise self._misuse(key, error) from error
        return value if self._own is None else self._own(value)

    def put(self, key: Any, value: Any) -> None:
        if self._encode is not None:
            key = self._encode(key)
        cell = self._current.seat
        if self._take is not None:
            value = self._take(value)
        if self._rules is not None:
            value = value, self._rules.expiry()
        try:
            entries = self._pending[cell]
            if entries is None:
                self._pending[cell] = {key: value}
                self.table.rows += 1
                self._changed[cell] = True
            else:
                if key not in entries:
                    self.table.rows += 1
                entries[key] = value
        except TypeError as error:
            raise self._misuse(key, error) from error

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        entries = {self._encoded(key): value for key, value in dict(dict_value).items()}
        if self._take is not None:
            entries = {key: self._take(value) for key, value in entries.items()}
        if self._rules is not None:
            expires = self._rules.expiry()
            entries = {key: (value, expires) for key, value in entries.items()}
        self.table.put(self._cell(), entries)

    def remove(self, key: Any) -> None:
        self.table.remove(self._cell(), self._encoded(key))

    def contains(self, key: Any) -> bool:
        encoded = self._encoded(key)
        return encoded in self._entries([encoded])

    def items(self) -> Iterator[tuple[Any, Any]]:
        entries = self._entries()
        return zip(self.table.codec.decode_all(list(entries)), self._owned(entries), strict=True)

    def keys(self) -> Iterator[Any]:
        return iter(self.table.codec.decode_all(list(self._entries())))

    def values(self) -> Iterator[Any]:
        return iter(self._owned(self._entries()))

    def is_empty(self) -> bool:
        values, rules = self.table.each_value(self._cell()), self._rules
        if rules is None or rules.return_expired:
            return not any(True for _ in values)
        now = rules.now()
        # Does not count as a read, so the time to live of entries does not restart.
        return not any(expires > now for _, expires in values)

    def clear(self) -> None:
        self.table.remove_all(self._cell())

    def _owned(self, entries: dict[Any, Any]) -> list[Any]:
        """Returns the values of entries, for a function."""
        return list(entries.values() if self._own is None else map(self._own, entries.values()))

    def _entries(self, only: Sequence[Any] | None = None) -> dict[Any, Any]:
        """Returns the values that may be read, by dict key of the map key; drops expired ones.

        Args:
            only: The entries that are read. Default: all.
        """
        cell, rules = self._cell(), self._rules
        found = self.table.entries(cell) if only is None else self.table.picked(cell, only)
        if rules is None:
            return found
        now, found = rules.now(), dict(found)  # The map itself changes below.
        live = {key: stamped for key, stamped in found.items() if stamped[1] > now}
        for key in found.keys() - live.keys():
            self.table.remove(cell, key)
        if rules.on_read and live:
            expires = rules.expiry()
            self.table.put(cell, {key: (value, expires) for key, (value, _) in live.items()})
        return {key: value for key, (value, _) in (found if rules.return_expired else live).items()}

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


InternalState = KeyedValueState | KeyedListState | KeyedMapState | KeyedFoldState
"""Keyed state of any kind."""


_KINDS: dict[type[StateDescriptor], StateKind] = {
    ValueStateDescriptor: "VALUE",
    ListStateDescriptor: "LIST",
    MapStateDescriptor: "MAP",
    ReducingStateDescriptor: "REDUCING",
    AggregatingStateDescriptor: "AGGREGATING",
}


def kind_of(descriptor: StateDescriptor) -> StateKind:
    """Returns the kind of keyed state that a descriptor declares.

    Raises:
        ConfigurationError: It declares none.
    """
    kind = next((kind for known, kind in _KINDS.items() if isinstance(descriptor, known)), None)
    if kind is None:
        raise ConfigurationError(f"state {descriptor.name!r}: a {type(descriptor).__name__} is not for keyed state")
    return kind


def is_same_state(one: StateDescriptor, other: StateDescriptor) -> bool:
    """Returns whether descriptors of one name declare the same types."""
    if one is other:
        return True
    alike = type(one) is type(other) and one.type_info == other.type_info
    return alike and _expires(one) == _expires(other)


def _expires(descriptor: StateDescriptor) -> bool:
    return descriptor.ttl_config is not None and descriptor.ttl_config.is_enabled()


def layout_of(
    descriptor: StateDescriptor, key_type: TypeInformation, namespace_type: TypeInformation | None = None
) -> TableLayout:
    """Returns how a state is stored.

    Raises:
        ConfigurationError: The descriptor is not for keyed state.
    """
    map_key, value = None, descriptor.type_info
    if isinstance(descriptor, MapStateDescriptor):
        map_key, value = descriptor.key_type_info, descriptor.value_type_info
    kind, ttl = kind_of(descriptor), _expires(descriptor)
    return TableLayout(descriptor.name, kind, key_type, namespace_type, map_key, value, ttl)


def make_state(descriptor: StateDescriptor, namespace_type: TypeInformation | None, *where: Any) -> InternalState:
    """Returns the state of a descriptor, with its table.

    Args:
        descriptor: The state that the user declared.
        namespace_type: The type of the namespace, or None for state without one.
        where: The first arguments of an ``OverlayTable``.

    Raises:
        ConfigurationError: The descriptor is not for keyed state.
        UnsupportedKeyTypeError: The type of the namespace or map key cannot identify rows.
    """
    keys, files, handles = where
    layout, config = layout_of(descriptor, UNBOUND, namespace_type), descriptor.ttl_config
    rules = TtlRules(config, files.now) if layout.ttl and config is not None else None
    numbers = None if namespace_type is None else PairCells(namespace_type)
    if layout.kind == "MAP":
        return KeyedMapState(MapTable(keys, files, handles, layout, numbers=numbers), rules)
    if layout.kind == "VALUE":
        return KeyedValueState(CellTable(keys, files, handles, layout, numbers=numbers), rules)
    fold = fold_values(descriptor)
    if layout.kind == "LIST":
        return KeyedListState(ListTable(keys, files, handles, layout, when_read=True, numbers=numbers), fold, rules)
    return KeyedFoldState(CellTable(keys, files, handles, layout, numbers=numbers), fold, rules)
