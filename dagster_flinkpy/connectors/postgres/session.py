"""Connections and statements of the PostgreSQL sink, and its table: whether it takes the rows and is still the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.common.typeinfo import DecimalTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.postgres.columns import Column, columns_of_table
from dagster_flinkpy.connectors.postgres.connection import connect, listed, row_of, table_of, untimed, value_of
from dagster_flinkpy.connectors.postgres.sink import PostgresSink
from dagster_flinkpy.connectors.postgres.sql_types import sql_type
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError

__all__ = ["LEDGER", "EpochRows", "PostgresTarget", "Session", "may_pass"]

_PASSING = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
_LASTING = (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.ProgramLimitExceeded)
"""Of these, what stays until somebody changes the table, which takes no rows, or not so long ones."""

LEDGER = "flinkpy_commits"
"""The table of committed checkpoints, in the schema of the sink's table."""

_LEDGER_COLUMNS = (
    "job text NOT NULL, uid text NOT NULL, checkpoint bigint NOT NULL, digest text NOT NULL, rows bigint NOT NULL, "
    "partition text, committed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, uid, checkpoint, digest)"
)
_SETTINGS = ("TimeZone = 'UTC'", "DateStyle = 'ISO'", "row_security = off")
"""Times without a zone are in UTC. A policy that would hide rows is an error."""
# Without waiting for the disk, a crash of the server would lose commits. Whoever locks the table forever is noticed.
_COMMITTING = b""";
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT set_config('lock_timeout', '60s', true) WHERE current_setting('lock_timeout') = '0'"""


def _setting(how: str) -> bytes:
    return "; ".join([*(f"{how} {each}" for each in _SETTINGS), untimed(how)]).encode()


def may_pass(error: Exception) -> bool:
    """Returns whether an error may pass by itself, such as a failover, during which the server is a standby."""
    return isinstance(error, _PASSING) and not isinstance(error, _LASTING)


