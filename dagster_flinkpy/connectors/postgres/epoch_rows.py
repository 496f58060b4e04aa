"""The rows that a sink has committed at some checkpoints: those of the transactions that have added their entries.

PostgreSQL keeps in each row the transaction that has written it (``xmin``). A checkpoint is one transaction, which also
adds an entry with the number of its rows to the ledger. So the entry has the same ``xmin`` as the rows.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.connectors.postgres.connection import row_of, value_of
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["EpochRows"]

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
    """The rows that a sink has committed between two checkpoints, also for jobs with whose state its job began."""

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
