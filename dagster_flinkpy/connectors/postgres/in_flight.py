"""Tells when all transactions have ended that were in flight at some moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from dagster_flinkpy.connectors.postgres.connection import value_of
from dagster_flinkpy.json_records import JsonRecord

__all__ = ["TransactionsInFlight"]

# A transaction has its virtual id from its start to its end, also before it writes. VACUUM adds no rows.
_RUNNING = """
SELECT l.virtualxid, l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
  AND (a.datid IS NULL OR a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()))
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = l.pid)
"""
# A prepared transaction has no virtual id any more.
_PREPARED = "SELECT 'prepared ' || transaction, gid FROM pg_prepared_xacts WHERE database = current_database()"
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
        """Returns those that are in flight now.

        Args:
            connection: A connection without an open transaction.
        """
        return TransactionsInFlight(_server(connection), _running(connection) | _prepared(connection))

    def waits(self, connection: psycopg.Connection[Any]) -> bool:
        """Looks again, and returns whether some of them go on.

        Args:
            connection: A connection without an open transaction.
        """
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
