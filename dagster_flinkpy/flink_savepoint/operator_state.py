"""The operator state of one subtask: lists that are split or united, and broadcast maps.

Source: Flink's ``OperatorStateRestoreOperation``, ``HeapBroadcastState``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.flink_savepoint.header import OperatorHeader, read_operator_header
from dagster_flinkpy.flink_savepoint.keyed_state import DAMAGED
from dagster_flinkpy.flink_savepoint.metadata import OperatorStateOffsets
from dagster_flinkpy.flink_savepoint.serializers import decoder_of
from dagster_flinkpy.flink_savepoint.stored_bytes import StoredBytes

__all__ = ["OperatorFile"]


class OperatorFile:
    """The operator state of one subtask.

    Args:
        offsets: Where the elements of each state are.
        stored: Its bytes.
    """

    def __init__(self, offsets: Mapping[str, OperatorStateOffsets], stored: StoredBytes) -> None:
        self._offsets, self._stored = offsets, stored

    @cached_property
    def _data(self) -> bytes:
        return self._stored.read(0, self._stored.size)

    @cached_property
    def header(self) -> OperatorHeader:
        """The states that it has.

        Raises:
            UnsupportedSavepointError: It is of a version that cannot be read.
            CorruptStateError: It is damaged.
        """
        return read_operator_header(ByteReader(self._data, self._stored.what))

    def mode_of(self, name: str) -> int:
        """Returns how a state is distributed: 0 split, 1 union, 2 broadcast.

        Raises:
            CorruptStateError: The metadata does not name the state.
        """
        if name not in self._offsets:
            raise CorruptStateError(f"{self._stored.what}: the metadata does not name state {name!r}")
        return self._offsets[name].mode

    def elements(self, name: str) -> list[Any]:
        """Returns the elements of a state; of a broadcast state, pairs of key and value.

        Raises:
            UnsupportedSavepointError: They cannot be read.
            CorruptStateError: The file is damaged.
        """
        what = f"{self._stored.what}, state {name!r}"
        state = next((each for each in self.header.states if each.name == name), None)
        if state is None:
            why = "" if self.header.unreadable is None else f": {self.header.unreadable[1]}"
            raise UnsupportedSavepointError(f"{what} cannot be read{why}")
        value, found = decoder_of(state.serializers["VALUE_SERIALIZER"]), []
        key = decoder_of(state.serializers["KEY_SERIALIZER"]) if "KEY_SERIALIZER" in state.serializers else None
        data, offsets = self._data, self._offsets[name].offsets
        try:
            if self.header.compressed and offsets:
                raise UnsupportedSavepointError(f"{what} is compressed, which is not read for operator state")
            for at in offsets:
                if not 0 <= at < len(data):
                    raise ValueError(f"there is no byte {at}")
                if key is None:
                    element, at = value(data, at)
                    found.append(element)
                    continue
                count = ByteReader(data, what)
                count.position = at
                entries = count.count(2)
                at = count.position
                for _ in range(entries):
                    map_key, at = key(data, at)
                    element, at = value(data, at)
                    found.append((map_key, element))
        except DAMAGED as error:
            raise CorruptStateError(f"{what}: {error}") from None
        return found
