"""Tables of PostgreSQL that a job reads or writes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg import conninfo

from dagster_flinkpy.common import Row
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import PostgresChangeSource, PostgresSink, PostgresSource
from dagster_flinkpy.connectors.postgres.session import _LEDGER_COLUMNS
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.errors import (
    CommitRefusedError,
    CommittableLostError,
    ConfigurationError,
    RestoreError,
    SinkCommitError,
    SourceReadError,
    StorageError,
)
from tests.world.stage import EVENT, Act, Record, Sink, Source, System, Undo, nothing

__all__ = ["SYSTEMS"]


class _Database(System):
    needs = "postgres"

    def begin(self) -> None:
        self.schema = f"w{uuid.uuid4().hex[:12]}"
        self.sql("CREATE ROLE {} LOGIN REPLICATION")
        self.sql("CREATE SCHEMA {} AUTHORIZATION {}")
        self.sql(f"GRANT CREATE ON DATABASE {conninfo.conninfo_to_dict(self.place.postgres)['dbname']} TO {{}}")
        self.role = conninfo.make_conninfo(self.place.postgres, user=self.schema)
        """How the job connects: as a role that is no superuser."""
        self.create()

    def create(self) -> None: ...

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement, with the schema for ``{}``."""
        with psycopg.connect(self.place.postgres, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '100ms'")
            cursor = connection.execute(statement.replace("{}", self.schema).encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def owned(self, statement: str) -> None:
        """Runs a statement as the owner of the table."""
        with psycopg.connect(self.place.postgres, autocommit=True) as connection:
            connection.execute(f"SET ROLE {self.schema}")
            connection.execute("SET lock_timeout = '100ms'")
            connection.execute(statement.replace("{}", self.schema).encode())

    def close(self) -> None:
        for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts WHERE owner = '{}'"):
            self.sql(f"ROLLBACK PREPARED '{gid}'")
        self.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
        self.sql("DROP SCHEMA {} CASCADE; DROP OWNED BY {} CASCADE; DROP ROLE {}")


# --- a table as a sink ------------------------------------------------------------------------------------------------


class PostgresTable(_Database, Sink):
    title = "PostgreSQL table as a sink"
    columns: ClassVar[str] = "key text, time bigint, value bigint"
    options: ClassVar[dict[str, Any]] = {}
    hooks = (
        ("dagster_flinkpy.connectors.postgres.session:Session", "register", True),
        ("psycopg:Transaction", "__exit__", False),
        ("psycopg:Transaction", "__exit__", True),
    )

    def create(self) -> None:
        self.owned(f"CREATE TABLE {{}}.t ({self.columns})")

    def sink(self) -> TwoPhaseCommittingSink:
        staging = None if "prepare_transactions" in self.options else str(self.folder)
        return PostgresSink(self.role, f"{self.schema}.t", staging, **self.options)

    def rows(self) -> Sequence[Record]:
        return [(key, int(time), int(value)) for key, time, value in self.sql("SELECT key, time, value FROM {}.t")]


class PostgresUpsert(PostgresTable):
    title = "PostgreSQL table as a sink, with a key"
    columns = "key text, time bigint, value bigint CONSTRAINT t_key PRIMARY KEY"
    options: ClassVar[dict[str, Any]] = {"key": ["value"]}


class PostgresPrepared(PostgresTable):
    title = "PostgreSQL table as a sink, prepare_transactions"
    options: ClassVar[dict[str, Any]] = {"prepare_transactions": True}
    hooks = (
        ("dagster_flinkpy.connectors.postgres.committer:PreparedTransactionCommitter", "_commit", False),
        ("dagster_flinkpy.connectors.postgres.committer:PreparedTransactionCommitter", "_commit", True),
    )


def _statements(do: str, undo: str | None = None) -> Callable[[_Database], Undo | None]:
    """Returns what runs a statement, unless it cannot run just then, and undoes it with another."""

    def act(system: _Database) -> Undo | None:
        try:
            system.owned(do)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable):
            return None  # the job holds a lock, or what it is about was renamed by another act
        return nothing if undo is None else lambda failed: system.owned(undo) if undo else None

    return act


def empties(system: PostgresTable) -> Undo | None:
    try:
        system.owned("CREATE TABLE {}.kept AS SELECT * FROM {}.t; TRUNCATE {}.t")
    except psycopg.errors.LockNotAvailable:
        return None
    return lambda failed: system.owned(
        "INSERT INTO {}.t (key, time, value) SELECT key, time, value FROM {}.kept; DROP TABLE {}.kept"
    )


def restores(system: PostgresTable) -> Undo | None:
    """Restores schema and ledger of the round before."""
    has = "SELECT to_regclass('{}.flinkpy_commits') IS NOT NULL"
    if not system.sql(has)[0][0]:
        return None
    [(last,)] = system.sql("SELECT max(checkpoint) FROM {}.flinkpy_commits")
    limit = (system.round - 2) * 6
    try:
        system.owned(
            f"CREATE TABLE {{}}.kept AS SELECT * FROM {{}}.t WHERE value >= {limit};"
            f"DELETE FROM {{}}.t WHERE value >= {limit};"
            f"CREATE TABLE {{}}.kept_commits AS SELECT * FROM {{}}.flinkpy_commits WHERE checkpoint = {last};"
            f"DELETE FROM {{}}.flinkpy_commits WHERE checkpoint = {last}"
        )
    except psycopg.errors.LockNotAvailable:
        return None
    conflict = " ON CONFLICT DO NOTHING" if "PRIMARY KEY" in system.columns else ""
    return lambda failed: system.owned(
        "INSERT INTO {}.t (key, time, value) SELECT key, time, value FROM {}.kept k "
        "WHERE NOT EXISTS (SELECT 1 FROM {}.t t WHERE t.value = k.value)"
        f"{conflict}; INSERT INTO {{}}.flinkpy_commits SELECT * FROM {{}}.kept_commits ON CONFLICT DO NOTHING;"
        "DROP TABLE {}.kept, {}.kept_commits"
    )


def loses_staged(system: PostgresTable) -> Undo | None:
    files = [path for path in system.folder.rglob("*") if path.is_file() and path.name != "lock"]
    if not files:
        return None
    kept = {path: path.read_bytes() for path in files}
    for path in files:
        path.unlink()

    def undo(failed: bool) -> None:
        for path, content in kept.items() if failed else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return undo


def damages_staged(system: PostgresTable) -> Undo | None:
    files = [path for path in system.folder.rglob("*") if path.is_file() and path.name != "lock"]
    if not files:
        return None
    kept = {path: path.read_bytes() for path in files}
    for path, content in kept.items():
        path.write_bytes(b"?" * len(content))

    def undo(failed: bool) -> None:
        for path, content in kept.items() if failed else ():
            path.write_bytes(content)

    return undo


def disconnects(system: _Database) -> Undo | None:
    system.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'")
    return nothing


def rolls_back_prepared(system: PostgresPrepared) -> Undo | None:
    gids = [gid for (gid,) in system.sql("SELECT gid FROM pg_prepared_xacts WHERE owner = '{}'")]
    if not gids:
        return None
    for gid in gids:
        system.sql(f"ROLLBACK PREPARED '{gid}'")

    def undo(failed: bool) -> None:
        if failed:
            newest = max(int(path.name.partition("-")[2]) for path in (system.place.folder / "job/job").glob("chk-*"))
            system.restore_from = f"chk-{newest - 1}"

    return undo


_COMMIT = (SinkCommitError, ConfigurationError, StorageError)
_STAGED = ("before _metadata", "before HEAD", "before commit")
_TABLE: tuple[Act, ...] = (
    Act(
        "renames the table for a while",
        _statements("ALTER TABLE {}.t RENAME TO u", "ALTER TABLE {}.u RENAME TO t"),
        _COMMIT,
    ),
    Act(
        "drops the table, and makes it anew, empty",
        lambda system: _statements(
            f"ALTER TABLE {{}}.t RENAME TO u; ALTER TABLE {{}}.u DROP CONSTRAINT IF EXISTS t_key;"
            f"CREATE TABLE {{}}.t ({system.columns})",
            "INSERT INTO {}.t SELECT * FROM {}.u; DROP TABLE {}.u",
        )(system),
        (CommitRefusedError,),
    ),
    Act(
        "renames a column for a while",
        _statements("ALTER TABLE {}.t RENAME time TO moment", "ALTER TABLE {}.t RENAME moment TO time"),
        _COMMIT,
    ),
    Act(
        "drops a column, and adds it again with its values",
        _statements(
            "ALTER TABLE {}.t RENAME time TO moment; ALTER TABLE {}.t ADD time bigint; UPDATE {}.t SET time = moment;"
            "ALTER TABLE {}.t DROP moment"
        ),
    ),
    Act("adds a column", _statements("ALTER TABLE {}.t ADD more text")),
    Act(
        "adds a column that is NOT NULL",
        _statements(
            "ALTER TABLE {}.t ADD more text DEFAULT '' NOT NULL; ALTER TABLE {}.t ALTER more DROP DEFAULT",
            "ALTER TABLE {}.t DROP more",
        ),
        _COMMIT,
    ),
    Act(
        "adds a CHECK that the rows break",
        _statements(
            "ALTER TABLE {}.t ADD CONSTRAINT c CHECK (value < 0) NOT VALID", "ALTER TABLE {}.t DROP CONSTRAINT c"
        ),
        _COMMIT,
    ),
    Act(
        "changes the type of a column to text",
        _statements(
            "ALTER TABLE {}.t ALTER time TYPE text", "ALTER TABLE {}.t ALTER time TYPE bigint USING time::bigint"
        ),
        _COMMIT,
    ),
    Act(
        "changes the type of a column to date",
        _statements(
            "ALTER TABLE {}.t RENAME time TO moment; ALTER TABLE {}.t ADD time date",
            "ALTER TABLE {}.t DROP time; ALTER TABLE {}.t RENAME moment TO time",
        ),
        _COMMIT,
    ),
    Act(
        "revokes INSERT for a while",
        _statements("REVOKE INSERT ON {}.t FROM {}", "GRANT INSERT ON {}.t TO {}"),
        _COMMIT,
    ),
    Act(
        "revokes what the role may do in the schema for a while",
        lambda system: (
            system.sql("ALTER SCHEMA {} OWNER TO CURRENT_USER"),
            lambda failed: system.sql("ALTER SCHEMA {} OWNER TO {}"),
        )[1],
        _COMMIT,
    ),
    Act(
        "takes LOGIN from the role for a while",
        lambda system: (system.sql("ALTER ROLE {} NOLOGIN"), lambda failed: system.sql("ALTER ROLE {} LOGIN"))[1],
        _COMMIT,
    ),
    Act("empties the table", empties),
    Act("VACUUM FULL", _statements("VACUUM FULL {}.t")),
    Act("ends the connections of the job", disconnects, _COMMIT),
    Act(
        "adds a trigger that drops rows",
        _statements(
            "CREATE FUNCTION {}.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER g BEFORE INSERT ON {}.t FOR EACH ROW EXECUTE FUNCTION {}.f()",
            "DROP FUNCTION {}.f CASCADE",
        ),
        _COMMIT,
    ),
    Act(
        "replaces the table by a view of it",
        _statements(
            "ALTER TABLE {}.t RENAME TO u; CREATE VIEW {}.t AS SELECT * FROM {}.u",
            "DROP VIEW {}.t; ALTER TABLE {}.u RENAME TO t",
        ),
        _COMMIT,
    ),
)


def drops_ledger(system: PostgresTable) -> Undo | None:
    """Whoever is told looks whether the rows are there, and restores the checkpoint with them or the one before."""
    between = len(system.visible) == system.round * 6  # runs: the last checkpoint was seen
    if _statements("DROP TABLE IF EXISTS {}.flinkpy_commits")(system) is None:
        return None

    def undo(failed: bool) -> None:
        if failed:
            done = [int(path.parent.name[4:]) for path in (system.place.folder / "job/job").glob("chk-*/_metadata")]
            there = set(system.values()) - set(system.visible)
            if there or between or max(done) > 1:
                system.restore_from = f"chk-{max(done) - (not there and not between)}"
            else:  # there is none before
                system.owned(f"CREATE TABLE {{}}.flinkpy_commits ({_LEDGER_COLUMNS})")

    return undo


_LEDGER = (
    Act("drops flinkpy_commits", drops_ledger, _COMMIT),
    Act("restores a backup of table and flinkpy_commits", restores, (CommitRefusedError,)),
    Act("deletes staged rows", loses_staged, (CommittableLostError,), at=_STAGED),
    Act("overwrites staged rows", damages_staged, (CommittableLostError,), at=_STAGED),
)
PostgresTable.acts = (*_TABLE, *_LEDGER)
PostgresUpsert.acts = (
    *_TABLE,
    *_LEDGER,
    Act(
        "drops the unique index of the key",
        _statements(
            "ALTER TABLE {}.t DROP CONSTRAINT t_key", "ALTER TABLE {}.t ADD CONSTRAINT t_key PRIMARY KEY (value)"
        ),
        _COMMIT,
    ),
)
PostgresPrepared.acts = (
    *_TABLE,
    Act("rolls prepared transactions back", rolls_back_prepared, (CommittableLostError,), at=_STAGED),
)


# --- a table as a source ----------------------------------------------------------------------------------------------


class PostgresRows(_Database, Source):
    title, patient = "PostgreSQL table as a source", True

    def create(self) -> None:
        self.owned(
            "CREATE TABLE {}.t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
            "key text, time bigint, value bigint)"
        )

    def put(self, records: Sequence[Record]) -> None:
        for record in records:
            self.sql("INSERT INTO {}.t (key, time, value) VALUES (%s, %s, %s)", *record)

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = PostgresSource(self.role, f"{self.schema}.t", "id", row_type=EVENT, bounded=False, batch_rows=2)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")


_READ = (SourceReadError, ConfigurationError)
PostgresRows.acts = (
    Act(
        "renames the table for a while",
        _statements("ALTER TABLE {}.t RENAME TO u", "ALTER TABLE {}.u RENAME TO t"),
        _READ,
    ),
    Act(
        "renames a column for a while",
        _statements("ALTER TABLE {}.t RENAME time TO moment", "ALTER TABLE {}.t RENAME moment TO time"),
        _READ,
    ),
    Act("adds a column", _statements("ALTER TABLE {}.t ADD more text")),
    Act(
        "changes the type of a column to text",
        _statements(
            "ALTER TABLE {}.t ALTER time TYPE text", "ALTER TABLE {}.t ALTER time TYPE bigint USING time::bigint"
        ),
        _READ,
    ),
    Act(
        "revokes SELECT for a while", _statements("REVOKE SELECT ON {}.t FROM {}", "GRANT SELECT ON {}.t TO {}"), _READ
    ),
    Act(
        "takes LOGIN from the role for a while",
        lambda system: (system.sql("ALTER ROLE {} NOLOGIN"), lambda failed: system.sql("ALTER ROLE {} LOGIN"))[1],
        _READ,
    ),
    Act("ends the connections of the job", disconnects, _READ),
    Act("VACUUM FULL", _statements("VACUUM FULL {}.t")),
    Act(
        "deletes rows that were read",
        _statements("DELETE FROM {}.t WHERE value < 6"),
    ),
    Act(
        "enables row-level security without a policy, for a while",
        _statements(
            "ALTER TABLE {}.t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "ALTER TABLE {}.t NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY",
        ),
        _READ,
    ),
)


class PostgresChanges(PostgresRows):
    title = "Changes of a PostgreSQL table as a source"

    def create(self) -> None:
        super().create()
        self.owned("ALTER TABLE {}.t REPLICA IDENTITY FULL")

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = PostgresChangeSource(self.role, f"{self.schema}.t", self.schema, bounded=False, batch_rows=2)
        changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
        return changes.map(_event, EVENT).uid("events")


def _slot(system: _Database, statement: str) -> Undo | None:
    if not system.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND NOT active"):
        return None
    system.sql(statement)
    return nothing


def drops_slot(system: _Database) -> Undo | None:
    return _slot(system, "SELECT pg_drop_replication_slot('{}')")


def advances_slot(system: _Database) -> Undo | None:
    return _slot(system, "SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())")


def _event(change: Row) -> Row:
    return Row(key=change.key, time=change.time, value=change.value)


_CHANGES = (RestoreError, SourceReadError, ConfigurationError)
PostgresChanges.acts = (
    Act(
        "renames the table for a while",
        _statements("ALTER TABLE {}.t RENAME TO u", "ALTER TABLE {}.u RENAME TO t"),
        _CHANGES,
    ),
    Act(
        "drops a column, and adds it again",
        _statements("ALTER TABLE {}.t DROP time; ALTER TABLE {}.t ADD time bigint DEFAULT 0"),
        _CHANGES,
        ends=True,
    ),
    Act("drops the publication", _statements("DROP PUBLICATION IF EXISTS {}"), _CHANGES, ends=True),
    Act(
        "adds a row filter to the publication",
        _statements("ALTER PUBLICATION {} SET TABLE {}.t WHERE (id < 3)"),
        _CHANGES,
        ends=True,
    ),
    Act(
        "publishes inserts only, for a while",
        _statements(
            "ALTER PUBLICATION {} SET (publish = 'insert')",
            "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
        ),
        _CHANGES,
        ends=True,
    ),
    Act("drops the slot", drops_slot, _CHANGES, ends=True),
    Act("advances the slot", advances_slot, _CHANGES, ends=True),
    Act("truncates the table", _statements("TRUNCATE {}.t"), _CHANGES, ends=True),
    Act(
        "sets another replica identity",
        _statements("ALTER TABLE {}.t REPLICA IDENTITY DEFAULT"),
        _CHANGES,
        ends=True,
    ),
    Act("VACUUM FULL", _statements("VACUUM FULL {}.t")),
    Act("ends the connections of the job", disconnects, _CHANGES),
)

SYSTEMS = (PostgresTable, PostgresUpsert, PostgresPrepared, PostgresRows, PostgresChanges)
