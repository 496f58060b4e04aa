"""The table of a PostgreSQL sink: whether it takes the rows as they are, and whether it is the one that it was."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.common.typeinfo import DecimalTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.postgres.columns import Column, columns_of_table
from dagster_flinkpy.connectors.postgres.connection import listed, row_of
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.connectors.postgres.sink import PostgresSink
from dagster_flinkpy.connectors.postgres.sql_types import sql_type
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["PostgresTarget"]

_WHOLE = ("int2", "int4", "int8", "numeric")
_WIDER: dict[str, tuple[str, ...]] = {
    "boolean": ("bool",),
    "smallint": (*_WHOLE, "float4", "float8"),
    "integer": (*_WHOLE, "float8"),
    "bigint": _WHOLE,
    "real": ("float4", "float8", "numeric"),
    "double precision": ("float8", "numeric"),
    "numeric": _WHOLE,
    "date": ("date", "timestamp", "timestamptz"),
    "time": ("time",),
    "timestamp": ("timestamp", "timestamptz"),
    "timestamptz": ("timestamptz", "timestamp"),
    "jsonb": ("jsonb", "json"),
}
"""The types of columns that keep the values of each type, or refuse them. Text has all but binary values, too; times
without a zone are in UTC. Text may go into any column."""
_TEXTS = ("text", "varchar")
_FOUND = """
SELECT to_regclass(%(table)s)::oid::bigint, min(oid::regclass::text) FILTER (WHERE relpersistence = 'u'),
  min(oid::regclass::text) FILTER (WHERE relkind = 'f' AND ('updatable=false' = ANY (ftoptions)) IS NOT TRUE),
  row_security_active(to_regclass(%(table)s))
FROM pg_class LEFT JOIN pg_foreign_table ON ftrelid = oid
WHERE oid = ANY (ARRAY(SELECT to_regclass(%(table)s)::oid UNION
  SELECT relid FROM pg_partition_tree(to_regclass(%(table)s))))
