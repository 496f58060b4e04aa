"""The operator state of a subtask: named state without keys (Flink: ``DefaultOperatorStateBackend``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa

from dagster_flinkpy.common.copies import copier, taker
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.datastream.state import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    StateDescriptor,
)
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.state.files.operator_state import read_partitions, write_partitions
from dagster_flinkpy.state.files.transfers import Uploads
from dagster_flinkpy.state.handles import DistributionMode, OperatorStateHandle
from dagster_flinkpy.state.keys import KeyCodec
from dagster_flinkpy.state.layout import check_key_like
from dagster_flinkpy.state.schema_evolution import ALLOWED, can_evolve, describe_evolution, evolve, stored_key_type
from dagster_flinkpy.storage import ObjectStore

__all__ = ["RAW_STATE", "OperatorStateBackend"]

RAW_STATE = "_raw"
"""The name under which raw operator state is stored, next to the named states."""


class _OperatorState:
    """A named state of a backend. It keeps the restored form until it changes."""

    def __init__(
        self, backend: OperatorStateBackend, name: str, mode: DistributionMode, types: dict[str, TypeInformation]
    ) -> None:
        self._backend, self.name, self.mode, self._types = backend, name, mode, types
        self.what = f"operator {backend.operator!r}: operator state {name!r}"
        """Names it in messages."""
        self.own, self.take = copier(types["value"]), taker(types["value"])
        """Copy a value that a function reads, and one that it gives; None if values cannot change."""
        self._handle: OperatorStateHandle | None = None
        self.inherited = False
        """Whether the state has not changed since the restore."""

    @property
    def declared(self) -> tuple[str, Any]:
        """The declared mode and types."""
        return self.mode.value, {part: kind.to_json() for part, kind in self._types.items()}

    def takes(self, handle: OperatorStateHandle) -> bool:
        """Returns whether the state can continue from a stored one whose values have another type."""
        if handle.mode is not self.mode or handle.types.keys() != self._types.keys():
            return False
        stored = {name: type_from_json(kind) for name, kind in handle.types.items()}
        return can_evolve(stored["value"], self._types["value"]) and stored.get("key") == self._types.get("key")

    def changed(self) -> None:
        """Marks the stored form as outdated."""
        self._handle = None
        self.inherited = False

    def read(self, handle: OperatorStateHandle) -> dict[str, list[Any]]:
        """Returns the stored columns."""
        stored = {name: type_from_json(kind) for name, kind in handle.types.items()}
        schema = pa.schema([(name, kind.arrow_type) for name, kind in stored.items()])
        table = read_partitions(handle.partitions, schema, self._backend.store, self.what)
        self._handle = handle if stored == self._types else None  # values of another type are rewritten
        self.inherited = True
        columns = {n: evolve(table.column(n).combine_chunks(), (stored[n], kind)) for n, kind in self._types.items()}
        return {n: kind.from_arrow(columns[n]) for n, kind in self._types.items()}

    def snapshot(self, columns: dict[str, list[Any]]) -> OperatorStateHandle:
        """Returns the handle of the state, which is stored first if it has changed."""
        if self._handle is None:
            backend = self._backend
            try:
                arrays = {name: kind.to_arrow(columns[name]) for name, kind in self._types.items()}
            except TypeMismatchError as error:
                raise TypeMismatchError(f"{self.what}: {error}") from error
            split = self.mode is not DistributionMode.BROADCAST
            partitions = write_partitions(
                pa.table(arrays), backend.store, split=split, written_by=backend.written_by(), uploads=backend.uploads
            )
            self._handle = OperatorStateHandle(self.name, self.mode, partitions, self.declared[1])
        return self._handle


class _ListState(ListState[Any]):
    """A list that is entirely in memory (Flink: ``PartitionableListState``)."""

    def __init__(self, state: _OperatorState, restored: OperatorStateHandle | None) -> None:
        self.state = state
        self._values: list[Any] = [] if restored is None else state.read(restored)["value"]

    def get(self) -> list[Any]:
        own = self.state.own
        return list(self._values if own is None else map(own, self._values))

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: list[Any]) -> None:
        take = self.state.take
        self._values.extend(values if take is None else map(take, values))
        self.state.changed()

    def update(self, values: list[Any]) -> None:
        values, self._values = list(values), []
        self.add_all(values)

    def clear(self) -> None:
        self.update([])

    def snapshot(self) -> OperatorStateHandle:
        """Stores the state and returns its handle."""
        return self.state.snapshot({"value": self._values})


class _Entries:
    """Reads the entries of broadcast state, which are entirely in memory (Flink: ``HeapBroadcastState``).

    Args:
        name: The name of the state.
        codec: The codec of the keys.
        entries: The values by dict key.
        own: Copies a value for the function that reads it; None if values cannot change.
    """

    def __init__(self, name: str, codec: KeyCodec, entries: dict[Any, Any], own: Callable[[Any], Any] | None) -> None:
        self._name, self._codec, self._encode, self._entries, self._own = name, codec, codec.encode, entries, own

    def get(self, key: Any) -> Any:
        """Returns the value of an entry, or None."""
        if self._encode is not None:
            key = self._encode(key)
        try:
            value = self._entries.get(key)
        except TypeError as error:
            raise self._misuse(key, error) from error
        return value if self._own is None else self._own(value)

    def contains(self, key: Any) -> bool:
        """Returns whether there is an entry with this key."""
        return self._encoded(key) in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Returns an iterator over all entries."""
        return zip(self.keys(), self.values(), strict=True)

    def keys(self) -> Iterator[Any]:
        """Returns an iterator over the keys of all entries."""
        return iter(self._codec.decode_all(list(self._entries)))

    def values(self) -> Iterator[Any]:
        """Returns an iterator over the values of all entries."""
        return iter([*self._entries.values()] if self._own is None else [*map(self._own, self._entries.values())])

    def is_empty(self) -> bool:
        """Returns whether there is no entry."""
        return not self._entries

    def _encoded(self, key: Any) -> Any:
        encoded = key if self._encode is None else self._encode(key)
        try:
            hash(encoded)
        except TypeError as error:
            raise self._misuse(key, error) from error
        return encoded

    def _misuse(self, key: Any, error: TypeError) -> UnsupportedKeyTypeError:
        return UnsupportedKeyTypeError(f"key {key!r} of broadcast state {self._name!r}: {error}")


