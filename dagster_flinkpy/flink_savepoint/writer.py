"""Writes savepoints of Flink in the canonical format, as PyFlink's process mode has them.

An operator is written as if it had one subtask. Flink deals out its key groups when it resumes at another parallelism.

Source: Flink's ``MetadataV3Serializer``, which all since 1.11 read; ``FullSnapshotAsyncWriter``,
``KeyedBackendSerializationProxy``, ``OperatorBackendSerializationProxy``.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dagster_flinkpy.flink_savepoint.java_encoders import int32, int64, snapshot_of, utf
from dagster_flinkpy.flink_savepoint.metadata import operator_id
from dagster_flinkpy.flink_savepoint.serializers import Serializer
from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.object_store import UploadedPart

__all__ = ["BYTE_ARRAY", "MAP_KEY", "FlinkSavepointWriter", "KeyedStateWriter", "WrittenState"]

BYTE_ARRAY, MAP_KEY = Serializer("BytePrimitiveArray"), Serializer("Bytes")

_METADATA, _MAGIC, _VERSION = "_metadata", 0x4960672D, 3
_HEADER_VERSION = 6
_KEY_VALUE, _BROADCAST, _PRIORITY_QUEUE = 0, 2, 3
_END_OF_STATE, _END_OF_GROUP = 0x80, b"\xff\xff"
_PIECE = 16 << 20
"""Bytes of a file that are sent at once."""


@dataclass(frozen=True)
class WrittenState:
    """A keyed state, or timers, of an operator."""

    name: str
    """Its name in Flink."""
    type: str
    """``LIST`` or ``MAP``; empty for timers."""
    value: Serializer
    """The serializer of the list, of the map, or of the timers."""
    namespace: Serializer

    def header(self) -> bytes:
        """Returns what the header says of it."""
        if not self.type:
            return _state(self.name, _PRIORITY_QUEUE, {}, {"VALUE_SERIALIZER": self.value})
        serializers = {"VALUE_SERIALIZER": self.value, "NAMESPACE_SERIALIZER": self.namespace}
        return _state(self.name, _KEY_VALUE, {"KEYED_STATE_TYPE": self.type}, serializers)


def _state(name: str, kind: int, options: Mapping[str, str], serializers: Mapping[str, Serializer]) -> bytes:
    parts = [utf(name), int32(kind), int32(len(options))]
    parts += [utf(each) for option in options.items() for each in option]
    parts.append(int32(len(serializers)))
    parts += [utf(role) + snapshot_of(each) for role, each in serializers.items()]
    return b"".join(parts)


class KeyedStateWriter:
    """Collects the entries of an operator in a temporary file, since they come in another order than Flink's.

    Args:
        max_parallelism: The number of key groups.
        key: The serializer of the keys.
    """

    def __init__(self, max_parallelism: int, key: Serializer) -> None:
        self._max_parallelism, self._key = max_parallelism, key
        self.prefix_bytes = 1 if max_parallelism <= 128 else 2
        self._states: list[WrittenState] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the writer
        self._size = 0
        self._runs: dict[int, dict[int, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
        """By key group and state: where entries are in the file, how many bytes, and where the last one begins."""

    def close(self) -> None:
        """Deletes the temporary file."""
        self._file.close()

    def add_state(self, state: WrittenState) -> int:
        """Adds a state and returns its number."""
        self._states.append(state)
        return len(self._states) - 1

    def add(self, number: int, group: int, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds entries of a state, at least one.

        Args:
            number: The number of the state.
            group: Their key group.
            entries: Keys with namespaces, without the group; and values.
        """
        prefix = group.to_bytes(self.prefix_bytes, "big")
        written, last = bytearray(), 0
        for key, value in entries:
            last = len(written)
            written += int32(len(prefix) + len(key)) + prefix + key + int32(len(value)) + value
        self._file.write(written)
        self._runs[group][number].append((self._size, len(written), last))
        self._size += len(written)

    def pieces(self) -> Iterator[bytes]:
        """Yields the bytes of the file, and fills :attr:`offsets`."""
        header = int32(_HEADER_VERSION) + b"\0" + snapshot_of(self._key) + len(self._states).to_bytes(2, "big")
        header += b"".join(state.header() for state in self._states)
        self.offsets = [0] * self._max_parallelism
        position = len(header)
        yield header
        for group in sorted(self._runs):
            self.offsets[group] = position
            for number, runs in self._runs[group].items():
                yield number.to_bytes(2, "big")
                position += 2
                for run in runs:
                    yield self._read(*run, is_last=run is runs[-1])
                    position += run[1]
            yield _END_OF_GROUP
            position += len(_END_OF_GROUP)

    def _read(self, start: int, size: int, last: int, *, is_last: bool) -> bytes:
        self._file.seek(start)
        data = bytearray(self._file.read(size))
        if is_last:
            data[last + 4] |= _END_OF_STATE  # in the key group of the last key
        return bytes(data)


