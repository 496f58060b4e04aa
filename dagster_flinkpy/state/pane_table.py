"""State with namespaces, such as that of windows: the values of each namespace are kept together."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.layout import distinct_rows
from dagster_flinkpy.state.tables import OverlayTable

__all__ = ["Pane", "PaneTable"]


class Pane:
    """The values of one namespace, by slot."""

    __slots__ = ("changed", "stored", "values")

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        """None means no value."""
        self.changed: set[int] = set()
        """Slots whose value is not in storage yet."""
        self.stored: set[int] = set()
        """Slots for which storage has a value."""

    def remove(self, slots: Collection[int]) -> None:
        """Drops values. A value that never was in storage leaves no tombstone."""
        values = self.values
        gone = values.keys() & slots
        if len(gone) == len(values):
            values.clear()
        else:
            for slot in gone:
                del values[slot]
        self.changed -= gone
        self.changed |= gone & self.stored


class PaneTable(OverlayTable):
    """One value per key and namespace: REDUCING and AGGREGATING state. It is stored in the same form as a CellTable.

    A namespace has a dict of its own, from slots to values. So a batch is added window by window with small ints as
    dict keys, and a window that ends is dropped as a whole. It needs more memory than a CellTable if few keys share a
    namespace, as with sessions.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._panes: dict[Hashable, Pane] = {}
        assert self.value_type is not None
        self.name_fields = self.value_type.name_fields

    @property
    def size(self) -> int:
        return sum(max(len(pane.values), len(pane.stored)) for pane in self._panes.values())

    def pane(self) -> Pane:
        """Returns the values of the current namespace, to add to them."""
        pane = self._panes.get(self._namespace)
        if pane is None:
            pane = self._panes[self._namespace] = Pane()
        return pane

    def get(self) -> Any:
        """Returns the value of the current key and namespace, or None."""
        slot = self.require_key()
        pane = self._panes.get(self._namespace)
        return None if pane is None else pane.values.get(slot)

    def remove(self, slots: Collection[int]) -> None:
        """Drops the values of some keys in the current namespace."""
        pane = self._panes.get(self._namespace)
        if pane is not None:
            pane.remove(slots)
            self._forget(self._namespace, pane)

    def load(self, keys: KeySlots) -> None:
        assert self.namespace_type is not None and self._namespace_codec is not None
        for match in self._matches(keys):
            column = match.run.take("namespace", match.rows)
            first, codes = distinct_rows(column)
            namespaces = self._namespace_codec.encode_all(self.namespace_type.from_arrow(column.take(pa.array(first))))
            panes = [self._panes.setdefault(namespace, Pane()) for namespace in namespaces]
            slots, deleted = (match.wanted + keys.first).tolist(), match.run.take("deleted", match.rows).to_pylist()
            for slot, code, gone, value in zip(slots, codes.tolist(), deleted, self._stored_values(match), strict=True):
                pane = panes[code]
                if gone:
                    pane.values.pop(slot, None)
                    pane.stored.discard(slot)
                else:
                    pane.values[slot] = value
                    pane.stored.add(slot)
        self._forget_empty()

    def clear(self) -> None:
        self._panes.clear()

    def _changes(self) -> pa.Table | None:
        changed = {namespace: pane for namespace, pane in self._panes.items() if pane.changed}
        keys = self.keys.all()
        if not changed or keys is None:
            return None
        assert self.namespace_type is not None and self._namespace_codec is not None and self.value_type is not None
        slots = [slot for pane in changed.values() for slot in pane.changed]
        values = [value for pane in changed.values() for value in map(pane.values.get, pane.changed)]
        namespaces = self.namespace_type.to_arrow(self._namespace_codec.decode_all(list(changed)))
        codes = np.repeat(np.arange(len(changed)), [len(pane.changed) for pane in changed.values()])
        taken = np.array(slots)
        arrays: dict[str, pa.Array[Any]] = {
            "sort_key": pa.array(keys.sort_keys[taken]),
            "key": keys.column.take(pa.array(taken)),
            "namespace": namespaces.take(pa.array(codes)),
            "value": self._to_arrow(self.value_type, values, slots),
            "deleted": pa.array([value is None for value in values], type=pa.bool_()),
        }
        schema = self.layout.local_schema
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _written(self) -> None:
        for pane in self._panes.values():
            held = {slot for slot in pane.changed if pane.values.get(slot) is not None}
            pane.stored -= pane.changed
            pane.stored |= held
            pane.changed.clear()
        self._forget_empty()

    def _forget_empty(self) -> None:
        for namespace, pane in list(self._panes.items()):
            self._forget(namespace, pane)

    def _forget(self, namespace: Hashable, pane: Pane) -> None:
        if not pane.values and not pane.changed and not pane.stored:
            del self._panes[namespace]
