"""Type information: what a value is to the user, and the Arrow column it travels and rests in.

Mirrors ``pyflink.common.typeinfo``. A :class:`TypeInformation` converts whole columns in both directions, so that the
cost per value is that of Arrow or numpy, not of a Python call.
"""

from __future__ import annotations

import decimal
import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.types import Row, row_class, rows_of
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError

__all__ = [
    "BasicTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "PickledBytesTypeInfo",
    "RowTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "type_from_json",
]

Json = dict[str, Any]

_ARROW_REFUSES = (pa.ArrowException, TypeError, ValueError, OverflowError)


class TypeInformation(ABC):
    """A type that knows its Arrow column.

    Equality is by structure: two type informations are equal when :meth:`to_json` is.
    """

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a column of such values."""

    @abstractmethod
    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Builds a column from Python values; ``None`` becomes null.

        Raises:
            TypeMismatchError: A value does not fit; the message names the field and the value.
        """

    @abstractmethod
    def from_arrow(self, column: pa.Array) -> list[Any]:
        """The Python values of a column; null becomes ``None``."""

    def name_fields(self, value: Any) -> Any:
        """The value; a :class:`Row` without field names gets those of its type, as if it had been written and read."""
        return value

    @abstractmethod
    def to_json(self) -> Json:
        """A description that :func:`type_from_json` reads; it is part of checkpoint metadata."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.arrow_type})"


_INFERRED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_time,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
)
"""Types for which Arrow would cut values off without a word: fractions, times of day, time zones."""


class BasicTypeInfo(TypeInformation):
    """A type with one Arrow column and plain Python values."""

    def __init__(self, name: str, arrow_type: pa.DataType) -> None:
        self.name = name
        self._arrow_type = arrow_type
        self._by_numpy = (
            pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)
        )
        self._fits = next((fits for fits in _INFERRED if fits(arrow_type)), None)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._arrow_type

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self._build(values)
        except _ARROW_REFUSES as e:
            raise TypeMismatchError(f"declared {self.name}, produced {self._first_misfit(values)}") from e

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if self._fits is None:
            return pa.array(values, type=self._arrow_type, from_pandas=False)
        column = pa.array(values, from_pandas=False)
        if not self._fits(column.type) and column.null_count < len(column):
            raise TypeError(f"{column.type} values")
        return column.cast(self._arrow_type)

    def _first_misfit(self, values: Sequence[Any]) -> str:
        for value in values:
            try:
                self._build([value])
            except _ARROW_REFUSES:
                return f"a value that is not: {value!r} is {type(value).__name__}"
        return "values of several types"

    def from_arrow(self, column: pa.Array) -> list[Any]:
        if not self._by_numpy:
            return cast("list[Any]", column.to_pylist())
        if column.null_count == 0:
            return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
        values = column.fill_null(False if pa.types.is_boolean(self._arrow_type) else 0)
        listed: list[Any] = values.to_numpy(zero_copy_only=False).tolist()
        for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            listed[i] = None
        return listed

    def to_json(self) -> Json:
        return {"type": self.name}

    def __repr__(self) -> str:
        return f"Types.{self.name}()"


class PickledBytesTypeInfo(TypeInformation):
    """Any Python value, pickled. Readable by Python only; state has this type only where the user asked for it."""

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        try:
            pickled = [pickle.dumps(value, protocol=5) for value in values]
        except (pickle.PicklingError, TypeError, AttributeError):
            pickled = [_dumps_with_class(value) for value in values]
        return pa.array(pickled, type=pa.binary())

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [pickle.loads(v) for v in column.to_pylist()]

    def to_json(self) -> Json:
        return {"type": "PICKLED_BYTE_ARRAY"}

    def __repr__(self) -> str:
        return "Types.PICKLED_BYTE_ARRAY()"


def _dumps_with_class(value: Any) -> bytes:
    """Pickles a value and its class, where a program came without the module that has it, or it is a function."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as e:
        raise TypeMismatchError(f"{value!r} cannot be pickled: {e}") from e
    return data


