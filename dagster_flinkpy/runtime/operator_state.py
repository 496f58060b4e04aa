"""Operator state: state of a subtask without keys (Flink: ``DefaultOperatorStateBackend``), and who is asked for it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import DistributionMode, OperatorStateHandle
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.datastream.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    StatePartitionStreamProvider,
)
from dagster_flinkpy.datastream.functions import KeyedStateStore
from dagster_flinkpy.datastream.state import (
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    StateDescriptor,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    FlinkPyError,
    StateSchemaError,
    TypeMismatchError,
    UnsupportedKeyTypeError,
)
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.runtime.failure import user_error
from dagster_flinkpy.state.keys import KeyCodec
from dagster_flinkpy.state.layout import check_key_like
from dagster_flinkpy.state.operator_state import read_partitions, write_partitions
from dagster_flinkpy.state.schema_evolution import ALLOWED, can_evolve, evolve
from dagster_flinkpy.storage import ObjectStore

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.operators import OperatorContext

__all__ = ["OperatorStateBackend", "OperatorStates"]

Json = Any
_RAW = "_raw"
"""Name of raw operator state."""
_RAW_SCHEMA = pa.schema([("value", pa.binary())])


class _OperatorState:
    """A named state: what was restored, until it changes."""

    def __init__(
        self,
        name: str,
        mode: DistributionMode,
        types: dict[str, TypeInformation],
        what: str,
        store: ObjectStore,
        written_by: str,
    ) -> None:
        self.name, self.mode, self._types, self._what, self._store = name, mode, types, what, store
        self._written_by = written_by
        self._handle: OperatorStateHandle | None = None
        self.inherited = False
        """Whether it still is what was restored."""

    @property
    def declared(self) -> tuple[str, Json]:
        """Mode and types."""
        return self.mode.value, {part: kind.to_json() for part, kind in self._types.items()}

    def takes(self, handle: OperatorStateHandle) -> bool:
        """Whether it can go on from a stored state whose values have another type."""
        if handle.mode is not self.mode or handle.types.keys() != self._types.keys():
            return False
        stored = {name: type_from_json(kind) for name, kind in handle.types.items()}
        return can_evolve(stored["value"], self._types["value"]) and stored.get("key") == self._types.get("key")

    def changed(self) -> None:
        """What is stored is out of date."""
        self._handle = None
        self.inherited = False

    def read(self, handle: OperatorStateHandle) -> dict[str, list[Any]]:
        """The stored columns."""
        stored = {name: type_from_json(kind) for name, kind in handle.types.items()}
        schema = pa.schema([(name, kind.arrow_type) for name, kind in stored.items()])
        table = read_partitions(handle.partitions, schema, self._store, self._what)
        self._handle = handle if stored == self._types else None  # values of another type are written anew
        self.inherited = True
        columns = {n: evolve(table.column(n).combine_chunks(), (stored[n], kind)) for n, kind in self._types.items()}
        return {n: kind.from_arrow(columns[n]) for n, kind in self._types.items()}

    def snapshot(self, columns: dict[str, list[Any]]) -> OperatorStateHandle:
        """Stores the state, if it has changed."""
        if self._handle is None:
            try:
                arrays = {name: kind.to_arrow(columns[name]) for name, kind in self._types.items()}
            except TypeMismatchError as error:
                raise TypeMismatchError(f"{self._what}: {error}") from error
            split = self.mode is not DistributionMode.BROADCAST
            partitions = write_partitions(pa.table(arrays), self._store, split=split, written_by=self._written_by)
            self._handle = OperatorStateHandle(self.name, self.mode, partitions, self.declared[1])
        return self._handle


class _ListState(ListState[Any]):
    """A list, all of it in memory (Flink: ``PartitionableListState``)."""

    def __init__(self, state: _OperatorState, restored: OperatorStateHandle | None) -> None:
        self.state = state
        self._values: list[Any] = [] if restored is None else state.read(restored)["value"]

    def get(self) -> list[Any]:
        return list(self._values)

    def add(self, value: Any) -> None:
        self._values.append(value)
        self.state.changed()

    def add_all(self, values: list[Any]) -> None:
        self._values.extend(values)
        self.state.changed()

    def update(self, values: list[Any]) -> None:
        self._values = list(values)
        self.state.changed()

    def clear(self) -> None:
        self.update([])

    def snapshot(self) -> OperatorStateHandle:
        """Stores the state."""
        return self.state.snapshot({"value": self._values})


class _BroadcastState(BroadcastState[Any, Any]):
    """A map, all of it in memory (Flink: ``HeapBroadcastState``)."""

    def __init__(self, state: _OperatorState, restored: OperatorStateHandle | None, key_type: TypeInformation) -> None:
        self.state = state
        self._encode = KeyCodec(key_type).encode
        self._entries: dict[Any, tuple[Any, Any]] = {}
        if restored is not None:
            columns = state.read(restored)
            for key, value in zip(columns["key"], columns["value"], strict=True):
                self._entries[self._encoded(key)] = (key, value)

    def _encoded(self, key: Any) -> Any:
        encoded = key if self._encode is None else self._encode(key)
        try:
            hash(encoded)
        except TypeError as error:
            raise UnsupportedKeyTypeError(f"key {key!r} of broadcast state {self.state.name!r}: {error}") from error
        return encoded

    def get(self, key: Any) -> Any:
        entry = self._entries.get(self._encoded(key))
        return None if entry is None else entry[1]

    def contains(self, key: Any) -> bool:
        return self._encoded(key) in self._entries

    def items(self) -> Iterable[tuple[Any, Any]]:
        return list(self._entries.values())

    def keys(self) -> Iterable[Any]:
        return [key for key, _ in self._entries.values()]

    def values(self) -> Iterable[Any]:
        return [value for _, value in self._entries.values()]

    def is_empty(self) -> bool:
        return not self._entries

    def put(self, key: Any, value: Any) -> None:
        self._entries[self._encoded(key)] = (key, value)
        self.state.changed()

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        if self._entries.pop(self._encoded(key), None) is not None:
            self.state.changed()

    def clear(self) -> None:
        self._entries.clear()
        self.state.changed()

    def snapshot(self) -> OperatorStateHandle:
        """Stores the state."""
        return self.state.snapshot({"key": list(self.keys()), "value": list(self.values())})


class _ReadOnlyBroadcastState(ReadOnlyBroadcastState[Any, Any]):
    """What the side that is not broadcast sees."""

    def __init__(self, state: BroadcastState[Any, Any], name: str) -> None:
        self._state, self._name = state, name

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._state.items()

    def keys(self) -> Iterable[Any]:
        return self._state.keys()

    def values(self) -> Iterable[Any]:
        return self._state.values()

    def is_empty(self) -> bool:
        return self._state.is_empty()

    def clear(self) -> None:
        raise ConfigurationError(
            f"broadcast state {self._name!r} can only be written in process_broadcast_element(), so that it is the "
            "same at all subtasks"
        )


class OperatorStateBackend(OperatorStateStore):
    """The operator state of one subtask; all of it is in memory.

    Args:
        operator: Uid of the operator, for messages.
        subtask: Index of the subtask.
        store: Rooted at the job's prefix.
        restored: What the subtask goes on from.
        written_by: Part of the names of its files; see ``state.state_files.state_file``.
    """

    def __init__(
        self,
        operator: str,
        subtask: int,
        store: ObjectStore,
        restored: Sequence[OperatorStateHandle],
        written_by: str = "",
    ) -> None:
        self._operator, self._subtask, self._store, self._written_by = operator, subtask, store, written_by
        self._restored = {handle.name: handle for handle in restored if handle.name != _RAW}
        self._states: dict[str, _ListState | _BroadcastState] = {}

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
        self._check(state_descriptor, MapStateDescriptor)
        key_type = state_descriptor.key_type_info
        check_key_like(key_type, f"the key of broadcast state {state_descriptor.name!r}")
        state = self._state(
            state_descriptor.name,
            DistributionMode.BROADCAST,
            {"key": key_type, "value": state_descriptor.value_type_info},
            lambda state, restored: _BroadcastState(state, restored, key_type),
        )
        assert isinstance(state, _BroadcastState)
        return state

    def get_read_only_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Broadcast state that cannot be written."""
        return _ReadOnlyBroadcastState(self.get_broadcast_state(state_descriptor), state_descriptor.name)

    def _check(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> None:
        what = f"operator {self._operator!r}: operator state"
        if descriptor.name == _RAW:
            raise ConfigurationError(f"{what} cannot be called {_RAW!r}")
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
        what = f"operator {self._operator!r}: operator state {name!r}"
        state = _OperatorState(name, mode, types, what, self._store, self._written_by)
        known, restored = self._states.get(name), self._restored.get(name)
        before = state.declared if restored is None else (restored.mode.value, restored.types)
        before = before if known is None else known.state.declared
        if before != state.declared and (known is not None or restored is None or not state.takes(restored)):
            raise StateSchemaError(
                f"{what} was {before} before and is declared as {state.declared} now; declare the old type, or use a "
                f"new name; {ALLOWED}"
            )
        if known is None:
            known = self._states[name] = make(state, restored)
        return known

    def snapshot(self) -> tuple[OperatorStateHandle, ...]:
        """Stores what changed and describes all state, that which was not asked for included.

        Raises:
            TypeMismatchError: A value does not have its declared type; names the state.
            StorageError: The store could not be written.
        """
        handles = dict(self._restored)
        inherited = set(handles)
        for name, state in self._states.items():
            handles[name] = state.snapshot()
            if not state.state.inherited:
                inherited.discard(name)
        return tuple(
            handles[name]
            for name in sorted(handles)
            # Of a restored union state each subtask has all, so one hands it on.
            if name not in inherited or handles[name].mode is not DistributionMode.UNION or self._subtask == 0
        )


# --- raw state --------------------------------------------------------------------------------------------------------


class _Partition(KeyGroupStatePartitionStreamProvider):
    def __init__(self, data: bytes, key_group: int = -1) -> None:
        self._data, self._key_group = data, key_group

    def get_stream(self) -> BinaryIO:
        return io.BytesIO(self._data)

    def get_key_group_id(self) -> int:
        return self._key_group


def _checked(data: bytes) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ConfigurationError(f"raw state is made of bytes, not {data!r}")
    return bytes(data)


class _RawOperatorOutput(OperatorStateCheckpointOutputStream):
    def __init__(self) -> None:
        self.partitions: list[bytearray] = []

    def start_new_partition(self) -> None:
        self.partitions.append(bytearray())

    def write(self, data: bytes) -> int:
        data = _checked(data)
        if not self.partitions:
            self.start_new_partition()
        self.partitions[-1] += data
        return len(data)

    def get_number_of_partitions(self) -> int:
        return len(self.partitions)


class _RawKeyedOutput(KeyedStateCheckpointOutputStream):
    def __init__(self, key_groups: Sequence[int]) -> None:
        self._key_groups = key_groups
        self.groups: dict[int, bytearray] = {}
        self._current: bytearray | None = None

    def start_new_key_group(self, key_group_id: int) -> None:
        if key_group_id not in self._key_groups or key_group_id in self.groups:
            raise ConfigurationError(
                f"raw state of key group {key_group_id!r}: this subtask has {self._key_groups[0]} to "
                f"{self._key_groups[-1]}, each to be written once"
            )
        self._current = self.groups[key_group_id] = bytearray()

    def write(self, data: bytes) -> int:
        if self._current is None:
            raise ConfigurationError("raw keyed state: call start_new_key_group() before write()")
        data = _checked(data)
        self._current += data
        return len(data)

    def get_key_group_list(self) -> Iterable[int]:
        return list(self._key_groups)


# --- functions --------------------------------------------------------------------------------------------------------


class _InitializationContext(FunctionInitializationContext):
    def __init__(self, states: OperatorStates, keyed: KeyedStateStore | None) -> None:
        self._states, self._keyed = states, keyed

    def is_restored(self) -> bool:
        return self.get_restored_checkpoint_id() is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self._states.context.epoch.restored

    def get_operator_state_store(self) -> OperatorStateStore:
        return self._states.backend

    def get_keyed_state_store(self) -> KeyedStateStore:
        if self._keyed is None:
            uid = self._states.context.vertex.uid
            raise ConfigurationError(f"operator {uid!r} asks for keyed state, but its stream has no keys")
        return self._keyed

    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        return self._states.raw_operator_state()

    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        return self._states.raw_keyed_state()


class _SnapshotContext(FunctionSnapshotContext):
    def __init__(
        self, checkpoint_id: int, operator: _RawOperatorOutput, keyed: _RawKeyedOutput | None, uid: str
    ) -> None:
        self._checkpoint_id, self._operator, self._keyed, self._uid = checkpoint_id, operator, keyed, uid

    def get_checkpoint_id(self) -> int:
        return self._checkpoint_id

    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        return self._operator

    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        if self._keyed is None:
            raise ConfigurationError(f"operator {self._uid!r} has no raw keyed state, for its stream has no keys")
        return self._keyed


class OperatorStates:
    """The state without keys of one subtask, and the functions that have to be asked for theirs at the barrier.

    Args:
        context: Where the operator runs.
    """

    def __init__(self, context: OperatorContext) -> None:
        self.context = context
        self._functions: list[CheckpointedFunction] = []
        self._backend: OperatorStateBackend | None = None

    @property
    def backend(self) -> OperatorStateBackend:
        """The named states; made when it is first asked for."""
        if self._backend is None:
            context = self.context
            self._backend = OperatorStateBackend(
                context.vertex.uid,
                context.subtask,
                self._store,
                context.input.operator_state,
                context.epoch.written_by,
            )
        return self._backend

    @property
    def _store(self) -> ObjectStore:
        return self.context.epoch.job_storage.open()

    def initialize(self, function: Any, keyed: KeyedStateStore | None = None) -> None:
        """Calls ``initialize_state`` of a function that has it; its ``snapshot_state`` is called at each barrier.

        Args:
            function: Any user function, source or sink writer.
            keyed: Gives keyed state, where the stream has keys.
        """
        if isinstance(function, CheckpointedFunction):
            context = _InitializationContext(self, keyed)
            self._call("initialize_state()", partial(function.initialize_state, context))
            self._functions.append(function)

    def forget(self, function: Any) -> None:
        """Does not ask a function any more; one that is unknown is fine."""
        self._functions = [known for known in self._functions if known is not function]

    def raw_operator_state(self) -> list[_Partition]:
        """The restored partitions."""
        handles = [handle for handle in self.context.input.operator_state if handle.name == _RAW]
        return [_Partition(data) for handle in handles for data in self._raw(handle.partitions)]

    def raw_keyed_state(self) -> list[_Partition]:
        """The restored key groups."""
        parts = self.context.input.raw_keyed
        groups = [part["key_group"] for part in parts]
        return [_Partition(data, group) for data, group in zip(self._raw(parts), groups, strict=True)]

    def _raw(self, partitions: Sequence[Json]) -> list[bytes]:
        what = f"raw state of operator {self.context.vertex.uid!r}"
        data: list[bytes] = read_partitions(partitions, _RAW_SCHEMA, self._store, what).column("value").to_pylist()
        return data

    def snapshot(self) -> tuple[tuple[OperatorStateHandle, ...], tuple[Json, ...]]:
        """Asks the functions and stores what changed.

        Returns:
            Operator state, and raw keyed state.
        """
        given = self.context.input
        if not self._functions and self._backend is None:
            if not given.operator_state:
                return (), given.raw_keyed
            return (*self.backend.snapshot(), *(h for h in given.operator_state if h.name == _RAW)), given.raw_keyed
        vertex = self.context.vertex
        raw = _RawOperatorOutput()
        raw_keyed = None
        if vertex.spec.keyed:
            groups = compute_key_group_range_for_operator_index(
                vertex.max_parallelism, vertex.parallelism, self.context.subtask
            )
            raw_keyed = _RawKeyedOutput(range(groups.start, groups.end + 1))
        context = _SnapshotContext(self.context.checkpoint_id, raw, raw_keyed, vertex.uid)
        for function in self._functions:
            self._call("snapshot_state()", partial(function.snapshot_state, context))
        handles = self.backend.snapshot()
        if raw.partitions:
            handles = (
                *handles,
                OperatorStateHandle(_RAW, DistributionMode.SPLIT_DISTRIBUTE, self._write_raw(raw.partitions)),
            )
        if raw_keyed is None or not raw_keyed.groups:
            return handles, ()
        partitions = self._write_raw(raw_keyed.groups.values())
        groups_of = zip(raw_keyed.groups, partitions, strict=True)
        return handles, tuple({"key_group": group, **partition} for group, partition in groups_of)

    def _write_raw(self, partitions: Iterable[bytearray]) -> tuple[Json, ...]:
        values = pa.array([bytes(partition) for partition in partitions], type=pa.binary())
        table, written_by = pa.table([values], schema=_RAW_SCHEMA), self.context.epoch.written_by
        return write_partitions(table, self._store, split=True, written_by=written_by)

    def _call(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except FlinkPyError:
            raise
        except Exception as e:
            vertex = self.context.vertex
            where = f"{what} of operator {vertex.uid!r} ({vertex.name})"
            raise user_error(e, what=where, operator=vertex.uid, subtask=self.context.subtask) from e
