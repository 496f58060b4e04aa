"""Types of values with parts: rows, tuples, lists and maps. Each part has its own column."""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, cast

from dagster_flinkpy.common.type_information import Json, TypeInformation
from dagster_flinkpy.common.types import Row, RowMaker, columns_function, row_maker, rows_of
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ListTypeInfo", "MapTypeInfo", "RowTypeInfo", "TupleTypeInfo", "parts_of"]


def _check_types(name: str, types: Any) -> None:
    if not isinstance(types, Collection):
        raise ConfigurationError(f"Types.{name} needs a list of types, such as [Types.LONG()], not {types!r}")
    for each in types:
        if not isinstance(each, TypeInformation):
            raise ConfigurationError(f"Types.{name} needs types from Types.*, such as Types.LONG(), not {each!r}")


class _StructTypeInfo(TypeInformation):
    """Several typed fields in one struct column."""

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str]) -> None:
        if len(field_types) != len(field_names):
            raise ConfigurationError(f"{len(field_types)} field types for {len(field_names)} field names")
        if len(set(field_names)) != len(field_names):
            raise ConfigurationError(f"field names are not unique: {list(field_names)}")
        self.field_types = tuple(field_types)
        self.field_names = tuple(field_names)
        self._naming = [(i, t) for i, t in enumerate(field_types) if t.names_fields]
        """The fields whose values may have rows without names."""

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what is only kept for the next time: whoever compares what was pickled sees no change in it."""
        return {name: value for name, value in vars(self).items() if name not in ("_fields", "row")}

    @cached_property
    def _fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field(n, t.arrow_type) for n, t in zip(self.field_names, self.field_types, strict=True)]

    @property
    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.struct(self._fields)

    @property
    def arrow_name(self) -> str:
        fields = (f"{n}: {t.arrow_name}" for n, t in zip(self.field_names, self.field_types, strict=True))
        return f"struct<{', '.join(fields)}>"

    @abstractmethod
    def _positional(self, value: Any) -> Sequence[Any]:
        """Returns the field values of one value, in the order of the type."""

    def _parts(self, values: Sequence[Any], kinds: set[type]) -> Iterable[Sequence[Any]]:
        """Returns the values of each field; ``kinds`` are the types of the values."""
        width = len(self.field_types)
        blank = (None,) * width
        rows = values if kinds == {tuple} else [blank if v is None else self._positional(v) for v in values]
        if set(map(len, rows)) - {width}:
            misfit = next(value for row, value in zip(rows, values, strict=True) if len(row) != width)
            raise TypeMismatchError(f"declared {width} fields {list(self.field_names)}, produced {misfit!r}")
        return (list(map(itemgetter(i), rows)) for i in range(width))

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        kinds = set(map(type, values))
        parts = self._parts(values, kinds)
        if not self.field_types:
            return pa.array([None if v is None else {} for v in values], type=self.arrow_type)
        return self.of_columns(parts, [v is None for v in values] if type(None) in kinds else None)

    def of_columns(self, columns: Iterable[Sequence[Any]], missing: Sequence[bool] | None = None) -> pa.Array:
        """Builds a column from the values of each field.

        Args:
            columns: The values of each field; there is at least one field.
            missing: Whether each value is None. Default: none is.

        Raises:
            TypeMismatchError: A value does not fit; the message names the field and the value.
        """
        import pyarrow as pa

        children = []
        for name, field_type, part in zip(self.field_names, self.field_types, columns, strict=True):
            try:
                children.append(field_type.to_arrow(part))
            except TypeMismatchError as e:
                raise TypeMismatchError(f"field '{name}': {e}") from e
        mask = None if missing is None else pa.array(missing, type=pa.bool_())
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)

    def _columns(self, column: pa.Array) -> list[list[Any]]:
        struct = cast("pa.StructArray", column)
        found = []
        for name, field_type, child in zip(self.field_names, self.field_types, struct.flatten(), strict=True):
            try:
                found.append(field_type.from_arrow(child))
            except TypeMismatchError as e:
                raise TypeMismatchError(f"field '{name}': {e}") from e
        return found

    def to_json(self) -> Json:
        return {"type": "TUPLE", "fields": [t.to_json() for t in self.field_types]}

    def __repr__(self) -> str:
        return f"Types.TUPLE({list(self.field_types)})"


@lru_cache(maxsize=1024)
def _fields_of(kind: type) -> tuple[str, ...] | None:
    """Returns the fields of a dataclass or named tuple; None for other classes."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names = getattr(kind, "_fields", None)
    return names if issubclass(kind, tuple) and isinstance(names, tuple) else None


