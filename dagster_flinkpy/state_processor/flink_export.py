"""Makes a savepoint of Flink from a savepoint of this library, for the same program in PyFlink's process mode."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.common.typeinfo import ListTypeInfo, PickledBytesTypeInfo, TypeInformation, Types
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.errors import ConfigurationError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.java_encoders import Encode, encoder_of, int32, int64, key_serializer
from dagster_flinkpy.flink_savepoint.python_coders import encoder_of_type
from dagster_flinkpy.flink_savepoint.savepoint import METADATA
from dagster_flinkpy.flink_savepoint.serializers import Serializer
from dagster_flinkpy.flink_savepoint.writer import (
    BYTE_ARRAY,
    MAP_KEY,
    FlinkSavepointWriter,
    KeyedStateWriter,
    WrittenState,
)
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.handles import ROLLING
from dagster_flinkpy.state_processor.flink_columns import name_in_flink, row_hashes
from dagster_flinkpy.state_processor.flink_sources import coordinator_of
from dagster_flinkpy.state_processor.import_report import LeftBehind, left_behind
from dagster_flinkpy.state_processor.reader import SavepointReader
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows, OperatorStateRows, StoredState
from dagster_flinkpy.storage import StorageLocation

__all__ = ["ExportReport", "ExportTarget", "ExportedState", "export_to_flink"]

_ROWS = 200_000
"""Rows that are encoded at once."""
_SIGN = 1 << 63
_WINDOW = Types.TUPLE([Types.LONG(), Types.LONG()])
_NAMESPACES = {None: "VoidNamespace", _WINDOW: "TimeWindow", Types.LONG(): "CountWindow"}
_WRONG = (TypeError, ValueError, AttributeError, OverflowError, ArithmeticError, struct.error)


@dataclass(frozen=True)
class ExportTarget:
    """An operator of the program."""

    uid: str
    ttl_ms: Mapping[str, int | None] = field(default_factory=dict)
    """The time to live of its states in milliseconds, by name."""
    source: Any = None
    """The source, of an operator that reads one."""


@dataclass(frozen=True)
class ExportedState:
    """State that was written."""

    uid: str
    name: str
    flink_name: str
    rows: int
    """Of keyed state: its keys, or for maps its entries; timers; entries of broadcast state; 1 for a position."""


@dataclass(frozen=True)
class ExportReport:
    """What an export did."""

    url: str
    """Flink's savepoint."""
    exported: tuple[ExportedState, ...]
    left_behind: tuple[LeftBehind, ...]