"""
# What an index only INCLUDEs is no part of its key.
_UNIQUE = """
SELECT relname, indimmediate, array_agg(attname::text) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid
JOIN pg_attribute a ON attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL GROUP BY 1, 2
"""
_ALWAYS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attidentity = 'a'"
_MICROS = 6


class PostgresTarget:
    """Checks the table of a sink."""

    def __init__(self, sink: PostgresSink, type_info: TypeInformation | None, session: Session) -> None:
        self._sink, self._session = sink, session
        self._types = {} if type_info is None else columns_of(type_info)
        self._wanted = {name: sql_type(name, kind) for name, kind in self._types.items()}
        self._filled = [] if sink.filled is None else sink.filled.names
        self._oid: int | None = None
        """The table that was found first."""

    def create(self, connection: psycopg.Connection[Any]) -> None:
        if self._session.exists(connection, self._session.target):
            return
        key = listed(self._sink.key).as_string(connection)
        columns = [self._column(connection, name) for name in (*self._wanted, *self._filled)]
        parts = [*columns, *([f"PRIMARY KEY ({key})"] if key else [])]
        statement = f"CREATE TABLE {self._session.target.as_string(connection)} ({', '.join(parts)})"
        owned = self._sink.filled is not None and self._sink.filled.owner is not None
        if not owned and not self._sink.create:
            raise ConfigurationError(
                f"table {self._sink.uri()} does not exist. Give the sink create=True, or create it: {statement}"
            )
        if not owned and (last := self._session.last_committed(connection)) is not None:
            raise ConfigurationError(
                f"table {self._sink.uri()} does not exist any more, and had rows up to checkpoint {last}. Put it back. "
                f"To go on without these rows, create it: {statement}"
            )
        self._session.create_table(connection, statement, self._filled)

    def _column(self, connection: psycopg.Connection[Any], name: str) -> str:
        return f"{sql.Identifier(name).as_string(connection)} {self._wanted.get(name, 'text')}"

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Checks the table. Within a transaction that has written to it, it holds until the end."""
        target = self._session.target.as_string(connection)
        oid, unlogged, foreign, secured = row_of(connection, _FOUND, {"table": target})
        if oid is None:
            raise ConfigurationError(f"table {self._sink.uri()} does not exist any more")
        if unlogged is not None:
            raise ConfigurationError(
                f"table {self._sink.uri()} is UNLOGGED: after a crash of the server it has no rows, and the job would "
                f"not write them again. Change it: ALTER TABLE {unlogged} SET LOGGED"
            )
        if foreign is not None:
            raise ConfigurationError(
                f"table {self._sink.uri()}: {foreign} is a foreign table. Its server commits before this one does, so "
                "a crash in between would write rows twice. Let the sink write to that server itself. Or, if it is a "
                f"partition that gets no more rows: ALTER FOREIGN TABLE {foreign} OPTIONS (ADD updatable 'false')"
            )
        if self._oid not in (None, oid):
            raise ConfigurationError(
                f"table {self._sink.uri()} was dropped and made anew since it was opened. Running again adds the rows "
                "to the new table"
            )
        self._oid = oid
        if secured:
            raise ConfigurationError(
                f"table {self._sink.uri()} has row-level security for the role of the sink, to which PostgreSQL does "
                "not let it COPY: ALTER ROLE ... BYPASSRLS, or ALTER TABLE ... DISABLE ROW LEVEL SECURITY"
            )
        self._check_columns(connection, target)
        if self._sink.key:
            self._check_key(connection, target)

    def _check_columns(self, connection: psycopg.Connection[Any], target: str) -> None:
        there = columns_of_table(connection, target)
        if missing := [name for name in (*self._wanted, *self._filled) if name not in there]:
            raise ConfigurationError(
                f"table {self._sink.uri()} has no column {missing[0]!r}. Add it: "
                f"ALTER TABLE {target} ADD COLUMN {self._column(connection, missing[0])}"
            )
        for name in (*self._wanted, *self._filled):
            if there[name].generated:
                alter = f"ALTER TABLE {target} ALTER COLUMN {sql.Identifier(name).as_string(connection)}"
                raise ConfigurationError(
                    f"column {name!r} of table {self._sink.uri()} is generated by the server. Leave it out of the "
                    f"records, or change it: {alter} DROP EXPRESSION"
                )
        for name, kind in self._wanted.items():
            if not _keeps(self._types[name], kind, there[name]):
                alter = f"ALTER TABLE {target} ALTER COLUMN {sql.Identifier(name).as_string(connection)} TYPE {kind}"
                raise ConfigurationError(
                    f"column {name!r} of table {self._sink.uri()} is {there[name].shown}, which would change values of "
                    f"{kind}. Change it: {alter}, or map() the values to another type"
                )

    def _check_key(self, connection: psycopg.Connection[Any], target: str) -> None:
        unique = connection.execute(_UNIQUE, [target]).fetchall()
        fitting = [found for *found, columns in unique if set(columns) == set(self._sink.key)]
        key = listed(self._sink.key).as_string(connection)
        if deferrable := [name for name, is_immediate in fitting if not is_immediate]:  # even beside another one
            name = sql.Identifier(deferrable[0]).as_string(connection)
            raise ConfigurationError(
                f"constraint {deferrable[0]!r} on the key of table {self._sink.uri()} is DEFERRABLE, which ON CONFLICT "
                f"does not take. Change it: ALTER TABLE {target} DROP CONSTRAINT {name}, ADD UNIQUE ({key})"
            )
        if not fitting:
            raise ConfigurationError(
                f"table {self._sink.uri()} has no unique index on its key. Add it: "
                f"CREATE UNIQUE INDEX ON {target} ({key})"
            )
        for (name,) in connection.execute(_ALWAYS, [target]).fetchall():
            if name in self._wanted and name not in self._sink.key:
                column = sql.Identifier(name).as_string(connection)
                raise ConfigurationError(
                    f"column {name!r} of table {self._sink.uri()} is GENERATED ALWAYS AS IDENTITY, so no row can be "
                    f"replaced. Change it: ALTER TABLE {target} ALTER COLUMN {column} SET GENERATED BY DEFAULT"
                )


def _keeps(type_info: TypeInformation, kind: str, column: Column) -> bool:
    """Returns whether a column keeps the values of a type, or refuses those that it cannot have."""
    base = kind.partition("(")[0]
    if base == "bytea":
        return column.type_name == "bytea"
    if base == "text" or column.type_name in _TEXTS:
        return True
    if column.type_name not in _WIDER[base]:
        return False
    if column.type_name == "numeric" and column.modifier >= 0:  # it rounds
        digits = type_info.scale if isinstance(type_info, DecimalTypeInfo) else None
        if base in ("smallint", "integer", "bigint") or type_info == Types.BIG_INT():
            digits = 0
        return digits is not None and column.scale >= digits
    return not column.type_name.startswith("time") or column.modifier in (-1, _MICROS)
