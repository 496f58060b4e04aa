"""A savepoint of Flink: its metadata and the files of its operators."""

from __future__ import annotations

from dagster_flinkpy.errors import ObjectNotFoundError
from dagster_flinkpy.flink_savepoint.metadata import (
    FlinkMetadata,
    FlinkOperator,
    FlinkSubtask,
    StreamHandle,
    is_flink_metadata,
    read_metadata,
)
from dagster_flinkpy.flink_savepoint.stored_bytes import StoredBytes
from dagster_flinkpy.flink_savepoint.subtask_state import KeyedFile, OperatorFile
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["METADATA", "FlinkSavepoint", "is_flink_savepoint", "name_of"]

METADATA = "_metadata"


def is_flink_savepoint(location: StorageLocation) -> bool:
    """Returns whether a folder has a savepoint of Flink. Reads four bytes."""
    store = location.open()
    return store.head(METADATA) is not None and is_flink_metadata(store.get_range(METADATA, 0, 4))


class FlinkSavepoint:
    """A savepoint of Flink. Nothing outside of its folder is read.

    Args:
        location: Its folder.

    Raises:
        ObjectNotFoundError: There is no ``_metadata`` in it.
        CorruptMetadataError: The metadata is damaged.
        UnsupportedSavepointError: It cannot be read.
    """

    def __init__(self, location: StorageLocation) -> None:
        self.location = location
        self._store: ObjectStore = location.open()
        try:
            data, _ = self._store.get(METADATA)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"{location.url} is not a savepoint of Flink: it has no {METADATA}. Give the folder that contains that "
                "file."
            ) from error
        self.metadata: FlinkMetadata = read_metadata(data)

    def keyed_file(self, operator: FlinkOperator, subtask: FlinkSubtask) -> KeyedFile | None:
        """Returns the keyed state of a subtask, or None if it has none."""
        if subtask.keyed is None:
            return None
        return KeyedFile(subtask.keyed, self._bytes(operator, subtask, subtask.keyed.stream), operator.max_parallelism)

    def operator_file(self, operator: FlinkOperator, subtask: FlinkSubtask) -> OperatorFile | None:
        """Returns the operator state of a subtask, or None if it has none."""
        if not subtask.operator_state:
            return None
        return OperatorFile(subtask.operator_state, self._bytes(operator, subtask, subtask.operator_stream))

    def coordinator_state(self, operator: FlinkOperator) -> bytes:
        """Returns what the coordinator of an operator remembers; empty if it has none.

        Raises:
            CorruptStateError: The file is missing or damaged.
        """
        stored = StoredBytes(self._store, operator.coordinator, f"{name_of(operator)}, coordinator")
        return stored.read(0, stored.size)

    def _bytes(self, operator: FlinkOperator, subtask: FlinkSubtask, stream: StreamHandle | None) -> StoredBytes:
        return StoredBytes(self._store, stream, f"{name_of(operator)}, subtask {subtask.index}")


def name_of(operator: FlinkOperator) -> str:
    """Returns what an operator is called in messages."""
    return f"operator {(operator.uid or operator.name or operator.id)!r}"
