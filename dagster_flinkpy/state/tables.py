"""The overlay of a table: the touched rows as Python values, and which of them have changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.copies import copier, taker
from dagster_flinkpy.common.typeinfo import ListTypeInfo, TypeInformation, type_from_json
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state.handles import Json, RunHandle, StateKind, TableSnapshot
from dagster_flinkpy.state.keys import KeyCodec, KeySlots, TouchedKeys
from dagster_flinkpy.state.layout import APPEND, TableLayout, check_key_like, to_json
from dagster_flinkpy.state.runs import Match, RunFiles, Runs
from dagster_flinkpy.state.schema_evolution import can_evolve

__all__ = ["CellTable", "Indices", "NamedCells", "OverlayTable"]

Indices = npt.NDArray[np.int64]


class NamedCells(dict[Any, Any]):
    """What each pair of slot and namespace has; None where there is nothing. A list does the same for slots alone."""

    def __missing__(self, cell: Any) -> None:
        return None


class OverlayTable(ABC):
    """One named state: its runs, and the rows of the touched keys.

    A *cell* stands for a key in one namespace: it is the slot of the key, or the pair of slot and namespace.

    Args:
        keys: The touched keys of the backend.
        files: Where runs are kept.
        handles: The restored runs.
        name: The name of the state.
        kind: The kind of the state.
        namespace_type: The type of the namespaces, or None for state without one.
        map_key_type: The type of the map keys; None unless the kind is MAP.
        value_type: The type of the values, or None for timers.

    Raises:
        UnsupportedKeyTypeError: The type of the namespace or map key cannot identify rows.
    """

    layout: TableLayout
    """Set, like ``runs``, by :meth:`bind`."""
    runs: Runs
    ttl = False
    """Whether each value is stored with the time at which it expires."""

    def __init__(
        self,
        keys: TouchedKeys,
        files: RunFiles,
        handles: Sequence[RunHandle],
        name: str,
        kind: StateKind,
        *,
        namespace_type: TypeInformation | None = None,
        map_key_type: TypeInformation | None = None,
        value_type: TypeInformation | None = None,
    ) -> None:
        self.keys = keys
        self.name = name
        self.kind = kind
        self.namespace_type = namespace_type
        self.map_key_type = map_key_type
        self.value_type = value_type
        held = value_type.elem_type if kind == "LIST" and isinstance(value_type, ListTypeInfo) else value_type
        self.own = None if held is None else copier(held)
        """Copies a value, or an element of a list, for a function that reads it; None if values cannot change."""
        self.take = None if held is None else taker(held)
        """Returns what is kept of a value, or an element, that a function gives; None if it is the value itself."""
        self._files = files
        self._handles = handles
        for part, what in ((namespace_type, "namespace"), (map_key_type, "map key")):
            if part is not None:
                check_key_like(part, f"the {what} of state {name!r}")
        self._namespace: Any = None
        self._namespace_codec = None if namespace_type is None else KeyCodec(namespace_type)

    def bind(self, key_type: TypeInformation) -> None:
        """Sets the type of the keys."""
        self.layout = TableLayout(
            self.name, self.kind, key_type, self.namespace_type, self.map_key_type, self.value_type, self.ttl
        )
        self.runs = self._files.make_runs(self.layout, self._handles, self._files)

    def restore(self, handles: Sequence[RunHandle]) -> None:
        """Replaces the restored runs. Call it before :meth:`bind`."""
        self._handles = handles

    @property
    def types(self) -> Json:
        """The kind and the types, except that of the key."""
        return {
            "kind": self.kind,
            "namespace": to_json(self.namespace_type),
            "map_key": to_json(self.map_key_type),
            "value": to_json(self.value_type),
            **({"ttl": True} if self.ttl else {}),
        }

    def can_continue_from(self, restored: TableSnapshot) -> bool:
        """Returns whether it can continue from restored state whose values have another type."""
        if self.value_type is None or restored.value is None:
            return False
        same = {**restored.schema, "value": None} == {**self.types, "key": restored.key, "value": None}
        return same and can_evolve(type_from_json(restored.value), self.value_type)

    def snapshot(self) -> TableSnapshot:
        """Returns the runs, without changes since the last :meth:`flush`."""
        return self.layout.snapshot(self.runs.handles)

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later accesses."""
        if self._namespace_codec is None:
            raise ConfigurationError(f"state {self.name!r} has no namespace")
        encode = self._namespace_codec.encode
        self._namespace = namespace if encode is None else encode(namespace)

    def require_key(self) -> int:
        """Returns the slot of the current key.

        Raises:
            ConfigurationError: There is no current key.
        """
        slot: int | None = self.keys.slot
        if slot is None:
            raise ConfigurationError(
                f"keyed state {self.name!r} was used outside a record or timer, where there is no current key"
            )
        return slot

    @property
    def namespaced(self) -> bool:
        """Whether a cell is a pair of key slot and namespace; otherwise it is the slot of the key."""
        return self._namespace_codec is not None

    @property
    def cell(self) -> Hashable:
        """The cell of the current key and namespace."""
        slot = self.require_key()
        return slot if self._namespace_codec is None else (slot, self._namespace)

    def flush(self) -> None:
        """Writes the changes as one delta; the overlay does not change."""
        self.runs.append(self._changes())
        self._written()

    @property
    @abstractmethod
    def size(self) -> int:
        """Returns the number of rows in the overlay."""

    @abstractmethod
    def load(self, keys: KeySlots) -> None:
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

    def _stored_values(self, match: Match) -> Sequence[Any]:
        """Returns the stored values of some rows, in the form of the overlay."""
        assert self.value_type is not None
        return self.value_type.from_arrow(match.run.take("value", match.rows))

    def _columns(self, values: list[Any]) -> dict[str, list[Any]]:
        """Returns values of the overlay as columns; None means no value."""
        return {"value": values}

    def _matches(self, keys: KeySlots) -> Iterator[Match]:
        """Yields the stored rows of some keys, run by run from the oldest."""
        matches = list(self.runs.find(pa.table([pa.array(keys.sort_keys), keys.column], names=["sort_key", "key"])))
        if self.layout.identity == ["key"]:
            matches = list(_newest(matches, len(keys.column)))
        yield from reversed(matches)

    def _find(self, keys: KeySlots) -> Iterator[tuple[Match, list[int], list[bool], list[Any]]]:
        """Yields the stored rows of some keys, oldest run first: match, slots, whether deleted, namespaces."""
        for match in self._matches(keys):
            slots = (match.wanted + keys.first).tolist()
            deleted = match.run.take("deleted", match.rows).to_pylist()
            yield match, slots, deleted, self._cells(slots, match)

    def _cells(self, slots: list[int], match: Match) -> list[Any]:
        if self.namespace_type is None or self._namespace_codec is None:
            return slots
        namespaces = self.namespace_type.from_arrow(match.run.take("namespace", match.rows))
        return list(zip(slots, self._namespace_codec.encode_all(namespaces), strict=True))

    def _delta(self, cells: list[Any] | Indices, columns: dict[str, list[Any]], deleted: list[bool]) -> pa.Table | None:
        """Builds the table of changed rows.

        Args:
            cells: The cell of each row; numbers if cells are slots.
            columns: Columns such as map keys, times, values and expiry times, with one item per row.
            deleted: Whether each row is a tombstone.
        """
        if not len(cells):
            return None
        slots: list[int] | Indices = cells
        if self._namespace_codec is not None:
            slots = [slot for slot, _ in cells]
            columns["namespace"] = list(self._namespace_codec.decode_all([namespace for _, namespace in cells]))
        arrays: dict[str, pa.Array[Any]] = {}
        types = {"namespace": self.namespace_type, "map_key": self.map_key_type, "value": self.value_type}
        schema = self.layout.append_schema if APPEND in columns else self.layout.local_schema
        for name, values in columns.items():
            kind = types.get(name)
            plain = schema.field(name).type
            arrays[name] = pa.array(values, type=plain) if kind is None else self._to_arrow(kind, values, slots)
        return self._rows(np.asarray(slots), arrays, deleted)

    def _rows(self, slots: Indices, columns: dict[str, pa.Array[Any]], deleted: Any) -> pa.Table | None:
        """Builds the table of changed rows.

        Args:
            slots: The slot of the key of each row.
            columns: The other columns.
            deleted: Whether each row is a tombstone.
        """
        keys = self.keys.all()
        if not len(slots) or keys is None:
            return None
        columns = {
            "sort_key": pa.array(keys.sort_keys[slots]),
            "key": keys.column.take(pa.array(slots)),
            "deleted": pa.array(deleted, type=pa.bool_()),
            **columns,
        }
        schema = self.layout.append_schema if APPEND in columns else self.layout.local_schema
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _to_arrow(self, kind: TypeInformation, values: list[Any], slots: Iterable[int]) -> pa.Array[Any]:
        try:
            return kind.to_arrow(values)
        except TypeMismatchError as error:
            keys = {slot: key for key, slot in self.keys.slots.items()}
            for slot, value in zip(slots, values, strict=True):
                try:
                    kind.to_arrow([value])
                except TypeMismatchError as first:
                    key = self.keys.codec.decode_all([keys[slot]])[0]
                    raise TypeMismatchError(f"state {self.name!r} of key {key!r}: {first}") from first
            raise TypeMismatchError(f"state {self.name!r}: {error}") from error


