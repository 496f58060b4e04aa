"""Plans which rows of a table of PostgreSQL an epoch reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.connectors.postgres.columns import READING
from dagster_flinkpy.connectors.postgres.connection import end_of_timeline, row_of, value_of
from dagster_flinkpy.connectors.postgres.scan import Scan, Value, scanning
from dagster_flinkpy.connectors.postgres.source import PostgresSource
from dagster_flinkpy.connectors.sources.split_enumerators import EndingEnumerator
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, position_field
from dagster_flinkpy.errors import InputChangedError, RestoreError, SourceReadError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["PostgresEnumerator", "Seen"]

_CLUSTER = """
SELECT system_identifier::text,
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_current_wal_flush_lsn() - '0/0' END::bigint,
  pg_current_snapshot()::text, to_regclass(%(table)s)::oid::bigint,
  row_security_active(%(table)s), current_user::text,
  CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8) END
FROM pg_control_system()
"""
_FILES = """
WITH RECURSIVE parts (oid) AS (
    SELECT to_regclass(%s)::oid UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = parts.oid
) SELECT oid::text, coalesce(pg_relation_filenode(oid), 0)::bigint FROM parts JOIN pg_class USING (oid)
WHERE relkind IN ('r', 'f')
"""
# Versions that were there, or that ALTER TABLE has written anew. A row has the lower half of its transaction's number.
_BEHIND = "(%(newest)s - xmin::text::bigint %% 4294967296 + 4294967296) %% 4294967296"
_FORMER = f"""
xmin::text IN ('1', '2') OR {_BEHIND} < 2147483648
  AND pg_visible_in_snapshot((%(newest)s - {_BEHIND})::text::xid8, %(snapshot)s::pg_snapshot)
  OR xmin::text IN (SELECT a.xmin::text FROM pg_attribute a WHERE a.attrelid = %(oid)s)
