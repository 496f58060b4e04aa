"""Turns rows of a savepoint of Flink into columns, by the types that the program declares.

In process mode, PyFlink writes no types of values: without a declaration, values stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.errors import (
    CorruptStateError,
    TypeMismatchError,
    UnsupportedKeyTypeError,
    UnsupportedSavepointError,
)
from dagster_flinkpy.flink_savepoint.byte_reader import Decode
from dagster_flinkpy.flink_savepoint.entries import KEYS, VALUES, regular_columns
from dagster_flinkpy.flink_savepoint.header import StateHeader
from dagster_flinkpy.flink_savepoint.pickled_data import load_data
from dagster_flinkpy.flink_savepoint.python_coders import coder_of
from dagster_flinkpy.flink_savepoint.serializers import Serializer, type_of
from dagster_flinkpy.flink_savepoint.subtask_state import DAMAGED, StateRows
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.handles import EVENT_TIMERS, PROCESSING_TIMERS, StateKind
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import TableLayout

__all__ = [
    "PYTHON_PREFIX",
    "DeclaredState",
    "FlinkColumns",
    "name_in_flink",
    "not_of_types",
    "row_hashes",
    "stored_name",
    "whole",
]

PYTHON_PREFIX = "python-state-"
"""What process mode puts before the names of states."""
_TIMERS = {
    "_timer_state/event_user-timers": EVENT_TIMERS,
    "_timer_state/processing_user-timers": PROCESSING_TIMERS,
}
_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
_NAMESPACES = ("TimeWindow", "CountWindow")


def stored_name(name: str) -> str:
    """Returns what a state of Flink is called here."""
    return _TIMERS.get(name, name.removeprefix(PYTHON_PREFIX))


def name_in_flink(name: str) -> str:
    """Returns what a state is called in PyFlink's process mode."""
    return {ours: flinks for flinks, ours in _TIMERS.items()}.get(name, PYTHON_PREFIX + name)


def row_hashes(kind: TypeInformation, column: pa.Array[Any]) -> npt.NDArray[np.int32]:
    """Returns the hashes of rows of one field, by which PyFlink keys a stream."""
    if kind == _BYTES:
        return hash_keys(Types.ROW([kind]), pa.StructArray.from_arrays([column], names=["f0"]))
    return _hashes(kind, column) + np.int32(62)


def _hashes(kind: TypeInformation, column: Any) -> npt.NDArray[np.int32]:
    """Returns the hashes of keys in Flink: a row hashes by positions, even if it has names, and a part by its type.

    A row of this library hashes by names, and parts hash like the whole.
    """
    if not isinstance(kind, (RowTypeInfo, TupleTypeInfo)) or column.null_count:
        return hash_keys(kind, column)
    parts, types = list(column.flatten()), list(kind.field_types)
    for i, (part, field) in enumerate(zip(parts, types, strict=True)):
        if isinstance(field, (RowTypeInfo, TupleTypeInfo)):
            hashes = np.zeros(len(part), dtype=np.int32)
            present = part.is_valid().to_numpy(zero_copy_only=False)
            hashes[present] = _hashes(field, part.drop_null())
            parts[i], types[i] = pa.array(hashes, mask=~present), Types.INT()  # which hashes to itself
    flat = pa.StructArray.from_arrays(parts, names=list(kind.field_names))
    return hash_keys(Types.ROW(types) if isinstance(kind, RowTypeInfo) else Types.TUPLE(types), flat)


@dataclass(frozen=True)
class DeclaredState:
    """A state as a program declares it."""

    name: str
    kind: StateKind
    value_type: TypeInformation | None
    """Of a list state, the type of the list; of timers None."""
    map_key_type: TypeInformation | None = None
    ttl_ms: int | None = None
    """Its time to live in milliseconds, or None."""
    key_type: TypeInformation | None = None
    """Default: that of the savepoint."""


