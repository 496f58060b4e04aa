"""State with a time to live (Flink: ``TtlValueState``, ``TtlMapState``, ...).

In the overlay each value, list element or map entry is stored with the time at which it expires, in milliseconds of
processing time. Expired values are dropped when they are read and when runs are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dagster_flinkpy.datastream.state import AggregatingState, ListState, ReducingState, ValueState
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.list_table import TtlListTable
from dagster_flinkpy.state.map_table import MapTable
from dagster_flinkpy.state.runs import Match
from dagster_flinkpy.state.slot_table import KeyedSlotState, SlotTable
from dagster_flinkpy.state.states import KeyedMapState
from dagster_flinkpy.state.tables import CellTable
from dagster_flinkpy.state.value_folds import ValueFold

__all__ = [
    "TtlCellTable",
    "TtlFoldState",
    "TtlListState",
    "TtlMapState",
    "TtlMapTable",
    "TtlRules",
    "TtlSlotState",
    "TtlSlotTable",
    "TtlValueState",
]


class TtlRules:
    """Decides when state expires, and whether it may still be read.

    Args:
        config: The time to live that the user declared.
        now: Returns processing time in milliseconds.
    """

    def __init__(self, config: StateTtlConfig, now: Callable[[], int]) -> None:
        self.now = now
        self.ttl = config.ttl_millis
        """Milliseconds until a value that is written expires."""
        self.on_read = config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        """Whether reading state restarts its time to live."""
        self.return_expired = (
            config.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        """Whether expired state that was not cleaned up yet may still be returned, once."""

    def expiry(self) -> int:
        """Returns the time at which a value that is written now expires."""
        return self.now() + self.ttl


def _read(values: Sequence[Any], match: Match) -> list[Any]:
    return list(zip(values, match.run.take("expires_at", match.rows).to_pylist(), strict=True))


def _columns(stamped: Iterable[Any]) -> dict[str, list[Any]]:
    pairs = [(None, None) if each is None else each for each in stamped]
    return {"value": [value for value, _ in pairs], "expires_at": [expires for _, expires in pairs]}


class TtlCellTable(CellTable):
    """The value of each cell, with the time at which it expires."""

    ttl = True

    def put_stamped(self, value: Any, expires: Any) -> None:
        """Sets the value of the current cell to one that nobody else has."""
        self.hold((value, expires))

    def _stored_values(self, match: Match) -> Sequence[Any]:
        return _read(super()._stored_values(match), match)

    def _columns(self, values: list[Any]) -> dict[str, list[Any]]:
        return _columns(values)


class TtlSlotTable(SlotTable):
    """The value of each slot, with the time at which it expires."""

    ttl = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.expires: list[Any] = []
        """The time at which the value of each slot expires; None if there is no value."""

    def load(self, keys: KeySlots) -> None:
        self.expires.extend([None] * len(keys.column))
        super().load(keys)

    def _take(self, match: Match, slots: list[int], deleted: list[bool]) -> None:
        super()._take(match, slots, deleted)
        for slot, expires in zip(slots, match.run.take("expires_at", match.rows).to_pylist(), strict=True):
            self.expires[slot] = expires

    def clear(self) -> None:
        super().clear()
        self.expires.clear()

    def _by_slot(self) -> dict[str, list[Any]]:
        return {**super()._by_slot(), "expires_at": self.expires}


class TtlMapTable(MapTable):
    """The value of each entry, with the time at which it expires."""

    ttl = True

    def put_stamped(self, entries: dict[Any, Any], expires: int) -> None:
        """Sets entries of the current cell, given by their dict keys, whose values nobody else has."""
        self.put(self.cell, {key: (value, expires) for key, value in entries.items()})

    def _stored_values(self, match: Match) -> Sequence[Any]:
        return _read(super()._stored_values(match), match)

    def _columns(self, values: list[Any]) -> dict[str, list[Any]]:
        return _columns(values)


class _TtlCellState:
    """State with one value per cell."""

    def __init__(self, table: TtlCellTable, rules: TtlRules) -> None:
        self.table, self._rules = table, rules

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def clear(self) -> None:
        """Forgets the value of the current key."""
        self.table.remove()

    def _get(self) -> Any:
        """Returns the value, if it may be read (Flink: ``getWrappedWithTtlCheckAndUpdate``)."""
        stamped = self.table.values.get(self.table.cell)
        if stamped is None:
            return None
        value, expires = stamped
        rules, own = self._rules, self.table.own
        if expires <= rules.now():
            self.table.remove()
            return value if rules.return_expired else None
        if rules.on_read:
            self.table.put_stamped(value, rules.expiry())
        return value if own is None else own(value)

    def _unexpired(self) -> Any:
        """Returns the stored value to which another one is added, or None if it has expired."""
        stamped = self.table.lend()
        if stamped is None or (stamped[1] <= self._rules.now() and not self._rules.return_expired):
            return None
        return stamped[0]

    def _put(self, value: Any) -> None:
        """Sets the value to one that nobody else has."""
        self.table.put_stamped(value, self._rules.expiry())


class TtlValueState(_TtlCellState, ValueState[Any]):
    """One value per key, which expires."""

    def value(self) -> Any:
        return self._get()

    def update(self, value: Any) -> None:
        take = self.table.take
        if value is None:
            self.table.remove()
        else:
            self._put(value if take is None else take(value))


class TtlSlotState(KeyedSlotState):
    """One value per key without namespaces, which expires. Most programs use it for each record."""

    def __init__(self, table: TtlSlotTable, rules: TtlRules) -> None:
        super().__init__(table)
        self._expires, self._rules = table.expires, rules
        self._now, self._ttl, self._on_read = rules.now, rules.ttl, rules.on_read
        self._own, self._take = table.own, table.take

    def value(self) -> Any:
        slot = self._keys.slot
        try:
            value = self._values[slot]
        except TypeError:
            self.table.require_key()
            raise
        if value is not None:
            now = self._now()
            if self._expires[slot] <= now:
                self.clear()
                return value if self._rules.return_expired else None
            if self._on_read:
                self._expires[slot] = now + self._ttl
                self._changed[slot] = True
            if self._own is not None:
                return self._own(value)
        return value

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        slot = self._keys.slot
        try:
            self._values[slot] = value if self._take is None else self._take(value)
        except TypeError:
            self.table.require_key()
            raise
        self._expires[slot] = self._now() + self._ttl
        self._changed[slot] = True

    def clear(self) -> None:
        super().clear()
        self._expires[self._keys.slot] = None


class TtlFoldState(_TtlCellState, ReducingState[Any], AggregatingState[Any, Any]):
    """A value per key, which is made of all that are added; an expired one is ignored."""

    def __init__(self, table: TtlCellTable, rules: TtlRules, fold: ValueFold) -> None:
        super().__init__(table, rules)
        self._fold = fold

    def get(self) -> Any:
        stored = self._get()
        return None if stored is None else self._fold.result(stored)

    def add(self, value: Any) -> None:
        self._put(self._fold.add(self._unexpired(), value))


class TtlListState(ListState[Any]):
    """A list per key; each element expires separately."""

    def __init__(self, table: TtlListTable, rules: TtlRules) -> None:
        self.table, self._rules = table, rules

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        self.table.set_current_namespace(namespace)

    def clear(self) -> None:
        self.table.remove(self.table.cell)

    def get(self) -> list[Any]:
        cell = self.table.cell
        stamped = self.table.elements(cell)
        rules = self._rules
        now = rules.now()
        live = [(value, time) for value, time in stamped if time > now]
        if not live:
            self.table.remove(cell)
        elif rules.on_read:
            expires = rules.expiry()
            self.table.replace(cell, [(value, expires) for value, _ in live])
        elif len(live) < len(stamped):
            self.table.replace(cell, live)
        own, readable = self.table.own, stamped if rules.return_expired else live
        return [value if own is None else own(value) for value, _ in readable]

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: list[Any]) -> None:
        cell = self.table.cell
        if values:
            self.table.extend(cell, self._stamped(values))

    def update(self, values: list[Any]) -> None:
        if values:
            self.table.replace(self.table.cell, self._stamped(values))
        else:
            self.clear()

    def _stamped(self, values: list[Any]) -> list[tuple[Any, int]]:
        expires, take = self._rules.expiry(), self.table.take
        return [(value if take is None else take(value), expires) for value in values]


class TtlMapState(KeyedMapState):
    """A map per key; each entry expires separately."""

    table: TtlMapTable

    def __init__(self, table: TtlMapTable, rules: TtlRules) -> None:
        super().__init__(table)
        self._rules = rules

    def get(self, key: Any) -> Any:
        encoded = self._encoded(key)
        value = self._live([encoded]).get(encoded)
        return value if self._own is None else self._own(value)

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        self.table.put_stamped(self._taken(dict_value), self._rules.expiry())

    def contains(self, key: Any) -> bool:
        return self._encoded(key) in self._live([self._encoded(key)])

    def items(self) -> Iterable[tuple[Any, Any]]:
        live = self._live()
        return list(zip(self.table.codec.decode_all(list(live)), self._owned(live), strict=True))

    def keys(self) -> Iterable[Any]:
        return list(self.table.codec.decode_all(list(self._live())))

    def values(self) -> Iterable[Any]:
        return self._owned(self._live())

    def is_empty(self) -> bool:
        now = self._rules.now()
        # Does not count as a read, so the time to live of entries does not restart.
        return not any(self._rules.return_expired or expires > now for _, expires in self._entries().values())

    def _live(self, only: Sequence[Any] | None = None) -> dict[Any, Any]:
        """Returns the readable values, by dict key of the map key; drops expired ones."""
        rules = self._rules
        now, entries = rules.now(), self._entries()
        found = {key: entries[key] for key in (list(entries) if only is None else only) if key in entries}
        live = {key: stamped for key, stamped in found.items() if stamped[1] > now}
        for key in found.keys() - live.keys():
            self.table.remove(self.table.cell, key)
        if rules.on_read and live:
            self.table.put_stamped({key: value for key, (value, _) in live.items()}, rules.expiry())
        return {key: value for key, (value, _) in (found if rules.return_expired else live).items()}