class RowTypeInfo(_StructTypeInfo):
    """A `Row` with named, typed fields.

    Where it is declared, records may also be tuples and lists, by position; and dicts, dataclasses, named tuples and
    other objects whose fields or attributes have the declared names, in any order.

    Args:
        field_types: The types of the fields.
        field_names: The names of the fields. Default: ``f0``, ``f1``, ..., as in Flink.
    """

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None) -> None:
        _check_types("ROW", field_types)
        super().__init__(field_types, field_names or [f"f{i}" for i in range(len(field_types))])
        self.named = field_names is not None

    def get_field_names(self) -> list[str]:
        """Returns the names of the fields."""
        return list(self.field_names)

    def get_field_index(self, field_name: str) -> int:
        """Returns the position of a field."""
        return self.field_names.index(field_name)

    def get_field_types(self) -> list[TypeInformation]:
        """Returns the types of the fields."""
        return list(self.field_types)

    def to_json(self) -> Json:
        names = list(self.field_names) if self.named else None
        return {"type": "ROW", "names": names, "fields": [t.to_json() for t in self.field_types]}

    def __repr__(self) -> str:
        types = list(self.field_types)
        return f"Types.ROW_NAMED({list(self.field_names)}, {types})" if self.named else f"Types.ROW({types})"

    def _parts(self, values: Sequence[Any], kinds: set[type]) -> Iterable[Sequence[Any]]:
        width = len(self.field_types)
        if all(issubclass(k, Row) and k._width == width and k._names in (None, self.field_names) for k in kinds):
            return columns_function(width)(values)
        one: Any = next(iter(kinds), None)
        if len(kinds) == 1 and self._are_fields(_fields_of(one)):
            return (list(map(attrgetter(name), values)) for name in self.field_names)
        return super()._parts(values, kinds)

    def _are_fields(self, names: tuple[str, ...] | None) -> bool:
        return names is not None and (names == self.field_names or set(names) == set(self.field_names))

    @cached_property
    def row(self) -> RowMaker:
        """What makes rows of this type: of their values in order, or by name. It is the fastest way to make one."""
        return row_maker(self.field_names)

    def _positional(self, value: Any) -> Sequence[Any]:
        if isinstance(value, Row):
            names = value._names
            if names and names != self.field_names:
                if set(names) == set(self.field_names):
                    return [value[name] for name in self.field_names]
                if self.named:
                    raise TypeMismatchError(f"declared a row of {list(self.field_names)}, produced {value!r}")
            return cast("Sequence[Any]", value._values)
        kind: Any = type(value)
        if self._are_fields(_fields_of(kind)):
            return [getattr(value, name) for name in self.field_names]
        if isinstance(value, (tuple, list)):
            return value
        fields = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        if set(fields) == set(self.field_names):
            return [fields[name] for name in self.field_names]
        raise TypeMismatchError(
            f"declared a row of {list(self.field_names)}, produced {value!r}, which is {type(value).__name__}"
        )

    @property
    def names_fields(self) -> bool:
        return True

    def name_fields(self, value: Any) -> Any:
        if isinstance(value, Row):
            if value._names is None:
                value.set_field_names(self.field_names)
            for i, kind in self._naming if value._names == self.field_names else ():
                kind.name_fields(value[i])
        return value

    def from_arrow(self, column: pa.Array) -> list[Any]:
        rows: list[Any] = rows_of(self.field_names, self._columns(column), len(column))
        for i in _null_positions(column):
            rows[i] = None
        return rows


class TupleTypeInfo(_StructTypeInfo):
    """A Python tuple of typed fields (Flink's ``TupleN``)."""

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        _check_types("TUPLE", field_types)
        super().__init__(field_types, [f"f{i}" for i in range(len(field_types))])

    def get_field_types(self) -> list[TypeInformation]:
        """Returns the types of the fields."""
        return list(self.field_types)

    def _positional(self, value: Any) -> Sequence[Any]:
        if isinstance(value, Row):
            return cast("Sequence[Any]", value._values)
        if isinstance(value, (tuple, list)):
            return value
        raise TypeMismatchError(
            f"declared a tuple of {len(self.field_types)} fields, produced {value!r}, which is {type(value).__name__}"
        )

    @property
    def names_fields(self) -> bool:
        return bool(self._naming)

    def name_fields(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)) and len(value) == len(self.field_types):
            for i, kind in self._naming:
                kind.name_fields(value[i])
        return value

    def from_arrow(self, column: pa.Array) -> list[Any]:
        rows: list[Any] = list(zip(*self._columns(column), strict=True)) or [()] * len(column)
        for i in _null_positions(column):
            rows[i] = None
        return rows


def _null_positions(column: pa.Array) -> list[int]:
    if column.null_count == 0:
        return []
    import numpy as np

    return np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()