class FlinkColumns:
    """The columns of one state.

    Args:
        what: The operator and the state, for messages.
        header: The state in the savepoint.
        key: The serializer of its keys.
        max_parallelism: The number of key groups.
        declared: The state in the program. Default: not known.

    Raises:
        TypeMismatchError: The savepoint has a state of another form.
        UnsupportedSavepointError: Its values cannot be read.
    """

    def __init__(
        self,
        what: str,
        header: StateHeader,
        key: Serializer,
        max_parallelism: int,
        declared: DeclaredState | None = None,
    ) -> None:
        self._what, self._header, self._max_parallelism = what, header, max_parallelism
        self.declared = declared
        self._wrapped = key.kind == "Row" and len(key.parts) == 1  # as PyFlink has it; Java's keys are plain
        self._plain_key = plain = key.parts[0] if self._wrapped else key
        self._pickled_keys = plain.kind == "BytePrimitiveArray"
        self._stored_key = type_of(plain) or _BYTES
        self.key_type = self._stored_key if declared is None or declared.key_type is None else declared.key_type
        if not self._pickled_keys and not _fits(self._stored_key, self.key_type):
            raise self._misfit(f"keys of {self.key_type}", f"keys of {self._stored_key}")
        value = header.serializers["VALUE_SERIALIZER"]
        namespace = value.parts[1] if header.is_timers else header.serializers["NAMESPACE_SERIALIZER"]
        self.namespace_type = type_of(namespace) if namespace.kind in _NAMESPACES else None
        try:
            self._values(value, declared)
        except UnsupportedSavepointError as error:
            raise UnsupportedSavepointError(f"{what}: {error}") from None

    def _values(self, value: Serializer, declared: DeclaredState | None) -> None:
        """Finds out the types of the values, and how to decode them."""
        stored = self._header.state_type
        element = value.parts[1] if stored == "MAP" else value.parts[0] if stored == "LIST" else value
        self.ttl = element.kind == "Ttl"
        element = element.parts[0] if self.ttl else element
        in_python = self._header.name.startswith(PYTHON_PREFIX)
        self.kind: Any = "TIMER" if self._header.is_timers else stored if declared is None else declared.kind
        self.map_key_type: TypeInformation | None = None
        self._map_key: Callable[[Any], Any] | None = None
        self._one = self.kind in ("VALUE", "REDUCING", "AGGREGATING")
        self._coder: Decode | None = None
        if self._header.is_timers:
            self.value_type: TypeInformation | None = None
            return
        if declared is not None:
            self._check_form(declared, in_python)
        element_type = type_of(element) or _BYTES if declared is None else declared.value_type
        if declared is not None and isinstance(element_type, ListTypeInfo) and self.kind == "LIST":
            element_type = element_type.elem_type
        assert element_type is not None
        self.value_type = element_type if self.kind != "LIST" else Types.LIST(element_type)
        self._convert: Callable[[Any], Any] | None = None
        if declared is None:
            if self.kind == "MAP":
                self.map_key_type = type_of(value.parts[0]) or _BYTES
            return
        if self.kind == "MAP":
            self.map_key_type = declared.map_key_type
            assert self.map_key_type is not None
            self._map_key = (
                whole(coder_of(self.map_key_type)) if in_python else _loaded(value.parts[0], self.map_key_type)
            )
        if in_python:
            self._coder = coder_of(element_type)
        else:
            self._convert = _loaded(element, element_type)

    def _check_form(self, declared: DeclaredState, in_python: bool) -> None:
        stored = self._header.state_type
        if in_python:  # process mode knows lists and maps only
            fits = stored == ("MAP" if self.kind == "MAP" else "LIST")
        else:  # thread mode folds values itself
            fits = stored == self.kind or (self._one and stored == "VALUE")
        if not fits:
            raise self._misfit(f"a state of kind {self.kind}", f"one of kind {stored}")
        if (declared.ttl_ms is not None) != self.ttl:
            forms = [f"a state {'with' if ttl else 'without'} a time to live" for ttl in (not self.ttl, self.ttl)]
            raise self._misfit(*forms)

    @cached_property
    def layout(self) -> TableLayout:
        """How the state is stored here, by its name in Flink."""
        kinds = self.key_type, self.namespace_type, self.map_key_type, self.value_type
        return TableLayout(self._header.name, self.kind, *kinds, ttl=self.ttl)

    @property
    def fields(self) -> list[pa.Field]:
        """The columns, in order."""
        renamed = {"expires_at": self.time_column}
        fields = [field for field in self.layout.fields if field.name != "deleted"]
        return [field.with_name(renamed.get(field.name, field.name)) for field in fields]

    @property
    def time_column(self) -> str:
        """The column of times with a time to live: without a declaration, it is unknown when values expire."""
        return "last_access" if self.declared is None else "expires_at"

    def columns(self, rows: StateRows) -> dict[str, pa.Array[Any]]:
        """Returns the columns of some rows of one key group, by name.

        Raises:
            CorruptStateError: A key does not belong to the key group, or a value is damaged.
            TypeMismatchError: A value does not have the declared type.
            UnsupportedSavepointError: A value is of a kind that cannot be read.
        """
        if (regular := self._regular(rows)) is not None:
            return regular
        rows.loaded()
        try:
            columns = {"key": self._keys(rows)}
            if self.namespace_type is not None:
                columns["namespace"] = self.namespace_type.to_arrow(rows.namespaces)
            if self.value_type is None:
                columns["time"] = pa.array(rows.values, pa.int64())
                return columns
            if self.map_key_type is not None:
                names = rows.map_keys if self._map_key is None else list(map(self._map_key, rows.map_keys))
                columns["map_key"] = self.map_key_type.to_arrow(names)
            values, times = self._decoded(rows.values)
            columns["value"] = self.value_type.to_arrow(values)
            if self.ttl:
                lasts = 0 if self.declared is None else self.declared.ttl_ms or 0
                columns[self.time_column] = _times(times, lasts)
            return columns
        except (TypeMismatchError, UnsupportedSavepointError) as error:
            raise type(error)(f"{self._what}: {error}") from None
        except DAMAGED as error:
            what = f"{self._what}, key group {rows.group}: "
            if self._coder is None:
                raise CorruptStateError(f"{what}{error}") from None
            raise CorruptStateError(what + not_of_types(error, self.map_key_type, self.value_type)) from None

    def _regular(self, rows: StateRows) -> dict[str, pa.Array[Any]] | None:
        """Returns the columns of rows with plain keys and plain values, or None: then each is decoded by itself."""
        key, value = KEYS.get(self._plain_key.kind), self.value_type
        if rows.entries is None or key is None or not isinstance(value, BasicTypeInfo) or value.name not in VALUES:
            return None
        if not self._one or self.ttl or self._coder is None or self.namespace_type is not None:
            return None
        prefix = 1 if self._max_parallelism <= 128 else 2
        found = regular_columns(rows.entries, prefix, key, value.name, wrapped=self._wrapped)
        if found is None or found[0].type != self.key_type.arrow_type:
            return None
        self._check_group(rows.group, found[0])
        return {"key": found[0], "value": found[1]}

    def _keys(self, rows: StateRows) -> pa.Array[Any]:
        keys = [row[0] for row in rows.keys] if self._wrapped else rows.keys
        column = self._stored_key.to_arrow(keys)
        self._check_group(rows.group, column)
        if self._pickled_keys and self.declared is not None:
            return self.key_type.to_arrow(list(map(load_data, keys)))
        return column if self.key_type == self._stored_key else self.key_type.to_arrow(keys)

    def _check_group(self, group: int, column: pa.Array[Any]) -> None:
        """Checks that Flink's hash of the keys leads to the key group that they were found in."""
        try:
            hashes = self._hashes(column)
        except UnsupportedKeyTypeError:
            return  # such as an array: there is nothing to compare with
        groups = key_groups_of_hashes(hashes, self._max_parallelism)
        wrong = np.flatnonzero(groups != group).tolist()
        if wrong:
            raise CorruptStateError(
                f"{self._what}: {len(wrong)} keys, such as {column[wrong[0]].as_py()!r}, were found in key group "
                f"{group}, but belong to others, such as {groups[wrong[0]]}"
            )

    def _hashes(self, column: pa.Array[Any]) -> npt.NDArray[np.int32]:
        return (row_hashes if self._wrapped else _hashes)(self._stored_key, column)

    def _decoded(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns the values, and with a time to live the times of last access."""
        if self.kind == "LIST":
            pairs = [self._elements(each) for each in values]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if self.ttl and not (self._one and self._header.state_type == "LIST"):
            stamps, values = [each and each[0] for each in values], [each and each[1] for each in values]
        else:
            stamps = []
        if self._coder is not None:
            coder = whole(self._coder)
            if self._one:
                return self._single(values)
            values = [None if each is None else coder(each) for each in values]
        elif self._convert is not None:
            values = [None if each is None else self._convert(each) for each in values]
        return values, stamps

    def _single(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """Decodes values of process mode, each of which is a list of one element."""
        found, stamps = [], []
        for arrays in values:
            elements, times = self._elements(arrays)
            if len(elements) != 1:
                raise ValueError(f"a state with one value has {len(elements)}")
            found.append(elements[0])
            stamps += times
        return found, stamps

    def _elements(self, stored: list[Any]) -> tuple[list[Any], list[int]]:
        """Decodes the elements of one list. In process mode a stored element holds one or more."""
        found: list[Any] = []
        times: list[int] = []
        for each in stored:
            stamp, each = each if self.ttl else (0, each)
            before = len(found)
            if self._coder is None:
                found.append(each if self._convert is None else self._convert(each))
            else:
                at = 0
                while at < len(each):
                    element, end = self._coder(each, at)
                    if end <= at:
                        raise ValueError("an element takes no bytes, so nobody knows how many there are")
                    found.append(element)
                    at = end
                if at != len(each):
                    raise ValueError("the last element is not complete")
            if self.ttl:
                times += [stamp] * (len(found) - before)
        return found, times

    def _misfit(self, declared: str, stored: str) -> TypeMismatchError:
        return TypeMismatchError(f"{self._what}: the program declares {declared}, but the savepoint has {stored}")


def _fits(stored: TypeInformation, declared: TypeInformation) -> bool:
    """Returns whether keys are of a declared type. Java's rows have no names of fields."""
    return stored == declared or stored.arrow_type == declared.arrow_type or _unnamed(stored) == _unnamed(declared)


def _unnamed(kind: TypeInformation) -> Any:
    def plain(json: Any) -> Any:
        if isinstance(json, dict):
            return {name: plain(value) for name, value in json.items() if name != "names"}
        return [plain(each) for each in json] if isinstance(json, list) else json

    return plain(kind.to_json())


def not_of_types(error: Exception, *declared: TypeInformation | None) -> str:
    """Says of bytes that process mode wrote that they are not values of the declared types."""
    kinds = " and ".join(str(kind) for kind in declared if kind is not None)
    return (
        f"{error}, read as {kinds}, as the program declares. Savepoints of PyFlink do not have the types of values: "
        "if the program in Flink declares others, declare these; otherwise the savepoint is damaged"
    )


def whole(coder: Decode) -> Callable[[bytes], Any]:
    """Returns the function that decodes one value, which takes all of the bytes."""

    def decode(data: bytes) -> Any:
        value, at = coder(data, 0)
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes are left after a value")
        return value

    return decode


def _loaded(serializer: Serializer, declared: TypeInformation) -> Callable[[Any], Any] | None:
    """Returns what makes values of those that Java's serializers gave, or None if they are the values.

    In thread mode, byte arrays may be pickles: rows, tuples, and values without a type.
    """
    if serializer.kind == "BytePrimitiveArray":
        return load_data if declared != _BYTES else None
    if serializer.kind == "List" and isinstance(declared, ListTypeInfo):
        element = _loaded(serializer.parts[0], declared.elem_type)
        return None if element is None else lambda values: [_unless_none(element, each) for each in values]
    if serializer.kind == "Map" and isinstance(declared, MapTypeInfo):
        key = _loaded(serializer.parts[0], declared.key_type) or _same
        value = _loaded(serializer.parts[1], declared.value_type) or _same
        return lambda entries: {_unless_none(key, k): _unless_none(value, v) for k, v in entries.items()}
    return None


def _same(value: Any) -> Any:
    return value


def _unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _times(stamps: list[Any], lasts: int) -> pa.Array[Any]:
    if stamps and isinstance(stamps[0], list):
        return pa.array([[stamp + lasts for stamp in each] for each in stamps], pa.list_(pa.int64()))
    return pa.array([None if stamp is None else stamp + lasts for stamp in stamps], pa.int64())