class Session:
    """Connects for a job's sink, and phrases its statements."""

    def __init__(self, sink: PostgresSink, job_id: str, uid: str) -> None:
        self._conninfo = sink.conninfo
        self._job_id, self._uid, self._schema = job_id, uid, sink.schema
        schema = [] if sink.schema is None else [sink.schema]
        self._name = ".".join([*schema, sink.table])
        self.target, self.ledger = table_of(sink.schema, sink.table), table_of(sink.schema, LEDGER)
        names = json.dumps([job_id, uid, *schema, sink.table])
        self.gid_prefix = f"flinkpy:{hashlib.sha256(names.encode()).hexdigest()[:24]}:"
        """How the ids of the sink's prepared transactions begin. All tables of a server share the ids, of at most 200
        bytes."""

    def connect(self) -> psycopg.Connection[Any]:
        """Returns a connection without an open transaction. As a context it is closed at the end."""
        connection = connect(self._conninfo, f"flinkpy {self._job_id} {self._uid}")
        connection.execute(_setting("SET"))
        return connection

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        """Begins a transaction that writes. A pooler may give it another session than that of the connection."""
        connection.execute(b"BEGIN; " + _setting("SET LOCAL"))

    @contextmanager
    def transaction(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Runs a transaction that writes, as `begin` does, and commits it."""
        with connection.transaction():
            connection.execute(_setting("SET LOCAL") + _COMMITTING)
            yield

    def create_ledger(self, connection: psycopg.Connection[Any]) -> None:
        self._create(connection, self.ledger, self.ledger_statement(connection).encode())

    def ledger_statement(self, connection: psycopg.Connection[Any]) -> str:
        """Returns the statement that creates the table of committed checkpoints."""
        return f"CREATE TABLE IF NOT EXISTS {self.ledger.as_string(connection)} ({_LEDGER_COLUMNS})"

    def create_table(self, connection: psycopg.Connection[Any], statement: str, indexed: Sequence[str]) -> None:
        """Creates the target with an index, unless somebody else just did. No transaction must be open."""
        index = sql.SQL("CREATE INDEX ON {} ({})").format(self.target, listed(indexed))
        self._create(connection, self.target, statement.encode(), *([index] if indexed else []))

    def _create(self, connection: psycopg.Connection[Any], table: sql.Identifier, *statements: Any) -> None:
        if self.exists(connection, table):
            return
        with self.transaction(connection):  # IF NOT EXISTS is not atomic
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('flinkpy_commits'))")
            for statement in () if self.exists(connection, table) else statements:
                connection.execute(statement)

    def exists(self, connection: psycopg.Connection[Any], table: sql.Identifier) -> bool:
        return value_of(connection, "SELECT to_regclass(%s)", table.as_string(connection)) is not None

    def register(
        self, connection: psycopg.Connection[Any], checkpoint_id: int, digest: str, rows: int, partition: str | None
    ) -> bool:
        """Adds a checkpoint to the ledger, within the current transaction. Returns whether it was not there yet.

        It waits for other transactions that add the same checkpoint.
        """
        statement = sql.SQL(
            "INSERT INTO {} (job, uid, checkpoint, digest, rows, partition) VALUES (%s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (job, uid, checkpoint, digest) DO NOTHING"
        ).format(self.ledger)
        values = [self._job_id, self._uid, checkpoint_id, digest, rows, partition]
        if connection.execute(statement, values).rowcount == 1:
            return True
        if not self.registered(connection, "checkpoint = %s AND digest = %s", checkpoint_id, digest):
            raise ConfigurationError(
                f"table {self.ledger.as_string(connection)} does not take the entry of checkpoint {checkpoint_id}: a "
                "trigger or a rule does not let it in. Drop it"
            )
        return False

    def registered(self, connection: psycopg.Connection[Any], condition: str, *values: object) -> bool:
        """Returns whether the ledger has an entry of the sink that fulfils a condition."""
        statement = sql.SQL("SELECT 1 FROM {} WHERE job = %s AND uid = %s AND " + condition + " LIMIT 1")
        parameters = [self._job_id, self._uid, *values]
        return connection.execute(statement.format(self.ledger), parameters).fetchone() is not None

    def forget(self, connection: psycopg.Connection[Any], checkpoint_id: int, days: int) -> None:
        """Deletes entries of the ledger that are older than some days, except that of the newest checkpoint."""
        statement = sql.SQL(
            "DELETE FROM {} WHERE job = %s AND uid = %s AND checkpoint < %s "
            "AND committed_at < now() - %s * interval '1 day'"
        )
        connection.execute(statement.format(self.ledger), [self._job_id, self._uid, checkpoint_id, days])

    def last_committed(self, connection: psycopg.Connection[Any]) -> int | None:
        """Returns the newest checkpoint in the ledger, or None."""
        if not self.exists(connection, self.ledger):
            return None
        statement = sql.SQL("SELECT max(checkpoint) FROM {} WHERE job = %s AND uid = %s").format(self.ledger)
        newest: int | None = value_of(connection, statement, self._job_id, self._uid)
        return newest

    def other_schema(self, connection: psycopg.Connection[Any]) -> str | None:
        """Returns the schema whose ledger has entries of the sink, if it names none and search_path finds no entry."""
        if self._schema is not None or self.last_committed(connection) is not None:
            return None
        found = connection.execute(
            "SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = %s "
            "AND relkind IN ('r', 'p')",
            [LEDGER],
        )
        for (schema,) in found.fetchall():
            statement = sql.SQL("SELECT 1 FROM {} WHERE job = %s AND uid = %s LIMIT 1").format(table_of(schema, LEDGER))
            # One that this role may not read, or that has nothing but the name, is not the sink's.
            with suppress(psycopg.ProgrammingError, psycopg.NotSupportedError):
                if connection.execute(statement, [self._job_id, self._uid]).fetchone() is not None:
                    return str(schema)
        return None

    def copy_into(self, table: sql.Identifier, columns: Sequence[str]) -> sql.Composed:
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, listed(columns))

    def check_taken(self, taken: int, rows: int) -> None:
        """Checks that the target has taken all rows, as the server counts them."""
        if taken < rows:
            raise CommitRefusedError(
                f"table {self._name} has taken only {taken} of {rows} rows: a trigger or a rule of the "
                "table drops the others, or puts them elsewhere. They stay staged: drop it, or disable it for the role "
                "of the sink, and run again"
            )

    def two_phase(self, command: str, gid: str) -> sql.Composed:
        """Returns a command about a prepared transaction."""
        return sql.SQL(command + " {}").format(sql.Literal(gid))


_JOB = """uid = %(uid)s AND EXISTS (
    SELECT FROM unnest(%(jobs)s::text[], %(befores)s::bigint[]) AS line (name, before)
    WHERE job = line.name AND checkpoint < line.before
)"""
_MINE = f"checkpoint > %(after)s AND {_JOB}"
_FOUND = f"""
WITH known AS (
    SELECT xmin AS xid, sum(rows) AS rows, bool_or({_MINE}) AS mine, bool_and({_MINE}) AS only_mine
    FROM {{ledger}} WHERE rows > 0 GROUP BY xmin
), found AS (SELECT xmin AS xid, count(*) AS rows FROM {{target}} GROUP BY xmin)
SELECT count(*) FILTER (WHERE mine AND (NOT only_mine OR found.rows IS DISTINCT FROM known.rows)),
       coalesce(sum(found.rows) FILTER (WHERE known.xid IS NULL), 0)
FROM known FULL JOIN found ON known.xid = found.xid
"""
_FIRST = f"SELECT min(checkpoint) FROM {{ledger}} WHERE {_JOB}"


class EpochRows:
    """The rows that a sink has committed between two checkpoints, also for jobs with whose state its job began.

    PostgreSQL keeps in each row the transaction that has written it (``xmin``). A checkpoint is one transaction, which
    also adds an entry with the number of its rows to the ledger. So the entry has the same ``xmin`` as the rows.
    """

    def __init__(self, session: Session, what: str, context: CommitterInitContext, after: int, before: int) -> None:
        self._session, self._what, self._uid = session, what, context.uid
        jobs = {context.job_id: before} | {job_id: min(last + 1, before) for job_id, last in context.ancestors}
        self._named: dict[str, Any] = {"uid": context.uid, "after": after}
        self._named |= {"jobs": list(jobs), "befores": list(jobs.values())}

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Checks that they can be told from others. Reads the whole table."""
        if not self._session.exists(connection, self._session.target):
            return
        first, changed = None, 0
        if self._session.exists(connection, self._session.ledger):
            changed, unknown = row_of(connection, self._phrased(_FOUND), self._named)
            first = value_of(connection, self._phrased(_FIRST), self._named)
        else:
            unknown = value_of(connection, self._phrased("SELECT count(*) FROM {target}"))
        if changed:
            raise self._changed()
        wanted = self._named["after"] + 1
        if unknown and (first is None or first > wanted):
            ledger = self._session.ledger.as_string(connection)
            since = "none" if first is None else f"those since {first} only"
            raise ConfigurationError(
                f"{self._what} has {unknown} rows that {ledger} does not know. Of sink {self._uid!r} it knows the "
                f"checkpoints that are younger than 30 days, {since}, and the rows may be from before, as of {wanted}"
            )

    def delete(self, connection: psycopg.Connection[Any]) -> None:
        """Deletes them within the current transaction. Their entries stay, with no rows."""
        self.check(connection)
        mine = f"FROM {{ledger}} WHERE {_MINE} AND rows > 0"
        rows = value_of(connection, self._phrased(f"SELECT coalesce(sum(rows), 0) {mine}"), self._named)
        delete = self._phrased(f"DELETE FROM {{target}} WHERE xmin IN (SELECT xmin {mine})")
        if connection.execute(delete, self._named).rowcount != rows:
            raise self._changed()
        connection.execute(self._phrased(f"UPDATE {{ledger}} SET rows = 0 WHERE {_MINE}"), self._named)

    def _phrased(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(ledger=self._session.ledger, target=self._session.target)

    def _changed(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._what} does not have the rows of sink {self._uid!r} as they were committed after checkpoint "
            f"{self._named['after']}: somebody has updated, deleted, moved or restored some, or a trigger keeps them, "
            "so they cannot be told from others"
        )


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
_TABLE = """
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
        oid, unlogged, foreign, secured = row_of(connection, _TABLE, {"table": target})
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
