"""The state of one subtask: keyed state in the canonical format and the heap's native one, and operator state.

Source: Flink's ``FullSnapshotAsyncWriter``, ``FullSnapshotRestoreOperation``, ``HeapSnapshotStrategy``,
``CompositeKeySerializationUtils``, ``OperatorStateRestoreOperation`` and ``HeapBroadcastState``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NoReturn

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader, Decode
from dagster_flinkpy.flink_savepoint.entries import Entries, read_entries
from dagster_flinkpy.flink_savepoint.header import (
    KeyedHeader,
    OperatorHeader,
    StateHeader,
    read_keyed_header,
    read_operator_header,
)
from dagster_flinkpy.flink_savepoint.metadata import KeyedFormat, KeyedHandle, OperatorStateOffsets
from dagster_flinkpy.flink_savepoint.serializers import Serializer, decoder_of
from dagster_flinkpy.flink_savepoint.stored_bytes import StoredBytes, decompress

__all__ = ["DAMAGED", "KeyedFile", "OperatorFile", "StateRows"]

DAMAGED = (struct.error, IndexError, ValueError, OverflowError, TypeError)
"""What decoders raise of damaged bytes."""

_END_OF_GROUP = 0xFFFF
_PIECE = 16 << 20
"""Bytes that are read at once, if key groups are smaller."""
_SIGN = 1 << 63


@dataclass
class StateRows:
    """Rows of one state in one key group. Each list has one element per row, after :meth:`loaded`."""

    group: int
    keys: list[Any] = field(default_factory=list)
    namespaces: list[Any] = field(default_factory=list)
    map_keys: list[Any] = field(default_factory=list)
    """Of map state: the key of the entry."""
    values: list[Any] = field(default_factory=list)
    """Of list state, a list of elements; of map state, None or the value of the entry; of timers, the time. With a time
    to live, each element or value is a pair: the time of its last access, and the value."""
    entries: Entries | None = None
    """In the canonical format: the rows before they are decoded."""
    load: Callable[[StateRows], None] | None = None
    """What decodes them."""

    def __len__(self) -> int:
        return len(self.keys) if self.entries is None else len(self.entries)

    def loaded(self) -> StateRows:
        """Decodes the rows, if they are not yet.

        Raises:
            CorruptStateError: A row is damaged; the message names the state.
            UnsupportedSavepointError: A value is of a kind that cannot be read.
        """
        if self.load is not None:
            load, self.load = self.load, None
            load(self)
        return self


class KeyedFile:
    """The keyed state of one subtask.

    Args:
        handle: Where it is.
        stored: Its bytes.
        max_parallelism: The number of key groups of the operator.
    """

    def __init__(self, handle: KeyedHandle, stored: StoredBytes, max_parallelism: int) -> None:
        self._handle, self._stored = handle, stored
        self.prefix = 1 if max_parallelism <= 128 else 2
        """How many bytes the key group takes at the beginning of a key."""

    @cached_property
    def header(self) -> KeyedHeader:
        """The states that it has.

        Raises:
            UnsupportedSavepointError: It is in a format that cannot be read.
            CorruptStateError: It is damaged.
        """
        what, handle = self._stored.what, self._handle
        if handle.format not in (KeyedFormat.CANONICAL, KeyedFormat.HEAP_NATIVE):
            raise UnsupportedSavepointError(
                f"{what}: its keyed state is in the {handle.format.value}, which cannot be read. Take the savepoint "
                "again with --type canonical"
            )
        end = min((offset for offset in handle.offsets if offset > 0), default=self._stored.size)
        return read_keyed_header(ByteReader(self._stored.read(0, end), what))

    def rows(self, wanted: Collection[int]) -> Iterator[tuple[int, StateRows]]:
        """Yields the rows of some states, key group by key group.

        Args:
            wanted: Positions of the states in the header.

        Raises:
            UnsupportedSavepointError: Values of a state cannot be read.
            CorruptStateError: The file is damaged; the message names the state.
        """
        header = self.header
        native = self._handle.format is KeyedFormat.HEAP_NATIVE
        readers: dict[int, Callable[..., Any]] = {
            number: (_native if native else _canonical)(header.key, state)
            for number, state in enumerate(header.states)
            if number in wanted or native
        }
        if native and header.unreadable is not None:
            name, problem = header.unreadable
            raise UnsupportedSavepointError(
                f"{self._stored.what}: state {name!r} cannot be read, and in the native format no other state either: "
                f"{problem}. Take the savepoint again with --type canonical"
            )
        for group, data in self._groups():
            if header.compressed:
                what, plain = f"{self._stored.what}, key group {group}", 4 if native else 0  # the number of the group
                data = data[:plain] + decompress(data[plain:], what)
            found = self._native_rows(group, data, readers) if native else self._canonical_rows(group, data, readers)
            yield from ((number, rows) for number, rows in found if number in wanted and len(rows))

    def _groups(self) -> Iterator[tuple[int, bytes]]:
        """Yields the key groups that have something, with their bytes."""
        handle, size = self._handle, self._stored.size
        starts = [(offset, handle.first_group + at) for at, offset in enumerate(handle.offsets) if offset]
        bounds = [offset for offset, _ in starts] + [size]
        if any(a > b for a, b in itertools.pairwise(bounds)) or min(bounds) < 0:
            raise CorruptStateError(f"{self._stored.what}: its key groups are not in order, or beyond its {size} bytes")
        at = 0
        while at < len(starts):
            first, last = at, at + 1
            while last < len(starts) and bounds[last + 1] - bounds[first] <= _PIECE:
                last += 1
            piece = self._stored.read(bounds[first], bounds[last])
            for at in range(first, last):
                yield starts[at][1], piece[bounds[at] - bounds[first] : bounds[at + 1] - bounds[first]]
            at = last

    # --- canonical ----------------------------------------------------------------------------------------------------

    def _canonical_rows(
        self, group: int, data: bytes, readers: dict[int, Callable[..., Any]]
    ) -> Iterator[tuple[int, StateRows]]:
        reader = ByteReader(data, f"{self._stored.what}, key group {group}")
        prefix = group.to_bytes(self.prefix, "big")
        known = len(self.header.states) if self.header.unreadable is None else 0x7FFF
        while (number := int.from_bytes(reader.take(2), "big")) != _END_OF_GROUP:
            if number >= known:
                raise reader.corrupt(f"there is no state of number {number}")
            entries = read_entries(reader, prefix)
            if (read := readers.get(number)) is not None:
                yield number, StateRows(group, entries=entries, load=partial(self._load, reader, number, entries, read))

    def _load(
        self, reader: ByteReader, number: int, entries: Entries, read: Callable[..., Any], rows: StateRows
    ) -> None:
        """Decodes entries one by one."""
        try:
            for at in range(len(entries)):
                key, value = entries.key_and_value(at)
                read(rows, key, self.prefix, value)
        except DAMAGED as error:
            self._damaged(reader, number, error)
        except UnsupportedSavepointError as error:
            self._unsupported(number, error)

    # --- native -------------------------------------------------------------------------------------------------------

    def _native_rows(
        self, group: int, data: bytes, readers: dict[int, Callable[..., Any]]
    ) -> Iterator[tuple[int, StateRows]]:
        reader = ByteReader(data, f"{self._stored.what}, key group {group}")
        if not data:
            return
        if reader.int32() != group:
            raise reader.corrupt("it begins with another key group")
        for _ in self.header.states:
            number = reader.int16()
            if not 0 <= number < len(self.header.states):
                raise reader.corrupt(f"there is no state of number {number}")
            count, rows = reader.count(2), StateRows(group)
            try:
                for _ in range(count):
                    reader.position = readers[number](rows, data, reader.position)
            except DAMAGED as error:
                self._damaged(reader, number, error)
            except UnsupportedSavepointError as error:
                self._unsupported(number, error)
            if reader.left < 0:
                raise reader.corrupt("it ends in a row")
            yield number, rows

    def _damaged(self, reader: ByteReader, number: int, error: BaseException) -> NoReturn:
        raise reader.corrupt(f"state {self.header.states[number].name!r}: {error}") from None

    def _unsupported(self, number: int, error: BaseException) -> NoReturn:
        name = self.header.states[number].name
        raise UnsupportedSavepointError(f"{self._stored.what}: state {name!r}: {error}") from None


def _time(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the time of a timer, whose sign is flipped so that bytes sort like times."""
    return int.from_bytes(data[at : at + 8], "big") - _SIGN, at + 8