"""
_SAME_ORDER = ({"int2", "int4", "int8"}, {"text", "varchar"})


@dataclass(frozen=True)
class Seen(JsonRecord):
    """What was there when a position was made."""

    system: str
    """The database cluster."""
    lsn: Count
    """How far its log was written, or 0 on a standby."""
    snapshot: str
    """Which transactions were visible."""
    table: Count
    """The id of the table."""
    columns: dict[str, list[Any]]
    """Number, type and collation of each column by which the table is read."""
    files: dict[str, int]
    """The file of each table that has rows: of each partition, by its id. ``TRUNCATE`` makes another one."""
    sequences: dict[str, int]
    """The last value of each sequence of the first column, of those that this role may read. One without a value, after
    ``RESTART`` or if it is gone, has its last one before that."""
    timeline: Count | None = None
    """The timeline of its log. None on a standby, and in positions of earlier releases."""

    @staticmethod
    def of(scan: Scan) -> Seen:
        system, lsn, snapshot, table, hides, role, timeline = row_of(scan.connection, _CLUSTER, {"table": scan.name})
        if hides:
            raise InputChangedError(
                f"row-level security hides rows of table {scan.name} from role {role!r}, so some would never be read: "
                f"ALTER ROLE {sql.Identifier(role).as_string(scan.connection)} BYPASSRLS, or read as a role that sees "
                "all rows"
            )
        found = {name: scan.columns[name] for name in scan.ordered_by}
        columns = {name: [each.number, each.type_name, each.collation] for name, each in found.items()}
        files = dict(scan.connection.execute(_FILES, [scan.name]).fetchall())
        number = None if timeline is None else int(timeline, 16)
        return Seen(system, int(lsn), snapshot, int(table), columns, files, scan.last_values(), number)

    def check_server(self, scan: Scan, now: Seen, position: Value, has_last_rows: Callable[[], bool]) -> None:
        """Checks that the server goes on from what was seen. After a failover it may lack the last transactions.

        ``has_last_rows`` returns whether the rows that were read last are as they were.
        """
        if now.system != self.system:
            return
        recovered = None not in (self.timeline, now.timeline) and self.timeline != now.timeline
        if 0 < now.lsn < self.lsn or (recovered and not has_last_rows() and self._left_before(scan, now)):
            raise RestoreError(
                f"the server of table {scan.name} was reset to an earlier state, as by a backup: rows that the job has "
                f"read may be gone, and others have their values, up to {position}. Start from empty state"
            )

    def _left_before(self, scan: Scan, now: Seen) -> bool:
        """Returns whether the server's log has left its former timeline before what was seen, or nobody knows."""
        try:
            return (end_of_timeline(scan.conninfo, self.timeline or 0, now.timeline or 0) or 0) < self.lsn
        except psycopg.Error:  # the role may not ask
            return True

    def followed_by(self, scan: Scan, now: Seen, position: Value) -> Seen:
        """Checks that rows up to a position are those that were read, and returns what is known from now on."""
        for name, (number, kind, collation) in now.columns.items():
            before = self.columns.get(name, [number, kind, collation])
            same = kind == before[1] or any({kind, before[1]} <= each for each in _SAME_ORDER)
            if not same or collation != before[2] or (now.table == self.table and number != before[0]):
                what = "has another type or collation" if not same or collation != before[2] else "is another column"
                raise RestoreError(
                    f"column {name!r} of table {scan.name} {what} than when it was read up to {position}, so rows are "
                    "in another order. Change it back, or start from empty state"
                )
        highest = max(self.sequences.values(), default=0)
        for name, value in now.sequences.items():
            last = self.sequences.get(name, highest)
            if value < last and value < int(position[0]):
                was = "was set back" if name in self.sequences else "was made anew, and went"
                raise RestoreError(
                    f"sequence {name}, which numbers the rows of table {scan.name}, {was} from {last} to {value}. Rows "
                    f"with values up to {position} would never be read: SELECT setval('{name}', {int(position[0])}), "
                    "and give rows that were added meanwhile greater values; or start from empty state"
                )
        # A server that was set up in the same way may have the same ids. One that was upgraded goes on with its log.
        files = self.files if now.system == self.system or now.lsn >= self.lsn else {}
        for oid, file in now.files.items():
            if files.get(oid) != file:
                self._check_file(scan, oid, position, files)
        return replace(now, sequences=self.sequences | now.sequences)

    def _check_file(self, scan: Scan, oid: str, position: Value, files: Collection[str]) -> None:
        """Checks a file that was not there. It has rows that were read if it is one that was written anew."""
        behind = sql.SQL("FROM {} WHERE tableoid = {} AND {}").format(
            scan.table, sql.Literal(int(oid)), scan.within(None, position)
        )
        values = {"snapshot": self.snapshot, "newest": int(self.snapshot.split(":")[1]), "oid": int(oid)}
        former = sql.SQL("SELECT EXISTS (SELECT {} AND (" + _FORMER + "))").format(behind)
        if oid in files and scan.one(former, values):
            return
        if rows := scan.one(sql.SQL("SELECT count(*) {}").format(behind)):
            was = "was truncated" if oid in files else "was made anew, is on another server, or got another partition,"
            raise RestoreError(
                f"table {scan.name} {was} after it was read up to {position}, and has {rows} row(s) with such values. "
                "They would never be read: give them greater values or delete them, or start from empty state"
            )


_DELAY = timedelta(seconds=1)
_WAIT_SECONDS = 10.0
"""How long a plan waits for transactions in flight. After that it reads nothing new."""
_PARTITION_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.02
_SPLIT_ROWS = 10_000
"""The fewest rows that are worth a split."""
_SPLITS_PER_SUBTASK = 4


