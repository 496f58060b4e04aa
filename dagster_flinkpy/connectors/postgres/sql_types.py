"""The columns that records have in PostgreSQL, and the names of tables.

Declarations need this module, so it imports neither PyArrow nor psycopg.
"""

from __future__ import annotations

import re

from dagster_flinkpy.common.typeinfo import BasicTypeInfo, DecimalTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import check_json_type, is_nested
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["schema_and_table", "sql_type", "table_uri"]

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


def sql_type(name: str, type_info: TypeInformation) -> str:
    """Returns the type of a column in PostgreSQL."""
    if isinstance(type_info, DecimalTypeInfo):
        return f"numeric({type_info.precision}, {type_info.scale})"
    if isinstance(type_info, BasicTypeInfo) and type_info.name in _SQL_TYPES:
        return _SQL_TYPES[type_info.name]
    if is_nested(type_info):
        check_json_type(name, type_info)
        return "jsonb"
    raise ConfigurationError(f"column {name!r} of type {type_info} has no type in PostgreSQL: map() it to another type")


def schema_and_table(name: str) -> tuple[str | None, str]:
    """Returns the schema of a table, if one is named, and its name in it."""
    schema, _, table = name.rpartition(".")
    if not table or "." in schema:
        raise ConfigurationError(f"table {name!r} must be 'name' or 'schema.name'")
    return schema or None, table


def table_uri(conninfo: str, schema: str | None, table: str) -> str:
    """Returns where a table is, without credentials."""
    if "://" in conninfo:
        # Not by urlsplit(): some versions of Python refuse brackets behind another host.
        [(netloc, path)] = re.findall(r"^.*?://([^/?#]*)([^?#]*)", conninfo, re.DOTALL)
        place, database = netloc.rpartition("@")[2].lower(), path.strip("/")
        if not re.fullmatch(r"(\[[^]]*\]|[^:,]*)(:\d*)?(,(\[[^]]*\]|[^:,]*)(:\d*)?)*", place):
            raise ConfigurationError(
                f"conninfo of table {table!r} must be postgresql://user@host:port/database, with several hosts as "
                "host:port,host:port. Characters such as / and # in a password are written as %2F and %23"
            )
        place = re.sub(r"[][]", "", place).removesuffix(":")
    else:
        given = dict(re.findall(r"(\w+)\s*=\s*'?((?<=')[^']*|[^\s']+)", conninfo))
        host, port, database = given.get("host", ""), given.get("port"), given.get("dbname", "")
        place = f"{host}:{port}" if port else host
    return f"postgresql://{place}/{database}/{f'{schema}.' if schema else ''}{table}"