class _StructTypeInfo(TypeInformation):
    """Several typed fields in one struct column."""

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str]) -> None:
        if len(field_types) != len(field_names):
            raise ConfigurationError(f"{len(field_types)} field types for {len(field_names)} field names")
        if len(set(field_names)) != len(field_names):
            raise ConfigurationError(f"field names are not unique: {list(field_names)}")
        self.field_types = tuple(field_types)
        self.field_names = tuple(field_names)

    @cached_property
    def _fields(self) -> list[pa.Field]:
        return [pa.field(n, t.arrow_type) for n, t in zip(self.field_names, self.field_types, strict=True)]

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct(self._fields)

    @abstractmethod
    def _positional(self, value: Any) -> Sequence[Any]:
        """The field values of one value, in the order of the type."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        width = len(self.field_types)
        missing = [v is None for v in values] if any(v is None for v in values) else None
        blank = (None,) * width
        rows = [blank if v is None else self._positional(v) for v in values]
        for row, value in zip(rows, values, strict=True):
            if len(row) != width:
                raise TypeMismatchError(f"declared {width} fields {list(self.field_names)}, produced {value!r}")
        columns = list(zip(*rows, strict=True)) if rows else [()] * width
        children = []
        for name, field_type, column in zip(self.field_names, self.field_types, columns, strict=True):
            try:
                children.append(field_type.to_arrow(column))
            except TypeMismatchError as e:
                raise TypeMismatchError(f"field '{name}': {e}") from e
        if not children:
            return pa.array([None if v is None else {} for v in values], type=self.arrow_type)
        mask = None if missing is None else pa.array(missing, type=pa.bool_())
        return pa.StructArray.from_arrays(children, fields=self._fields, mask=mask)

    def _columns(self, column: pa.Array) -> list[list[Any]]:
        struct = cast(pa.StructArray, column)
        return [t.from_arrow(child) for t, child in zip(self.field_types, struct.flatten(), strict=True)]

    def to_json(self) -> Json:
        return {"type": "TUPLE", "fields": [t.to_json() for t in self.field_types]}


class RowTypeInfo(_StructTypeInfo):
    """A :class:`Row` with named, typed fields.

    Args:
        field_types: One type per field.
        field_names: Field names; ``f0``, ``f1``, ... by default, as in Flink.
    """

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Sequence[str] | None = None) -> None:
        super().__init__(field_types, field_names or [f"f{i}" for i in range(len(field_types))])
        self.named = field_names is not None

    def get_field_names(self) -> list[str]:
        """The names of the fields."""
        return list(self.field_names)

    def get_field_types(self) -> list[TypeInformation]:
        """The types of the fields."""
        return list(self.field_types)

    def to_json(self) -> Json:
        names = list(self.field_names) if self.named else None
        return {"type": "ROW", "names": names, "fields": [t.to_json() for t in self.field_types]}

    def _positional(self, value: Any) -> Sequence[Any]:
        if isinstance(value, Row):
            names = value._fields
            if names and tuple(names) != self.field_names:
                if set(names) == set(self.field_names):
                    return [value[name] for name in self.field_names]
                if self.named:
                    raise TypeMismatchError(f"declared a row of {list(self.field_names)}, produced {value!r}")
            return cast("Sequence[Any]", value._values)
        if isinstance(value, (tuple, list)):
            return value
        if isinstance(value, Mapping) and set(value) == set(self.field_names):
            return [value[name] for name in self.field_names]
        raise TypeMismatchError(f"declared a row of {list(self.field_names)}, produced {value!r}")

    def name_fields(self, value: Any) -> Any:
        if type(value) is Row and value._fields is None:
            value.set_field_names(self.field_names)
            value.__class__ = row_class(self.field_names)
        return value

    def from_arrow(self, column: pa.Array) -> list[Any]:
        values = list(zip(*self._columns(column), strict=True)) if self.field_names else [()] * len(column)
        rows: list[Any] = rows_of(self.field_names, values)
        for i in _null_positions(column):
            rows[i] = None
        return rows


class TupleTypeInfo(_StructTypeInfo):
    """A Python tuple of typed fields (Flink's ``TupleN``)."""

    def __init__(self, field_types: Sequence[TypeInformation]) -> None:
        super().__init__(field_types, [f"f{i}" for i in range(len(field_types))])

    def _positional(self, value: Any) -> Sequence[Any]:
        if isinstance(value, Row):
            return cast("Sequence[Any]", value._values)
        if isinstance(value, (tuple, list)):
            return value
        raise TypeMismatchError(f"declared a tuple of {len(self.field_types)} fields, produced {value!r}")

    def from_arrow(self, column: pa.Array) -> list[Any]:
        rows: list[Any] = list(zip(*self._columns(column), strict=True)) or [()] * len(column)
        for i in _null_positions(column):
            rows[i] = None
        return rows


def _null_positions(column: pa.Array) -> list[int]:
    if column.null_count == 0:
        return []
    return np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()


def _offsets_of(lengths: Sequence[int | None]) -> pa.Array:
    """List offsets with nulls where the list is missing, as Arrow's ``from_arrays`` wants them."""
    ends = np.cumsum([0] + [n or 0 for n in lengths]).tolist()
    return pa.array([None if n is None else ends[i] for i, n in enumerate(lengths)] + [ends[-1]], type=pa.int32())


class ListTypeInfo(TypeInformation):
    """A list of values of one type; also Flink's arrays."""

    def __init__(self, elem_type: TypeInformation, name: str = "LIST") -> None:
        self.elem_type = elem_type
        self._name = name

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.elem_type.arrow_type)

    def name_fields(self, value: Any) -> Any:
        if isinstance(value, list):
            for element in value:
                self.elem_type.name_fields(element)
        return value

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for v in values:
            if (
                v is not None
                and type(v) is not list
                and (not isinstance(v, Collection) or isinstance(v, (str, Mapping)))
            ):
                raise TypeMismatchError(f"declared a list, produced {v!r}, which is {type(v).__name__}")
        flat = [e for v in values if v is not None for e in v]
        offsets = _offsets_of([None if v is None else len(v) for v in values])
        return pa.ListArray.from_arrays(offsets, self.elem_type.to_arrow(flat), type=self.arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        lists = cast(pa.ListArray, column)
        offsets = lists.offsets.to_pylist()
        base = offsets[0] if offsets else 0
        flat = self.elem_type.from_arrow(lists.values.slice(base, (offsets[-1] if offsets else 0) - base))
        valid = lists.is_valid().to_pylist()
        return [flat[offsets[i] - base : offsets[i + 1] - base] if ok else None for i, ok in enumerate(valid)]

    def to_json(self) -> Json:
        return {"type": self._name, "element": self.elem_type.to_json()}


class MapTypeInfo(TypeInformation):
    """A dict with typed keys and values."""

    def __init__(self, key_type: TypeInformation, value_type: TypeInformation) -> None:
        self.key_type = key_type
        self.value_type = value_type

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key_type.arrow_type, self.value_type.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for v in values:
            if v is not None and (not isinstance(v, Mapping) or None in v):
                raise TypeMismatchError(f"declared a map, produced {v!r}; wants a dict without the key None")
        keys = [k for v in values if v is not None for k in v]
        items = [e for v in values if v is not None for e in v.values()]
        offsets = _offsets_of([None if v is None else len(v) for v in values])
        return pa.MapArray.from_arrays(
            offsets, self.key_type.to_arrow(keys), self.value_type.to_arrow(items), type=self.arrow_type
        )

    def from_arrow(self, column: pa.Array) -> list[Any]:
        maps = cast(pa.MapArray, column)
        offsets = maps.offsets.to_pylist()
        # Arrow's `keys` and `items` keep the whole child, whatever the slice: the offsets are absolute.
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


_BASIC: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "CHAR": pa.string(),
    "BIG_DEC": pa.decimal128(38, 18),
    "SQL_DATE": pa.date32(),
    "SQL_TIME": pa.time64("us"),
    "SQL_TIMESTAMP": pa.timestamp("us"),
    "BYTES": pa.binary(),
    "BIG_INT": pa.decimal256(76, 0),
    "INSTANT": pa.timestamp("us", tz="UTC"),
}