class _BroadcastState(_Entries, BroadcastState[Any, Any]):
    """Broadcast state for reading and writing."""

    def __init__(self, state: _OperatorState, restored: OperatorStateHandle | None, key_type: TypeInformation) -> None:
        super().__init__(state.name, KeyCodec(key_type), {}, state.own)
        self.state = state
        if restored is not None:
            columns = state.read(restored)
            self._entries.update(zip(self._codec.encode_all(columns["key"]), columns["value"], strict=True))

    def put(self, key: Any, value: Any) -> None:
        take = self.state.take
        self._entries[self._encoded(key)] = value if take is None else take(value)
        self.state.changed()

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        encoded = self._encoded(key)
        if encoded in self._entries:
            del self._entries[encoded]
            self.state.changed()

    def clear(self) -> None:
        self._entries.clear()
        self.state.changed()

    def read_only(self) -> _ReadOnlyBroadcastState:
        """Returns a view that cannot be written."""
        return _ReadOnlyBroadcastState(self._name, self._codec, self._entries, self._own)

    def snapshot(self) -> OperatorStateHandle:
        """Stores the state and returns its handle."""
        return self.state.snapshot({"key": list(self.keys()), "value": list(self._entries.values())})


class _ReadOnlyBroadcastState(_Entries, ReadOnlyBroadcastState[Any, Any]):
    """The read-only view for the side that is not broadcast."""

    def clear(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"broadcast state {self._name!r} can only be written in process_broadcast_element(), so that it is the "
            "same at all subtasks"
        )

    put = put_all = remove = __setitem__ = __delitem__ = clear


