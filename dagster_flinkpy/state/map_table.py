"""The overlay of MAP state. The entries of a cell as stored and those that have changed are kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from dagster_flinkpy.state.keys import KeyCodec, KeySlots
from dagster_flinkpy.state.tables import NamedCells, OverlayTable, marked

__all__ = ["MapTable"]

Entries = dict[Any, Any]
"""Values by the dict key of the map key."""


class MapTable(OverlayTable):
    """Entries per cell, stored one by one.

    A cell that is a slot indexes a list. That, and one dict for what changes, is the least work per record.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.map_key_type is not None and self.value_type is not None
        self.codec = KeyCodec(self.map_key_type)
        """The codec of the map keys."""
        self.stored: Any = NamedCells() if self.namespaced else []
        """The entries of each cell that are in storage, or None. Only the methods write to it."""
        self.changed: Any = NamedCells() if self.namespaced else []
        """The entries of each cell that are not in storage yet, or None; they replace those in ``stored``."""
        self.marks: Any = bytearray()
        """Whether each slot may have entries in ``changed``; who adds a dict marks it. Not for named cells."""
        self.rows = 0
        """The number of entries in ``stored`` and ``changed``; who adds one counts it."""
        self._removed: dict[Any, dict[Any, None]] = {}
        """Map keys of each cell that were removed. Those that are in ``changed`` have been set again."""

    @property
    def size(self) -> int:
        return self.rows

    def entries(self, cell: Any) -> Entries:
        """Returns the entries of a cell in the order in which they were first set. They must not be changed."""
        stored, changed = self.stored[cell], self.changed[cell]
        if stored and changed:
            return {**stored, **changed}
        return stored or changed or {}

    def put(self, cell: Any, entries: Entries) -> None:
        """Sets entries of a cell, whose values nobody else has."""
        known = self.changed[cell]
        if known is None:
            known = self.changed[cell] = {}
            if not self.namespaced:
                self.marks[cell] = True
        before = len(known)
        known.update(entries)
        self.rows += len(known) - before

    def remove(self, cell: Any, map_key: Any) -> None:
        """Drops an entry of a cell, given by its dict key."""
        found = False
        for entries in (self.stored[cell], self.changed[cell]):
            if entries is not None and map_key in entries:
                del entries[map_key]
                self.rows -= 1
                found = True
        if found:
            self._removed.setdefault(cell, {})[map_key] = None

    def remove_all(self, cell: Any) -> None:
        """Drops all entries of a cell."""
        for part in (self.stored, self.changed):
            if part[cell]:
                self._removed.setdefault(cell, {}).update(dict.fromkeys(part[cell]))
                self.rows -= len(part[cell])
            part[cell] = None

    def load(self, keys: KeySlots) -> None:
        assert self.map_key_type is not None
        stored = self.stored
        if not self.namespaced:
            stored.extend([None] * len(keys.column))
            self.changed.extend([None] * len(keys.column))
            self.marks.extend(bytes(len(keys.column)))
        for match, _, deleted, cells in self._find(keys):
            map_keys = self.codec.encode_all(self.map_key_type.from_arrow(match.run.take("map_key", match.rows)))
            values = self._stored_values(match)
            for cell, map_key, gone, value in zip(cells, map_keys, deleted, values, strict=True):
                entries = stored[cell]
                if gone:
                    if entries is not None:
                        entries.pop(map_key, None)
                elif entries is None:
                    stored[cell] = {map_key: value}
                else:
                    entries[map_key] = value
            self.rows += len(cells)

    def clear(self) -> None:
        self.stored.clear()
        self.changed.clear()
        self.marks.clear()
        self._removed.clear()
        self.rows = 0

    def _changes(self) -> pa.Table | None:
        cells: list[Any] = []
        map_keys, values = [], []
        for cell, entries in self._each_changed():
            cells.extend(repeat(cell, len(entries)))
            map_keys.append(entries)
            values.append(entries.values())
        keys, set_to = list(chain.from_iterable(map_keys)), list(chain.from_iterable(values))
        for cell, removed in self._removed.items():
            gone = [map_key for map_key in removed if map_key not in (self.changed[cell] or ())]
            cells.extend(repeat(cell, len(gone)))
            keys.extend(gone)
        deleted = [*repeat(False, len(set_to)), *repeat(True, len(keys) - len(set_to))]
        set_to.extend(repeat(None, len(keys) - len(set_to)))
        return self._delta(cells, {"map_key": list(self.codec.decode_all(keys)), **self._columns(set_to)}, deleted)

    def _written(self) -> None:
        for cell, entries in list(self._each_changed()):
            stored = self.stored[cell]
            if stored is None:
                self.stored[cell] = entries
            else:
                self.rows -= len(stored) + len(entries)
                stored.update(entries)
                self.rows += len(stored)
            self.changed[cell] = None
        self.marks[:] = bytes(len(self.marks))
        self._removed.clear()

    def _each_changed(self) -> Iterator[tuple[Any, Entries]]:
        """Yields also a dict that is empty again. It would take later entries, but no longer be marked."""
        changed = self.changed
        each = changed.items() if self.namespaced else ((slot, changed[slot]) for slot in marked(self.marks).tolist())
        return ((cell, entries) for cell, entries in each if entries is not None)
