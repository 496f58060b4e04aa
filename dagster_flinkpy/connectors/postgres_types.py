"""The columns that records have in PostgreSQL.

Declarations need this module, so it imports neither PyArrow nor psycopg.
"""

from __future__ import annotations

from dagster_flinkpy.common.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["columns_of", "is_json", "sql_type"]

_SQL_TYPES = {
    "STRING": "text",
    "CHAR": "text",
    "BOOLEAN": "boolean",
    "BYTE": "smallint",
    "SHORT": "smallint",
    "INT": "integer",
    "LONG": "bigint",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "BIG_DEC": "numeric",
    "BIG_INT": "numeric",
    "SQL_DATE": "date",
    "SQL_TIME": "time",
    "SQL_TIMESTAMP": "timestamp",
    "INSTANT": "timestamptz",
    "BYTES": "bytea",
}


def columns_of(type_info: TypeInformation) -> dict[str, TypeInformation]:
    """Returns the columns of records: the fields of rows and tuples, or else ``value``."""
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return dict(zip(type_info.field_names, type_info.field_types, strict=True))
    return {"value": type_info}


def is_json(type_info: TypeInformation) -> bool:
    """Returns whether values of a type are stored as JSON."""
    return isinstance(type_info, (ListTypeInfo, MapTypeInfo, RowTypeInfo, TupleTypeInfo))


def sql_type(name: str, type_info: TypeInformation) -> str:
    """Returns the type of a column in PostgreSQL.

    Args:
        name: The column, for messages.
        type_info: The type of its values.

    Raises:
        ConfigurationError: There is none. The message says what to do.
    """
    if isinstance(type_info, DecimalTypeInfo):
        return f"numeric({type_info.precision}, {type_info.scale})"
    if isinstance(type_info, BasicTypeInfo) and type_info.name in _SQL_TYPES:
        return _SQL_TYPES[type_info.name]
    if is_json(type_info):
        _check_json(name, type_info)
        return "jsonb"
    raise ConfigurationError(f"column {name!r} of type {type_info} has no type in PostgreSQL: map() it to another type")


def _check_json(name: str, type_info: TypeInformation) -> None:
    if isinstance(type_info, ListTypeInfo):
        parts = {f"{name}[]": type_info.elem_type}
    elif isinstance(type_info, MapTypeInfo):
        parts = {f"{name}.key": type_info.key_type, f"{name}.value": type_info.value_type}
        if is_json(type_info.key_type):
            raise ConfigurationError(f"the keys of map {name!r} are {type_info.key_type}, but keys in JSON are text")
    else:
        parts = {f"{name}.{field}": kind for field, kind in columns_of(type_info).items()}
    for part, kind in parts.items():
        if kind == Types.PRIMITIVE_ARRAY(Types.BYTE()):
            raise ConfigurationError(f"{part!r} is binary, which JSON cannot contain: map() it to text, or to a column")
        sql_type(part, kind)