class ListTypeInfo(TypeInformation):
    """A list of values of one type; also Flink's arrays."""

    def __init__(self, elem_type: TypeInformation, name: str = "LIST") -> None:
        _check_types(name, [elem_type])
        self.elem_type = elem_type
        self._name = name
        self._names_elements = elem_type.names_fields

    @property
    def names_fields(self) -> bool:
        return self._names_elements

    @property
    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(self.elem_type.arrow_type)

    @property
    def arrow_name(self) -> str:
        return f"list<item: {self.elem_type.arrow_name}>"

    def name_fields(self, value: Any) -> Any:
        if self._names_elements and isinstance(value, list):
            for element in value:
                self.elem_type.name_fields(element)
        return value

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        if set(map(type, values)) - {list, type(None)}:
            for v in values:
                if v is not None and (not isinstance(v, Collection) or isinstance(v, (str, Mapping))):
                    raise TypeMismatchError(f"declared a list, produced {v!r}, which is {type(v).__name__}")
        lists = [v for v in values if v is not None]
        flat = list(itertools.chain.from_iterable(lists))
        missing = len(lists) < len(values)
        offsets = _offsets_of([None if v is None else len(v) for v in values] if missing else list(map(len, lists)))
        return pa.ListArray.from_arrays(offsets, self.elem_type.to_arrow(flat), type=self.arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        lists = cast("pa.ListArray", column)
        if not len(lists):
            return []
        ends = lists.offsets.to_numpy()
        flat = self.elem_type.from_arrow(lists.values.slice(ends[0], ends[-1] - ends[0]))
        listed: list[Any] = [flat[start:end] for start, end in itertools.pairwise((ends - ends[0]).tolist())]
        for i in _null_positions(column):
            listed[i] = None
        return listed

    def to_json(self) -> Json:
        return {"type": self._name, "element": self.elem_type.to_json()}

    def __repr__(self) -> str:
        return f"Types.{self._name}({self.elem_type})"


class MapTypeInfo(TypeInformation):
    """A dict with typed keys and values."""

    def __init__(self, key_type: TypeInformation, value_type: TypeInformation) -> None:
        _check_types("MAP", [key_type, value_type])
        self.key_type = key_type
        self.value_type = value_type

    @property
    def names_fields(self) -> bool:
        return self.value_type.names_fields

    def name_fields(self, value: Any) -> Any:
        if self.value_type.names_fields and isinstance(value, dict):
            for each in value.values():
                self.value_type.name_fields(each)
        return value

    @property
    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.map_(self.key_type.arrow_type, self.value_type.arrow_type)

    @property
    def arrow_name(self) -> str:
        return f"map<{self.key_type.arrow_name}, {self.value_type.arrow_name}>"

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        for v in values:
            if v is not None and (not isinstance(v, Mapping) or None in v):
                raise TypeMismatchError(
                    f"declared a map, produced {v!r}, which is {type(v).__name__}; use a dict without the key None"
                )
        keys = [k for v in values if v is not None for k in v]
        items = [e for v in values if v is not None for e in v.values()]
        offsets = _offsets_of([None if v is None else len(v) for v in values])
        return pa.MapArray.from_arrays(
            offsets, self.key_type.to_arrow(keys), self.value_type.to_arrow(items), type=self.arrow_type
        )

    def from_arrow(self, column: pa.Array) -> list[Any]:
        maps = cast("pa.MapArray", column)
        offsets = maps.offsets.to_pylist()
        # Arrow's `keys` and `items` return the whole child even for a slice, so offsets are absolute.
        base = offsets[0] if offsets else 0
        length = (offsets[-1] if offsets else 0) - base
        keys = self.key_type.from_arrow(maps.keys.slice(base, length))
        items = self.value_type.from_arrow(maps.items.slice(base, length))
        bounds = [(start - base, stop - base) for start, stop in itertools.pairwise(offsets)]
        valid = maps.is_valid().to_pylist()
        return [
            dict(zip(keys[start:stop], items[start:stop], strict=True)) if ok else None
            for (start, stop), ok in zip(bounds, valid, strict=True)
        ]

    def to_json(self) -> Json:
        return {"type": "MAP", "key": self.key_type.to_json(), "value": self.value_type.to_json()}

    def __repr__(self) -> str:
        return f"Types.MAP({self.key_type}, {self.value_type})"


def parts_of(type_info: TypeInformation, name: str = "") -> dict[str, TypeInformation]:
    """Returns the types of the parts of values, by their full names; none if values have no parts.

    Args:
        type_info: The type.
        name: The name of the value. Default: names of fields have no prefix.
    """
    if isinstance(type_info, _StructTypeInfo):
        prefix = f"{name}." if name else ""
        return {f"{prefix}{n}": t for n, t in zip(type_info.field_names, type_info.field_types, strict=True)}
    if isinstance(type_info, ListTypeInfo):
        return {f"{name}[]": type_info.elem_type}
    if isinstance(type_info, MapTypeInfo):
        return {f"{name}.key": type_info.key_type, f"{name}.value": type_info.value_type}
    return {}


def _offsets_of(lengths: Sequence[int | None]) -> pa.Array:
    """Returns list offsets with nulls for missing lists, as Arrow's ``from_arrays`` expects them."""
    import pyarrow as pa

    if None not in lengths:
        return pa.array(list(itertools.accumulate(cast("Sequence[int]", lengths), initial=0)), type=pa.int32())
    ends = list(itertools.accumulate((n or 0 for n in lengths), initial=0))
    return pa.array([None if n is None else ends[i] for i, n in enumerate(lengths)] + [ends[-1]], type=pa.int32())
