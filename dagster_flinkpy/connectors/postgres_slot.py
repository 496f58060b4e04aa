"""The logical replication slot and the publication of a source of changes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from dagster_flinkpy.connectors.postgres_columns import TEXT_FORMAT
from dagster_flinkpy.connectors.postgres_connection import connect, reading
from dagster_flinkpy.errors import ConfigurationError, RestoreError, SourceReadError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.postgres_change_source import PostgresChangeSource

__all__ = ["IDENTITIES", "Slot", "Transaction", "lsn_text", "slot_of"]

IDENTITIES = {"all": "f", "upsert": "di"}
"""The replica identities that each changelog mode can do with."""

_BUSY_SECONDS = 60.0
_POLL_SECONDS = 0.05

_PEEK = (
    "pg_logical_slot_peek_binary_changes({slot}, {upto}::pg_lsn, {changes}, "
    "'proto_version', '1', 'publication_names', {publication})"
)
# Kinds of messages: I, U, D, T.
_TRANSACTIONS = (
    """
SELECT max(lsn) - '0/0', count(*), count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85, 68, 84))
FROM """
    + _PEEK
    + " GROUP BY xid::text ORDER BY 1"
)
_PUBLISHED = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
  EXISTS (SELECT FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
          JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
          WHERE t.pubname = p.pubname AND c.oid = %(oid)s)
FROM pg_publication p WHERE pubname = %(name)s
"""
_TABLE = """
SELECT oid::bigint, relkind IN ('r', 'p') AND relpersistence = 'p',
  ARRAY(SELECT DISTINCT relreplident::text FROM pg_class p WHERE p.oid = c.oid
        OR p.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf)),
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
FROM pg_class c WHERE oid = to_regclass(%s)
"""
_SLOT = """
SELECT plugin, database, wal_status, confirmed_flush_lsn - '0/0', database = current_database()
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True)
class Transaction:
    """A transaction in the WAL."""

    end: int
    """The LSN after its commit."""
    changes: int


def lsn_text(lsn: int) -> str:
    """Returns an LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@contextmanager
def slot_of(source: PostgresChangeSource) -> Iterator[Slot]:
    """Connects for a source.

    Raises:
        SourceReadError: The server cannot be reached, or a statement fails.
    """
    what = f"the changes of table {source.table!r} of PostgreSQL"
    with reading(what), connect(source.conninfo, "flinkpy source") as connection:
        connection.execute(TEXT_FORMAT)
        yield Slot(source, connection)