def _whole(value: Any, at: int, data: bytes) -> Any:
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left after a value")
    return value


def _canonical(key_serializer: Serializer, state: StateHeader) -> Callable[..., None]:
    """Returns the function that adds the row of an entry."""
    key = decoder_of(key_serializer)
    if state.is_timers:
        namespace = decoder_of(state.serializers["VALUE_SERIALIZER"].parts[1])

        def read_timer(rows: StateRows, data: bytes, at: int, value: bytes) -> None:
            time, at = _time(data, at)
            found, at = key(data, at)
            window, at = namespace(data, at)
            rows.values.append(_whole(time, at, data))
            rows.keys.append(found)
            rows.namespaces.append(window)

        return read_timer
    namespace = decoder_of(state.serializers["NAMESPACE_SERIALIZER"])
    map_key, read_value = _values_of(state)

    def read_entry(rows: StateRows, data: bytes, at: int, value: bytes) -> None:
        found, at = key(data, at)
        window, at = namespace(data, at)
        if map_key is not None:
            name, at = map_key(data, at)
            rows.map_keys.append(name)
        rows.values.append(read_value(value))
        _whole(None, at, data)
        rows.keys.append(found)
        rows.namespaces.append(window)

    return read_entry


def _values_of(state: StateHeader) -> tuple[Decode | None, Callable[[bytes], Any]]:
    """Returns what decodes the key of a map's entry, or None, and what decodes a value of the canonical format."""
    serializer = state.serializers["VALUE_SERIALIZER"]
    if state.state_type == "LIST":
        return None, _listed(decoder_of(_element(serializer)))
    if state.state_type == "MAP":
        return decoder_of(serializer.parts[0]), _entry(decoder_of(serializer.parts[1]))
    plain = decoder_of(serializer)
    return None, lambda data: _whole(*plain(data, 0), data)


