"""Which `Types` the columns of PostgreSQL have, and how their text becomes Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import DecimalTypeInfo, RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.columns.column_casts import check_cast, type_info_of
from dagster_flinkpy.connectors.postgres.connection import untimed
from dagster_flinkpy.errors import ConfigurationError, SourceReadError, TypeMismatchError

__all__ = ["READING", "Column", "check_columns", "column_of_type", "columns_of_table", "from_text", "row_type_of"]

READING = (
    "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET bytea_output = 'hex'; SET extra_float_digits = 1; "
    f"SET row_security = off; SET idle_in_transaction_session_timeout = 0; {untimed('SET')}"
)
"""The settings of a session that reads: values have the text that `from_text` reads, rows that a policy would hide are
an error, and whoever takes the rows may be slow. A pooler gives each transaction another session."""

_TEXT = Types.STRING()

_ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid", "json", "jsonb", "enum"), pa.string()),
}
"""What the values of a column are. Those of a numeric depend on its modifier. Each column may also be its text."""

_COLUMNS = """
WITH RECURSIVE base (num, oid, mod) AS (
    SELECT attnum, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT num, typbasetype, typtypmod FROM base JOIN pg_type ON pg_type.oid = base.oid WHERE typtype = 'd'
)
SELECT attname, CASE typtype WHEN 'e' THEN 'enum' ELSE typname END, mod, format_type(atttypid, atttypmod), attnotnull,
  attgenerated <> '', num, coalesce(collname, '')
FROM base JOIN pg_type ON pg_type.oid = base.oid
JOIN pg_attribute ON attrelid = to_regclass(%s) AND attnum = num LEFT JOIN pg_collation c ON c.oid = attcollation
WHERE typtype <> 'd' ORDER BY num
"""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    type_name: str
    """The name in ``pg_type``; of a domain, that of the type below it; ``enum`` of every enum."""
    modifier: int
    """The modifier of the type, such as precision and scale, or -1."""
    shown: str
    """The type for messages."""
    not_null: bool = False
    generated: bool = False
    number: int = 0
    """Which column it is: a column that is dropped and added again has another number. 0 if it is unknown."""
    collation: str = ""

    @property
    def scale(self) -> int:
        """The digits after the point, of a numeric with a modifier."""
        return ((self.modifier - 4 & 0x7FF) ^ 1024) - 1024


def columns_of_table(connection: psycopg.Connection[Any], table: str) -> dict[str, Column]:
    """Returns the columns of a table, named as SQL writes it, in order."""
    found = connection.execute(_COLUMNS, [table, table]).fetchall()
    if not found:
        raise SourceReadError(f"there is no table {table} that this user can see: check its name and schema")
    return {name: Column(*facts) for name, *facts in found}


def column_of_type(connection: psycopg.Connection[Any], oid: int, modifier: int) -> Column:
    """Returns a column of a type, by the id of the type."""
    for _ in range(16):  # domains of domains
        found = connection.execute(
            "SELECT typname, typtype, typbasetype, typtypmod FROM pg_type WHERE oid = %s", [oid]
        ).fetchone()
        if found is None:
            break
        name, kind, base, base_modifier = found
        if kind != "d":
            return Column("enum" if kind == "e" else name, modifier, name)
        oid, modifier = base, base_modifier
    return Column(f"type {oid}", modifier, f"type {oid}")


def row_type_of(table: str, columns: Mapping[str, Column]) -> RowTypeInfo:
    """Returns the row type of columns. An error names a column that has no counterpart."""
    return Types.ROW_NAMED(list(columns), [_default(table, name, column) for name, column in columns.items()])


def check_columns(table: str, columns: Mapping[str, Column], row_type: RowTypeInfo) -> None:
    """Checks that columns can be read as a row type."""
    for name, kind in zip(row_type.field_names, row_type.field_types, strict=True):
        if name not in columns:
            raise ConfigurationError(f"table {table} has no column {name!r}, only {list(columns)}")
        reason = _why_not(name, columns[name], kind)
        if reason is not None:
            raise ConfigurationError(
                f"table {table} cannot be read as declared: {reason}. Or read its text, as Types.STRING()"
            )


def _why_not(name: str, column: Column, kind: TypeInformation) -> str | None:
    """Returns why a column cannot be read as a type, or None if it can."""
    there, numeric = _arrow_type(column), column.type_name == "numeric"
    if kind == _TEXT or (numeric and kind == Types.BIG_DEC()):
        return None
    if numeric and there is None and (isinstance(kind, DecimalTypeInfo) or kind == Types.BIG_INT()):
        return None  # a value that does not fit is an error
    if there is None:
        return f"column {name!r} is {column.shown}, which does not become {kind}"
    try:
        check_cast(name, there, kind.arrow_type, kind)
    except TypeMismatchError as error:
        return str(error)
    return None


def _arrow_type(column: Column) -> pa.DataType | None:
    """Returns the type that all values of a column have, or None if it is not known."""
    if column.type_name != "numeric":
        return _ARROW_TYPES.get(column.type_name)
    precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, column.scale
    fixed = column.modifier >= 0 and 0 <= scale <= precision <= 76
    return Types.DECIMAL(precision, scale).arrow_type if fixed else None


def _default(table: str, name: str, column: Column) -> TypeInformation:
    there = _arrow_type(column)
    if there is not None:
        return type_info_of(there, name)
    if column.type_name == "numeric":
        return Types.BIG_DEC()
    raise ConfigurationError(
        f"column {name!r} of table {table} is {column.shown}, which no Types.* corresponds to: declare a row_type, "
        "and leave the column out or read its text as Types.STRING()"
    )


def from_text(name: str, column: Column, text: pa.Array, type_info: TypeInformation) -> pa.Array:
    """Converts the text of values, as PostgreSQL writes it with `READING`."""
    try:
        return _converted(column, text, type_info)
    except (pa.ArrowException, ValueError) as error:
        raise SourceReadError(
            f"column {name!r}, a {column.shown}, has a value that {type_info} cannot contain: {error}. Read its text "
            "with Types.STRING() in row_type"
        ) from error


def _converted(column: Column, text: pa.Array, type_info: TypeInformation) -> pa.Array:
    wanted = type_info.arrow_type
    if pa.types.is_string(wanted):
        return text
    if pa.types.is_boolean(wanted):
        return pc.equal(text, "t")
    if pa.types.is_binary(wanted):
        return pa.array([None if v is None else _bytes(v) for v in text.to_pylist()], wanted)
    if pa.types.is_time(wanted):
        days = pc.binary_join_element_wise(pa.scalar("1970-01-01"), text, " ")
        return days.cast(pa.timestamp("us")).cast(wanted)
    if column.type_name == "timestamptz":
        return text.cast(pa.timestamp("us", "UTC")).cast(wanted)
    return text.cast(wanted)


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("it is not in hex digits: bytea_output is another one, as behind a pooler that loses settings")
    return bytes.fromhex(text[2:])
