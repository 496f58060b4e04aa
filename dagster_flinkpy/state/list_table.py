"""The overlay of LIST state. The stored list of a key is only read when requested; added elements are kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.layout import APPEND
from dagster_flinkpy.state.runs import Match
from dagster_flinkpy.state.tables import OverlayTable

__all__ = ["ListTable", "TtlListTable"]


class ListTable(OverlayTable):
    """A non-empty list per cell. Adding elements neither reads nor rewrites the stored ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lists: dict[Any, list[Any]] = {}
        """The stored list of each cell; one that was replaced has none."""
        self.added: dict[Any, list[Any]] = {}
        """Elements of each cell that are not in storage; they follow the stored list."""
        self._replaced: set[Any] = set()
        """Cells whose list in storage no longer counts; their whole list is in ``added``."""
        self._unread: list[KeySlots] = []
        """Touched keys whose stored lists are not in ``_lists`` yet."""

    @property
    def size(self) -> int:
        return len(self._lists) + len(self.added)

    def elements(self, cell: Any) -> list[Any]:
        """Returns a copy of the list of a cell."""
        self._read()
        return [*self._lists.get(cell, ()), *self.added.get(cell, ())]

    def is_empty(self, cell: Any) -> bool:
        """Returns whether a cell has no element."""
        if self._unread:
            self._read()
        return cell not in self.added and cell not in self._lists

    def extend(self, cell: Any, elements: list[Any]) -> None:
        """Adds elements, at least one, to the list of a cell."""
        self._name_fields(elements)
        known = self.added.get(cell)
        if known is None:
            self.added[cell] = elements
        else:
            known.extend(elements)

    def replace(self, cell: Any, elements: list[Any]) -> None:
        """Sets the list of a cell, which must have at least one element."""
        self._name_fields(elements)
        self._lists.pop(cell, None)
        self.added[cell] = elements
        self._replaced.add(cell)

    def remove(self, cell: Any) -> None:
        """Drops the list of a cell."""
        if not self.is_empty(cell):
            self._lists.pop(cell, None)
            self.added.pop(cell, None)
            self._replaced.add(cell)

    def drop(self, cell: Any, *, stored: bool) -> None:
        """Drops the list of a cell. One of which nothing can be in storage leaves no tombstone."""
        if stored:
            self.remove(cell)
        else:
            self._lists.pop(cell, None)
            self.added.pop(cell, None)  # A tombstone of an earlier list of the cell stays.

    def load(self, keys: KeySlots) -> None:
        self._unread.append(keys)

    def clear(self) -> None:
        self._lists.clear()
        self.added.clear()
        self._replaced.clear()
        self._unread.clear()

    def _read(self) -> None:
        while self._unread:
            stored: dict[Any, list[Any] | None] = {}
            for match, _, deleted, cells in self._find(self._unread[-1]):
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
                if found is None:
                    self._lists.pop(cell, None)
                else:
                    self._lists[cell] = found
            self._unread.pop()

    def _changes(self) -> pa.Table | None:
        emptied = [cell for cell in self._replaced if cell not in self.added]
        lists = [*self.added.values(), *repeat(None, len(emptied))]
        columns: dict[str, list[Any]] = self._columns(lists)
        if len(self.added) + len(emptied) > len(self._replaced):
            columns[APPEND] = [cell not in self._replaced for cell in self.added] + [False] * len(emptied)
        return self._delta([*self.added, *emptied], columns, [elements is None for elements in lists])

    def _written(self) -> None:
        # For a cell that was not read, this is only a part of its list.
        for cell, elements in self.added.items():
            known = self._lists.get(cell)
            if known is None:
                self._lists[cell] = elements
            else:
                known.extend(elements)
        self.added.clear()
        self._replaced.clear()

    def _name_fields(self, elements: list[Any]) -> None:
        assert self.value_type is not None
        self.value_type.name_fields(elements)


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

    def _name_fields(self, elements: list[Any]) -> None:
        super()._name_fields([element for element, _ in elements])