def _element(serializer: Serializer) -> Serializer:
    """Returns the serializer of the elements of a list."""
    return serializer.parts[0] if serializer.kind == "List" else serializer


def _listed(element: Decode) -> Callable[[bytes], list[Any]]:
    def read(data: bytes) -> list[Any]:
        values, at = [], 0
        while True:
            value, at = element(data, at)
            values.append(value)
            if at == len(data):
                return values
            if data[at] != 0x2C:  # a comma
                raise ValueError("the elements of a list are not separated")
            at += 1

    return read


def _entry(element: Decode) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        return _whole(None, 1, data) if data[0] else _whole(*element(data, 1), data)

    return read


def _native(key_serializer: Serializer, state: StateHeader) -> Callable[[StateRows, bytes, int], int]:
    """Returns the function that adds the rows of an entry and returns the position after it."""
    key = decoder_of(key_serializer)
    if state.is_timers:
        namespace = decoder_of(state.serializers["VALUE_SERIALIZER"].parts[1])

        def read_timer(rows: StateRows, data: bytes, at: int) -> int:
            time, at = _time(data, at)
            found, at = key(data, at)
            window, at = namespace(data, at)
            _add(rows, found, window, [time])
            return at

        return read_timer
    namespace = decoder_of(state.serializers["NAMESPACE_SERIALIZER"])
    value = decoder_of(state.serializers["VALUE_SERIALIZER"])
    is_map = state.state_type == "MAP"

    def read_entry(rows: StateRows, data: bytes, at: int) -> int:
        window, at = namespace(data, at)
        found, at = key(data, at)
        held, at = value(data, at)
        if is_map:
            rows.map_keys.extend(held)
        _add(rows, found, window, list(held.values()) if is_map else [held])
        return at

    return read_entry


def _add(rows: StateRows, key: Any, namespace: Any, values: Sequence[Any]) -> None:
    rows.keys.extend([key] * len(values))
    rows.namespaces.extend([namespace] * len(values))
    rows.values.extend(values)


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