# A transaction has its virtual id from its start to its end, also before it writes. VACUUM adds no rows.
_RUNNING = """
SELECT l.virtualxid, l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
  AND (a.datid IS NULL OR a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid)
"""
# A prepared transaction has no virtual id any more.
_PREPARED = "SELECT 'prepared ' || transaction, gid FROM pg_prepared_xacts WHERE database = current_database()"
# The end of the WAL, but without the header of a page or segment that has no record yet.
_WRITTEN = """
SELECT (lsn - CASE WHEN lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40
  WHEN lsn % current_setting('wal_block_size')::int = 24 THEN 24 ELSE 0 END)::bigint
FROM (SELECT pg_current_wal_insert_lsn() - '0/0') AS written (lsn)
"""
_UNFLUSHED = "SELECT pg_current_wal_flush_lsn() - '0/0' < %s"
_SERVER = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"


@dataclass
class TransactionsInFlight(JsonRecord):
    """The transactions of a database that were in flight at some moment, as far as they are known to go on."""

    server: str
    """When the server started. Virtual ids are of one run of the server."""
    waiting: dict[str, str]
    """The ids of the transactions, with what people know them by."""

    @staticmethod
    def now(connection: psycopg.Connection[Any]) -> TransactionsInFlight:
        """Returns those that are in flight now. The connection has no open transaction."""
        return TransactionsInFlight(_server(connection), _running(connection) | _prepared(connection))

    def waits(self, connection: psycopg.Connection[Any]) -> bool:
        """Looks again, and returns whether some of them go on. The connection has no open transaction."""
        if not self.waiting:
            return False
        going_on = {} if self.server != _server(connection) else _running(connection)
        prepared = _prepared(connection)  # after the others, so that one that is prepared meanwhile is in either
        going_on |= prepared
        still = {each: shown for each, shown in self.waiting.items() if each in going_on}
        if any(not each.startswith("prepared ") for each in self.waiting.keys() - still.keys()):
            still |= prepared  # one of them may be what has become of a transaction that is no longer running
        self.waiting, self.server = still, _server(connection)
        return bool(still)

    def shown(self) -> str:
        """Names some of them, for messages."""
        return ", ".join(sorted(set(self.waiting.values()))[:5])


def _server(connection: psycopg.Connection[Any]) -> str:
    return str(value_of(connection, _SERVER))


def _running(connection: psycopg.Connection[Any]) -> dict[str, str]:
    return {each: f"process {pid}" for each, pid in connection.execute(_RUNNING).fetchall()}


def _prepared(connection: psycopg.Connection[Any]) -> dict[str, str]:
    return {each: f"prepared transaction {gid!r}" for each, gid in connection.execute(_PREPARED).fetchall()}


@dataclass
class _Candidate(TransactionsInFlight):
    """A value that is settled when the transactions have ended that were in flight when it was the newest one."""

    value: Value


@dataclass(frozen=True)
class _Range(JsonRecord):
    """The rows of an epoch."""

    rows: Count
    after: Value | None = None
    """Where it began."""
    versions: Count | None = None
    """The sum of the transactions that have written them. Earlier releases have not stored it."""


@dataclass
class _Assigned(JsonRecord):
    """How far the rows of a table are assigned."""

    columns: list[str]
    """The columns in whose order the table is read."""
    planned: Count
    """How many splits there were so far."""
    position: Value | None = None
    """The last value that was assigned."""
    settled: Value | None = None
    candidate: _Candidate | None = None
    """The value to be settled next."""
    last: _Range | None = None
    """The last epoch with rows, to notice rows that appear behind the position."""
    seen: Seen | None = None
    """What was seen of the table when the position was made."""
    end: Value | None = None
    """The value with which a bounded input ends."""

    def __post_init__(self) -> None:
        values = [self.position, self.settled, self.end]
        values += [] if self.last is None else [self.last.after]
        values += [] if self.candidate is None else [self.candidate.value]
        for value in values:
            if value is not None and len(value) != len(self.columns):
                raise ValueError(f"{value!r:.100} is not the text of {len(self.columns)} value(s)")


