"""The keyed state backend on sorted columnar runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateDescriptor
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.cell_table import CellTable, NamespacedCells
from dagster_flinkpy.state.columns import ObjectColumn
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.operator_state import INLINE_BELOW
from dagster_flinkpy.state.files.runs import RunFiles
from dagster_flinkpy.state.files.transfers import run_aside
from dagster_flinkpy.state.handles import KeyedSnapshot, TableId, describe_schema
from dagster_flinkpy.state.keyed_snapshot_future import (
    BackendStatistics,
    KeyedSnapshotFuture,
    StoredSnapshot,
    write_snapshot,
)
from dagster_flinkpy.state.keys import KeySeats, TouchedKeys, hash_keys
from dagster_flinkpy.state.layout import (
    APPEND,
    UNBOUND,
    SortKeys,
    TableLayout,
    check_key_like,
    distinct_rows,
    key_groups_of,
    make_sort_keys,
    merge_runs,
)
from dagster_flinkpy.state.map_table import ListTable
from dagster_flinkpy.state.overlay_table import OVERLAY_ROWS, ManagedMemory, OverlayTable
from dagster_flinkpy.state.schema_evolution import describe_evolution, schema_mismatch, stored_key_type
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state.timers.timer_queue import TimerQueue
from dagster_flinkpy.state.timers.timer_table import ColumnTimers, SessionTimers
from dagster_flinkpy.state.views import InternalState, is_same_state, layout_of, make_state
from dagster_flinkpy.storage import ObjectStore

__all__ = ["ColumnarKeyedStateBackend"]

_KEYS_AT_ONCE = 65_536
"""How many keys have their state read at once when iterating over all keys."""

T = TypeVar("T", bound=OverlayTable)


class ColumnarKeyedStateBackend:
    """The keyed state of one subtask, in sorted columnar runs with an overlay of the touched keys.

    The cost depends on the number of touched keys, not on the size of the state. One thread uses the backend. For each
    batch it calls `touch_column` with the keys of the batch, and then `set_current_key` and the states, key by key.

    Values are written when they are set. Without ``update``, ``add`` or ``put``, a change to a mutable value is lost,
    as with Flink's ``EmbeddedRocksDBStateBackend``. (Flink: ``AbstractKeyedStateBackend``.)

    Args:
        operator: The uid of the operator, for messages.
        key_groups: The key groups of the subtask.
        max_parallelism: The max parallelism of the operator.
        store: The object store, rooted at the job's prefix.
        cache: The cache of local copies of runs.
        restored: The snapshot to start from, or None.
        now: Returns processing time in milliseconds, for state with a time to live. Default: the machine's clock.
        overlay_rows: If the overlay has more keys and rows than this, it is written early. Default: 1,000,000.
        written_by: Part of the names of its files; see `state_files.state_file`.
        inline_below: Runs with fewer bytes are part of the metadata (Flink: ``state.storage.fs.memory-threshold``).
            Default: 20,000.
        phase: Whose turn it is to merge early; see `state.files.compaction.has_turn`. Default: nobody's.
        managed_memory: About how many bytes the overlays of all backends of the process may take; see `ManagedMemory`.
        one_run: Whether a snapshot has one run per state, which is written anew when the state has changed. With
            ``overlay_rows`` without end, it is Flink's ``HashMapStateBackend``. Default: False.
    """

    def __init__(
        self,
        *,
        operator: str,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        store: ObjectStore,
        cache: RunCache,
        restored: KeyedSnapshot | None,
        now: Callable[[], int] = current_millis,
        overlay_rows: int = OVERLAY_ROWS,
        written_by: str = "",
        inline_below: int = INLINE_BELOW,
        phase: int | None = None,
        managed_memory: int | None = None,
        one_run: bool = False,
    ) -> None:
        self._operator = operator
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._files = RunFiles(store, cache, key_groups, now, written_by, inline_below, phase, one_run=one_run)
        self._keys = TouchedKeys()
        self._key_type: TypeInformation | None = None
        self._keys_touched = 0
        self._tables: dict[TableId, OverlayTable] = {}
        self._memory = ManagedMemory(self._keys, self._tables, overlay_rows, managed_memory)
        self._states: dict[str, tuple[StateDescriptor, InternalState]] = {}
        self._full_cleanup: set[TableId] = set()
        self._last: KeyedSnapshotFuture | None = None
        """The last snapshot, until what it has written is taken over."""
        self._counted = BackendStatistics()
        """The statistics at the last snapshot."""
        mine = (restored and restored.restrict(key_groups)) or KeyedSnapshot(key_groups, ())
        self._files.keep_copies(mine)
        self._restored = {each.identity: each for each in mine.tables}
        self._evolved: list[str] = []
        self._lifetimes: dict[str, int] = {}
        """The time to live of states, in milliseconds."""

    @property
    def changes(self) -> list[str]:
        """How restored states differ from those that were requested so far, in words for people."""
        unread = (table for identity, table in self._restored.items() if identity not in self._tables)
        kept = [
            f"state {each.name!r} is not used: its {each.rows:,} rows stay" for each in unread if each.kind != "TIMER"
        ]
        return [*self._evolved, *kept]

    def bind_key_type(self, key_type: TypeInformation) -> None:
        """Sets the type of the keys; called before the first key. Setting the same type again does nothing.

        Raises:
            StateSchemaError: Earlier keys, or those of the restored state, have another type; the message names both.
            UnsupportedKeyTypeError: Keys cannot have this type.
        """
        if key_type == self._key_type:
            return
        if self._key_type is not None and not self._restored:
            raise StateSchemaError(
                f"operator {self._operator!r} gets keys of two types, {self._key_type} and {key_type}; convert them to "
                "one type in the key selector"
            )
        check_key_like(key_type, f"the key of operator {self._operator!r}")
        for table in self._restored.values():
            if table.key != key_type.to_json():
                raise schema_mismatch(self._operator, f"the key of state {table.name!r}", table.key, key_type.to_json())
        self._key_type = key_type
        self._keys.bind(key_type)
        for overlay in self._tables.values():
            overlay.bind(key_type)

    @property
    def key_context(self) -> TouchedKeys:
        """The current key. Setting its ``seat`` is the fastest way to switch keys between records."""
        return self._keys

    @property
    def is_full(self) -> bool:
        """Whether state is about to be written early: the next batch gives other keys the seats of the keys so far."""
        return self._memory.is_full

    def touch_column(
        self, key_column: pa.Array[Any], hashes: npt.NDArray[np.int32], *, beside: bool = False
    ) -> npt.NDArray[np.int64]:
        """Reads the state of all keys of a batch at once.

        Args:
            key_column: The keys, which may repeat, as a column of the key type.
            hashes: Their Java hash codes.
            beside: Whether the seats of the previously touched batch stay valid. Default: False.

        Returns:
            The seat of each key, for `key_context`. Seats are valid until the next batch is touched.

        Raises:
            ConfigurationError: A key belongs to another subtask.
            CorruptStateError: A state file is missing or damaged; the message names it.
        """
        if not beside:
            self.make_room()
        return self._touch_column(key_column, hashes)

    def set_current_key(self, key: Any) -> None:
        """Sets the key whose state is read and written next. It is fast after `touch_column`, and slow without it.

        Raises:
            UnsupportedKeyTypeError: The key cannot be hashed.
        """
        try:
            if self._keys.set_current(key):
                return
        except TypeError as error:
            raise UnsupportedKeyTypeError(f"key {key!r} of operator {self._operator!r}: {error}") from error
        assert self._key_type is not None
        column = self._key_type.to_arrow([key])
        self.touch_column(column, hash_keys(self._key_type, column))
        self._keys.set_current(key)

    def get_state(self, descriptor: StateDescriptor, namespace_type: TypeInformation | None = None) -> InternalState:
        """Returns the state with the descriptor's name, always the same object for the same name.

        Functions of windows and triggers ask for it with each record.

        Args:
            descriptor: The name, kind and types of the state.
            namespace_type: The type of the namespace, or None for state without one.

        Raises:
            ConfigurationError: The same operator uses the state by column.
            StateSchemaError: The state was stored, or requested earlier, with another kind or type. The message names
                both.
            UnsupportedKeyTypeError: A namespace or map key cannot have this type.
        """
        name, identity = descriptor.name, (False, descriptor.name)
        if (known := self._states.get(name)) is not None:
            before, state = known
            if state.table.namespace_type is namespace_type and is_same_state(before, descriptor):
                return state
        asked = descriptor
        restored = self._restored.get(identity)
        if restored is not None and restored.map_key is not None and isinstance(descriptor, MapStateDescriptor):
            descriptor = copy.copy(descriptor)
            descriptor.key_type_info = stored_key_type(type_from_json(restored.map_key), descriptor.key_type_info)
        state = make_state(descriptor, namespace_type, *self._where(identity))
        self._check(identity, state.table)
        if name not in self._states:
            if identity in self._tables:
                raise self._used_twice(name)
            self._states[name] = asked, state
            self._add(identity, state.table)
            config = descriptor.ttl_config
            if state.table.ttl and config is not None:
                self._lifetimes[name] = config.ttl_millis
                if config.get_cleanup_strategies().in_full_snapshot():
                    self._full_cleanup.add(identity)
        return self._states[name][1]

    def declared(self) -> list[tuple[TableLayout, int | None]]:
        """Returns the states and timers that were requested, each with its time to live in milliseconds.

        Without a key type there are none.
        """
        if self._key_type is None:
            return []
        return [
            (table.layout, self._lifetimes.get(table.name) if table.ttl else None) for table in self._tables.values()
        ]

    def key_group_of(self, key: Any) -> int | None:
        """Returns the key group of a key, or None as long as there are no keys and so no key type."""
        if self._key_type is None:
            return None
        hashes = hash_keys(self._key_type, self._key_type.to_arrow([key]))
        return int(key_groups_of_hashes(hashes, self._max_parallelism)[0])

    def read(self, name: str, key: Any) -> Any:
        """Reads a state of one key, for tests and debugging; afterwards there is no current key.

        Args:
            name: The name of a state without a namespace that was requested earlier.
            key: A key of this subtask.

        Returns:
            The value, or None; a list for list state, a dict for map state.

        Raises:
            ConfigurationError: There is no such state.
        """
        states = {name: state for name, (_, state) in self._states.items() if not state.table.namespaced}
        state = states.get(name)
        if state is None:
            known = ", ".join(sorted(states)) or "none"
            raise ConfigurationError(
                f"operator {self._operator!r} has no state {name!r} with one value per key; it has: {known}. "
                "State of windows and of built-in aggregations can be read from a snapshot"
            )
        if self._key_type is None:
            return None
        self.set_current_key(key)
        try:
            if hasattr(state, "items"):
                return dict(state.items())
            return state.value() if hasattr(state, "value") else state.get()
        finally:
            self._keys.seat = None

    def get_timers(self, name: str, namespace_type: TypeInformation | None = None) -> TimerQueue:
        """Returns the timers with a name, always the same object for the same name.

        A state may have the same name.

        Raises:
            ConfigurationError: The same operator uses them by column.
            StateSchemaError: They were stored, or requested earlier, with another namespace type. The message names
                both.
        """
        return self._timers(TimerQueue, name, namespace_type)

    def get_cells(
        self,
        descriptor: StateDescriptor,
        namespace_type: TypeInformation | None = None,
        sessions: SessionTable | None = None,
        *,
        column: type[ObjectColumn] | None = None,
    ) -> CellTable:
        """Returns the table of a state, for use many cells at a time, always the same object for the same name.

        Args:
            descriptor: The name, kind and types of the state.
            namespace_type: The type of the namespace, or None for state without one.
            sessions: The namespaces, if they are windows that merge. Default: many keys have the same namespaces.
            column: What holds the values, if they are Python values. Default: they are in columns.

        Raises:
            ConfigurationError: The state has a time to live, or the same operator uses it in another way.
            StateSchemaError: The state was stored, or requested earlier, with another kind or type. The message names
                both.
        """
        name = descriptor.name
        if descriptor.ttl_config is not None:
            raise ConfigurationError(
                f"state {name!r} has a time to live, so it cannot be used by column; use it by record, in process()"
            )
        numbers = sessions if sessions is not None or namespace_type is None else NamespacedCells(namespace_type)
        layout, identity = layout_of(descriptor, UNBOUND, namespace_type), (False, name)
        make: type[CellTable] = ListTable if layout.kind == "LIST" else CellTable
        return self._declare(identity, make(*self._where(identity), layout, numbers=numbers, column=column))

    def get_column_timers(self, name: str, namespace_type: TypeInformation) -> ColumnTimers:
        """Returns the timers with a name for use by column. Otherwise it is like :meth:`get_timers`."""
        return self._timers(ColumnTimers, name, namespace_type)

    def get_sessions(
        self, name: str, timers: str, window_type: TypeInformation, lateness: int
    ) -> tuple[SessionTable, SessionTimers]:
        """Returns windows that merge, and their timers. Nothing else may use the state and timers with these names.

        Args:
            name: The name of the map state in which the windows are stored.
            timers: The name of the timers.
            window_type: The type of the windows: start and end.
            lateness: Allowed lateness in milliseconds.

        Raises:
            StateSchemaError: They were stored, or requested earlier, with another type. The message names both.
        """
        layout = TableLayout(name, "MAP", UNBOUND, map_key_type=window_type, value_type=window_type)
        sessions = self._declare((False, name), SessionTable(*self._where((False, name)), layout, lateness=lateness))
        return sessions, self._timers(SessionTimers, timers, window_type, sessions=sessions)

    def _where(self, identity: TableId) -> tuple[Any, ...]:
        """Returns the first arguments of a table."""
        restored = self._restored.get(identity)
        return self._keys, self._files, restored.runs if restored else ()

    def _timers(
        self, kind: Callable[..., T], name: str, namespace_type: TypeInformation | None, **rest: SessionTable
    ) -> T:
        identity, layout = (True, name), TableLayout(name, "TIMER", UNBOUND, namespace_type)
        calls = {"make_room": self.make_room, "touch": self._touch_column}
        return self._declare(identity, kind(*self._where(identity), layout, **calls, **rest))

    def _declare(self, identity: TableId, table: T) -> T:
        self._check(identity, table)
        if identity not in self._tables:
            self._add(identity, table)
        known = self._tables[identity]
        if known.form != table.form:
            raise self._used_twice(table.name)
        assert isinstance(known, type(table))
        return known

    def keys(self, name: str) -> Iterator[Any]:
        """Yields each key that has a value of a state, as the current key. Writes pending changes first.

        Args:
            name: The name of a state that was requested earlier.
        """
        self.flush()
        table, key_type = self._tables[False, name], self._key_type
        if key_type is None or not len(table.runs):
            return
        needed = {"sort_key", "deleted", *table.layout.identity, *(["expires_at"] if table.ttl else []), APPEND}
        for tables in table.runs.parts():
            runs = [stored.select([name for name in stored.column_names if name in needed]) for stored in tables]
            rows = merge_runs(table.layout, runs, drop_deleted=True, now=self._files.now())
            column = one_chunk(rows.column("key"))
            yield from self._as_current(key_type, column.take(pa.array(distinct_rows(column)[0])))

    def _as_current(self, key_type: TypeInformation, column: pa.Array[Any]) -> Iterator[Any]:
        """Yields keys, each as the current key."""
        for start in range(0, len(column), _KEYS_AT_ONCE):
            part = column.slice(start, _KEYS_AT_ONCE)
            seats = self.touch_column(part, hash_keys(key_type, part)).tolist()
            for key, seat in zip(key_type.from_arrow(part), seats, strict=True):
                self._keys.seat = seat
                yield key

    def flush(self) -> None:
        """Writes pending changes and empties the overlay. Afterwards no key is touched, and there is no current key."""
        if self._key_type is None:
            return  # no key yet, so no tables
        self._settle()
        for table in self._tables.values():
            self._flush(table)
        for table in self._tables.values():  # Only now, because some tables write what others hold.
            table.clear()
        self._keys.clear()
        for table in self._tables.values():  # Only now, because a merge takes memory, too.
            table.runs.settle()

    def begin_checkpoint(self, written_by: str, *, phase: int) -> None:
        """Begins what belongs to the next snapshot.

        Args:
            written_by: Part of the names of its files.
            phase: Whose turn it is to merge early; see `state.files.compaction.has_turn`.
        """
        self._files.written_by, self._files.phase, self._files.part_bytes = written_by, phase, self._memory.part_bytes

    def begin_snapshot(self) -> KeyedSnapshotFuture:
        """Takes a snapshot of all state, including restored state that was not requested.

        Another thread writes what has changed. What it cannot write or upload is in the next snapshot's part.

        Raises:
            TypeMismatchError: A value does not have its declared type; the message names the operator, state, key,
                field and value.
            StorageError: The changes of the last snapshot still cannot be written.
        """
        self._settle()
        bound = {} if self._key_type is None else self._tables
        for table in bound.values():
            self._flush(table)
        # What follows belongs to the next snapshot.
        files, touched, memory = copy.copy(self._files), self._keys_touched, self._memory.used
        runs = {identity: table.runs.beside(files) for identity, table in bound.items()}
        others = {identity: table for identity, table in self._restored.items() if identity not in runs}
        write = partial(write_snapshot, self._key_groups, others, runs, frozenset(self._full_cleanup))

        def take_over(written: KeyedSnapshot) -> StoredSnapshot:
            for identity, each in runs.items():
                self._tables[identity].runs = each.beside(self._files)
            self._files.keep_copies(written)
            uploads = self._files.uploads(written.files())
            before, self._counted = self._counted, replace(self.statistics, keys_touched=touched, memory=memory)
            return StoredSnapshot(written, self._counted.since(before), uploads)

        self._last = KeyedSnapshotFuture(run_aside("snapshot", write), take_over)
        return self._last

    def snapshot(self) -> KeyedSnapshot:
        """Takes a snapshot, and waits until everything is in the store.

        Raises:
            TypeMismatchError: As for `begin_snapshot`.
            StorageError: The store or the local cache could not be written.
        """
        return self.begin_snapshot().result()

    @property
    def statistics(self) -> BackendStatistics:
        """Returns the size of the state, and what the backend has done."""
        bound = {} if self._key_type is None else self._tables
        tables = {**self._restored, **{identity: table.snapshot() for identity, table in bound.items()}}
        return BackendStatistics(
            rows=sum(table.rows for table in tables.values()),
            bytes=sum(table.bytes for table in tables.values()),
            delta_rows=self._files.written.rows,
            delta_bytes=self._files.written.bytes,
            keys_touched=self._keys_touched,
            cache_hits=self._files.cache.hits,
            cache_misses=self._files.cache.misses,
            memory=self._memory.used,
        )

    def _settle(self) -> None:
        """Takes over what the last snapshot has written, if it could."""
        last, self._last = self._last, None
        if last is not None and not last.has_failed:
            last.settle()

    def _touch_column(self, key_column: pa.Array[Any], hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        seats = self._keys.find(key_column)
        unknown = np.flatnonzero(seats < 0)
        if len(unknown):
            assert self._key_type is not None
            column = key_column.take(pa.array(unknown))
            first, codes = distinct_rows(column)
            distinct, distinct_hashes = column.take(pa.array(first)), hashes[unknown[first]]
            sort_keys = make_sort_keys(key_groups_of_hashes(distinct_hashes, self._max_parallelism), distinct_hashes)
            self._check_mine(distinct, sort_keys)
            added = self._keys.append(distinct, sort_keys)
            self._keys_touched += len(added.column)
            for table in self._tables.values():
                self._load(table, added)
            seats[unknown] = added.first + codes
        return seats

    def _check_mine(self, key_column: pa.Array[Any], sort_keys: SortKeys) -> None:
        groups = key_groups_of(sort_keys)
        foreign = np.flatnonzero((groups < self._key_groups.start) | (groups > self._key_groups.end))
        if len(foreign):
            i = int(foreign[0])
            assert self._key_type is not None
            key = self._key_type.from_arrow(key_column.slice(i, 1))[0]
            raise ConfigurationError(
                f"operator {self._operator!r}: key {key!r} belongs to key group {groups[i]}, but this subtask owns "
                f"{self._key_groups.start} to {self._key_groups.end}; the key selector may return different keys for "
                "the same record"
            )

    def _flush(self, table: OverlayTable) -> None:
        try:
            table.flush()
        except TypeMismatchError as error:
            raise TypeMismatchError(f"operator {self._operator!r}: {error}") from error

    def make_room(self) -> None:
        """Writes state early if it is full. The seats of all keys so far are no longer valid then."""
        if self.is_full:
            self.flush()

    def _check(self, identity: TableId, declared: OverlayTable) -> None:
        known, restored = self._tables.get(identity), self._restored.get(identity)
        if known is not None:
            if known.types != declared.types:
                both = f"as {describe_schema(known.types)} and as {describe_schema(declared.types)}"
                raise StateSchemaError(
                    f"operator {self._operator!r} declares state {declared.name!r} twice: {both}; give one of them "
                    "another name"
                )
            return
        if restored is None:
            return
        types = {part: kind for part, kind in restored.schema.items() if part != "key"}
        if types == declared.types:
            return
        if declared.can_continue_from(restored):
            assert restored.value is not None and declared.value_type is not None
            changes = describe_evolution(type_from_json(restored.value), declared.value_type)
            self._evolved.append(f"state {declared.name!r}: {', '.join(changes)}")
            evolved = restored.with_value_type(declared.types["value"])
            self._restored[identity] = evolved
            declared.restore(evolved.runs)
            return
        what = "timers" if identity[0] else "state"
        raise schema_mismatch(self._operator, f"{what} {declared.name!r}", types, declared.types)

    def _used_twice(self, name: str) -> ConfigurationError:
        return ConfigurationError(
            f"operator {self._operator!r}: {name!r} is used both by record and by column; use it in one way"
        )

    def _add(self, identity: TableId, table: OverlayTable) -> None:
        self._tables[identity] = table
        if self._key_type is not None:
            table.bind(self._key_type)
            if (touched := self._keys.all()) is not None:
                self._load(table, touched)

    def _load(self, table: OverlayTable, keys: KeySeats) -> None:
        try:
            table.load(keys)
        except TypeMismatchError as error:  # of a pickled value
            raise TypeMismatchError(f"operator {self._operator!r}, state {table.name!r}: {error}") from error
