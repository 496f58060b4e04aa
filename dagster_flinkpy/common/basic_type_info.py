"""Types of one value without parts: basic ones, and pickled bytes."""

from __future__ import annotations

import decimal
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.type_information import Json, TypeInformation
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["BASIC_TYPES", "BasicTypeInfo", "PickledBytesTypeInfo", "basic_type"]

_ARROW_REFUSES = (pa.ArrowException, TypeError, ValueError, OverflowError)

BASIC_TYPES: dict[str, pa.DataType] = {
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
"""Arrow types by the name of the type."""

_INFERRED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_string,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
)
"""Types for which Arrow would change values without a word: cut fractions, times of day, time zones; decode bytes."""


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
                far = isinstance(value, int) and pa.types.is_integer(self._arrow_type) and not isinstance(value, bool)
                out_of_range = ", out of its range" if far else ""
                return f"a value that is not: {value!r} is {type(value).__name__}{out_of_range}"
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


class _BigIntTypeInfo(BasicTypeInfo):
    """Python's ``int``, wider than Arrow's."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(not isinstance(v, (int, type(None))) or isinstance(v, bool) for v in values):
            raise TypeError("not int")
        return pa.array([None if v is None else decimal.Decimal(v) for v in values], type=self._arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [None if v is None else int(v) for v in column.to_pylist()]


class _BytesTypeInfo(BasicTypeInfo):
    """``bytes``; Arrow would encode strings, too."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(issubclass(kind, str) for kind in set(map(type, values))):
            raise TypeError("not bytes")
        return super()._build(values)


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


def basic_type(name: str) -> BasicTypeInfo:
    """The basic type of a name in ``BASIC_TYPES``."""
    kinds: dict[str, type[BasicTypeInfo]] = {
        "BIG_DEC": _BigDecTypeInfo,
        "BIG_INT": _BigIntTypeInfo,
        "BYTES": _BytesTypeInfo,
        "INSTANT": _InstantTypeInfo,
    }
    return kinds.get(name, BasicTypeInfo)(name, BASIC_TYPES[name])


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