def marked(slots: bytearray) -> Indices:
    """Returns the slots that are not 0, in order. Most are 0, and there may be millions."""
    return np.flatnonzero(np.frombuffer(slots, dtype=np.bool_))


def _newest(matches: list[Match], count: int) -> Iterator[Match]:
    """Drops the rows that a newer run replaces. The first of ``matches`` is the newest."""
    # missing: bool, one a row that was looked for. Each match: wanted and rows, int64, as many.
    missing = np.ones(count, dtype=np.bool_)
    for match in matches:
        kept = missing[match.wanted]
        missing[match.wanted[~match.appends()]] = False
        yield Match(match.run, match.wanted[kept], match.rows[kept])


class CellTable(OverlayTable):
    """One value per cell: VALUE, REDUCING and AGGREGATING state. None means no value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.values: dict[Any, Any] = {}
        """The values by cell. Only :meth:`put` and :meth:`remove` write to it."""
        self.changed: set[Any] = set()
        """Cells whose value is not in storage yet. :meth:`put` and :meth:`remove` add to it."""

    @property
    def size(self) -> int:
        return len(self.values)

    def get(self) -> Any:
        """Returns the value of the current cell for a function, or None."""
        value = self.values.get(self.cell)
        return value if self.own is None else self.own(value)

    def put(self, value: Any) -> None:
        """Sets the value of the current cell."""
        self.hold(value if self.take is None else self.take(value))

    def hold(self, value: Any) -> None:
        """Sets the value of the current cell to one that nobody else has."""
        cell = self.cell
        self.values[cell] = value
        self.changed.add(cell)

    def lend(self) -> Any:
        """Returns the value of the current cell, or None, for a function that may change it and give it back."""
        cell = self.cell
        self.changed.add(cell)  # If the function fails, what it has changed by then counts.
        return self.values.get(cell)

    def remove(self) -> None:
        """Drops the value of the current cell."""
        cell = self.cell
        if self.values.pop(cell, None) is not None:
            self.changed.add(cell)

    def load(self, keys: KeySlots) -> None:
        for match, _, deleted, cells in self._find(keys):
            for cell, gone, value in zip(cells, deleted, self._stored_values(match), strict=True):
                if gone:
                    self.values.pop(cell, None)
                else:
                    self.values[cell] = value

    def clear(self) -> None:
        self.values.clear()
        self.changed.clear()

    def _changes(self) -> pa.Table | None:
        cells = list(self.changed)
        values = [self.values.get(cell) for cell in cells]
        return self._delta(cells, self._columns(values), [value is None for value in values])

    def _written(self) -> None:
        self.changed.clear()
