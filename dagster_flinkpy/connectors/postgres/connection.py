"""Connections to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from dagster_flinkpy.errors import SourceReadError

__all__ = ["connect", "reading"]

_CONNECT_SECONDS = 10


def connect(conninfo: str, name: str) -> psycopg.Connection[Any]:
    """Returns a connection without an open transaction. As a context it is closed at the end.

    Args:
        conninfo: How to connect, as libpq knows it.
        name: The name of the application, which ``pg_stat_activity`` shows.
    """
    defaults = {"connect_timeout": str(_CONNECT_SECONDS), "application_name": name[:63]}
    given = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(conninfo).items()}
    return psycopg.connect(
        psycopg.conninfo.make_conninfo("", **{**defaults, **given, "client_encoding": "utf8"}), autocommit=True
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns errors of the server and of the connection into a SourceReadError that names what is read."""
    try:
        yield
    except psycopg.Error as error:
        raise SourceReadError(f"cannot read {what}: {str(error).strip()}") from error
