"""Raw state: bytes that a function reads and writes itself, by partition or by key group."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from dagster_flinkpy.datastream.checkpointed_function import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
)
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["RawKeyedStateOutput", "RawOperatorStateOutput", "RawPartition"]


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