def export_to_flink(
    reader: SavepointReader,
    target: StorageLocation,
    operators: Sequence[ExportTarget],
    *,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ExportReport:
    """Writes a canonical savepoint of Flink. All is looked at before anything is written.

    Args:
        reader: The savepoint.
        target: The folder of Flink's savepoint.
        operators: The operators of the program.
        allow_non_restored_state: Whether to leave behind state that cannot be exported: True for any, or the uids of
            the operators whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be exported. The message names each, and says why.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: The target has a savepoint already.
    """
    store = target.open()
    if store.head(METADATA) is not None:
        raise ConfigurationError(f"{target.url} already has a savepoint; choose another folder")
    targets = {each.uid: each for each in operators}
    plans = [_ExportPlan(reader, each, targets.get(each.uid)) for each in reader.metadata.operators]
    problems = [LeftBehind(plan.uid, text) for plan in plans for text in plan.problems]
    left = left_behind(problems, allow_non_restored_state, "the savepoint has state that cannot be exported to Flink")
    writer = FlinkSavepointWriter(store)
    exported = [state for plan in plans for state in plan.write(writer, on_progress)]
    writer.write()
    return ExportReport(target.url, tuple(exported), left)


class _ExportPlan:
    """What happens to the state of one operator."""

    def __init__(self, reader: SavepointReader, operator: OperatorState, target: ExportTarget | None) -> None:
        self.uid, self._operator = operator.uid, operator
        self._ttls = {} if target is None else target.ttl_ms
        self.problems: list[str] = []
        self._keyed: list[_KeyedExport] = []
        self._broadcast: list[OperatorStateRows] = []
        self._coordinator: bytes | None = None
        if not operator.has_state:
            return
        what = f"operator {self.uid!r}"
        if target is None:
            self.problems.append(f"{what}: no operator of the program has this uid")
        else:
            mine = sorted((each for each in reader.states if each.uid == self.uid), key=lambda each: each.name)
            self._plan(mine, target.source)

    def _plan(self, states: Sequence[StoredState], source: Any) -> None:
        what, operator = f"operator {self.uid!r}", self._operator
        self.problems += [f"{what}: {text}" for has, text in _CANNOT.items() if any(map(has, operator.subtasks))]
        if operator.in_flight:
            self.problems.append(f"{what}: {_IN_FLIGHT}")
        for state in states:
            try:
                if isinstance(state, KeyedStateRows):
                    self._plan_keyed(state)
                elif isinstance(state, OperatorStateRows):
                    self._plan_operator_state(state)
            except UnsupportedSavepointError as error:
                self.problems.append(f"{what}, state {state.name!r}: {error}")
        if operator.coordinator_state is not None:
            try:
                self._coordinator = coordinator_of(source, operator.coordinator_state, what)
            except UnsupportedSavepointError as error:
                self.problems.append(str(error))

    def _plan_keyed(self, state: KeyedStateRows) -> None:
        if not any(table.rows for _, table in state.tables):
            return
        if state.name == ROLLING:
            raise UnsupportedSavepointError(
                "Flink gives the state of sum(), min(), max() and reduce() another name whenever a program is "
                "submitted, so it would not find it"
            )
        self._keyed.append(_KeyedExport(state, self._ttls.get(state.name)))

    def _plan_operator_state(self, state: OperatorStateRows) -> None:
        if state.kind != "BROADCAST":
            raise UnsupportedSavepointError("of operator state, only broadcast state can be exported")
        for kind in state.types.values():
            encoder_of_type(kind)
        self._broadcast.append(state)

    def write(self, writer: FlinkSavepointWriter, on_progress: Callable[[str], None]) -> list[ExportedState]:
        """Writes the state, and returns what it was."""
        exported: list[ExportedState] = []
        if not (self._keyed or self._broadcast or self._coordinator is not None):
            return exported
        broadcast = {name_in_flink(state.name): _pairs(state) for state in self._broadcast}
        for state in self._broadcast:
            name = name_in_flink(state.name)
            exported.append(ExportedState(self.uid, state.name, name, len(broadcast[name])))
        if self._coordinator is not None:
            exported.append(ExportedState(self.uid, "position", "", 1))
        count, key_types = self._operator.max_parallelism, {each.key_type: None for each in self._keyed}
        if not key_types:
            writer.add_operator(self.uid, count, broadcast=broadcast, coordinator=self._coordinator)
            return exported
        (key_type,) = key_types
        with closing(KeyedStateWriter(count, Serializer("Row", (key_serializer(key_type),)))) as keyed:
            for each in self._keyed:
                rows = each.write(keyed, count)
                on_progress(f"{self.uid}.{each.state.name}: {rows:,} rows")
                exported.append(ExportedState(self.uid, each.state.name, each.written.name, rows))
            writer.add_operator(self.uid, count, keyed=keyed, broadcast=broadcast, coordinator=self._coordinator)
        return exported


_IN_FLIGHT = "it has data in flight; stop the job with a savepoint, which has none"
_CANNOT: dict[Callable[[SubtaskState], object], str] = {
    lambda subtask: subtask.channel_state: _IN_FLIGHT,
    lambda subtask: subtask.raw_keyed: "raw keyed state cannot be exported",
    lambda subtask: subtask.committables: "its sink has something left to commit; stop the job with a savepoint",
}
"""What cannot be exported, by what tells whether a subtask has it."""


class _KeyedExport:
    """The export of one keyed state, or of timers.

    Raises:
        UnsupportedSavepointError: PyFlink has no such state.
    """

    def __init__(self, state: KeyedStateRows, ttl_ms: int | None) -> None:
        self.state, types = state, state.types
        self.key_type, self._namespace_type = types["key"], types.get("namespace")
        key = Serializer("Row", (key_serializer(self.key_type),))
        self._key = encoder_of(key)
        if self._namespace_type not in _NAMESPACES:
            raise UnsupportedSavepointError(f"Flink has no windows like {self._namespace_type}")
        namespace = Serializer(_NAMESPACES[self._namespace_type])
        self._namespace = encoder_of(namespace)
        self._ttl = ttl_ms if "expires_at" in state.schema.names else None
        if "expires_at" in state.schema.names and ttl_ms is None:
            raise UnsupportedSavepointError(
                "the program does not say in open() how long it lives, and Flink's savepoint has the time of the last "
                "access instead of the time at which it expires"
            )
        name, element = name_in_flink(state.name), BYTE_ARRAY if self._ttl is None else Serializer("Ttl", (BYTE_ARRAY,))
        if state.kind == "TIMER":
            self.written = WrittenState(name, "", Serializer("Timer", (key, namespace)), namespace)
            return
        value = types["value"]
        self._is_list = state.kind == "LIST"
        if self._is_list:
            assert isinstance(value, ListTypeInfo)
            value = value.elem_type
        self._value = encoder_of_type(value)
        if state.kind == "MAP":
            self._map_key = encoder_of_type(types["map_key"])
            self.written = WrittenState(name, "MAP", Serializer("Map", (MAP_KEY, element)), namespace)
        else:
            self.written = WrittenState(name, "LIST", Serializer("List", (element,)), namespace)

    def write(self, keyed: KeyedStateWriter, max_parallelism: int) -> int:
        """Writes the rows, and returns how many."""
        number, count = keyed.add_state(self.written), 0
        for table in self.state.to_tables():
            for start in range(0, len(table), _ROWS):
                rows = table.slice(start, _ROWS)
                try:
                    count += self._write(keyed, number, rows, max_parallelism)
                except _WRONG as error:
                    raise UnsupportedSavepointError(
                        f"operator {self.state.uid!r}, state {self.state.name!r}: a value cannot be written for Flink: "
                        f"{error}"
                    ) from None
        return count

    def _write(self, keyed: KeyedStateWriter, number: int, rows: pa.Table, max_parallelism: int) -> int:
        groups = key_groups_of_hashes(row_hashes(self.key_type, rows["key"].combine_chunks()), max_parallelism)
        order = np.argsort(groups, kind="stable")
        rows, groups = rows.take(pa.array(order)), groups[order]
        entries = list(self._entries(rows))
        bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(entries)]
        written = 0
        for start, end in itertools.pairwise(bounds):
            found = [each for each in entries[start:end] if each is not None]
            if found:
                keyed.add(number, int(groups[start]), found)
            written += len(found)
        return written

    def _entries(self, rows: pa.Table) -> Iterator[tuple[bytes, bytes] | None]:
        """Yields the key and the value of each row; None for an empty list, which Flink does not keep."""
        columns = {name: _values(kind, rows[name]) for name, kind in self.state.types.items()}
        keys, windows = columns["key"], columns.get("namespace", [None] * len(rows))
        subjects = (self._key((key,)) + self._namespace(window) for key, window in zip(keys, windows, strict=True))
        if not self.written.type:
            for subject, time in zip(subjects, rows["time"].to_pylist(), strict=True):
                yield (time + _SIGN).to_bytes(8, "big") + subject, b""
            return
        expiry = rows["expires_at"].to_pylist() if self._ttl is not None else [None] * len(rows)
        for at, (subject, value, expires) in enumerate(zip(subjects, columns["value"], expiry, strict=True)):
            if self.written.type == "MAP":
                name = self._map_key(columns["map_key"][at])
                yield subject + int32(len(name)) + name, b"\0" + self._element(self._value(value), expires)
            elif not self._is_list:
                yield subject, self._element(self._value(value), expires)
            elif not value:
                yield None
            elif self._ttl is None:  # one array has all elements
                yield subject, self._element(b"".join(map(self._value, value)), None)
            else:
                elements = map(self._element, map(self._value, value), expires)
                yield subject, b",".join(elements)

    def _element(self, encoded: bytes, expires: int | None) -> bytes:
        if self._ttl is None or expires is None:
            return int32(len(encoded)) + encoded
        return int64(expires - self._ttl) + int32(len(encoded)) + encoded


def _pairs(state: OperatorStateRows) -> list[tuple[bytes, bytes]]:
    """Returns the entries of broadcast state."""
    table = state.to_arrow()
    encoders: list[Encode] = [encoder_of_type(state.types[name]) for name in ("key", "value")]
    columns = [_values(state.types[name], table[name]) for name in ("key", "value")]
    try:
        return [(encoders[0](key), encoders[1](value)) for key, value in zip(*columns, strict=True)]
    except _WRONG as error:
        raise UnsupportedSavepointError(
            f"operator {state.uid!r}, broadcast state {state.name!r}: a value cannot be written for Flink: {error}"
        ) from None


def _values(kind: TypeInformation, column: pa.ChunkedArray[Any]) -> list[Any]:
    """Returns the values of a column. Pickled ones stay bytes."""
    element = kind.elem_type if isinstance(kind, ListTypeInfo) else kind
    if isinstance(element, PickledBytesTypeInfo):
        return list(column.to_pylist())
    return list(kind.from_arrow(column.combine_chunks()))
