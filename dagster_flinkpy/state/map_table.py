"""The overlays of LIST and MAP state. What is added to a stored list is written alone, and does not read the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import Cells, Mask, grown
from dagster_flinkpy.state.files.runs import Found
from dagster_flinkpy.state.keys import KeyCodec, KeySeats
from dagster_flinkpy.state.layout import APPEND

__all__ = ["ListTable", "MapTable"]


class ListTable(CellTable):
    """A non-empty list per cell. With a time to live, it has pairs: an element and the time at which it expires.

    Args:
        args: See :class:`CellTable`, like the other arguments.
        when_read: Whether stored lists of touched keys are only read by :meth:`read`. Until then, the list of a cell
            has the elements that were added since its key was touched. Default: False.
    """

    def __init__(self, *args: Any, when_read: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.unread: list[KeySeats] = []
        """Touched keys whose stored lists were not read yet."""
        self._when_read = when_read
        self._kept: Cells = np.zeros(0, dtype=np.int64)  # How many elements, from the first one on, are in storage.
        self._replaced: Mask = np.zeros(0, dtype=np.bool_)  # Whether the list in storage no longer counts.

    def _grow(self, cells: int) -> None:
        super()._grow(cells)
        self._kept, self._replaced = grown(self._kept, cells, 0), grown(self._replaced, cells, 0)

    def keep(self, used: Cells) -> None:
        super().keep(used)
        self._kept, self._replaced = self._kept[used], self._replaced[used]

    def extend(self, cell: int, elements: list[Any]) -> None:
        """Adds elements, at least one, which nobody else has, to the list of a cell."""
        known = self.values[cell]
        if known is None:
            self.values[cell] = elements
        else:
            known.extend(elements)
        self.changed[cell] = True

    def replace(self, cell: int, elements: list[Any] | None) -> None:
        """Sets the list of a cell to at least one element, which nobody else has, or drops it."""
        if elements is None and self.unread:
            self.read()  # Only a stored list needs a tombstone.
        self.values[cell] = elements
        self._kept[cell], self._replaced[cell] = 0, True
        self.changed[cell] = True

    def forget(self, cell: int) -> None:
        super().forget(cell)
        self._kept[cell], self._replaced[cell] = 0, True

    def delete(self, cells: Cells) -> None:
        super().delete(cells)
        self._replace(cells)

    def _replace(self, cells: Cells) -> None:
        self._kept[cells], self._replaced[cells] = 0, True

    def load(self, keys: KeySeats) -> None:
        self.reserve()
        self.unread.append(keys)
        if not self._when_read:
            self.read()

    def read(self) -> None:
        """Reads the stored lists of all touched keys."""
        while self.unread:
            stored: dict[int, list[Any] | None] = {}
            found, cells = self._newest(*self._loaded(self.unread[-1]))
            flags = found.deleted().tolist(), found.appends().tolist()
            for cell, gone, append, elements in zip(cells.tolist(), *flags, self._stored_lists(found), strict=True):
                known = stored.get(cell) if append else None
                if known is None:
                    stored[cell] = None if gone else elements
                else:
                    known.extend(elements)
            lists = {}
            for cell, whole in stored.items():
                self._stored[cell] = whole is not None
                if whole is not None and not self._replaced[cell]:
                    kept, self._kept[cell] = self._kept[cell], len(whole)
                    lists[cell] = whole + (self.column.get_one(cell) or [])[kept:]
            self.column.put_each(np.array(list(lists), dtype=np.int64), list(lists.values()))
            self.column.sync(np.array(list(stored), dtype=np.int64))
            self.unread.pop()

    def _stored_lists(self, found: Found) -> list[list[Any]]:
        assert self.value_type is not None
        if not len(found):
            return []
        lists: Any = self.value_type.from_arrow(found.take("value"))
        if not self.ttl:
            return list(lists)
        pairs = zip(lists, found.take("expires_at").to_pylist(), strict=True)
        return [list(zip(elements or (), expires or (), strict=True)) for elements, expires in pairs]

    def clear(self) -> None:
        super().clear()
        self.unread.clear()

    def _value_columns(self, cells: Cells) -> dict[str, pa.Array[Any]]:
        assert self.value_type is not None
        lists = zip(self.column.get(cells), self._kept[cells].tolist(), strict=True)
        added = [elements[kept:] if kept else elements for elements, kept in lists]
        columns = {}
        if self.ttl:
            times = [None if pairs is None else [time for _, time in pairs] for pairs in added]
            columns["expires_at"] = pa.array(times, type=pa.list_(pa.int64()))
            added = [None if pairs is None else [element for element, _ in pairs] for pairs in added]
        columns["value"] = self._to_arrow(self.value_type, added, self._seats(cells))
        if not self._replaced[cells].all():
            columns[APPEND] = pa.array(~self._replaced[cells])
        return columns

    def _written(self) -> None:
        changed = np.flatnonzero(self._flags())
        lists = self.column.get(changed)
        self._kept[changed] = list(map(len, (elements or () for elements in lists)))
        self._replaced[changed] = False
        super()._written()


Entries = dict[Any, Any]
"""Values by the dict key of the map key. With a time to live, pairs: a value and the time at which it expires."""


class MapTable(CellTable):
    """Entries per cell, stored one by one. One dict for what changes is the least work per record.

    ``values`` has the entries of each cell that are in storage, or None. Only the methods write to it.
    """

    exact = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.map_key_type is not None
        self.codec = KeyCodec(self.map_key_type)
        """The codec of the map keys."""
        self.pending: list[Entries | None] = []
        """The entries of each cell that are not in storage yet, or None. They replace those in ``values``; who adds a
        dict marks the cell in ``changed``."""
        self.rows = 0
        """The number of entries in ``values`` and ``pending``; who adds one counts it."""
        self._removed: dict[int, dict[Any, None]] = {}
        """Map keys of each cell that were removed. Those that are in ``pending`` have been set again."""

    @property
    def size(self) -> int:
        return self.rows

    def _grow(self, cells: int) -> None:
        super()._grow(cells)
        self.pending.extend(repeat(None, cells - len(self.pending)))

    def _used(self, cells: Cells) -> Mask:
        held = (self.values[cell] or self.pending[cell] or cell in self._removed for cell in cells.tolist())
        return np.fromiter(map(bool, held), dtype=np.bool_, count=len(cells))

    def keep(self, used: Cells) -> None:
        super().keep(used)
        kept = used.tolist()
        self.pending[:] = list(map(self.pending.__getitem__, kept))
        self._removed = {i: self._removed[cell] for i, cell in enumerate(kept) if cell in self._removed}

    def entries(self, cell: int) -> Entries:
        """Returns the entries of a cell in the order in which they were first set. They must not be changed."""
        stored, pending = self.values[cell], self.pending[cell]
        if stored and pending:
            return {**stored, **pending}
        return stored or pending or {}

    def picked(self, cell: int, keys: Iterable[Any]) -> Entries:
        """Returns those of some entries of a cell that exist, by dict key: the time it takes is not that of the map."""
        parts = [part for part in (self.values[cell], self.pending[cell]) if part]
        return {key: part[key] for key in keys for part in parts if key in part}  # What is pending replaces.

    def each_value(self, cell: int) -> Iterator[Any]:
        """Yields the values of the entries of a cell, in any order, without a copy of the map."""
        stored, pending = self.values[cell] or {}, self.pending[cell] or {}
        yield from pending.values()
        yield from (value for key, value in stored.items() if key not in pending)

    def put(self, cell: int, entries: Entries) -> None:
        """Sets entries of a cell, whose values nobody else has."""
        known = self.pending[cell]
        if known is None:
            known = self.pending[cell] = {}
            self.changed[cell] = True
        before = len(known)
        known.update(entries)
        self.rows += len(known) - before

    def remove(self, cell: int, map_key: Any) -> None:
        """Drops an entry of a cell, given by its dict key."""
        found = False
        for entries in (self.values[cell], self.pending[cell]):
            if entries is not None and map_key in entries:
                del entries[map_key]
                self.rows -= 1
                found = True
        if found:
            self._removed.setdefault(cell, {})[map_key] = None

    def remove_all(self, cell: int) -> None:
        """Drops all entries of a cell."""
        for part in (self.values, self.pending):
            entries, part[cell] = part[cell], None
            if entries:
                self._removed.setdefault(cell, {}).update(dict.fromkeys(entries))
                self.rows -= len(entries)

    def load(self, keys: KeySeats) -> None:
        assert self.map_key_type is not None and self.value_type is not None
        self.reserve()
        stored = self.values
        found, cells = self._loaded(keys)
        if not len(found):
            return
        map_keys = self.codec.encode_all(self.map_key_type.from_arrow(found.take("map_key")))
        values: Any = self.value_type.from_arrow(found.take("value"))
        if self.ttl:
            values = zip(values, found.take("expires_at").to_pylist(), strict=True)
        for cell, map_key, gone, value in zip(cells.tolist(), map_keys, found.deleted().tolist(), values, strict=True):
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
        self._removed.clear()
        self.rows = 0
        super().clear()

    def _changes(self) -> pa.Table | None:
        # cells: int64, one an entry: those that were set, and then those that were removed.
        each = list(self._each_pending())
        cells = list(chain.from_iterable(repeat(cell, len(entries)) for cell, entries in each))
        keys = list(chain.from_iterable(entries for _, entries in each))
        values = list(chain.from_iterable(entries.values() for _, entries in each))
        for cell, removed in self._removed.items():
            gone = [map_key for map_key in removed if map_key not in (self.pending[cell] or ())]
            cells.extend(repeat(cell, len(gone)))
            keys.extend(gone)
        if not cells:
            return None
        deleted = np.arange(len(cells)) >= len(values)
        return self._delta(np.array(cells), self._entry_columns(np.array(cells), keys, values), deleted)

    def _entry_columns(self, cells: Cells, keys: list[Any], values: list[Any]) -> dict[str, pa.Array[Any]]:
        """Returns the columns of map keys and of values, of which there are fewer if entries were removed."""
        assert self.map_key_type is not None and self.value_type is not None
        seats, columns = self._seats(cells), {}
        none = [None] * (len(keys) - len(values))
        if self.ttl:
            columns["expires_at"] = pa.array([*(time for _, time in values), *none], type=pa.int64())
            values = [value for value, _ in values]
        columns["map_key"] = self._to_arrow(self.map_key_type, list(self.codec.decode_all(keys)), seats)
        columns["value"] = self._to_arrow(self.value_type, [*values, *none], seats)
        return columns

    def _written(self) -> None:
        for cell, entries in list(self._each_pending()):
            stored = self.values[cell]
            if stored is None:
                self.values[cell] = entries
            else:
                self.rows -= len(stored) + len(entries)
                stored.update(entries)
                self.rows += len(stored)
            self.pending[cell] = None
        self.changed[:] = bytes(len(self.changed))
        self._removed.clear()

    def _each_pending(self) -> Iterator[tuple[int, Entries]]:
        """Yields also a dict that is empty again. It would take later entries, but no longer be marked."""
        each = ((cell, self.pending[cell]) for cell in np.flatnonzero(self._flags()).tolist())
        return ((cell, entries) for cell, entries in each if entries is not None)
