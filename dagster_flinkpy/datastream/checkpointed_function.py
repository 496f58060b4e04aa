"""Functions with operator state (Flink: ``org.apache.flink.streaming.api.checkpoint.CheckpointedFunction``).

PyFlink has no such interface; names are those of Flink's Java API in Python's spelling.
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
    """One partition of raw operator state."""

    @abstractmethod
    def get_stream(self) -> BinaryIO:
        """Its bytes, to be read."""


class KeyGroupStatePartitionStreamProvider(StatePartitionStreamProvider):
    """The raw keyed state of one key group."""

    @abstractmethod
    def get_key_group_id(self) -> int:
        """The key group."""


class OperatorStateCheckpointOutputStream(ABC):
    """Takes raw operator state. Its partitions are dealt out over all subtasks when the parallelism changes."""

    @abstractmethod
    def start_new_partition(self) -> None:
        """What is written from here on is another partition."""

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the partition; says how many."""

    @abstractmethod
    def get_number_of_partitions(self) -> int:
        """Partitions so far."""


class KeyedStateCheckpointOutputStream(ABC):
    """Takes raw keyed state, key group by key group."""

    @abstractmethod
    def start_new_key_group(self, key_group_id: int) -> None:
        """What is written from here on is of this key group, which must be one of the subtask's, and once only.

        Raises:
            ConfigurationError: It is not.
        """

    @abstractmethod
    def write(self, data: bytes) -> int:
        """Appends bytes to the key group; says how many."""

    @abstractmethod
    def get_key_group_list(self) -> Iterable[int]:
        """The key groups of the subtask."""


class FunctionSnapshotContext(ABC):
    """What a function may ask at a barrier."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Id of the checkpoint."""

    @abstractmethod
    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Where raw operator state goes (Flink: ``StateSnapshotContext``)."""

    @abstractmethod
    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Where raw keyed state goes.

        Raises:
            ConfigurationError: The stream has no keys.
        """


class FunctionInitializationContext(ABC):
    """What a function may ask when it starts."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether there is a checkpoint to go on from."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Its id, or None."""

    @abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore:
        """Gives operator state by its descriptor."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Gives keyed state by its descriptor; only where the stream has keys."""

    @abstractmethod
    def get_raw_operator_state_inputs(self) -> Iterable[StatePartitionStreamProvider]:
        """The partitions of raw operator state that this subtask goes on from."""

    @abstractmethod
    def get_raw_keyed_state_inputs(self) -> Iterable[KeyGroupStatePartitionStreamProvider]:
        """The raw keyed state of this subtask's key groups."""


class CheckpointedFunction(ABC):
    """A function with state of its own beside that of keys; for any user function, source or sink writer.

    An epoch here starts as Flink starts after a restore: ``initialize_state`` is called, then ``open``, and what
    the function held in memory alone is gone.
    """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Called at each barrier: the state must now hold all that the function is to go on from."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called once in each subtask before ``open``; the place to get the state."""
