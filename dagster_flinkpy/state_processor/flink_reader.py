"""Reads the state in a savepoint of Flink, as `reader` reads the library's own savepoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateDescriptor
from dagster_flinkpy.errors import CorruptStateError, RestoreError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.header import StateHeader
from dagster_flinkpy.flink_savepoint.metadata import FlinkMetadata, FlinkOperator
from dagster_flinkpy.flink_savepoint.python_coders import coder_of
from dagster_flinkpy.flink_savepoint.savepoint import FlinkSavepoint, name_of
from dagster_flinkpy.flink_savepoint.serializers import Serializer, type_of
from dagster_flinkpy.flink_savepoint.subtask_state import DAMAGED, KeyedFile, OperatorFile
from dagster_flinkpy.state.handles import ROLLING
from dagster_flinkpy.state.views import kind_of
from dagster_flinkpy.state_processor.flink_columns import (
    PYTHON_PREFIX,
    DeclaredState,
    FlinkColumns,
    not_of_types,
    stored_name,
    whole,
)
from dagster_flinkpy.state_processor.stored_state import OperatorRows, StatesByName, StoredState
from dagster_flinkpy.storage import StorageLocation

__all__ = [
    "Declarations",
    "FlinkKeyedRows",
    "FlinkOperatorRows",
    "FlinkSavepointReader",
    "Unreadable",
    "declarations_of",
]

_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
_MODES = ("SPLIT_DISTRIBUTE", "UNION", "BROADCAST")


@dataclass(frozen=True)
class FlinkKeyedRows(StoredState):
    """Keyed state or timers of a savepoint of Flink. :class:`FlinkSavepointReader` creates it.

    The column ``key_group`` is the group in Flink. Of state with a time to live, ``last_access`` is when each value was
    written last, in milliseconds since 1970; if the program's types are known, it is ``expires_at`` instead.
    """

    header: StateHeader
    key_serializer: Serializer
    max_parallelism: int
    parts: tuple[tuple[int, KeyedFile, int], ...]
    """Each subtask with its file, and the number of the state in it."""
    declared: DeclaredState | None = None
    keys: frozenset[str] | None = None
    """The keys to read, or None for all; each by its ``repr``, which tells 0.0 from -0.0, and finds NaN."""

    @cached_property
    def columns(self) -> FlinkColumns:
        """How its rows become columns.

        Raises:
            TypeMismatchError: The program declares another type.
            UnsupportedSavepointError: Its values cannot be read.
        """
        what = f"operator {self.uid!r}, state {self.name!r}"
        return FlinkColumns(what, self.header, self.key_serializer, self.max_parallelism, self.declared)

    @property
    def in_python(self) -> bool:
        """Whether PyFlink's process mode wrote it, and its types are not known."""
        return self.declared is None and self.header.name.startswith(PYTHON_PREFIX)

    @property
    def kind(self) -> str:
        """As the savepoint says; process mode calls all but maps and timers LIST. With a program, as that says."""
        kind: str = self.columns.kind
        return kind

    @property
    def types(self) -> Mapping[str, TypeInformation]:
        return self.columns.layout.types

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("key_group", pa.int32()), *self.columns.fields])

    @property
    def subtasks(self) -> tuple[int, ...]:
        return tuple(subtask for subtask, _, _ in self.parts)

    def has_rows(self) -> bool:
        """Returns whether there are any.

        Raises:
            CorruptStateError: The file is missing or damaged; the message names it.
            UnsupportedSavepointError: Its values cannot be read.
        """
        return any(next(file.rows([number]), None) is not None for _, file, number in self.parts)

    def groups_of(self, position: int) -> Iterator[tuple[int, dict[str, pa.Array[Any]]]]:
        """Yields the key groups of one of :attr:`subtasks` with their columns, one at a time.

        Raises:
            CorruptStateError: The file is missing or damaged; the message names it.
            UnsupportedSavepointError: Its values cannot be read.
        """
        _, file, number = self.parts[position]
        for _, rows in file.rows([number]):
            yield rows.group, self.columns.columns(rows)

    def read_subtask(self, position: int) -> pa.Table:
        tables = [self.schema.empty_table()]
        for group, columns in self.groups_of(position):
            count = len(columns["key"])
            columns = {"key_group": pa.array([group] * count, pa.int32()), **columns}
            table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
            if self.keys is not None:
                found = self.columns.key_type.from_arrow(columns["key"])
                table = table.filter(pa.array([repr(key) in self.keys for key in found], pa.bool_()))
            tables.append(table)
        return pa.concat_tables(tables)

    def for_keys(self, keys: Iterable[Any]) -> FlinkKeyedRows:
        if not isinstance(keys, pa.Array):
            keys = self.columns.key_type.to_arrow(list(keys))
        return replace(self, keys=frozenset(map(repr, self.columns.key_type.from_arrow(keys))))


