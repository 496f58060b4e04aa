"""The Arrow columns of types. A separate module, so that declaring a job needs neither PyArrow nor numpy."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.errors import TypeMismatchError

__all__ = [
    "BasicColumn",
    "basic_column",
    "cast_finite",
    "decimal_column",
    "one_chunk",
    "struct_field",
    "wide_decimals_as_text",
    "with_elements",
    "with_parts",
    "without_zeros",
]

_ARROW_REFUSES = (pa.ArrowException, TypeError, ValueError, OverflowError)

_ARROW_TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "CHAR": pa.string(),
    "BIG_DEC": pa.string(),
    "SQL_DATE": pa.date32(),
    "SQL_TIME": pa.time64("us"),
    "SQL_TIMESTAMP": pa.timestamp("us"),
    "BYTES": pa.binary(),
    "BIG_INT": pa.decimal256(76, 0),
    "INSTANT": pa.timestamp("us", tz="UTC"),
}

_ZONE = attrgetter("tzinfo")
_OF_MICROSECONDS = {date, datetime, time}

_INFERRED: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_string,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
)
"""Types for which Arrow silently changes values: it drops fractions, times of day or time zones, or decodes bytes."""


class BasicColumn:
    """Converts Python values to and from the column of a basic type."""

    def __init__(self, name: str, arrow_type: pa.DataType) -> None:
        self.name = name
        self.arrow_type = arrow_type
        self._by_numpy = (
            pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)
        )
        self._fits = next((fits for fits in _INFERRED if fits(arrow_type)), None)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self._build(values)
        except _ARROW_REFUSES as e:
            declared = "PRIMITIVE_ARRAY(BYTE)" if self.name == "BYTES" else self.name
            raise TypeMismatchError(f"declared {declared}, produced {self._first_misfit(values)}") from e

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if self._fits is None:
            return pa.array(values, type=self.arrow_type, from_pandas=False)
        column = pa.array(values, from_pandas=False)
        if not self._fits(column.type) and column.null_count < len(column):
            raise TypeError(f"{column.type} values")
        return column if column.type == self.arrow_type else column.cast(self.arrow_type)

    def _first_misfit(self, values: Sequence[Any]) -> str:
        for value in values:
            try:
                self._build([value])
            except _ARROW_REFUSES:
                far = isinstance(value, int) and pa.types.is_integer(self.arrow_type) and not isinstance(value, bool)
                why = ", out of its range" if far else self._why(value)
                return f"a value that is not: {value!r} is {type(value).__name__}{why}"
        return "values of several types"

    def _why(self, value: Any) -> str:
        """Returns what a message adds about a value that does not fit."""
        return ""

    def from_arrow(self, column: pa.Array) -> list[Any]:
        if not self._by_numpy:
            return cast("list[Any]", column.to_pylist())
        if column.null_count == 0:
            return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
        values = column.fill_null(False if pa.types.is_boolean(self.arrow_type) else 0)
        listed: list[Any] = values.to_numpy(zero_copy_only=False).tolist()
        for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            listed[i] = None
        return listed


class _TemporalColumn(BasicColumn):
    """Dates and times. Arrow alone goes by the first value: it would cut a later ``datetime`` to its date, say."""

    def from_arrow(self, column: pa.Array) -> list[Any]:
        try:
            return super().from_arrow(column)
        except (OverflowError, ValueError) as error:
            raise TypeMismatchError(
                f"a {self.name} is before the year 1 or after 9999, and Python has no such value: leave such rows out "
                "where they are read, or declare an INSTANT for a timestamp with a zone"
            ) from error

    def _build(self, values: Sequence[Any]) -> pa.Array:
        kinds = set(map(type, values)) - {NoneType}
        if len(kinds) > 1:
            for kind in kinds:
                self._build([value for value in values if type(value) is kind])
        elif any(issubclass(kind, (datetime, time)) for kind in kinds) and any(map(_ZONE, filter(None, values))):
            raise TypeError("a time zone")
        elif not kinds <= _OF_MICROSECONDS and any(map(_has_nanoseconds, values)):
            raise ValueError("nanoseconds")
        return super()._build(values)

    def _why(self, value: Any) -> str:
        if _has_nanoseconds(value):
            return f"; {self.name} keeps microseconds: round it, such as value.floor('us')"
        if getattr(value, "tzinfo", None) is None:
            return ""
        return (
            f" with a time zone, which {self.name} does not keep; give it without one, such as "
            f"value{'' if isinstance(value, time) else '.astimezone(timezone.utc)'}.replace(tzinfo=None)"
        )


def _has_nanoseconds(value: Any) -> bool:
    """Returns whether a value, such as a Timestamp of pandas, has a part that a column would cut off."""
    return bool(getattr(value, "nanosecond", 0) > 0)  # of NaT it is NaN


class _FloatColumn(BasicColumn):
    """``float`` in 32 bits. Arrow would make a number infinite that is too large for them."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        column = super()._build(values)
        infinite = np.flatnonzero(np.isinf(column.fill_null(0).to_numpy()))
        if any(math.isfinite(values[i]) for i in infinite.tolist()):
            raise OverflowError("too large")
        return column

    def _why(self, value: Any) -> str:
        return ", out of its range" if isinstance(value, float) else ""


