"""Connections to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from dagster_flinkpy.errors import SourceReadError

__all__ = ["connect", "end_of_timeline", "listed", "reading", "row_of", "table_of", "untimed", "value_of"]

_DEFAULTS = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""Seconds. A server that vanishes without a word is noticed after a minute; the system would take two hours."""
_ADVICE = "Check that the server runs, and conninfo, user and password."
_PEER = (  # as PostgreSQL comes from Debian
    "Through its socket this server lets in only the user of the system who has the name of the role. Give conninfo a "
    "host, such as 127.0.0.1, and a password."
)


class _Connection(psycopg.Connection[Any]):
    """A statement with parameters has its names and literals as they are, also those with ``%``."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> psycopg.Cursor[Any]:
        return super().execute(self._escaped(query) if params else query, params, **options)

    def _escaped(self, query: Any) -> Any:
        if isinstance(query, sql.Composed):
            return sql.Composed([self._escaped(part) for part in query])
        if not isinstance(query, (sql.Identifier, sql.Literal)):
            return query
        return sql.SQL(query.as_string(self).replace("%", "%%"))


def connect(conninfo: str, name: str, *, standby: bool = False) -> psycopg.Connection[Any]:
    """Returns a connection without an open transaction. Of several hosts it is the primary if no standby will do."""
    defaults = {**_DEFAULTS, "application_name": name[:63]}
    given = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(conninfo).items()}
    if not standby and "," in given.get("host", "") + given.get("hostaddr", ""):
        defaults["target_session_attrs"] = "primary"  # not read-write: a role that only reads may be one of a source
    whole = psycopg.conninfo.make_conninfo("", **{**defaults, **given, "client_encoding": "utf8"})
    try:
        # A statement that was prepared in one session is unknown in the next one that a pooler gives.
        return _Connection.connect(whole, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        advice = _PEER if "Peer authentication" in str(error) else _ADVICE
        raise psycopg.OperationalError(f"{str(error).strip().rstrip('.?')}. {advice}") from error


def end_of_timeline(conninfo: str, timeline: int, current: int) -> int | None:
    """Returns where a server's WAL, of its current timeline, has left an earlier one, or None if it did not.

    The role needs ``REPLICATION``.
    """
    with connect(psycopg.conninfo.make_conninfo(conninfo, replication="database"), "flinkpy source") as connection:
        history = connection.pgconn.exec_(f"TIMELINE_HISTORY {current}".encode()).get_value(0, 1) or b""
    for line in history.decode().splitlines():
        if (parts := line.split("\t"))[0].strip() == str(timeline):
            high, low = parts[1].split("/")
            return int(high, 16) << 32 | int(low, 16)
    return None


def untimed(how: str) -> str:
    """Returns statements after which a transaction, and a statement, may take longer than the role lets others.

    Args:
        how: ``SET`` or ``SET LOCAL``.
    """
    newer = "transaction_timeout"  # since PostgreSQL 17
    return (
        f"{how} statement_timeout = 0; SELECT set_config('{newer}', '0', {str(how == 'SET LOCAL').lower()}) "
        f"WHERE current_setting('{newer}', true) <> '0'"
    )


def row_of(connection: psycopg.Connection[Any], statement: Any, *values: object) -> Any:
    """Returns the only row of a statement. Values are given one by one, or as a dictionary."""
    given = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
    found = connection.execute(statement, given or None).fetchone()
    assert found is not None
    return found


def value_of(connection: psycopg.Connection[Any], statement: Any, *values: object) -> Any:
    """Returns the first value of the only row of a statement, like `row_of`."""
    return row_of(connection, statement, *values)[0]


def listed(names: Iterable[str]) -> sql.Composed:
    """Returns names with commas between them."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def table_of(schema: str | None, table: str) -> sql.Identifier:
    """Returns a table; without a schema, the server looks for it."""
    return sql.Identifier(*([schema] if schema else []), table)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns errors of the server and of the connection into a SourceReadError that names what is read."""
    try:
        yield
    except psycopg.Error as error:
        raise SourceReadError(f"cannot read {what}: {str(error).strip()}") from error
