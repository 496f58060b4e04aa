"""Functions with operator state (Flink: ``org.apache.flink.streaming.api.checkpoint.CheckpointedFunction``).

PyFlink has no such interface. The names are those of Flink's Java API, in Python's spelling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.functions import KeyedStateStore
    from dagster_flinkpy.datastream.state import OperatorStateStore

__all__ = [
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyGroupStatePartitionStreamProvider",
    "KeyedStateCheckpointOutputStream",
    "OperatorStateCheckpointOutputStream",
    "StatePartitionStreamProvider",
]


class StatePartitionStreamProvider(ABC):
    """A partition of raw operator state."""

    @abstractmethod
    def get_stream(self) -> BinaryIO:
        """Returns a stream that reads its bytes."""


class KeyGroupStatePartitionStreamProvider(StatePartitionStreamProvider):
    """The raw keyed state of one key group."""

    @abstractmethod
    def get_key_group_id(self) -> int:
        """Returns the key group."""


class OperatorStateCheckpointOutputStream(ABC):
    """Writes raw operator state. Its partitions are redistributed over all subtasks when the parallelism changes."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """Starts a new partition for the bytes that follow."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the partition and returns their number."""

    @abstractmethod
    def get_number_of_partitions(self) -> int:
        """Returns the number of partitions so far."""


class KeyedStateCheckpointOutputStream(ABC):
    """Writes raw keyed state, key group by key group."""

    @abstractmethod
    def start_new_key_group(self, key_group_id: int) -> None:
        """Starts a key group of the subtask for the bytes that follow. Each can be started once.

        Raises:
            ConfigurationError: It belongs to another subtask, or was started before.
        """

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the key group and returns their number."""

    @abstractmethod
    def get_key_group_list(self) -> Iterable[int]:
        """Returns the key groups of the subtask."""


class FunctionSnapshotContext(ABC):
    """The context of a snapshot, at a barrier."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Returns the id of the checkpoint."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Returns the output for raw operator state (Flink: ``StateSnapshotContext``)."""

    @abstractmethod
    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Returns the output for raw keyed state.

        Raises:
            ConfigurationError: The stream is not keyed.
        """


class FunctionInitializationContext(ABC):
    """The context of a function's start."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Returns whether the function starts from a checkpoint."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Returns the id of the restored checkpoint, or None.

        It may not be complete yet: within a run, tasks start from what others have acknowledged. So what must not
        happen twice, such as a commit, waits for ``notify_checkpoint_complete()`` of live tasks, or is a sink's.
        """

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the store that provides operator state."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Returns the store that provides keyed state, if the stream is keyed."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """Returns the partitions of raw operator state that this subtask restores."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        """Returns the raw keyed state of this subtask's key groups."""


class CheckpointedFunction(ABC):
    """A user function, source or sink writer with operator state.

    Each epoch starts as Flink starts after a restore: ``initialize_state`` is called, then ``open``. What the function
    kept only in memory is lost.
    """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Is called at each barrier, and must put everything that the function needs later into its state."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Is called once in each subtask before ``open``, and requests the state."""
