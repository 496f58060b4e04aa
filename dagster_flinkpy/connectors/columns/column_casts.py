"""Which Arrow columns, and which text, become which declared types. All sources ask this: see `column-types.md`.

A column becomes another type only if each value of it stays what it is: a number keeps its value, a time its precision.
Nothing is rounded, cut off or given a meaning that the column does not say, such as a unit or a zone. Text is parsed
only where a file or a message has all values as text, and what is not written strictly is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import cast_finite, one_chunk, with_elements, with_parts
from dagster_flinkpy.common.decimals import column_of, find_big_dec
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.errors import ConfigurationError, InputTypeError, SourceReadError, TypeMismatchError

__all__ = [
    "as_text",
    "cast_column",
    "cast_rows",
    "check_cast",
    "check_finite",
    "columns_of_rows",
    "first_wrong",
    "fit_column",
    "from_text",
    "moment_of",
    "row_type_of",
    "type_info_of",
]

_SIMPLE: dict[pa.DataType, TypeInformation] = {
    pa.bool_(): Types.BOOLEAN(),
    pa.int8(): Types.BYTE(),
    pa.int16(): Types.SHORT(),
    pa.int32(): Types.INT(),
    pa.int64(): Types.LONG(),
    pa.uint8(): Types.SHORT(),
    pa.uint16(): Types.INT(),
    pa.uint32(): Types.LONG(),
    pa.float16(): Types.FLOAT(),
    pa.float32(): Types.FLOAT(),
    pa.float64(): Types.DOUBLE(),
    pa.string(): Types.STRING(),
    pa.large_string(): Types.STRING(),
    pa.string_view(): Types.STRING(),
    pa.binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.large_binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.binary_view(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.date32(): Types.SQL_DATE(),
    pa.date64(): Types.SQL_DATE(),
}


def first_wrong(column: pa.Array, convert: Callable[[pa.Array], object]) -> Any:
    """Returns the first value of a column that cannot be converted."""
    for i, value in enumerate(column):
        try:
            convert(column.slice(i, 1))
        except pa.ArrowException:
            return value.as_py()
    return None


def row_type_of(schema: pa.Schema) -> RowTypeInfo:
    """Returns the row type for the columns of a schema. Unsigned integers become the next wider type."""
    return Types.ROW_NAMED(schema.names, [type_info_of(field.type, field.name) for field in schema])


def type_info_of(arrow_type: pa.DataType, name: str, *, instants: bool = False) -> TypeInformation:
    """Returns the type information for values of an Arrow type.

    With ``instants``, a timestamp with a zone becomes an ``Instant``, otherwise a ``datetime`` in UTC.
    """
    if arrow_type in _SIMPLE:
        return _SIMPLE[arrow_type]
    if isinstance(arrow_type, pa.UuidType):
        return Types.STRING()
    if getattr(arrow_type, "extension_name", None) == "arrow.json":
        return type_info_of(arrow_type.storage_type, name)
    if pa.types.is_fixed_size_binary(arrow_type):
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if pa.types.is_dictionary(arrow_type):
        return type_info_of(arrow_type.value_type, name, instants=instants)
    if pa.types.is_timestamp(arrow_type):
        return Types.INSTANT() if instants and arrow_type.tz is not None else Types.SQL_TIMESTAMP()
    if pa.types.is_time(arrow_type):
        return Types.SQL_TIME()
    if pa.types.is_decimal(arrow_type):
        scale = max(arrow_type.scale, 0)
        return Types.DECIMAL(arrow_type.precision - arrow_type.scale + scale, scale)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        return Types.LIST(type_info_of(arrow_type.value_type, f"{name}[]", instants=instants))
    if pa.types.is_map(arrow_type):
        return Types.MAP(
            type_info_of(arrow_type.key_type, f"{name}.key", instants=instants),
            type_info_of(arrow_type.item_type, f"{name}.value", instants=instants),
        )
    if pa.types.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        types = [type_info_of(f.type, f"{name}.{f.name}", instants=instants) for f in fields]
        return Types.ROW_NAMED([f.name for f in fields], types)
    raise ConfigurationError(
        f"column {name!r} has type {arrow_type}, which no Types.* corresponds to; leave it out of row_type"
    )


Kind = Callable[[pa.DataType], bool]

_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Decimal digits that hold all whole numbers of this many bits."""
_MANTISSA_BITS = {16: 11, 32: 24, 64: 53}


