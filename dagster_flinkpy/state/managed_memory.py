"""How much keyed state the subtasks of a process hold in memory (Flink: managed memory)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from dagster_flinkpy.state.files.parts import PART_BYTES
from dagster_flinkpy.state.keys import TouchedKeys
from dagster_flinkpy.state.overlay_table import OverlayTable

__all__ = ["OVERLAY_ROWS", "ManagedMemory"]

OVERLAY_ROWS = 1_000_000
"""If the overlay has more keys and rows than this, it is written and emptied before more keys are touched."""
_OBJECTS = 200
"""Bytes that a key or row of the overlay takes in indices and Python objects, beside its content."""
_COPIES = 5
"""How many times a merge holds what it reads at once: as read, sorted, encoded, and for the local copy."""
_LEAST = 1 << 22
"""Bytes that a merge may read at once in any case, because each such part becomes a file."""

_in_process: WeakSet[ManagedMemory] = WeakSet()
"""What the backends of this process may hold."""


class ManagedMemory:
    """What a backend may hold in its overlay.

    Args:
        keys: The keys in the overlay.
        tables: The tables whose rows are in it.
        rows: How many keys and rows there may be.
        size: About how many bytes the overlays of all backends of the process may take. Each has an equal share (Flink:
            ``taskmanager.memory.managed.size``). Merges take at most another share each. None: only ``rows`` limits
            overlays.
    """

    def __init__(self, keys: TouchedKeys, tables: Mapping[Any, OverlayTable], rows: int, size: int | None) -> None:
        self._keys, self._tables, self._rows, self.size = keys, tables, rows, size
        _in_process.add(self)

    @property
    def is_full(self) -> bool:
        """Whether the overlay is larger than it may be."""
        if self.size is not None and self.used > self._share(self.size):
            return True
        return len(self._keys) + sum(table.size for table in self._tables.values()) > self._rows

    @property
    def used(self) -> int:
        """About how many bytes the overlay takes, with the delta that is made of it."""
        rows = sum(table.size * (_OBJECTS + 2 * table.row_bytes) for table in self._tables.values())
        return round(len(self._keys) * _OBJECTS + rows)

    @property
    def part_bytes(self) -> int:
        """How many bytes a merge may read at once."""
        return PART_BYTES if self.size is None else min(PART_BYTES, max(_LEAST, self._share(self.size) // _COPIES))

    def _share(self, size: int) -> int:
        return size // len(_in_process)
