"""The operator state and raw state of one operator, and the functions that are called at barriers."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from dagster_flinkpy.datastream.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    StatePartitionStreamProvider,
)
from dagster_flinkpy.datastream.checkpointing.checkpoint_listener import CheckpointListener
from dagster_flinkpy.datastream.functions import KeyedStateStore
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.datastream.state import OperatorStateStore
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS, user_error
from dagster_flinkpy.state.files.operator_state import read_partitions, write_partitions
from dagster_flinkpy.state.files.transfers import Uploads
from dagster_flinkpy.state.handles import DistributionMode, OperatorStateHandle
from dagster_flinkpy.state.operator_state_backend import RAW_STATE, OperatorStateBackend
from dagster_flinkpy.storage import ObjectStore

__all__ = ["OperatorStateHandler", "RawKeyedStateOutput", "RawOperatorStateOutput", "RawPartition"]

Json = Any
_RAW_SCHEMA = pa.schema([("value", pa.binary())])


class OperatorStateHandler:
    """Restores and stores the operator state and raw state of one subtask (Flink: ``StreamOperatorStateHandler``)."""

    def __init__(self, vertex: JobVertex, subtask: int, job: EpochJob) -> None:
        self.vertex = vertex
        self.restored_checkpoint_id = job.restored
        self._subtask, self._job = subtask, job
        self._given = job.input(vertex.uid, subtask)
        self._functions: list[CheckpointedFunction] = []
        self._listeners: list[CheckpointListener] = []
        self._backend: OperatorStateBackend | None = None
        self._written_by = job.writer_of(job.checkpoint_id)
        self._uploads = Uploads()

    @property
    def backend(self) -> OperatorStateBackend:
        """The backend of the named states, created when first used."""
        if self._backend is None:
            self._backend = OperatorStateBackend(
                self.vertex.uid, self._store, self._given.operator_state, lambda: self._written_by, self._uploads
            )
        return self._backend

    @property
    def changes(self) -> list[str]:
        """How restored states differ from those that were requested so far, in words for people."""
        return [] if self._backend is None else self._backend.changes

    @property
    def _store(self) -> ObjectStore:
        return self._job.job_storage.open()

    def initialize(self, function: Any, keyed: KeyedStateStore | None = None) -> None:
        """Calls ``initialize_state`` of a checkpointed function, and from then on ``snapshot_state`` at each barrier.

        One that is a `CheckpointListener` is notified from then on, if its task lives. Any other is ignored.
        """
        if isinstance(function, CheckpointedFunction):
            context = _InitializationContext(self, keyed)
            self._call("initialize_state()", partial(function.initialize_state, context))
            self._functions.append(function)
        if isinstance(function, CheckpointListener):
            self._listeners.append(function)

    def forget(self, function: Any) -> None:
        """Stops calling a function at barriers; does nothing for an unknown one."""
        self._functions = [known for known in self._functions if known is not function]
        self._listeners = [known for known in self._listeners if known is not function]

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Calls the method ``news`` of functions that are a `CheckpointListener`, because a checkpoint has ended."""
        for function in self._listeners:
            self._call(f"{news}()", partial(getattr(function, news), checkpoint_id))

    def raw_operator_state(self) -> list[RawPartition]:
        """Returns the restored partitions of raw operator state."""
        handles = [handle for handle in self._given.operator_state if handle.name == RAW_STATE]
        return [RawPartition(data) for handle in handles for data in self._raw(handle.partitions)]

    def raw_keyed_state(self) -> list[RawPartition]:
        """Returns the restored key groups of raw keyed state."""
        parts = self._given.raw_keyed
        groups = [part["key_group"] for part in parts]
        return [RawPartition(data, group) for data, group in zip(self._raw(parts), groups, strict=True)]

    def _raw(self, partitions: Sequence[Json]) -> list[bytes]:
        what = f"raw state of operator {self.vertex.uid!r}"
        data: list[bytes] = read_partitions(partitions, _RAW_SCHEMA, self._store, what).column("value").to_pylist()
        return data

    def snapshot(self, checkpoint_id: int) -> tuple[tuple[OperatorStateHandle, ...], tuple[Json, ...]]:
        """Calls ``snapshot_state`` of the functions, and stores the states that have changed.

        Returns the operator state and the raw keyed state.
        """
        given = self._given
        self._written_by = self._job.writer_of(checkpoint_id)
        if not self._functions and self._backend is None:
            if not given.operator_state:
                return (), given.raw_keyed
            raw_states = (handle for handle in given.operator_state if handle.name == RAW_STATE)
            return (*self.backend.snapshot(), *raw_states), given.raw_keyed
        raw, raw_keyed = RawOperatorStateOutput(), self._raw_keyed_output()
        context = _SnapshotContext(checkpoint_id, raw, raw_keyed, self.vertex.uid)
        for function in self._functions:
            self._call("snapshot_state()", partial(function.snapshot_state, context))
        handles = self.backend.snapshot()
        if raw.partitions:
            partitions = self._write_raw(raw.partitions)
            handles = (*handles, OperatorStateHandle(RAW_STATE, DistributionMode.SPLIT_DISTRIBUTE, partitions))
        if raw_keyed is None or not raw_keyed.groups:
            return handles, ()
        partitions = self._write_raw(raw_keyed.groups.values())
        groups_of = zip(raw_keyed.groups, partitions, strict=True)
        return handles, tuple({"key_group": group, **partition} for group, partition in groups_of)

    def _raw_keyed_output(self) -> RawKeyedStateOutput | None:
        vertex = self.vertex
        if not vertex.spec.keyed:
            return None
        groups = compute_key_group_range_for_operator_index(vertex.max_parallelism, vertex.parallelism, self._subtask)
        return RawKeyedStateOutput(range(groups.start, groups.end + 1))

    def _write_raw(self, partitions: Iterable[bytearray]) -> tuple[Json, ...]:
        values = pa.array([bytes(partition) for partition in partitions], type=pa.binary())
        table = pa.table([values], schema=_RAW_SCHEMA)
        written_by, uploads = self._written_by, self._uploads
        return write_partitions(table, self._store, split=True, written_by=written_by, uploads=uploads)

    def uploads(self, named: Collection[str]) -> Sequence[Future[None]]:
        """Returns what must be done before a snapshot is acknowledged, and begins uploads that have failed again."""
        self._uploads.retry(named)
        return self._uploads.pending

    def _call(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except FlinkPyError:
            raise
        except USER_EXCEPTIONS as e:
            where = f"{what} of operator {self.vertex.uid!r} ({self.vertex.name})"
            raise user_error(e, what=where, operator=self.vertex.uid, subtask=self._subtask) from e


class _InitializationContext(FunctionInitializationContext):
    def __init__(self, handler: OperatorStateHandler, keyed: KeyedStateStore | None) -> None:
        self._handler, self._keyed = handler, keyed

    def is_restored(self) -> bool:
        return self.get_restored_checkpoint_id() is not None

    def get_restored_checkpoint_id(self) -> int | None:
        return self._handler.restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        return self._handler.backend

    def get_keyed_state_store(self) -> KeyedStateStore:
        if self._keyed is None:
            uid = self._handler.vertex.uid
            raise ConfigurationError(f"operator {uid!r} asks for keyed state, but its stream has no keys")
        return self._keyed

    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        return self._handler.raw_operator_state()

    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        return self._handler.raw_keyed_state()


class _SnapshotContext(FunctionSnapshotContext):
    def __init__(
        self, checkpoint_id: int, operator: RawOperatorStateOutput, keyed: RawKeyedStateOutput | None, uid: str
    ) -> None:
        self._checkpoint_id, self._operator, self._keyed, self._uid = checkpoint_id, operator, keyed, uid

    def get_checkpoint_id(self) -> int:
        return self._checkpoint_id

    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        return self._operator

    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        if self._keyed is None:
            raise ConfigurationError(f"operator {self._uid!r} has no raw keyed state, because its stream has no keys")
        return self._keyed


class RawPartition(KeyGroupStatePartitionStreamProvider):
    """A restored partition or key group."""

    def __init__(self, data: bytes, key_group: int = -1) -> None:
        self._data, self._key_group = data, key_group

    def get_stream(self) -> BinaryIO:
        return io.BytesIO(self._data)

    def get_key_group_id(self) -> int:
        return self._key_group


def _checked(data: bytes) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ConfigurationError(f"raw state must be bytes, not {data!r}")
    return bytes(data)


class RawOperatorStateOutput(OperatorStateCheckpointOutputStream):
    """Gathers the partitions that a function writes."""

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


class RawKeyedStateOutput(KeyedStateCheckpointOutputStream):
    """Gathers the bytes that a function writes for each key group."""

    def __init__(self, key_groups: Sequence[int]) -> None:
        self._key_groups = key_groups
        self.groups: dict[int, bytearray] = {}
        self._current: bytearray | None = None

    def start_new_key_group(self, key_group_id: int) -> None:
        if key_group_id not in self._key_groups or key_group_id in self.groups:
            raise ConfigurationError(
                f"raw state of key group {key_group_id!r}: this subtask has key groups {self._key_groups[0]} to "
                f"{self._key_groups[-1]}, and each can be written once"
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
