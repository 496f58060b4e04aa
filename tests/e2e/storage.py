"""Storage in PostgreSQL that keeps a connection."""

from __future__ import annotations

from typing import Any

from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import pg_url_from_config

__all__ = ["OneConnection"]

_NO_TIMEOUT_MILLIS, _SECONDS, _MORE = 0, 3600, 20


class OneConnection(DagsterPostgresStorage):
    """Keeps a connection in each process, as that of Dagster's webserver does.

    Otherwise each request makes a connection, for which PostgreSQL starts a process.
    """

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Any) -> OneConnection:
        storage = cls(pg_url_from_config(config_value), inst_data=inst_data)
        for part in (storage.run_storage, storage.event_log_storage, storage.schedule_storage):
            part.optimize_for_webserver(_NO_TIMEOUT_MILLIS, _SECONDS, _MORE)
        return storage
