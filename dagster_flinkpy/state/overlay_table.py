"""The overlay of a table: the rows of the touched keys, and which of them have changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.copies import copier, taker
from dagster_flinkpy.common.typeinfo import ListTypeInfo, TypeInformation, type_from_json
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state.files.runs import PART_BYTES, Found, RunFiles, Runs
from dagster_flinkpy.state.handles import Json, RunHandle, TableSnapshot
from dagster_flinkpy.state.keys import KeySeats, TouchedKeys
from dagster_flinkpy.state.layout import APPEND, TableLayout, check_key_like
from dagster_flinkpy.state.schema_evolution import can_evolve

__all__ = ["OVERLAY_ROWS", "Indices", "ManagedMemory", "OverlayTable"]

Indices = npt.NDArray[np.int64]

_UNKNOWN = 1 << 15
"""Bytes that a row may have until the first changes are written."""
_UNPACKED = 4
"""About how many times as large as in the store a row is in memory."""


class OverlayTable(ABC):
    """One named state: its runs, and the rows of the touched keys.

    Args:
        keys: The touched keys of the backend.
        files: Where runs are kept.
        handles: The restored runs.
        layout: The name, kind and types of the state. The type of the keys counts from :meth:`bind` on.

    Raises:
        UnsupportedKeyTypeError: The type of the namespace or map key cannot identify rows.
    """

    runs: Runs
    """Set by :meth:`bind`."""
    exact: ClassVar[bool] = False
    """Whether it knows what storage has, so that each of its tombstones hides a row."""

    def __init__(self, keys: TouchedKeys, files: RunFiles, handles: Sequence[RunHandle], layout: TableLayout) -> None:
        self.keys, self.layout = keys, layout
        self.name, self.kind, self.ttl, held = layout.name, layout.kind, layout.ttl, layout.value_type
        self.namespace_type, self.map_key_type, self.value_type = layout.namespace_type, layout.map_key_type, held
        if self.kind == "LIST" and isinstance(held, ListTypeInfo):
            held = held.elem_type
        self.own = None if held is None else copier(held)
        """Copies a value, or an element of a list, for a function that reads it; None if values cannot change."""
        self.take = None if held is None else taker(held)
        """Returns what is kept of a value, or an element, that a function gives; None if it is the value itself."""
        self._files = files
        self._handles = handles
        self._row_bytes: float | None = None
        for part, what in ((self.namespace_type, "namespace"), (self.map_key_type, "map key")):
            if part is not None:
                check_key_like(part, f"the {what} of state {self.name!r}")

    def bind(self, key_type: TypeInformation) -> None:
        """Sets the type of the keys."""
        self.layout = replace(self.layout, key_type=key_type)
        exact = self.exact and not self.ttl  # storage drops what has expired
        self.runs = Runs(self.layout, self._handles, self._files, exact=exact)

    def restore(self, handles: Sequence[RunHandle]) -> None:
        """Replaces the restored runs. Call it before :meth:`bind`."""
        self._handles = handles

    @property
    def form(self) -> Any:
        """What differs between tables that cannot be used in place of each other."""
        return type(self)

    @property
    def types(self) -> Json:
        """The kind and the types, except that of the key."""
        return {part: kind for part, kind in self.layout.snapshot(()).schema.items() if part != "key"}

    def can_continue_from(self, restored: TableSnapshot) -> bool:
        """Returns whether it can continue from restored state whose values have another type."""
        if self.value_type is None or restored.value is None:
            return False
        same = {**restored.schema, "value": None} == {**self.types, "key": restored.key, "value": None}
        return same and can_evolve(type_from_json(restored.value), self.value_type)

    def snapshot(self) -> TableSnapshot:
        """Returns the runs, without changes since the last :meth:`flush`."""
        return self.layout.snapshot(self.runs.handles)

    def require_key(self) -> int:
        """Returns the seat of the current key.

        Raises:
            ConfigurationError: There is no current key.
        """
        seat: int | None = self.keys.seat
        if seat is None:
            raise ConfigurationError(
                f"keyed state {self.name!r} was used outside a record or timer, where there is no current key"
            )
        return seat

    @property
    def namespaced(self) -> bool:
        """Whether there are values per key and namespace; otherwise there are values per key."""
        return self.namespace_type is not None

    def flush(self) -> None:
        """Adds the changes to the runs as one delta; the overlay does not change."""
        changes = self._changes()
        if changes is not None and len(changes):
            self._row_bytes = changes.nbytes / len(changes)
        self.runs.add(changes)
        self._written()

    @property
    @abstractmethod
    def size(self) -> int:
        """Returns the number of rows in the overlay."""

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row has in Arrow, as in the last changes that were written."""
        if self._row_bytes is not None:
            return self._row_bytes
        rows = sum(handle.file_rows for handle in self._handles)
        return _UNPACKED * sum(handle.bytes for handle in self._handles) / rows if rows else _UNKNOWN

    @abstractmethod
    def load(self, keys: KeySeats) -> None:
        """Reads the rows of keys that are new in the overlay."""

    @abstractmethod
    def clear(self) -> None:
        """Drops the overlay; all changes must have been written."""

    @abstractmethod
    def _changes(self) -> pa.Table | None:
        """Returns the changed rows, in any order."""

    @abstractmethod
    def _written(self) -> None:
        """Marks all changes as written."""

    def _find(self, keys: KeySeats) -> Found:
        """Finds the stored rows of some keys, which are new in the overlay."""
        if not self.keys.cleared and not self._handles:
            return Found([], np.zeros(0, dtype=np.int64))  # it has begun without state, and has whatever was stored
        return self.runs.find(pa.table([pa.array(keys.sort_keys), keys.column], names=["sort_key", "key"]))

    def _rows(self, seats: Indices, columns: dict[str, pa.Array[Any]], deleted: Any) -> pa.Table | None:
        """Builds the table of changed rows.

        Args:
            seats: The seat of the key of each row.
            columns: The other columns.
            deleted: Whether each row is a tombstone.
        """
        keys = self.keys.all()
        if not len(seats) or keys is None:
            return None
        columns = {
            "sort_key": pa.array(keys.sort_keys[seats]),
            "key": keys.column.take(pa.array(seats)),
            "deleted": pa.array(deleted, type=pa.bool_()),
            **columns,
        }
        schema = self.layout.append_schema if APPEND in columns else self.layout.local_schema
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _to_arrow(self, kind: TypeInformation, values: list[Any], seats: Iterable[int]) -> pa.Array[Any]:
        try:
            return kind.to_arrow(values)
        except TypeMismatchError as error:
            keys = {seat: key for key, seat in self.keys.seats.items()}
            for seat, value in zip(seats, values, strict=True):
                try:
                    kind.to_arrow([value])
                except TypeMismatchError as first:
                    key = self.keys.codec.decode_all([keys[seat]])[0]
                    raise TypeMismatchError(f"state {self.name!r} of key {key!r}: {first}") from first
            raise TypeMismatchError(f"state {self.name!r}: {error}") from error


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
