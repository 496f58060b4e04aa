"""Values that a file or a message has as text: numbers, dates and times. What is not written strictly is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import with_elements, with_parts
from dagster_flinkpy.connectors.columns.column_casts import first_wrong, type_info_of

__all__ = ["as_text", "check_finite", "from_text", "moment_of"]

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
        written = pc.match_substring(infinite, "inf", ignore_case=True) if _is_text(column) else pc.is_inf(infinite)
        if pc.all(written).as_py() is False:
            raise pa.ArrowInvalid("a number that becomes infinite")
    return parsed


def _has(column: pa.Array, character: str) -> bool:
    """Returns whether a column of text has a character, in upper or lower case."""
    text = memoryview(column.buffers()[2] or b"").tobytes().lower()
    return character.encode() in text and bool(pc.any(pc.match_substring(column, character, ignore_case=True)).as_py())


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type))


def _how(wanted: pa.DataType) -> str:
    if pa.types.is_timestamp(wanted):
        return " with a time zone" if wanted.tz is not None else " without a time zone"
    return ""