def check_cast(
    name: str,
    there: pa.DataType,
    wanted: pa.DataType,
    declared: TypeInformation | None = None,
    *,
    fills: bool = False,
) -> None:
    """Checks that the values of a column stay what they are in another type; ``fills`` as for `cast_column`."""
    shown, there = there, _plain(there)
    if pa.types.is_null(there) or there == wanted:
        return
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        for field in wanted:
            found = there.get_all_field_indices(field.name)
            if not found and fills:
                continue
            if len(found) != 1:
                fields = [each.name for each in there]
                raise TypeMismatchError(
                    f"column {name!r} has the fields {fields}, but {_shown(wanted, declared)} needs one named "
                    f"{field.name!r}: declare its fields by their names"
                )
            check_cast(f"{name}.{field.name}", there.field(found[0]).type, field.type, fills=fills)
    elif _is_list(there) and pa.types.is_list(wanted):
        check_cast(f"{name}[]", there.value_type, wanted.value_type, fills=fills)
    elif pa.types.is_map(there) and pa.types.is_map(wanted):
        check_cast(f"{name}.key", there.key_type, wanted.key_type, fills=fills)
        check_cast(f"{name}.value", there.item_type, wanted.item_type, fills=fills)
    elif not _fits(there, wanted):
        raise TypeMismatchError(
            f"column {name!r} is {shown}, which does not become {_shown(wanted, declared)}: {_reason(there, wanted)}. "
            f"{_advice(there)}"
        )


def cast_column(name: str, column: pa.Array, wanted: pa.DataType, *, fills: bool = False) -> pa.Array:
    """Converts a column from outside of the job to the Arrow type of a declared type.

    With ``fills``, fields that values do not have, because they are older than the fields, are null.
    """
    if isinstance(column, pa.ChunkedArray):
        column = one_chunk(column)
    if column.type == wanted:
        return column
    check_cast(name, column.type, wanted, fills=fills)
    try:
        return _cast(column, wanted)
    except pa.ArrowException as error:
        there, shown = column.type, _shown(wanted)
        raise TypeMismatchError(
            f"column {name!r} is {there}, and a value does not fit {shown}: {error}. Write values that fit, such as "
            "times of whole microseconds, or leave the column out of row_type"
        ) from error


def cast_rows(rows: pa.RecordBatch | pa.Table, row_type: RowTypeInfo) -> pa.Array:
    """Returns the columns that a row type declares, found by their names, as `cast_column` converts them."""
    fields = list(row_type.arrow_type)
    columns = [cast_column(field.name, rows.column(field.name), field.type) for field in fields]
    return pa.StructArray.from_arrays(columns, fields=fields)


def fit_column(column: Any, kind: TypeInformation, what: str) -> pa.Array:
    """Converts a column that a function has computed, or that becomes state, to a declared type.

    Numbers may also become narrower, if none changes: functions compute in int64 and double. Only ``FLOAT`` takes the
    nearest number, as it does of Python's.
    """
    if isinstance(column, pa.ChunkedArray):
        column = one_chunk(column)
    if not isinstance(column, pa.Array):
        raise TypeMismatchError(f"{what}: expected an Arrow array, not {type(column).__name__}")
    if find_big_dec(kind) is not None:
        try:
            return column_of(kind, column, partial(fit_column, what="a part of it"))
        except TypeMismatchError as e:
            raise TypeMismatchError(f"{what}: {e}") from e
    if column.type == kind.arrow_type:
        return column
    if not _alike(column.type, kind.arrow_type):
        value = column[0].as_py() if len(column) else None
        raise TypeMismatchError(f"{what}: declared {kind}, got {column.type}, such as {value!r}")
    try:
        return cast_finite(column, kind.arrow_type)
    except pa.ArrowException as e:
        value = first_wrong(column, lambda part: cast_finite(part, kind.arrow_type))
        raise TypeMismatchError(f"{what}: declared {kind}, got {column.type}: {value!r} does not fit") from e


