"""The logical replication slot and the publication of a source of changes."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import psycopg
import tenacity
from psycopg import errors, sql

from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres.columns import READING
from dagster_flinkpy.connectors.postgres.connection import connect, end_of_timeline, reading, row_of, table_of, value_of
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, RestoreError, SourceReadError

__all__ = ["IDENTITIES", "ReplicationSlot", "Transaction", "lsn_text", "slot_of"]

IDENTITIES = {"all": "f", "upsert": "di"}
"""The replica identities that each changelog mode can do with."""

_BUSY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_MUCH_BYTES = 1 << 20
"""From how much WAL on a copy of the slot, which takes 50 ms to make, is faster."""
# Not if somebody uses the slot: that is an error, or over in a moment. A failover slot (PostgreSQL 17) sends nothing
# that the standbys do not have, but a copy of it does.
_COPY = """
SELECT pg_copy_logical_replication_slot(slot_name, %s, true) FROM pg_replication_slots s
WHERE slot_name = %s AND NOT active AND coalesce(to_jsonb(s) ->> 'failover', 'false') = 'false'
"""
_NO_COPY = (
    errors.ConfigurationLimitExceeded,
    errors.ObjectNotInPrerequisiteState,
    errors.InvalidParameterValue,
)
"""What servers say if there is no room for a copy, or if the slot has just been made anew or moved."""

_PEEK = (
    "pg_logical_slot_peek_binary_changes({slot}, {upto}::pg_lsn, {changes}, "
    "'proto_version', '1', 'publication_names', {publication})"
)
# Kinds of messages: B has where the commit begins; I, U and D have the table; T has several.
_TRANSACTIONS = (
    """
SELECT max(('x' || encode(substr(data, 2, 8), 'hex'))::bit(64)::bigint) FILTER (WHERE get_byte(data, 0) = 66),
  max(lsn) - '0/0', count(*), count(*) FILTER (WHERE get_byte(data, 0) = 84
    OR (get_byte(data, 0) IN (73, 85, 68) AND substr(data, 2, 4) = oidsend({table}::oid)))