class OperatorStateBackend(OperatorStateStore):
    """The operator state of one subtask, which is entirely in memory.

    Args:
        operator: The uid of the operator, for messages.
        store: The object store, rooted at the job's prefix.
        restored: The state that the subtask starts from.
        written_by: Returns a part of the names of the files that are written next; see
            ``state.files.state_files.state_file``. Default: the empty text.
        uploads: Uploads files in the background. Default: they are there when the snapshot is taken.
    """

    def __init__(
        self,
        operator: str,
        store: ObjectStore,
        restored: Sequence[OperatorStateHandle],
        written_by: Callable[[], str] = str,
        uploads: Uploads | None = None,
    ) -> None:
        self.operator, self.store, self.written_by, self.uploads = operator, store, written_by, uploads
        self._restored = {handle.name: handle for handle in restored if handle.name != RAW_STATE}
        self._states: dict[str, _ListState | _BroadcastState] = {}
        self.changes: list[str] = []
        """How restored states differ from those that were requested so far, in words for people."""
        self._last: dict[str, tuple[MapStateDescriptor, _BroadcastState, _ReadOnlyBroadcastState]] = {}
        """The last descriptor of each broadcast state, and the state: functions ask for it with each record."""

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._list_state(state_descriptor, DistributionMode.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._list_state(state_descriptor, DistributionMode.UNION)

    def _list_state(self, descriptor: ListStateDescriptor, mode: DistributionMode) -> ListState[Any]:
        self._check(descriptor, ListStateDescriptor)
        types = {"value": descriptor.elem_type_info}
        state = self._state(descriptor.name, mode, types, _ListState)
        assert isinstance(state, _ListState)
        return state

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._broadcast(state_descriptor)[1]

    def get_read_only_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Returns broadcast state that cannot be written."""
        return self._broadcast(state_descriptor)[2]

    def _broadcast(
        self, descriptor: MapStateDescriptor
    ) -> tuple[MapStateDescriptor, _BroadcastState, _ReadOnlyBroadcastState]:
        last = self._last.get(descriptor.name)
        if last is None or last[0] is not descriptor:
            state = self._declared_broadcast(descriptor)
            last = self._last[descriptor.name] = descriptor, state, state.read_only()
        return last

    def _declared_broadcast(self, descriptor: MapStateDescriptor) -> _BroadcastState:
        self._check(descriptor, MapStateDescriptor)
        key_type = descriptor.key_type_info
        restored = self._restored.get(descriptor.name)
        if restored is not None and "key" in restored.types:
            key_type = stored_key_type(type_from_json(restored.types["key"]), key_type)
        check_key_like(key_type, f"the key of broadcast state {descriptor.name!r}")
        state = self._state(
            descriptor.name,
            DistributionMode.BROADCAST,
            {"key": key_type, "value": descriptor.value_type_info},
            lambda state, restored: _BroadcastState(state, restored, key_type),
        )
        assert isinstance(state, _BroadcastState)
        return state

    def _check(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> None:
        what = f"operator {self.operator!r}: operator state"
        if descriptor.name == RAW_STATE:
            raise ConfigurationError(f"{what} cannot be called {RAW_STATE!r}")
        if not isinstance(descriptor, expected):
            raise ConfigurationError(f"{what} needs a {expected.__name__}, not {descriptor!r}")
        if descriptor.ttl_config is not None:
            raise ConfigurationError(f"{what} {descriptor.name!r} has a time to live, which only keyed state can have")

    def _state(
        self,
        name: str,
        mode: DistributionMode,
        types: dict[str, TypeInformation],
        make: Callable[[_OperatorState, OperatorStateHandle | None], _ListState | _BroadcastState],
    ) -> _ListState | _BroadcastState:
        state = _OperatorState(self, name, mode, types)
        known, restored = self._states.get(name), self._restored.get(name)
        before = state.declared if restored is None else (restored.mode.value, restored.types)
        before = before if known is None else known.state.declared
        if before != state.declared and (known is not None or restored is None or not state.takes(restored)):
            same_mode = before[0] == state.mode.value
            raise StateSchemaError(
                f"{state.what} was {_describe(*before)} and is now declared as {_describe(*state.declared)}; declare "
                f"the old type, or use a new name{f'; {ALLOWED}' if same_mode else ''}"
            )
        if known is None:
            known = self._states[name] = make(state, restored)
            if restored is not None and before != state.declared:
                changes = describe_evolution(type_from_json(restored.types["value"]), types["value"])
                self.changes.append(f"operator state {name!r}: {', '.join(changes)}")
        return known

    def snapshot(self) -> tuple[OperatorStateHandle, ...]:
        """Stores the changed states and describes all state, including restored state that was not requested.

        Raises:
            TypeMismatchError: A value does not have its declared type; the message names the state.
            StorageError: The store could not be written.
        """
        handles = dict(self._restored)
        inherited = set(handles)
        for name, state in self._states.items():
            handles[name] = state.snapshot()
            if not state.state.inherited:
                inherited.discard(name)
        unchanged = {name for name in inherited if handles[name].mode is DistributionMode.UNION}
        return tuple(replace(handles[name], inherited=name in unchanged) for name in sorted(handles))


def _describe(mode: str, types: Mapping[str, Any]) -> str:
    key = f" by {type_from_json(types['key'])}" if "key" in types else ""
    return f"{mode} of {type_from_json(types['value'])}{key}"
