"""The overlay of LIST state. What is added to a stored list is written alone, and does not read the list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import Cells, Mask, grown
from dagster_flinkpy.state.files.runs import Found
from dagster_flinkpy.state.keys import KeySeats
from dagster_flinkpy.state.layout import APPEND

__all__ = ["ListTable"]


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