@dataclass(frozen=True)
class FlinkOperatorRows(OperatorRows):
    """Operator state of a savepoint of Flink. :class:`FlinkSavepointReader` creates it."""

    header: StateHeader
    mode: int
    parts: tuple[tuple[int, OperatorFile], ...]
    declared: MapStateDescriptor | None = None
    """Of broadcast state: its descriptor in the program."""

    @property
    def kind(self) -> str:
        return _MODES[self.mode]

    @property
    def types(self) -> Mapping[str, TypeInformation]:
        if self.declared is not None:
            return {"key": self.declared.key_type_info, "value": self.declared.value_type_info}
        serializers = self.header.serializers
        types = {"value": type_of(serializers["VALUE_SERIALIZER"]) or _BYTES}
        if "KEY_SERIALIZER" in serializers:
            types = {"key": type_of(serializers["KEY_SERIALIZER"]) or _BYTES, **types}
        return types

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, kind.arrow_type) for name, kind in self.types.items()])

    @property
    def subtasks(self) -> tuple[int, ...]:
        # Broadcast state is the same in all subtasks.
        return tuple(subtask for subtask, _ in (self.parts[:1] if self.mode == 2 else self.parts))

    def elements(self, position: int) -> list[Any]:
        """Returns the elements in one of :attr:`subtasks`; of broadcast state, pairs of key and value.

        Raises:
            CorruptStateError: The file is missing or damaged, or subtasks have different broadcast state.
            UnsupportedSavepointError: They cannot be read.
        """
        found = self.parts[position][1].elements(self.header.name)
        if self.mode == 2:
            for subtask, file in self.parts:
                if sorted(map(repr, file.elements(self.header.name))) != sorted(map(repr, found)):
                    raise CorruptStateError(
                        f"operator {self.uid!r}: broadcast state {self.name!r} of subtask {subtask} differs from that "
                        f"of subtask {self.parts[position][0]}"
                    )
        if self.declared is None:
            return found
        coders = [whole(coder_of(kind)) for kind in self.types.values()]
        try:
            return [tuple(coder(part) for coder, part in zip(coders, each, strict=True)) for each in found]
        except DAMAGED as error:
            problem = not_of_types(error, *self.types.values())
            raise CorruptStateError(f"operator {self.uid!r}, broadcast state {self.name!r}: {problem}") from None

    def read_subtask(self, position: int) -> pa.Table:
        found = self.elements(position)
        columns: list[list[Any]] = [list(each) for each in zip(*found, strict=True)] if self.mode == 2 else [found]
        arrays = [
            kind.to_arrow(column)
            for kind, column in zip(self.types.values(), columns or [[]] * len(self.types), strict=True)
        ]
        return pa.table(arrays, schema=self.schema)


@dataclass(frozen=True)
class Unreadable:
    """State that is in the savepoint, but cannot be read."""

    operator: FlinkOperator
    state: str
    """Its name; empty for all keyed, or all operator state of an operator."""
    problem: str
    """Why not, and what to do."""