class Slot:
    """Checks, creates, reads and confirms the slot of a source.

    Args:
        source: The source.
        connection: A connection.
    """

    def __init__(self, source: PostgresChangeSource, connection: psycopg.Connection[Any]) -> None:
        self._source, self.connection = source, connection
        self._table = sql.Identifier(*([source.schema] if source.schema else []), source.table)
        self.table_name = self._table.as_string(connection)
        self.drop = f"SELECT pg_drop_replication_slot('{source.slot}')"
        """The statement that drops the slot, for messages."""

    def system(self) -> str:
        """Returns the identifier of the database cluster. Positions of one mean nothing in another."""
        return str(self._one("SELECT system_identifier FROM pg_control_system()"))

    def flushed(self) -> int:
        """Returns how far the WAL is written."""
        return int(self._one("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def check_server(self) -> None:
        """Checks that the server can decode its WAL.

        Raises:
            ConfigurationError: It cannot. The message says what to do.
        """
        if (level := self._one("SHOW wal_level")) != "logical":
            raise ConfigurationError(
                f"PostgresChangeSource needs wal_level = logical, but the server has {level}: run ALTER SYSTEM SET "
                "wal_level = 'logical' and restart the server (on Amazon RDS: rds.logical_replication = 1)"
            )
        if self._one("SELECT pg_is_in_recovery()"):
            raise ConfigurationError("PostgresChangeSource needs the primary, but this server is a standby")

    def check_table(self) -> int:
        """Checks that changes of the table have what the mode needs, and returns the table's id.

        Raises:
            SourceReadError: There is no such table.
            ConfigurationError: Its replica identity does not suffice. The message says what to do.
        """
        found = self.connection.execute(_TABLE, [self.table_name]).fetchone()
        if found is None:
            raise SourceReadError(f"there is no table {self.table_name} that this user can see: check name and schema")
        oid, is_logged, identities, has_key = found
        if not is_logged:
            raise ConfigurationError(f"{self.table_name} is not a table whose changes are logged")
        enough = IDENTITIES[self._source.changelog_mode]
        if not set(identities) <= set(enough) or ("d" in identities and not has_key):
            alter = f"ALTER TABLE {self.table_name} REPLICA IDENTITY"
            todo = f"{alter} FULL (also of its partitions), or choose changelog_mode='upsert' if it has a primary key"
            if enough != "f":
                todo = f"it needs a primary key and {alter} DEFAULT; with REPLICA IDENTITY FULL, changelog_mode='all'"
            raise ConfigurationError(
                f"the changes of table {self.table_name} are logged without what "
                f"changelog_mode={self._source.changelog_mode!r} needs: {todo}"
            )
        return int(oid)

    def publish(self, oid: int) -> None:
        """Creates the publication, if there is none.

        Raises:
            ConfigurationError: It exists and does not publish all changes of the table, or cannot be created.
        """
        name = self._source.publication
        found = self.connection.execute(_PUBLISHED, {"oid": oid, "name": name}).fetchone()
        shown, options = sql.Identifier(name), "publish_via_partition_root = true"
        create = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (" + options + ")").format(shown, self._table)
        if found is None:
            try:
                self.connection.execute(create)
            except errors.InsufficientPrivilege as error:
                raise ConfigurationError(
                    f"this role may not create publication {name!r} ({str(error).strip()}): let the owner of the table "
                    f"run {create.as_string(self.connection)}"
                ) from error
            return
        whole, via_root, has_table = found
        wrong = "" if has_table else f"ADD TABLE {self.table_name}"
        wrong = wrong or ("" if via_root or not self._partitioned(oid) else f"SET ({options})")
        wrong = wrong or ("" if whole else "SET (publish = 'insert, update, delete, truncate')")
        if wrong:
            raise ConfigurationError(
                f"publication {name!r} does not publish all changes of table {self.table_name}: ALTER PUBLICATION "
                f"{shown.as_string(self.connection)} {wrong}"
            )

    def _partitioned(self, oid: int) -> bool:
        return bool(self._one("SELECT relkind = 'p' OR relispartition FROM pg_class WHERE oid = %s", oid))

    def position(self) -> int | None:
        """Returns the confirmed position of the slot, or None if there is no slot.

        Raises:
            SourceReadError: Nothing can be read from it any more. The message says what to do.
            ConfigurationError: It belongs to something else.
        """
        found = self.connection.execute(_SLOT, [self._source.slot]).fetchone()
        if found is None:
            return None
        plugin, database, status, confirmed, is_here = found
        if plugin != "pgoutput" or not is_here:
            raise ConfigurationError(
                f"replication slot {self._source.slot!r} exists, but is of plugin {plugin} in database {database}: "
                "choose another name"
            )
        if status == "lost" or confirmed is None:
            raise SourceReadError(
                f"replication slot {self._source.slot!r} has lost WAL that was not read, as max_slot_wal_keep_size "
                f"tells the server to, so changes are missing. They cannot be had again: run {self.drop}, and start "
                "from empty state; the new slot begins with the changes from then on"
            )
        return int(confirmed)

    def create(self) -> int:
        """Creates the slot, and returns where it begins.

        Raises:
            ConfigurationError: The server has no room for it, or the role may not.
        """
        slot = self._source.slot
        try:
            statement = "SELECT lsn - '0/0' FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
            return int(self._one(statement, slot))
        except errors.ConfigurationLimitExceeded as error:
            raise ConfigurationError(
                f"the server has no room for replication slot {slot!r}: raise max_replication_slots and restart it, or "
                "drop one that nobody needs (pg_replication_slots, pg_drop_replication_slot)"
            ) from error
        except errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"this role may not create replication slot {slot!r}: ALTER ROLE ... REPLICATION"
            ) from error

    def confirm(self, lsn: int) -> bool:
        """Tells the slot that everything before an LSN was read and will not be read again.

        Returns:
            Whether it knows that now. If not, somebody is reading from it.
        """
        confirmed = self.position()
        if confirmed is None or confirmed >= lsn:
            return True
        try:
            self.connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [self._source.slot, lsn_text(lsn)])
        except errors.ObjectInUse:
            return False
        return True

    def transactions(self, after: int, upto: int, changes: int | None) -> tuple[list[Transaction], bool]:
        """Returns transactions that commit after an LSN, in order.

        Args:
            after: The LSN.
            upto: The LSN up to which the WAL is decoded.
            changes: How many changes suffice. Default: all.

        Returns:
            The transactions, and whether these are all of them.
        """
        limit, waiting = changes, _Patience(self._source.slot)
        while True:
            statement = self._peek(_TRANSACTIONS, upto, limit)
            try:
                found = self.connection.execute(statement).fetchall()
            except errors.ObjectInUse as error:
                waiting.wait(error)
                continue
            complete = limit is None or sum(int(messages) for _, messages, _ in found) < limit
            later = [Transaction(int(end), int(count)) for end, _, count in found if int(end) > after]
            if complete or (changes is not None and sum(each.changes for each in later) >= changes):
                return later, complete
            limit = 2 * max(limit or 1, sum(int(messages) for _, messages, _ in found))

    def messages(self, upto: int) -> Generator[bytes, None, None]:
        """Returns the messages of all transactions from the slot's position up to an LSN."""
        statement = self._peek("COPY (SELECT data FROM " + _PEEK + ") TO STDOUT (FORMAT binary)", upto, None)
        waiting = _Patience(self._source.slot)
        while True:
            try:
                with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.set_types(["bytea"])
                    for (data,) in copy.rows():
                        yield data
                return
            except errors.ObjectInUse as error:  # before the first message: the server decodes all, and then sends
                waiting.wait(error)

    def _peek(self, statement: str, upto: int, changes: int | None) -> sql.Composed:
        return sql.SQL(statement).format(
            slot=sql.Literal(self._source.slot),
            upto=sql.Literal(lsn_text(upto)),
            changes=sql.SQL("NULL") if changes is None else sql.Literal(changes),
            publication=sql.Literal(sql.Identifier(self._source.publication).as_string(self.connection)),
        )

    def gone(self, lsn: int, confirmed: int | None) -> RestoreError:
        """Returns the error of a position that the slot does not have any more.

        Args:
            lsn: The position.
            confirmed: Where the slot is, or None if there is none.
        """
        slot, table = self._source.slot, self.table_name
        if confirmed is None:
            return RestoreError(
                f"replication slot {slot!r} is gone, so the changes of table {table} since {lsn_text(lsn)} cannot be "
                "read. Start from empty state to read the changes from now on; what happened in between is missing"
            )
        return RestoreError(
            f"the state has read the changes of table {table} up to {lsn_text(lsn)}, but replication slot {slot!r} "
            f"begins at {lsn_text(confirmed)}: a later checkpoint was completed, or the slot was created anew, and the "
            "server no longer has the changes in between. Restore the latest checkpoint. If there is none, start from "
            "empty state; what happened in between is missing"
        )

    def _one(self, statement: str, *values: object) -> Any:
        found = self.connection.execute(statement.encode(), values or None).fetchone()
        assert found is not None
        return found[0]


class _Patience:
    """Waits while somebody else reads from a slot, who may be about to finish: a retried task, or the driver."""

    def __init__(self, slot: str) -> None:
        self._slot, self._until = slot, time.monotonic() + _BUSY_SECONDS

    def wait(self, error: errors.ObjectInUse) -> None:
        """Waits for a moment.

        Raises:
            SourceReadError: It was long enough.
        """
        if time.monotonic() >= self._until:
            raise SourceReadError(
                f"replication slot {self._slot!r} is in use ({str(error).strip()}): each job needs a slot of its own. "
                "If a former attempt hangs, end its connection: SELECT pg_terminate_backend(active_pid) FROM "
                f"pg_replication_slots WHERE slot_name = '{self._slot}'"
            ) from error
        time.sleep(_POLL_SECONDS)
