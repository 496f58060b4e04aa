"""Tells when all transactions have ended that were in flight at some moment."""

from __future__ import annotations

from typing import Any

import psycopg

from dagster_flinkpy.datastream.connectors.base import Json, position_field

__all__ = ["InFlight"]

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


class InFlight:
    """The transactions of a database that were in flight at some moment, as far as they are known to go on.

    Args:
        server: When the server started. Virtual ids are of one run of the server.
        waiting: The ids of the transactions, with what people know them by.
    """

    def __init__(self, server: str, waiting: dict[str, str]) -> None:
        self._server, self._waiting = server, waiting

    @staticmethod
    def now(connection: psycopg.Connection[Any]) -> InFlight:
        """Returns those that are in flight now.

        Args:
            connection: A connection without an open transaction.
        """
        return InFlight(_server(connection), _running(connection) | _prepared(connection))

    def waits(self, connection: psycopg.Connection[Any]) -> bool:
        """Looks again, and returns whether some of them go on.

        Args:
            connection: A connection without an open transaction.
        """
        if not self._waiting:
            return False
        going_on = {} if self._server != _server(connection) else _running(connection)
        prepared = _prepared(connection)  # after the others, so that one that is prepared meanwhile is in either
        going_on |= prepared
        still = {each: shown for each, shown in self._waiting.items() if each in going_on}
        if any(not each.startswith("prepared ") for each in self._waiting.keys() - still.keys()):
            still |= prepared  # one of them may be what has become of a transaction that is no longer running
        self._waiting, self._server = still, _server(connection)
        return bool(still)

    def shown(self) -> str:
        """Names some of them, for messages."""
        return ", ".join(sorted(set(self._waiting.values()))[:5])

    def to_json(self) -> Json:
        """Returns a description for the position of a source."""
        return {"server": self._server, "waiting": self._waiting}

    @staticmethod
    def from_json(data: Json) -> InFlight:
        """Returns what `to_json` described.

        Raises:
            ValueError: The data describes something else.
        """
        return InFlight(position_field(data, "server", str), position_field(data, "waiting", dict))


def _server(connection: psycopg.Connection[Any]) -> str:
    found = connection.execute(_SERVER).fetchone()
    assert found is not None
    return str(found[0])


def _running(connection: psycopg.Connection[Any]) -> dict[str, str]:
    return {each: f"process {pid}" for each, pid in connection.execute(_RUNNING).fetchall()}


def _prepared(connection: psycopg.Connection[Any]) -> dict[str, str]:
    return {each: f"prepared transaction {gid!r}" for each, gid in connection.execute(_PREPARED).fetchall()}
