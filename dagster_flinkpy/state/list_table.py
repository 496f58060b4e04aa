"""The overlay of LIST state. The stored list of a key is only read when requested; added elements are kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.layout import APPEND
from dagster_flinkpy.state.runs import Match
from dagster_flinkpy.state.tables import NamedCells, OverlayTable, marked

__all__ = ["ListTable", "TtlListTable"]


class ListTable(OverlayTable):
    """A non-empty list per cell. Adding elements neither reads nor rewrites the stored ones.

    A cell that is a slot indexes a list, which takes less work per record than a dict.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stored: Any = NamedCells() if self.namespaced else []
        """The stored list of each cell, or None, also for one that was replaced. Call :meth:`read` before reading."""
        self.added: Any = NamedCells() if self.namespaced else []
        """Elements of each cell that are not in storage, or None; they follow the stored list."""
        self.changed = bytearray()
        """Whether each slot may have elements in ``added``; who adds a list marks it. Not for named cells."""
        self.lists = 0
        """The number of lists in ``stored`` and ``added``; who adds one counts it."""
        self.unread: list[KeySlots] = []
        """Touched keys whose stored lists are not in ``stored`` yet."""
        self._replaced: set[Any] = set()
        """Cells whose list in storage no longer counts; their whole list is in ``added``."""

    @property
    def size(self) -> int:
        return self.lists

    def elements(self, cell: Any) -> list[Any]:
        """Returns a copy of the list of a cell."""
        if self.unread:
            self.read()
        stored, added = self.stored[cell], self.added[cell]
        if stored is None:
            return [] if added is None else added[:]
        both: list[Any] = stored[:] if added is None else stored + added
        return both

    def extend(self, cell: Any, elements: list[Any]) -> None:
        """Adds elements, at least one, which nobody else has, to the list of a cell."""
        known = self.added[cell]
        if known is None:
            self._add(cell, elements)
        else:
            known.extend(elements)

    def _add(self, cell: Any, elements: list[Any]) -> None:
        """Begins the list of new elements of a cell."""
        self.added[cell] = elements
        self.lists += 1
        if not self.namespaced:
            self.changed[cell] = True

    def replace(self, cell: Any, elements: list[Any]) -> None:
        """Sets the list of a cell: at least one element, which nobody else has."""
        if self.unread or self.stored[cell] is not None:  # A stored list that was not read is replaced unseen.
            self._replaced.add(cell)
            self._forget(self.stored, cell)
        if self.added[cell] is None:
            self._add(cell, elements)
        else:
            self.added[cell] = elements

    def remove(self, cell: Any) -> None:
        """Drops the list of a cell."""
        if self.unread:
            self.read()
        if self.stored[cell] is not None:
            self._replaced.add(cell)
        self.drop(cell)

    def drop(self, cell: Any) -> None:
        """Drops the list of a cell of which nothing can be in storage. A tombstone of an earlier list stays."""
        self._forget(self.stored, cell)
        self._forget(self.added, cell)

    def _forget(self, part: Any, cell: Any) -> None:
        if part[cell] is not None:
            self.lists -= 1
            if type(part) is NamedCells:
                del part[cell]
            else:
                part[cell] = None

    def load(self, keys: KeySlots) -> None:
        if not self.namespaced:
            self.stored.extend([None] * len(keys.column))
            self.added.extend([None] * len(keys.column))
            self.changed.extend(bytes(len(keys.column)))
        self.unread.append(keys)

    def clear(self) -> None:
        self.stored.clear()
        self.added.clear()
        self.changed.clear()
        self._replaced.clear()
        self.unread.clear()
        self.lists = 0

    def read(self) -> None:
        """Reads the stored lists of all touched keys."""
        while self.unread:
            stored: dict[Any, list[Any] | None] = {}
            for match, _, deleted, cells in self._find(self.unread[-1]):
                rows = zip(cells, deleted, match.appends().tolist(), self._stored_values(match), strict=True)
                for cell, gone, append, elements in rows:
                    known = stored.get(cell) if append else None
                    if known is None:
                        stored[cell] = None if gone else elements
                    else:
                        known.extend(elements)
            for cell, found in stored.items():
                if cell in self._replaced:
                    continue
                self._forget(self.stored, cell)
                if found is not None:
                    self.stored[cell] = found
                    self.lists += 1
            self.unread.pop()

    def _changes(self) -> pa.Table | None:
        cells, lists = [], []
        for cell, elements in self._each_added():
            cells.append(cell)
            lists.append(elements)
        appends = [cell not in self._replaced for cell in cells]
        emptied = [cell for cell in self._replaced if self.added[cell] is None]
        columns: dict[str, list[Any]] = self._columns([*lists, *repeat(None, len(emptied))])
        if any(appends):
            columns[APPEND] = [*appends, *repeat(False, len(emptied))]
        deleted = [*repeat(False, len(lists)), *repeat(True, len(emptied))]
        return self._delta([*cells, *emptied], columns, deleted)

    def _written(self) -> None:
        # For a cell that was not read, this is only a part of its list.
        for cell, elements in self._each_added():
            known = self.stored[cell]
            if known is None:
                self.stored[cell] = elements
                self.lists += 1
            else:
                known.extend(elements)
            self._forget(self.added, cell)
        self.changed[:] = bytes(len(self.changed))
        self._replaced.clear()

    def _each_added(self) -> list[tuple[Any, list[Any]]]:
        added = self.added
        each = added.items() if self.namespaced else ((slot, added[slot]) for slot in marked(self.changed).tolist())
        return [(cell, elements) for cell, elements in each if elements is not None]


class TtlListTable(ListTable):
    """A list of pairs per cell: an element and the time at which it expires."""

    ttl = True

    def _stored_values(self, match: Match) -> Sequence[Any]:
        times = match.run.take("expires_at", match.rows).to_pylist()
        pairs = zip(super()._stored_values(match), times, strict=True)
        return [list(zip(elements or (), expires or (), strict=True)) for elements, expires in pairs]

    def _columns(self, values: list[Any]) -> dict[str, list[Any]]:
        def part(i: int) -> list[Any]:
            return [None if pairs is None else [pair[i] for pair in pairs] for pairs in values]

        return {"value": part(0), "expires_at": part(1)}