FROM """
    + _PEEK
    + " GROUP BY xid::text ORDER BY 1"
)
_SYSTEM = """
SELECT system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) FROM pg_control_system()
"""
# No change is sent as one of the table if it is of a table that inherits from it, or of a partition that is without WAL
# or on another server.
_ID = """
SELECT oid::bigint, (SELECT min(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = oid AND relkind = 'r'),
  unlogged, abroad
FROM pg_class t, LATERAL (
  SELECT min(relid::regclass::text) FILTER (WHERE relpersistence = 'u') AS unlogged, min(relid::regclass::text)
    FILTER (WHERE relkind = 'f' AND ('updatable=false' = ANY (ftoptions)) IS NOT TRUE) AS abroad
  FROM pg_partition_tree(t.oid) JOIN pg_class p ON p.oid = relid LEFT JOIN pg_foreign_table ON ftrelid = relid
  WHERE isleaf
) AS parts
WHERE oid = to_regclass(%s)
"""
_TABLE = """
SELECT relkind IN ('r', 'p') AND relpersistence = 'p',
  ARRAY(SELECT DISTINCT relreplident::text FROM pg_class p WHERE p.oid = c.oid
        OR (p.oid IN (SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf) AND p.relkind = 'r')),
  EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
FROM pg_class c WHERE oid = %s
"""
_KEY = """
SELECT array_agg(attname::text ORDER BY attname) FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
WHERE c.oid = %s AND (relreplident = 'i' AND indisreplident OR relreplident = 'd' AND indisprimary)
"""
# The entries that attach a partition to the table: its own, and those of the partitions between them.
_ATTACHED = """pg_partition_ancestors({part}) WITH ORDINALITY AS a (part, step) JOIN pg_inherits i ON inhrelid = part
  AND part IN (SELECT relid FROM pg_partition_tree({root}) WHERE level > 0)"""
_PARTITIONS = f"""
SELECT coalesce(jsonb_object_agg(relid::oid, (
  SELECT string_agg(i.xmin::text, ' ' ORDER BY step) FROM {_ATTACHED.format(part="relid", root="%s")}
)), '{{}}') FROM pg_partition_tree(%s) JOIN pg_class c ON c.oid = relid WHERE level > 0 AND relkind = 'r'
"""
# Rows from before it was attached are older, and in the first pages, of 8 kB: a large one is not read as a whole.
_OLDER = f"""
SELECT EXISTS (SELECT FROM {{table}} p, {_ATTACHED} WHERE p.ctid < '(1000,0)'
  AND (age(p.xmin) > age(i.xmin) OR (p.xmin = i.xmin AND p.cmin::text::bigint < i.cmin::text::bigint)))
"""
# Slots of two phases came with PostgreSQL 14.
_SLOT = """
SELECT plugin, database, wal_status, confirmed_flush_lsn - '0/0', database = current_database(),
  coalesce((to_jsonb(s) ->> 'two_phase')::boolean, false)
FROM pg_replication_slots s WHERE slot_name = %s
"""


# Row filters, column lists and schemas came with PostgreSQL 15.
_PUBLISHED = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
  (SELECT to_jsonb(t) FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
   JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
   WHERE t.pubname = p.pubname AND c.oid = %(oid)s),
  EXISTS (SELECT FROM pg_class WHERE oid = %(oid)s AND (relkind = 'p' OR relispartition))
FROM pg_publication p WHERE pubname = %(name)s
"""
# Each change of a row of a catalog makes a version of it, with another xmin.
_MARK = """
SELECT concat_ws(' ', p.oid, p.xmin, puballtables,
  (SELECT string_agg(concat_ws('.', r.prrelid, r.oid, r.xmin), ' ' ORDER BY r.oid) FROM pg_publication_rel r
   WHERE r.prpubid = p.oid AND r.prrelid IN ({family})){schemas})
FROM pg_publication p WHERE pubname = %(name)s
"""
_SCHEMAS = """,
  (SELECT string_agg(concat_ws('.', s.pnnspid, s.oid, s.xmin), ' ' ORDER BY s.oid)
   FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
   WHERE s.pnpubid = p.oid AND c.oid IN ({family}))"""
_FAMILY = "SELECT %(oid)s::oid UNION SELECT relid::oid FROM pg_partition_ancestors(%(oid)s) AS of_table (relid)"


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
def slot_of(source: PostgresChangeSource) -> Iterator[ReplicationSlot]:
    """Connects for a source. What fails becomes a SourceReadError."""
    what = f"the changes of table {source.table!r} of PostgreSQL"
    with reading(what), connect(source.conninfo, "flinkpy source") as connection:
        connection.execute(READING)
        yield ReplicationSlot(source, connection)


class Publication:
    """Creates and checks the publication of a source."""

    def __init__(self, source: PostgresChangeSource, connection: psycopg.Connection[Any], table: str) -> None:
        self._source, self._connection, self._table = source, connection, table
        self.name = source.publication
        self._shown = sql.Identifier(self.name).as_string(connection)
        self._create = f"CREATE PUBLICATION {self._shown} FOR TABLE {table} WITH (publish_via_partition_root = true)"

    def create(self, oid: int) -> None:
        if self.mark(oid) is None:
            try:
                self._connection.execute(self._create.encode())
            except errors.InsufficientPrivilege as error:
                raise ConfigurationError(
                    f"this role may not create publication {self.name!r} ({str(error).strip()}): let the owner of the "
                    f"table run {self._create}"
                ) from error
        elif (repair := self.repair(oid)) is not None:
            raise ConfigurationError(
                f"publication {self.name!r} does not publish all changes of table {self._table}. Put it right: {repair}"
            )

    def repair(self, oid: int) -> str | None:
        """Returns the statements that make it publish all changes of the table, or None if it does."""
        values = {"oid": oid, "name": self.name}
        found = self._connection.execute(_PUBLISHED.encode(), values).fetchone()
        if found is None:
            return self._create
        whole, via_root, entry, partitioned = found
        alter = f"ALTER PUBLICATION {self._shown}"
        if entry is None:
            return f"{alter} ADD TABLE {self._table}"
        listed, wanted = entry.get("attnames"), self._source.table_type.field_names
        if entry.get("rowfilter") is not None or (listed is not None and not set(wanted) <= set(listed)):
            return f"BEGIN; {alter} DROP TABLE {self._table}; {alter} ADD TABLE {self._table}; COMMIT"
        if not via_root and partitioned:
            return f"{alter} SET (publish_via_partition_root = true)"
        return None if whole else f"{alter} SET (publish = 'insert, update, delete, truncate')"

    def mark(self, oid: int) -> str | None:
        """Returns what is another one after each change of the publication that concerns the table.

        The changes may be made and taken back: the mark stays another one. None: there is no publication.
        """
        schemas = _SCHEMAS if self._connection.info.server_version >= 150_000 else ""
        statement = _MARK.replace("{schemas}", schemas).replace("{family}", _FAMILY)
        found = self._connection.execute(statement.encode(), {"oid": oid, "name": self.name}).fetchone()
        return None if found is None else str(found[0])


class ReplicationSlot:
    """Checks, creates, reads and confirms the slot of a source."""

    def __init__(self, source: PostgresChangeSource, connection: psycopg.Connection[Any]) -> None:
        self._source, self.connection = source, connection
        self.table_name = table_of(source.schema, source.table).as_string(connection)
        self._one = partial(value_of, connection)
        self.publication = Publication(source, connection, self.table_name)
        self.drop = f"SELECT pg_drop_replication_slot('{source.slot}')"
        """The statement that drops the slot, for messages."""
        self._end_user = (
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{source.slot}'"
        )
        """The statement that ends the connection that uses the slot, for messages."""
        self._anew = (
            "start from empty state (start_empty: true) with snapshot=True, which reads the rows that the table has "
            "then, and their changes. What sinks have written stays, so clear it first"
        )
        self.way_on = f"To go on without a gap: {self.drop}, and {self._anew}"
        """How to go on when changes are missing, for messages."""

    def system(self) -> tuple[str, int]:
        """Returns the identifier of the database cluster, and its timeline, which each recovery makes anew.

        Positions of one cluster mean nothing in another.
        """
        identifier, timeline = row_of(self.connection, _SYSTEM)
        return str(identifier), int(timeline, 16)

    def end_of(self, timeline: int) -> int | None:
        """Returns where the WAL of the server has left an earlier timeline, or None if it does not descend from it."""
        return end_of_timeline(self._source.conninfo, timeline, self.system()[1])

    def flushed(self) -> int:
        return int(self._one("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def check_server(self) -> None:
        """Checks that the server can decode its WAL."""
        if (level := self._one("SHOW wal_level")) != "logical":
            raise ConfigurationError(
                f"PostgresChangeSource needs wal_level = logical, but the server has {level}: run ALTER SYSTEM SET "
                "wal_level = 'logical' and restart the server (on Amazon RDS: rds.logical_replication = 1)"
            )
        if self._one("SELECT pg_is_in_recovery()"):
            raise ConfigurationError("PostgresChangeSource needs the primary, but this server is a standby")

    def table(self) -> int:
        """Returns the id of the table. All of its rows must be in the WAL, as rows of the table."""
        if (found := self.connection.execute(_ID, [self.table_name]).fetchone()) is None:
            raise SourceReadError(f"there is no table {self.table_name} that this user can see: check name and schema")
        oid, heir, unlogged, abroad = found
        if heir is not None:
            raise ConfigurationError(
                f"table {heir} inherits from table {self.table_name}. PostgreSQL publishes the changes of its rows as "
                "those of another table, so they would be missing. Give each table that has rows a source, and none to "
                "one from which others inherit; or make them partitions (PARTITION BY)"
            )
        if unlogged is not None:
            raise ConfigurationError(
                f"partition {unlogged} of table {self.table_name} is UNLOGGED, so its changes are missing: ALTER TABLE "
                f"{unlogged} SET LOGGED. If it has got rows since the job has begun: {self.way_on}"
            )
        if abroad is not None:
            raise ConfigurationError(
                f"partition {abroad} of table {self.table_name} is a foreign table, so its changes are missing. If it "
                f"gets none: ALTER FOREIGN TABLE {abroad} OPTIONS (ADD updatable 'false'). Otherwise let the job read "
                "it from its own server, and this table without it"
            )
        return int(oid)

    def key(self, oid: int) -> list[str]:
        """Returns the columns that a deleted row has in mode ``upsert``, or none if it has all."""
        return list(self._one(_KEY, oid) or [])

    def partitions(self, oid: int) -> dict[str, str]:
        """Returns the ids of the partitions with rows, each with what is another one when it is attached again.

        It has a part for each level, beginning with the partition's own.
        """
        return dict(self._one(_PARTITIONS, oid, oid))

    def attached_with_rows(self, table: int, oid: str) -> str | None:
        """Returns the name of a partition that had rows when it was attached, or None if it had none."""
        name = str(self._one("SELECT %s::oid::regclass::text", int(oid)))
        statement = _OLDER.replace("{table}", name).replace("{part}", oid).replace("{root}", str(table))
        with suppress(errors.InsufficientPrivilege):  # whoever may only read the whole table cannot know
            return name if self._one(statement.encode()) else None
        return None

    def check_table(self) -> None:
        """Checks that changes of the table have what the mode needs."""
        is_logged, identities, has_key = row_of(self.connection, _TABLE, self.table())
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

    def position(self) -> int | None:
        """Returns the confirmed position of the slot, or None if there is no slot. It must not have lost WAL."""
        found = self.connection.execute(_SLOT, [self._source.slot]).fetchone()
        if found is None:
            return None
        plugin, database, status, confirmed, is_here, two_phase = found
        if plugin != "pgoutput" or not is_here:
            raise ConfigurationError(
                f"replication slot {self._source.slot!r} exists, but is of plugin {plugin} in database {database}: "
                "choose another name"
            )
        if two_phase:
            raise ConfigurationError(
                f"replication slot {self._source.slot!r} has two_phase = true: it sends the changes of transactions "
                "that are only prepared, and may be rolled back. Choose another name, or drop it, so that the job "
                f"creates it: {self.drop}"
            )
        if confirmed is None and status != "lost":
            raise SourceReadError(
                f"replication slot {self._source.slot!r} is still being created, maybe for an attempt that has died: "
                "that waits for the transactions in flight, also prepared ones (pg_prepared_xacts). Run again when "
                f"they have ended, or end it: {self._end_user}"
            )
        if confirmed is None or status == "lost":
            raise InputChangedError(
                f"replication slot {self._source.slot!r} has lost WAL that was not read, so changes are missing: the "
                "server gives up slots that are behind max_slot_wal_keep_size, or unused for longer than "
                f"idle_replication_slot_timeout. Raise it. {self.way_on}"
            )
        return int(confirmed)

    def create(self) -> int:
        """Creates the slot, and returns where it begins."""
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

    def confirm(self, lsn: int) -> None:
        """Tells the slot that everything before an LSN was read and will not be read again.

        If somebody is reading from it, it does not know that afterwards.
        """
        confirmed = self.position()
        if confirmed is not None and confirmed < lsn:
            with suppress(errors.ObjectInUse):
                statement = "SELECT pg_replication_slot_advance(%s, %s)"
                self.connection.execute(statement, [self._source.slot, lsn_text(lsn)])

    def transactions(self, table: int, after: int, upto: int, changes: int | None) -> tuple[list[Transaction], bool]:
        """Returns transactions that change the table with an id, in order, and whether these are all of them.

        Their commits begin between two LSNs: one may end behind ``upto``. With ``changes``, so many changes suffice.
        """
        for trial in self._patience():
            with trial, self._at(after) as slot:
                return self._transactions(slot, table, after, upto, changes)
        raise AssertionError("the last trial raises")

    def _transactions(
        self, slot: str, table: int, after: int, upto: int, changes: int | None
    ) -> tuple[list[Transaction], bool]:
        limit = changes
        while True:
            found = self.connection.execute(self._peek(_TRANSACTIONS, slot, upto, limit, table)).fetchall()
            seen = sum(int(messages) for _, _, messages, _ in found)
            complete = limit is None or seen < limit
            later = [Transaction(int(end), count) for begin, end, _, count in found if begin >= after and count]
            if complete or (changes is not None and sum(each.changes for each in later) >= changes):
                return later, complete
            limit = 2 * max(limit or 1, seen)

    def messages(self, after: int, upto: int) -> Generator[bytes, None, None]:
        """Returns the messages of all transactions whose commits begin between two LSNs, maybe with earlier ones."""
        for trial in self._patience():
            with trial, self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.execute(READING)
                with self._at(after) as slot:
                    peek = self._peek("COPY (SELECT data FROM " + _PEEK + ") TO STDOUT (FORMAT binary)", slot, upto)
                    with cursor.copy(peek) as copy:
                        copy.set_types(["bytea"])  # in use is said before the first message: the server decodes all
                        for (data,) in copy.rows():
                            yield data

    @contextmanager
    def _at(self, lsn: int) -> Iterator[str]:
        """Yields the slot to read from. If much WAL is before an LSN, it is a copy of the slot that begins there.

        The slot stays behind until a checkpoint is complete, and the server decodes all since then each time. Moving a
        copy forward takes a tenth of that, because nobody sees these changes.
        """
        confirmed, copy = self.position(), f"flinkpy_{uuid.uuid4().hex}"
        if confirmed is None or lsn - confirmed < _MUCH_BYTES:
            yield self._source.slot
            return
        with self.connection.transaction():  # a pooler gives each transaction another session
            copied = self._copy(copy, lsn)
            try:
                yield copy if copied else self._source.slot
            finally:  # also if a barrier ends the reading: the session of a pooler goes on, and would keep the copy
                if copied:
                    with suppress(psycopg.Error):  # which ends it, too
                        self._one("SELECT pg_drop_replication_slot(%s)", copy)

    def _copy(self, name: str, lsn: int) -> bool:
        """Makes a copy of the slot that begins at an LSN. Returns whether there is one."""
        try:
            with self.connection.transaction():
                if self.connection.execute(_COPY, [name, self._source.slot]).fetchone() is None:
                    return False
                self._one("SELECT pg_replication_slot_advance(%s, %s)", name, lsn_text(lsn))
                return True
        except _NO_COPY:
            return False

    def _peek(self, statement: str, slot: str, upto: int, changes: int | None = None, table: int = 0) -> sql.Composed:
        return sql.SQL(statement).format(
            table=sql.Literal(table),
            slot=sql.Literal(slot),
            upto=sql.Literal(lsn_text(upto)),
            changes=sql.SQL("NULL") if changes is None else sql.Literal(changes),
            publication=sql.Literal(sql.Identifier(self._source.publication).as_string(self.connection)),
        )

    def _patience(self) -> tenacity.Retrying:
        """Waits while somebody else reads from the slot, who may be about to finish: a retried task, or the driver."""

        def in_use(last: tenacity.RetryCallState) -> NoReturn:
            assert last.outcome is not None
            error, slot = last.outcome.exception(), self._source.slot
            raise SourceReadError(
                f"replication slot {slot!r} is in use ({str(error).strip()}): each job needs a slot of its own. If a "
                f"former attempt hangs, end its connection: {self._end_user}"
            ) from error

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(errors.ObjectInUse),
            wait=tenacity.wait_fixed(_POLL_SECONDS),
            stop=tenacity.stop_after_delay(_BUSY_SECONDS),
            retry_error_callback=in_use,
        )

    def gone(self, lsn: int, confirmed: int | None) -> RestoreError:
        """Returns the error of a position that the slot does not have any more."""
        slot, table = self._source.slot, self.table_name
        if confirmed is None:
            return RestoreError(
                f"replication slot {slot!r} is gone, so the changes of table {table} since {lsn_text(lsn)} cannot be "
                f"read. To go on without a gap, {self._anew}"
            )
        return RestoreError(
            f"the state has read the changes of table {table} up to {lsn_text(lsn)}, but replication slot {slot!r} "
            f"begins at {lsn_text(confirmed)}: a later checkpoint was completed, another job reads from it, "
            "somebody has advanced the slot, or it was created anew, and the server no longer has the changes since. "
            "Restore the latest checkpoint. Or give a job that tries something a slot of its own. If there is no "
            f"checkpoint from after {lsn_text(confirmed)}, changes are missing. {self.way_on}"
        )