class PostgresEnumerator(EndingEnumerator):
    """Assigns ranges of rows.

    A value is settled when all transactions have ended that were in flight when it was the newest one that was visible.
    From then on no row with this value or a lesser one can appear, if transactions take their values while they run.
    Rows are read up to a settled value.
    """

    def __init__(self, source: PostgresSource, restored: Json | None) -> None:
        super().__init__(source.limits, source.discovery_interval)
        self._source, self._checked = source, False
        self._delay = _DELAY if source.delay is None else source.delay
        self._at = _Assigned(list(source.columns), 0)
        self._behind = 0
        """How many rows that could be read were not planned."""
        if restored is not None:
            self._at, before = _Assigned.from_json(restored), self._at
            self._ended = position_field(restored, "ended", bool)
            if self._at.columns != before.columns:
                raise ValueError(f"it is a position in {self._at.columns}, but the source is read by {before.columns}")

    def has_input(self, parallelism: int) -> bool:
        known = self._at.candidate
        return self.plans_something(parallelism) or self._at.candidate != known  # the checkpoint is to keep it

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        if self._ended:
            return shares
        with scanning(self._source) as scan:
            if not self._checked and (advice := scan.check()) is not None:
                self._progress(advice)
            self._checked = True
            scan.refuse_unordered()
            self._look(scan)
            through = self._limit(scan)
            if through is not None and through != self._at.position:
                with scan.connection.transaction():
                    scan.connection.execute(f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; {READING}")
                    self._refuse_late(scan)
                    through = self._assign(scan, through, parallelism, shares)
                self._at.position = through
        self._ended = self._source.bounded is not False and self._at.position == self._at.end
        return shares

    def _look(self, scan: Scan) -> None:
        """Checks what others have done to the table since the last plan."""
        now = Seen.of(scan)
        if self._at.seen is not None and self._at.position is not None:
            self._at.seen.check_server(scan, now, self._at.position, partial(self._has_last_rows, scan))
            now = self._at.seen.followed_by(scan, now, self._at.position)
        if self._at.seen is not None and self._at.seen.files != now.files:  # what was settled was so for other rows
            self._at.settled, self._at.candidate = self._at.position, None
        self._at.seen = now

    def _has_last_rows(self, scan: Scan) -> bool:
        """Returns whether the rows of the last epoch are as they were, as far as that is known."""
        last, position = self._at.last, self._at.position
        if last is None or last.versions is None or position is None:
            return True
        return scan.versions(last.after, position) == (last.rows, last.versions)

    def _limit(self, scan: Scan) -> Value | None:
        """Returns the last value that may be read now."""
        if self._source.bounded is False:
            if self._at.settled is None:  # or it was bounded before
                self._at.settled = self._at.position
            if self._at.settled == self._at.position:
                self._settle(scan)
            return self._at.settled
        if self._at.end is None:
            if self._source.partition is not None:
                self._await_partition(scan)
            self._at.end = scan.newest(None)
        return self._at.end

    def _settle(self, scan: Scan) -> None:
        """Finds a later value up to which all rows are visible, or leaves it at the last one."""
        earlier = candidate = self._at.candidate
        if candidate is None:
            newest = scan.newest(self._at.settled, scan.clock(self._delay) if scan.by_time else None)
            if newest is None:
                return
            now = TransactionsInFlight.now(scan.connection)
            candidate = self._at.candidate = _Candidate(now.server, now.waiting, newest)
        if candidate.server != _server(scan.connection):  # a crash may have taken the value, which another row gets
            self._at.candidate = None
            self._settle(scan)
            return
        if not _ended(partial(candidate.waits, scan.connection), _WAIT_SECONDS):
            self._progress(
                f"table {scan.name}: rows up to {candidate.value} may have rows before them that are not committed, so "
                f"they are not read until these have ended: {candidate.shown()}"
            )
            return
        # What was committed with synchronous_commit = off is visible before it outlives a crash.
        if not _ended(partial(scan.one, _UNFLUSHED, scan.one(_WRITTEN)), _WAIT_SECONDS):
            self._progress(
                f"table {scan.name}: rows up to {candidate.value} wait until a crash of the server would not take them"
            )
            return
        self._at.settled, self._at.candidate = candidate.value, None
        if earlier is not None:
            self._settle(scan)

    def _await_partition(self, scan: Scan) -> None:
        """Waits until no transaction can add rows to the partition."""
        partition = self._source.partition
        assert partition is not None
        left = (self._delay - scan.age(partition.end)).total_seconds()
        if left > _PARTITION_WAIT_SECONDS:
            raise SourceReadError(
                f"partition {partition.key} of table {scan.name} may still get rows: it ends at {partition.end}, and "
                f"the source waits for {self._delay} after that. Run it again later"
            )
        time.sleep(max(left, 0))
        in_flight = TransactionsInFlight.now(scan.connection)
        if not _ended(partial(in_flight.waits, scan.connection), _PARTITION_WAIT_SECONDS):
            raise SourceReadError(
                f"partition {partition.key} of table {scan.name} may still get rows from transactions "
                f"that are in flight: {in_flight.shown()}. Run it again when they have ended, or end them"
            )

    def _refuse_late(self, scan: Scan) -> None:
        if self._at.last is None or self._at.position is None or self._source.bounded is not False:
            return
        after = self._at.last.after
        if (more := scan.count(after, self._at.position) - self._at.last.rows) > 0:
            raise InputChangedError(
                f"table {scan.name} got {more} row(s) behind the position of the source: in the range after "
                f"{after}, up to {self._at.position}, of which all rows were read. They would never be read, so the "
                f"values of {list(self._source.columns)} do not grow in the order of commits. Give the rows higher "
                "values or delete them, and choose a longer delay or another column; or use PostgresChangeSource"
            )

    def _assign(self, scan: Scan, through: Value, parallelism: int, shares: list[list[SourceSplit]]) -> Value:
        """Assigns the rows up to a value, or fewer if there are too many. Returns the last value that was assigned."""
        start, limits, last = self._at.position, self._source.limits, through
        if limits.records is not None and (beyond := scan.nth(start, through, limits.records)) is not None:
            through = scan.before(start, beyond) or beyond
        if limits.bytes is not None and (beyond := scan.beyond(start, through, limits.bytes)) is not None:
            through = scan.before(start, beyond) or beyond
        self._behind = 0 if through == last else scan.count(through, last)
        count = scan.count(start, through)
        splits = min(-(-count // _SPLIT_ROWS), _SPLITS_PER_SUBTASK * parallelism)
        size = -(-count // splits) if splits > 1 else count
        after, total, written = start, 0, 0
        for value in [*(scan.every(start, through, size) if size < count else ()), through]:
            if value == after:  # so many rows have it
                continue
            rows, versions = scan.versions(after, value)
            properties = {"after": after, "through": value, "rows": rows, "versions": versions}
            if rows:
                name = f"({'' if after is None else ', '.join(after)}; {', '.join(value)}]"
                shares[self._at.planned % parallelism].append(SourceSplit(name, properties))
                self._at.planned += 1
            after, total, written = value, total + rows, written + versions
        self._at.last = _Range(total, start, written)
        return through

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass  # they are read to their ends, or planned again from the last checkpoint

    def unread(self) -> Sequence[str]:
        with scanning(self._source) as scan:
            newest = scan.newest(self._at.position)
        return [] if newest is None else [f"rows of table {scan.name} up to {newest}"]

    def lag(self) -> SourceLag:
        return SourceLag(records=self._behind)

    def snapshot_state(self) -> Json:
        return {**self._at.to_json(), "ended": self._ended}


def _ended(goes_on: Callable[[], bool], seconds: float) -> bool:
    """Waits until something has ended. Returns whether it has."""
    until = time.monotonic() + seconds
    while goes_on():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True
