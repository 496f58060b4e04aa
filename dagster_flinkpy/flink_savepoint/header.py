"""The header of a file with state: which states follow, and by which serializers they are written.

Source: Flink's ``KeyedBackendSerializationProxy``, ``OperatorBackendSerializationProxy``,
``StateMetaInfoSnapshotReadersWriters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.flink_savepoint.serializers import Serializer, read_serializer

__all__ = ["KeyedHeader", "OperatorHeader", "StateHeader", "read_keyed_header", "read_operator_header"]

_KEYED_VERSION = 6
_OPERATOR_VERSIONS = (5, 6)
_KEY_VALUE, _OPERATOR, _BROADCAST, _PRIORITY_QUEUE = range(4)


@dataclass(frozen=True)
class StateHeader:
    """One state, as the header describes it."""

    name: str
    kind: int
    """0: key/value, 1: operator, 2: broadcast, 3: priority queue."""
    options: Mapping[str, str]
    serializers: Mapping[str, Serializer]

    @property
    def is_timers(self) -> bool:
        """Whether these are timers."""
        return self.kind == _PRIORITY_QUEUE

    @property
    def state_type(self) -> str:
        """Its kind for Java: ``VALUE``, ``LIST``, ``MAP``, ``REDUCING`` or ``AGGREGATING``; empty for timers."""
        return "" if self.is_timers else self.options.get("KEYED_STATE_TYPE", "")


@dataclass(frozen=True)
class OperatorHeader:
    """The header of operator state."""

    compressed: bool
    states: tuple[StateHeader, ...]
    """The states that can be read, in the order of their numbers."""
    unreadable: tuple[str, str] | None
    """Name of the first state that cannot be read, and why; those after it are unknown."""


@dataclass(frozen=True)
class KeyedHeader(OperatorHeader):
    """The header of keyed state."""

    key: Serializer


def read_keyed_header(reader: ByteReader) -> KeyedHeader:
    """Reads the header of keyed state.

    Raises:
        UnsupportedSavepointError: It is of another version, or its keys cannot be read.
        CorruptStateError: It is damaged.
    """
    if (version := reader.int32()) != _KEYED_VERSION:
        raise UnsupportedSavepointError(f"{reader.what}: its header has version {version}; 6 is the one that is known")
    compressed = reader.flag()
    try:
        key = read_serializer(reader)
    except UnsupportedSavepointError as error:
        raise UnsupportedSavepointError(f"{reader.what}: the keys: {error}") from None
    states, unreadable = _states(reader, _count(reader), (_KEY_VALUE, _PRIORITY_QUEUE))
    return KeyedHeader(compressed, states, unreadable, key)


def read_operator_header(reader: ByteReader) -> OperatorHeader:
    """Reads the header of operator state.

    Raises:
        UnsupportedSavepointError: It is of another version.
        CorruptStateError: It is damaged.
    """
    if (version := reader.int32()) not in _OPERATOR_VERSIONS:
        raise UnsupportedSavepointError(f"{reader.what}: its header has version {version}; 5 and 6 are known")
    compressed = version > 5 and reader.flag()
    states, unreadable = _states(reader, _count(reader), (_OPERATOR,))
    if unreadable is None:
        more, unreadable = _states(reader, _count(reader), (_BROADCAST,))
        states = (*states, *more)
    return OperatorHeader(compressed, states, unreadable)


def _count(reader: ByteReader) -> int:
    return reader.check_count(reader.int16(), 10)


def _states(
    reader: ByteReader, count: int, kinds: tuple[int, ...]
) -> tuple[tuple[StateHeader, ...], tuple[str, str] | None]:
    states: list[StateHeader] = []
    for _ in range(count):
        name, kind = reader.utf(), reader.int32()
        if kind not in kinds:
            if kind == 4:
                return tuple(states), (name, "it is state of Flink's asynchronous API (version 2)")
            raise reader.corrupt(f"state {name!r} is of kind {kind}")
        options = {reader.utf(): reader.utf() for _ in range(reader.count(4))}
        serializers = {}
        for _ in range(reader.count(8)):
            role = reader.utf()
            try:
                serializers[role] = read_serializer(reader)
            except UnsupportedSavepointError as error:
                return tuple(states), (name, str(error))
        header = StateHeader(name, kind, options, serializers)
        _check(reader, header)
        states.append(header)
    return tuple(states), None


_ROLES = {
    _KEY_VALUE: {"VALUE_SERIALIZER", "NAMESPACE_SERIALIZER"},
    _OPERATOR: {"VALUE_SERIALIZER"},
    _BROADCAST: {"KEY_SERIALIZER", "VALUE_SERIALIZER"},
    _PRIORITY_QUEUE: {"VALUE_SERIALIZER"},
}


def _check(reader: ByteReader, header: StateHeader) -> None:
    if header.serializers.keys() != _ROLES[header.kind]:
        raise CorruptStateError(f"{reader.what}: state {header.name!r} has serializers of {sorted(header.serializers)}")
    kind = header.serializers["VALUE_SERIALIZER"].kind
    wanted = {"LIST": "List", "MAP": "Map"}.get(header.state_type, "Timer" if header.is_timers else kind)
    if kind != wanted and not (wanted == "List" and kind == "Ttl"):
        raise CorruptStateError(f"{reader.what}: state {header.name!r} is {header.state_type}, but written by {kind}")