@dataclass(frozen=True)
class Declarations:
    """What a program declares."""

    keyed: Mapping[str, Sequence[DeclaredState]] = field(default_factory=dict)
    """Keyed state by uid."""
    broadcast: Mapping[str, Sequence[MapStateDescriptor]] = field(default_factory=dict)
    """Broadcast state by uid."""


class FlinkSavepointReader(StatesByName):
    """The operators of a savepoint of Flink and their states. Use :func:`read_savepoint` to create one.

    An operator is called by its uid; before Flink 2, and without one, by its id.

    Args:
        savepoint: The savepoint.
        declared: What the program declares. Default: nothing, so PyFlink's values stay bytes.
    """

    def __init__(self, savepoint: FlinkSavepoint, declared: Declarations | None = None) -> None:
        self.savepoint, self._declared = savepoint, declared or Declarations()
        self._uids = {
            operator.id: uid
            for uid in {*self._declared.keyed, *self._declared.broadcast}
            if (operator := savepoint.metadata.operator(uid)) is not None
        }

    @property
    def location(self) -> StorageLocation:
        """The folder of the savepoint."""
        return self.savepoint.location

    @property
    def metadata(self) -> FlinkMetadata:
        """The contents of ``_metadata``."""
        return self.savepoint.metadata

    @property
    def operators(self) -> tuple[str, ...]:
        """What the operators are called."""
        return tuple(map(self.uid_of, self.metadata.operators))

    def uid_of(self, operator: FlinkOperator) -> str:
        """Returns what an operator is called: its uid if it is known, or else its id."""
        return operator.uid or self._uids.get(operator.id) or operator.id

    @cached_property
    def states(self) -> tuple[StoredState, ...]:
        """All states that can be read; :attr:`unreadable` has the others.

        Raises:
            CorruptStateError: A file is missing or damaged.
        """
        return tuple(state for operator in self.metadata.operators for state in self.states_of(operator)[0])

    @cached_property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """The states that cannot be read.

        Raises:
            CorruptStateError: A file is missing or damaged.
        """
        return tuple(each for operator in self.metadata.operators for each in self.states_of(operator)[1])

    def state(self, uid: str, name: str) -> StoredState:
        """Returns a state by the uid of its operator and its name, without what process mode puts before it.

        Raises:
            RestoreError: There is no such operator or state; the message lists the existing ones.
            UnsupportedSavepointError: The state cannot be read.
            CorruptStateError: A file is missing or damaged.
        """
        operator = self.metadata.operator(uid)
        if operator is None:
            known = ", ".join(sorted(self.operators))
            raise RestoreError(f"no operator has uid {uid!r}; the operators are: {known}")
        found, unreadable = self.states_of(operator)
        for state in found:
            if state.name == name:
                return state
        for each in unreadable:
            if each.state in ("", name) or stored_name(each.state) == name or not found:
                raise UnsupportedSavepointError(each.problem)
        names = ", ".join(state.name for state in found) or "none"
        hidden = "".join(f"; {each.problem}" for each in unreadable)
        raise RestoreError(f"operator {uid!r} has no state {name!r}; it has: {names}{hidden}")

    def states_of(self, operator: FlinkOperator) -> tuple[list[StoredState], list[Unreadable]]:
        """Returns the states of an operator, and those that cannot be read.

        Raises:
            CorruptStateError: A file is missing or damaged.
        """
        unreadable: dict[str, Unreadable] = {}
        keyed: dict[str, FlinkKeyedRows] = {}
        others: dict[str, FlinkOperatorRows] = {}
        for subtask in operator.subtasks:
            for kind in subtask.raw:
                unreadable[kind] = Unreadable(operator, "", f"{name_of(operator)} has {kind}, which cannot be read")
            try:
                if (file := self.savepoint.keyed_file(operator, subtask)) is not None:
                    self._add_keyed(operator, subtask.index, file, keyed, unreadable)
                if (own := self.savepoint.operator_file(operator, subtask)) is not None:
                    self._add_others(operator, subtask.index, own, others, unreadable)
            except UnsupportedSavepointError as error:
                unreadable[""] = Unreadable(operator, "", str(error))
        return [*keyed.values(), *others.values()], list(unreadable.values())

    def _add_keyed(
        self,
        operator: FlinkOperator,
        subtask: int,
        file: KeyedFile,
        keyed: dict[str, FlinkKeyedRows],
        unreadable: dict[str, Unreadable],
    ) -> None:
        uid = self.uid_of(operator)
        header = file.header
        declared = {each.name: each for each in self._declared.keyed.get(uid, ())}
        keys = next((each.key_type for each in declared.values() if each.key_type is not None), None)
        for number, state in enumerate(header.states):
            name = stored_name(state.name)
            if state.is_timers and keys is not None:
                declared.setdefault(name, DeclaredState(name, "TIMER", None, key_type=keys))
            new = FlinkKeyedRows(
                uid,
                name,
                self.location,
                state,
                header.key,
                operator.max_parallelism,
                (),
                declared.get(name) or declared.get(_rolling(state.name)),
            )
            known = keyed.setdefault(state.name, new)
            if replace(new, parts=known.parts) != known:
                raise CorruptStateError(f"{name_of(operator)}: state {name!r} has other types in subtask {subtask}")
            keyed[state.name] = replace(known, parts=(*known.parts, (subtask, file, number)))
        self._note(operator, header.unreadable, unreadable)

    def _add_others(
        self,
        operator: FlinkOperator,
        subtask: int,
        file: OperatorFile,
        others: dict[str, FlinkOperatorRows],
        unreadable: dict[str, Unreadable],
    ) -> None:
        uid = self.uid_of(operator)
        declared = {each.name: each for each in self._declared.broadcast.get(uid, ())}
        for state in file.header.states:
            name, mode = stored_name(state.name), file.mode_of(state.name)
            new = FlinkOperatorRows(
                uid, name, self.location, state, mode, (), declared.get(name) if mode == 2 else None
            )
            known = others.setdefault(state.name, new)
            others[state.name] = replace(known, parts=(*known.parts, (subtask, file)))
        self._note(operator, file.header.unreadable, unreadable)

    def _note(self, operator: FlinkOperator, found: tuple[str, str] | None, unreadable: dict[str, Unreadable]) -> None:
        if found is not None:
            name, problem = found
            text = f"{name_of(operator)}, state {name!r} and those after it: {problem}"
            unreadable[name] = Unreadable(operator, name, text)


def declarations_of(descriptors: Mapping[str, Iterable[StateDescriptor]]) -> Declarations:
    """Returns what descriptors of state say, by the uid of their operators.

    Raises:
        ConfigurationError: One of them is not a descriptor of keyed or broadcast state.
    """
    listed = {uid: list(each) for uid, each in descriptors.items()}
    keyed = {uid: [_declared(descriptor) for descriptor in each] for uid, each in listed.items()}
    maps = {uid: [each for each in mine if isinstance(each, MapStateDescriptor)] for uid, mine in listed.items()}
    return Declarations(keyed, maps)


def _declared(descriptor: StateDescriptor) -> DeclaredState:
    kind = kind_of(descriptor)
    config = descriptor.ttl_config
    ttl = config.ttl_millis if config is not None and config.is_enabled() else None
    if isinstance(descriptor, MapStateDescriptor):
        return DeclaredState(descriptor.name, kind, descriptor.value_type_info, descriptor.key_type_info, ttl)
    return DeclaredState(descriptor.name, kind, descriptor.type_info, None, ttl)


def _rolling(name: str) -> str:
    """Returns what the state of a rolling aggregation is called here; in Flink each submission gives it a new name."""
    return ROLLING if stored_name(name).startswith("_reduce_state") else name