class FlinkSavepointWriter:
    """Writes a savepoint of Flink.

    Args:
        store: Its folder.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._operators: list[bytes] = []

    def add_operator(
        self,
        uid: str,
        max_parallelism: int,
        *,
        keyed: KeyedStateWriter | None = None,
        broadcast: Mapping[str, Iterable[tuple[bytes, bytes]]] | None = None,
        coordinator: bytes | None = None,
    ) -> None:
        """Writes the files of an operator.

        Args:
            uid: Its uid.
            max_parallelism: Its number of key groups.
            keyed: Its keyed state and timers. Default: none.
            broadcast: Broadcast state by its name in Flink: keys and values. Default: none.
            coordinator: The state of its coordinator. Default: none.
        """
        name = operator_id(uid)
        operator_state = int32(0) if not broadcast else self._operator_state(f"{name}-broadcast", broadcast)
        keyed_state = b"\0" if keyed is None else self._keyed_state(f"{name}-keyed", keyed)
        subtask = int32(0) + operator_state + int32(0) + keyed_state + b"\0" + int32(0) + int32(0)
        parts = [bytes.fromhex(name), int32(1), int32(max_parallelism)]
        parts.append(b"\0" if coordinator is None else b"\1" + utf(uid) + int32(len(coordinator)) + coordinator)
        self._operators.append(b"".join((*parts, int32(1), subtask)))

    def write(self) -> None:
        """Writes ``_metadata``, which makes the savepoint complete."""
        head = int32(_MAGIC) + int32(_VERSION) + int64(1) + int32(0) + int32(len(self._operators))
        self._store.put(_METADATA, head + b"".join(self._operators), if_none_match=True)

    def _keyed_state(self, path: str, keyed: KeyedStateWriter) -> bytes:
        size = self._put(path, keyed.pieces())
        offsets = b"".join(map(int64, keyed.offsets))
        return b"\7" + int32(0) + int32(len(keyed.offsets)) + offsets + _file(path, size)

    def _operator_state(self, path: str, states: Mapping[str, Iterable[tuple[bytes, bytes]]]) -> bytes:
        serializers = {"VALUE_SERIALIZER": BYTE_ARRAY, "KEY_SERIALIZER": MAP_KEY}
        options = {"OPERATOR_STATE_DISTRIBUTION_MODE": "BROADCAST"}
        data = int32(_HEADER_VERSION) + b"\0" + bytes(2) + len(states).to_bytes(2, "big")
        data += b"".join(_state(name, _BROADCAST, options, serializers) for name in states)
        handle = b"\4" + int32(len(states))
        for name, entries in states.items():
            pairs = list(entries)
            handle += utf(name) + b"\2" + int32(1) + int64(len(data))
            data += int32(len(pairs)) + b"".join(int32(len(each)) + each for pair in pairs for each in pair)
        return int32(1) + handle + _file(path, self._put(path, [data]))

    def _put(self, path: str, pieces: Iterable[bytes]) -> int:
        """Writes a file, a part at a time, and returns its size."""
        parts: list[UploadedPart] = []
        size, waiting, upload = 0, bytearray(), ""
        for piece in pieces:
            size += len(piece)
            waiting += piece
            if len(waiting) >= _PIECE:
                upload = upload or self._store.create_upload(path)
                parts.append(self._store.upload_part(path, upload, len(parts) + 1, waiting))
                waiting = bytearray()
        if not upload:
            self._store.put(path, bytes(waiting), if_none_match=True)
            return size
        if waiting:
            parts.append(self._store.upload_part(path, upload, len(parts) + 1, waiting))
        self._store.complete_upload(path, upload, parts)
        return size


def _file(path: str, size: int) -> bytes:
    return b"\6" + utf(path) + int64(size)
