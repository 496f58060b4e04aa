"""What a source has seen of a table besides its rows, to notice what others do to the table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.connectors.postgres.connection import end_of_timeline, row_of
from dagster_flinkpy.connectors.postgres.scan import Scan, Value
from dagster_flinkpy.errors import InputChangedError, RestoreError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["Seen"]

_SERVER = """
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
        system, lsn, snapshot, table, hides, role, timeline = row_of(scan.connection, _SERVER, {"table": scan.name})
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
