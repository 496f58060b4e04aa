"""``Types.BIG_DEC()`` in types with parts, in columns from outside, and as earlier releases stored it."""

from __future__ import annotations

from collections.abc import Mapping
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

__all__ = ["as_stored_before", "check_has_scale", "column_of", "find_big_dec"]


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


def column_of(kind: TypeInformation, column: pa.Array[Any]) -> pa.Array[Any]:
    """Converts a column from outside of the job to a type with ``Types.BIG_DEC()``. Text for that must be a number.

    Raises:
        TypeMismatchError: A value is not a decimal.
    """
    return kind.to_arrow([_with_decimals(kind, value) for value in column.to_pylist()])


def _with_decimals(kind: TypeInformation, value: Any) -> Any:
    """Returns a value of a column as one of the type, with decimals in place of their text."""
    if value is None:
        return None
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and isinstance(value, Mapping):
        if list(value) != list(kind.field_names):
            raise TypeMismatchError(f"declared the fields {list(kind.field_names)}, got {list(value)}")
        return tuple(_with_decimals(f, v) for f, v in zip(kind.field_types, value.values(), strict=True))
    if isinstance(kind, ListTypeInfo) and isinstance(value, list):
        return [_with_decimals(kind.elem_type, v) for v in value]
    if isinstance(kind, MapTypeInfo) and isinstance(value, list):
        return {_with_decimals(kind.key_type, k): _with_decimals(kind.value_type, v) for k, v in value}
    if isinstance(value, str) and kind == Types.BIG_DEC():
        try:
            return Decimal(value)
        except InvalidOperation as error:
            raise TypeMismatchError(f"declared {kind}, got the text {value!r}, which is not a number") from error
    return value