class Types:
    """Factories of type information, under the names of ``pyflink.common.Types``."""

    @staticmethod
    def STRING() -> TypeInformation:
        """``str``."""
        return _basic("STRING")

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """``bool``."""
        return _basic("BOOLEAN")

    @staticmethod
    def BYTE() -> TypeInformation:
        """``int`` of 8 bits."""
        return _basic("BYTE")

    @staticmethod
    def SHORT() -> TypeInformation:
        """``int`` of 16 bits."""
        return _basic("SHORT")

    @staticmethod
    def INT() -> TypeInformation:
        """``int`` of 32 bits."""
        return _basic("INT")

    @staticmethod
    def LONG() -> TypeInformation:
        """``int`` of 64 bits."""
        return _basic("LONG")

    @staticmethod
    def FLOAT() -> TypeInformation:
        """``float`` of 32 bits."""
        return _basic("FLOAT")

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """``float`` of 64 bits."""
        return _basic("DOUBLE")

    @staticmethod
    def CHAR() -> TypeInformation:
        """``str`` of one character."""
        return _basic("CHAR")

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """``decimal.Decimal``; 38 digits, 18 of them after the point."""
        return _basic("BIG_DEC")

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """``int`` of up to 76 digits."""
        return _basic("BIG_INT")

    @staticmethod
    def INSTANT() -> TypeInformation:
        """:class:`~dagster_flinkpy.common.time.Instant`, in microseconds."""
        return _basic("INSTANT")

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """``datetime.date``."""
        return _basic("SQL_DATE")

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """``datetime.time``, in microseconds."""
        return _basic("SQL_TIME")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """``datetime.datetime`` without a zone, in microseconds."""
        return _basic("SQL_TIMESTAMP")

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list of numbers; ``bytes`` for ``Types.BYTE()``."""
        if element_type == Types.BYTE():
            return _basic("BYTES")
        return ListTypeInfo(element_type, "PRIMITIVE_ARRAY")

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list of basic values."""
        return ListTypeInfo(element_type, "BASIC_ARRAY")

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """A list of values of any type."""
        return ListTypeInfo(element_type, "OBJECT_ARRAY")

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """A list."""
        return ListTypeInfo(element_type_info)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """A dict."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """A :class:`Row`, fields named ``f0``, ``f1``, ..."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """A :class:`Row` with named fields."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:
        """A tuple."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> PickledBytesTypeInfo:
        """Any Python value, pickled."""
        return PickledBytesTypeInfo()


class _BigIntTypeInfo(BasicTypeInfo):
    """Python's ``int``, wider than Arrow's."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(not isinstance(v, (int, type(None))) or isinstance(v, bool) for v in values):
            raise TypeError("not int")
        return pa.array([None if v is None else decimal.Decimal(v) for v in values], type=self._arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [None if v is None else int(v) for v in column.to_pylist()]


class _BigDecTypeInfo(BasicTypeInfo):
    """``Decimal``, without the zeros that its column puts behind the last digit."""

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [None if v is None else _without_zeros(v) for v in column.to_pylist()]


def _without_zeros(value: decimal.Decimal) -> decimal.Decimal:
    digits = format(value, "f")
    return decimal.Decimal(digits.rstrip("0").rstrip(".") if "." in digits else digits)


class _InstantTypeInfo(BasicTypeInfo):
    """:class:`Instant`."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(not isinstance(v, (Instant, type(None))) for v in values):
            raise TypeError("not Instant")
        micros = [None if v is None else v.seconds * 1_000_000 + v.nanos // 1000 for v in values]
        return pa.array(micros, type=pa.int64()).cast(self._arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        micros = column.cast(pa.int64()).to_pylist()
        return [None if v is None else Instant(v // 1_000_000, v % 1_000_000 * 1000) for v in micros]


def _basic(name: str) -> BasicTypeInfo:
    kinds = {"BIG_DEC": _BigDecTypeInfo, "BIG_INT": _BigIntTypeInfo, "INSTANT": _InstantTypeInfo}
    return kinds.get(name, BasicTypeInfo)(name, _BASIC[name])


def type_from_json(description: Json) -> TypeInformation:
    """The type information that :meth:`TypeInformation.to_json` described.

    Raises:
        ConfigurationError: The description names no known type, or lacks a part of it.
    """
    try:
        return _from_json(description)
    except (KeyError, TypeError, AttributeError) as e:
        raise ConfigurationError(f"not the description of a type ({e!r}): {description!r}") from e


def _from_json(description: Json) -> TypeInformation:
    name = description.get("type")
    if name in _BASIC:
        return _basic(name)
    builders: dict[str, Callable[[], TypeInformation]] = {
        "PICKLED_BYTE_ARRAY": PickledBytesTypeInfo,
        "ROW": lambda: RowTypeInfo([type_from_json(f) for f in description["fields"]], description["names"]),
        "TUPLE": lambda: TupleTypeInfo([type_from_json(f) for f in description["fields"]]),
        "MAP": lambda: MapTypeInfo(type_from_json(description["key"]), type_from_json(description["value"])),
    }
    if name in ("LIST", "PRIMITIVE_ARRAY", "BASIC_ARRAY", "OBJECT_ARRAY"):
        return ListTypeInfo(type_from_json(description["element"]), name)
    if name not in builders:
        raise ConfigurationError(f"unknown type {name!r} in {description!r}")
    return builders[name]()
