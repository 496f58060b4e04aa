"""``Types.BIG_DEC()`` in types with parts, in columns from outside, and as earlier releases stored it."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.composite_type_info import parts_of
from dagster_flinkpy.common.typeinfo import (
    BIG_DEC_JSON,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    type_from_json,
)
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_stored_before", "check_has_scale", "column_of", "decimal_of", "find_big_dec"]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""What a numeric of PostgreSQL may be, too."""


def find_big_dec(kind: TypeInformation, name: str = "value") -> str | None:
    """Returns the name of the first part of a type that is ``Types.BIG_DEC()``, such as ``orders[].price``, or None."""
    if kind == Types.BIG_DEC():
        return name
    is_record = name == "value" and isinstance(kind, (RowTypeInfo, TupleTypeInfo))
    parts = parts_of(kind, "" if is_record else name)
    return next((found for part, each in parts.items() if (found := find_big_dec(each, part))), None)


def check_has_scale(kind: TypeInformation, what: str) -> None:
    """Makes sure that all decimals of a type can be columns of a table.

    Args:
        kind: Type of the records.
        what: Names the table in the message.

    Raises:
        ConfigurationError: A part of it is ``Types.BIG_DEC()``.
    """
    if field := find_big_dec(kind):
        raise ConfigurationError(
            f"{what}: {field!r} is Types.BIG_DEC(), whose values have any number of digits, but a column of decimals "
            "has a fixed one: declare Types.DECIMAL(precision, scale), such as Types.DECIMAL(38, 18), or Types.STRING()"
        )


def as_stored_before(kind: TypeInformation) -> TypeInformation:
    """Returns a type as releases stored it whose ``Types.BIG_DEC()`` was a column of decimal128(38, 18)."""
    return type_from_json(_renamed(kind.to_json()))


def _renamed(description: Any) -> Any:
    if isinstance(description, list):
        return list(map(_renamed, description))
    if not isinstance(description, dict):
        return description
    if description.get("type") == BIG_DEC_JSON:
        return {"type": "BIG_DEC"}
    return {name: _renamed(part) for name, part in description.items()}


def column_of(kind: TypeInformation, column: Any, fit: Callable[[pa.Array, TypeInformation], pa.Array]) -> pa.Array:
    """Converts a column from outside of the job to a type with ``Types.BIG_DEC()``. Text for that must be a number.

    Args:
        kind: The type.
        column: The column.
        fit: Converts parts of it that have no ``Types.BIG_DEC()``.

    Raises:
        TypeMismatchError: A value is not a decimal, or what ``fit`` raises.
    """
    import pyarrow as pa

    from dagster_flinkpy.common.arrow_columns import with_elements

    def part_of(kind: TypeInformation) -> Callable[[Any], pa.Array]:
        return lambda part: column_of(kind, part, fit)

    is_a, there = pa.types, column.type
    if kind == Types.BIG_DEC():
        return kind.to_arrow(list(map(_decimal, column.to_pylist())))
    if find_big_dec(kind) is None:
        return fit(column, kind)
    if is_a.is_null(there):
        return column.cast(kind.arrow_type)
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and is_a.is_struct(there):
        if (names := [field.name for field in there]) != list(kind.field_names):
            raise TypeMismatchError(f"declared the fields {list(kind.field_names)}, got {names}")
        parts = [part_of(field)(part) for field, part in zip(kind.field_types, column.flatten(), strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind.arrow_type), mask=column.is_null())
    if isinstance(kind, MapTypeInfo) and is_a.is_map(there):
        return with_elements(column, kind.arrow_type, part_of(kind.key_type), part_of(kind.value_type))
    if isinstance(kind, ListTypeInfo) and any(
        is_list(there) for is_list in (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list)
    ):
        return with_elements(column, kind.arrow_type, part_of(kind.elem_type))
    raise TypeMismatchError(f"declared {kind}, got {there}")


def decimal_of(text: str) -> Decimal:
    """Parses a number as Java's ``BigDecimal`` does. Python's ``Decimal`` would take " 1_0 ", "NaN" and "١", too.

    Raises:
        InvalidOperation: It is none.
    """
    if _NUMBER.fullmatch(text) is None:
        raise InvalidOperation(text)
    return Decimal(text)


def _decimal(value: Any) -> Any:
    try:
        if not isinstance(value, str):
            return value
        return Decimal(value) if value in _NO_NUMBERS else decimal_of(value)
    except InvalidOperation as error:
        raise TypeMismatchError(f"declared Types.BIG_DEC(), got the text {value!r}, which is not a number") from error