def _alike(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether values of one type can be converted to the other, unless they are out of range."""
    types = pa.types
    there = _plain(there)
    if types.is_struct(there) and types.is_struct(wanted):
        return [f.name for f in there] == [f.name for f in wanted] and all(
            _alike(a.type, b.type) for a, b in zip(there, wanted, strict=True)
        )
    if _is_list(there) and types.is_list(wanted):
        return _alike(there.value_type, wanted.value_type)
    if types.is_map(there) and types.is_map(wanted):
        return _alike(there.key_type, wanted.key_type) and _alike(there.item_type, wanted.item_type)
    if types.is_integer(there):
        return bool(types.is_integer(wanted) or types.is_floating(wanted))
    alike: tuple[Kind, ...] = (types.is_floating, types.is_decimal, types.is_date)
    return bool(types.is_null(there)) or any(kind(there) and kind(wanted) for kind in alike) or _fits(there, wanted)


def _plain(there: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a dictionary, and that of the text of JSON."""
    if pa.types.is_dictionary(there):
        return _plain(there.value_type)
    if getattr(there, "extension_name", None) == "arrow.json":
        return there.storage_type
    return there


def _fits(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether each value of one type without parts is a value of another one."""
    types = pa.types
    if types.is_integer(wanted):
        if types.is_decimal(there):
            return bool(there.scale == 0 and there.precision < _INTEGER_DIGITS[wanted.bit_width])
        return bool(types.is_integer(there) and _value_bits(there) <= _value_bits(wanted))
    if types.is_floating(wanted):
        mantissa = _MANTISSA_BITS[wanted.bit_width]
        if types.is_integer(there):
            return bool(_value_bits(there) <= mantissa)
        return bool(types.is_floating(there) and there.bit_width <= wanted.bit_width)
    if types.is_decimal(wanted):
        before = wanted.precision - wanted.scale
        if types.is_integer(there):
            return bool(_digits(there) <= before)
        return bool(types.is_decimal(there) and there.scale <= wanted.scale and there.precision - there.scale <= before)
    if types.is_timestamp(wanted):
        if types.is_date32(there):
            return bool(wanted.tz is None)
        return bool(types.is_timestamp(there) and (wanted.tz is None or there.tz is not None))
    if types.is_string(wanted):
        return isinstance(there, pa.UuidType) or _is_text(there)
    alike: tuple[Kind, ...] = (types.is_date, types.is_time, _is_binary)
    return any(kind(wanted) and kind(there) for kind in alike)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    there = column.type
    if there == wanted:
        return column
    if pa.types.is_dictionary(there):
        return _cast(column.dictionary_decode(), wanted)
    if isinstance(there, pa.UuidType):
        values = column.storage.to_pylist()
        return pa.array([None if value is None else str(UUID(bytes=value)) for value in values], wanted)
    if isinstance(there, pa.BaseExtensionType):
        return _cast(column.storage, wanted)
    if pa.types.is_null(there):
        return pa.nulls(len(column), wanted)
    if pa.types.is_struct(wanted):
        places = [there.get_field_index(field.name) for field in wanted]
        parts = [
            pa.nulls(len(column), field.type) if at < 0 else _cast(pc.struct_field(column, [at]), field.type)
            for field, at in zip(wanted, places, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    if pa.types.is_list(wanted):
        return with_elements(column, wanted, partial(_cast, wanted=wanted.value_type))
    if pa.types.is_map(wanted):
        kinds = (wanted.key_type, wanted.item_type)
        return with_elements(column, wanted, *(partial(_cast, wanted=kind) for kind in kinds))
    return column.cast(wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _value_bits(integer: pa.DataType) -> int:
    return int(integer.bit_width) - bool(pa.types.is_signed_integer(integer))


def _digits(integer: pa.DataType) -> int:
    return 20 if pa.types.is_uint64(integer) else _INTEGER_DIGITS[integer.bit_width]


def _shown(wanted: pa.DataType, declared: TypeInformation | None = None) -> str:
    return str(type_info_of(wanted, "", instants=True) if declared is None else declared)


def _reason(there: pa.DataType, wanted: pa.DataType) -> str:
    types = pa.types
    reasons: Sequence[tuple[bool, str]] = (
        (_is_text(there), "text would have to be parsed"),
        (types.is_string(wanted), "there is more than one way to write it as text"),
        (_is_number(there) and _is_number(wanted), "a value may be out of range, or lose digits"),
        (types.is_boolean(wanted) or types.is_boolean(there), "it does not say which values are true"),
        (types.is_timestamp(there) and types.is_timestamp(wanted), "without a time zone it may be any instant"),
        (types.is_date(there) and types.is_timestamp(wanted), "without a time zone it may be any instant"),
        (types.is_timestamp(there) and types.is_date(wanted), "the time of day would be lost"),
        (types.is_timestamp(there) and types.is_time(wanted), "the date would be lost"),
        (_is_number(there) and types.is_temporal(wanted), "a number does not say its unit, such as seconds"),
        (types.is_temporal(there) and _is_number(wanted), "which unit the number has would depend on the file"),
    )
    return next((reason for applies, reason in reasons if applies), "these are different things")


def _advice(there: pa.DataType) -> str:
    try:
        natural = type_info_of(there, "", instants=True)
    except ConfigurationError:
        return "Leave the column out of row_type, or write it with another type"
    return f"Declare {natural} for it, and convert it with map()"


_BATCH_RECORDS = 8192


def columns_of_rows(rows: Any, row_type: RowTypeInfo, where: str) -> Iterator[pa.Array]:
    """Yields rows, batch by batch, of a table or record batch of Arrow, a pandas DataFrame, or an iterable of rows."""
    if type(rows).__module__.partition(".")[0] == "pandas":
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        if missing := [name for name in row_type.field_names if name not in rows.column_names]:
            raise SourceReadError(f"what {where} returned has no column {missing[0]!r}, only {rows.column_names}")
        for batch in rows.to_batches(max_chunksize=_BATCH_RECORDS):
            try:
                yield cast_rows(batch, row_type)
            except TypeMismatchError as error:
                raise InputTypeError(f"what {where} returned: {error}") from error
        return
    try:
        values = iter(rows)
    except TypeError:
        raise SourceReadError(
            f"{where} returned {type(rows).__name__}: return a pyarrow.Table, a pandas DataFrame, or rows"
        ) from None
    while batch := list(islice(values, _BATCH_RECORDS)):
        yield row_type.to_arrow(batch)


_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_TINY = "[eE]-0*([0-9]{3,}|[89][0-9]|7[7-9])$"
"""In decimals that fit no type: Arrow reads beyond its powers of ten, takes some for 0, and may end the process."""


def as_text(wanted: pa.DataType) -> pa.DataType:
    """Returns the type in which a reader of JSON must return a column, so that `from_text` can convert it strictly.

    PyArrow does not read dates and times from JSON, drops the zone of a timestamp, and makes large numbers infinite.
    """

    def part(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_temporal(kind):
            return pa.string()
        return pa.float64() if pa.types.is_float32(kind) else kind

    return with_parts(wanted, part)


def check_finite(columns: Iterable[pa.Array]) -> None:
    """Checks columns as PyArrow has read them from JSON: it makes some numbers infinite, such as ``2e308``.

    Raises:
        ArrowInvalid: There is one.
    """
    for column in columns:
        kind = column.type
        if pa.types.is_struct(kind) or pa.types.is_list(kind):
            check_finite(column.flatten() if pa.types.is_struct(kind) else [column.flatten()])
        elif pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py():
            raise pa.ArrowInvalid("a number that becomes infinite")


def from_text(name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Converts a column of text, or one that has text and numbers as parts."""
    if column.type == wanted:
        return column
    if pa.types.is_struct(wanted):
        parts = [from_text(f"{name}.{f.name}", pc.struct_field(column, i), f.type) for i, f in enumerate(wanted)]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    if pa.types.is_list(wanted):
        return with_elements(column, wanted, partial(from_text, f"{name}[]", wanted=wanted.value_type))
    if pa.types.is_map(wanted):
        kinds = {"key": wanted.key_type, "value": wanted.item_type}
        converts = (partial(from_text, f"{name}.{part}", wanted=kind) for part, kind in kinds.items())
        return with_elements(column, wanted, *converts)
    try:
        return _parsed(column, wanted)
    except pa.ArrowException as error:
        value = first_wrong(column, partial(_parsed, wanted=wanted))
        declared = type_info_of(wanted, name, instants=True)
        raise ValueError(
            f"{name!r} is {value!r:.100}, which is no {declared}{_how(wanted)}; correct it, or declare text, "
            "and parse it with map()"
        ) from error


def moment_of(text: str) -> datetime:
    """Parses a timestamp, with or without a time zone."""
    zone = "UTC" if _ZONE.search(text) else None
    moment: datetime = pa.scalar(text).cast(pa.timestamp("us", zone)).as_py()
    return moment


def _parsed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Parses text as Arrow does, but no hexadecimal numbers, hours without minutes, or numbers that become infinite."""
    if pa.types.is_integer(wanted) and _has(column, "x"):
        raise pa.ArrowInvalid("a hexadecimal number")
    if pa.types.is_decimal(wanted) and _has(column, "e") and pc.any(pc.match_substring_regex(column, _TINY)).as_py():
        raise pa.ArrowInvalid("a number with too many digits after the point")
    if pa.types.is_time(wanted):
        if pc.all(pc.match_substring(column, ":")).as_py() is False:
            raise pa.ArrowInvalid("hours without minutes")
        column = pc.binary_join_element_wise("1970-01-01T", column, "").cast(pa.timestamp("us"))
    parsed = column.cast(wanted)
    if pa.types.is_floating(wanted):
        infinite = column.filter(pc.is_inf(parsed))
        is_text = pa.types.is_string(column.type)
        written = pc.match_substring(infinite, "inf", ignore_case=True) if is_text else pc.is_inf(infinite)
        if pc.all(written).as_py() is False:
            raise pa.ArrowInvalid("a number that becomes infinite")
    return parsed


def _has(column: pa.Array, character: str) -> bool:
    """Returns whether a column of text has a character, in upper or lower case."""
    text = memoryview(column.buffers()[2] or b"").tobytes().lower()
    return character.encode() in text and bool(pc.any(pc.match_substring(column, character, ignore_case=True)).as_py())


def _how(wanted: pa.DataType) -> str:
    if pa.types.is_timestamp(wanted):
        return " with a time zone" if wanted.tz is not None else " without a time zone"
    return ""