class _BigIntColumn(BasicColumn):
    """Python's ``int``, which is wider than Arrow's."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(not isinstance(v, (int, type(None))) or isinstance(v, bool) for v in values):
            raise TypeError("not int")
        return pa.array([None if v is None else decimal.Decimal(v) for v in values], type=self.arrow_type)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [None if v is None else int(v) for v in column.to_pylist()]


class _BytesColumn(BasicColumn):
    """``bytes``. Without this check, Arrow would also encode strings."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(issubclass(kind, str) for kind in set(map(type, values))):
            raise TypeError("not bytes")
        return super()._build(values)


class _BigDecColumn(BasicColumn):
    """Any ``Decimal``, as text: ``str`` of a Decimal is exact, and keeps its scale."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if not _DECIMALS.issuperset(map(type, values)) and not all(map(_is_decimal, values)):
            raise TypeError("not Decimal")
        return pa.array([None if v is None else str(v) for v in values], type=self.arrow_type)

    def _why(self, value: Any) -> str:
        return "; convert it first, such as Decimal(str(value))" if isinstance(value, (float, str)) else ""

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [None if v is None else decimal.Decimal(v) for v in column.to_pylist()]


_MOST_DIGITS = 76
"""Of an Arrow decimal."""


class _DecimalColumn(BasicColumn):
    """``Decimal`` with a fixed number of digits after the point."""

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if not _DECIMALS.issuperset(map(type, values)) and not all(map(_is_decimal, values)):
            raise TypeError("not Decimal")  # Arrow would take text, and convert it
        decimals = [value for value in values if isinstance(value, decimal.Decimal)]
        if min(map(decimal.Decimal.adjusted, decimals), default=0) < -_MOST_DIGITS:
            raise ValueError("too many digits after the point")  # Arrow might end the process
        return super()._build(values)

    def _why(self, value: Any) -> str:
        if not _is_decimal(value):
            return ""
        kind: Any = self.arrow_type
        return (
            f"; it has at most {kind.precision - kind.scale} digits before the point and {kind.scale} after it, so "
            "round the value, or declare a wider type; Types.BIG_DEC() takes any Decimal"
        )


_DECIMALS = frozenset({decimal.Decimal, int, type(None)})


def _is_decimal(value: Any) -> bool:
    return value is None or (isinstance(value, (decimal.Decimal, int)) and not isinstance(value, bool))


def without_zeros(value: decimal.Decimal) -> decimal.Decimal:
    """Returns a number without the zeros at the end of its digits after the point."""
    digits = format(value, "f")
    return decimal.Decimal(digits.rstrip("0").rstrip(".") if "." in digits else digits)


class _InstantColumn(BasicColumn):
    """:class:`Instant`."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        if late := next((v for v in values if isinstance(v, Instant) and v.nanos % 1000), None):
            raise TypeMismatchError(
                f"declared INSTANT, produced {late!r}: a column keeps microseconds, not nanoseconds; round it, or "
                "declare a type with separate fields for seconds and nanoseconds"
            )
        return super().to_arrow(values)

    def _build(self, values: Sequence[Any]) -> pa.Array:
        if any(not isinstance(v, (Instant, type(None))) for v in values):
            raise TypeError("not Instant")
        micros = [None if v is None else v.seconds * 1_000_000 + v.nanos // 1000 for v in values]
        return pa.array(micros, type=pa.int64()).cast(self.arrow_type)

    def _why(self, value: Any) -> str:
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return "; convert it first, with Instant.of_datetime(value)"
        if isinstance(value, datetime):
            return (
                " without a time zone, so it may be any instant; give it one, and convert it, such as "
                "Instant.of_datetime(value.replace(tzinfo=timezone.utc))"
            )
        return "; convert it first, such as Instant.of_epoch_milli(value)" if type(value) is int else ""

    def from_arrow(self, column: pa.Array) -> list[Any]:
        micros = column.cast(pa.int64()).to_pylist()
        return [None if v is None else Instant(v // 1_000_000, v % 1_000_000 * 1000) for v in micros]


@cache
def basic_column(name: str) -> BasicColumn:
    """Returns the column of a basic type."""
    kinds: dict[str, type[BasicColumn]] = {
        "BIG_DEC": _BigDecColumn,
        "BIG_INT": _BigIntColumn,
        "BYTES": _BytesColumn,
        "FLOAT": _FloatColumn,
        "INSTANT": _InstantColumn,
        "SQL_DATE": _TemporalColumn,
        "SQL_TIME": _TemporalColumn,
        "SQL_TIMESTAMP": _TemporalColumn,
    }
    return kinds.get(name, BasicColumn)(name, _ARROW_TYPES[name])


@cache
def decimal_column(precision: int, scale: int) -> BasicColumn:
    """Returns the column of ``Types.DECIMAL(precision, scale)``."""
    make = pa.decimal128 if precision <= 38 else pa.decimal256
    return _DecimalColumn(f"DECIMAL({precision}, {scale})", make(precision, scale))


def with_elements(column: pa.Array[Any], wanted: Any, *converts: Callable[[Any], pa.Array[Any]]) -> pa.Array[Any]:
    """Converts the elements of lists, or the keys and values of maps.

    Args:
        column: The lists, of any size or of a fixed one, or the maps.
        wanted: The Arrow type to return.
        *converts: Converts the elements of all lists, or first the keys and then the values of all maps.
    """
    lists: Any = column
    if pa.types.is_map(wanted):
        lists = lists.cast(pa.list_(pa.struct([lists.type.key_field, lists.type.item_field])))
        parts = lists.flatten().flatten()
    else:
        parts = [pc.list_flatten(lists)]
    make: Any = pa.MapArray if pa.types.is_map(wanted) else pa.ListArray
    parts = [convert(part) for convert, part in zip(converts, parts, strict=True)]
    return make.from_arrays(_offsets_of(lists), *parts, type=wanted)


def with_parts(kind: Any, part: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a type with other types for what has no parts: inside structs, lists and maps, or itself."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_parts(field.type, part)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_parts(kind.value_type, part)))
    if pa.types.is_map(kind):
        return pa.map_(with_parts(kind.key_type, part), with_parts(kind.item_type, part))
    return part(kind)


def wide_decimals_as_text(table: pa.Table) -> pa.Table:
    """Returns a table with decimals of more than 38 digits as text: DuckDB has no such type."""

    def text(kind: pa.DataType) -> pa.DataType:
        return pa.string() if pa.types.is_decimal256(kind) else kind

    return table.cast(pa.schema([field.with_type(with_parts(field.type, text)) for field in table.schema]))


def _offsets_of(lists: Any) -> pa.Array[Any]:
    """Returns where each list begins in the values of all, and where the last one ends; null if the list is null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    starts = pc.if_else(lists.is_valid(), pc.subtract(ends, lengths), pa.scalar(None, pa.int64()))
    return pa.concat_arrays([starts, ends[-1:] if len(ends) else pa.array([0], pa.int64())]).cast(pa.int32())


def cast_finite(column: pa.Array[Any], wanted: pa.DataType) -> pa.Array[Any]:
    """Casts a column like Arrow, which alone would make numbers infinite that are too large for ``FLOAT``.

    Raises:
        ArrowException: A value does not fit.
    """
    cast = column.cast(wanted)
    if _has_more_infinite(column, cast):
        raise pa.ArrowInvalid("a number is too large for 32 bits")
    return cast


def _has_more_infinite(column: Any, cast: Any) -> bool:
    if column.null_count == len(column):
        return False
    if pa.types.is_map(cast.type):
        column, cast = (each.cast(pa.list_(each.type.field(0).type)) for each in (column, cast))
    if pa.types.is_list(cast.type):
        return _has_more_infinite(pc.list_flatten(column), pc.list_flatten(cast))
    if pa.types.is_struct(cast.type):
        return any(map(_has_more_infinite, column.flatten(), cast.flatten()))
    if cast.type != pa.float32() or column.type == cast.type:
        return False
    infinite = pc.sum(pc.is_inf(cast)).as_py()
    return bool(infinite) and infinite != pc.sum(pc.is_inf(column.cast(pa.float64()))).as_py()


def struct_field(column: Any, position: int) -> pa.Array[Any]:
    """Returns a field of structs, null where the struct is. PyArrow's function of this name takes ten times as long."""
    field: pa.Array[Any] = column.flatten()[position] if column.null_count else column.field(position)
    return field


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array: the one that it has, which Arrow's ``combine_chunks`` would copy."""
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
