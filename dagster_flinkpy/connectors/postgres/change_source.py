"""The changes of a table in PostgreSQL as a source, from a logical replication slot."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_installed, check_name
from dagster_flinkpy.common.typeinfo import RowTypeInfo, Types
from dagster_flinkpy.connectors.postgres.sql_types import schema_and_table, table_uri
from dagster_flinkpy.connectors.sources.declared_source import RowSource
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["PostgresChangeSource"]


class PostgresChangeSource(RowSource):
    """Reads the changes of a table in PostgreSQL: rows that are inserted, updated and deleted.

    Needs ``pip install 'dagster-flinkpy[postgres]'``. The changes come from a logical replication slot with the plugin
    ``pgoutput``, in the order in which their transactions commit; an epoch reads whole transactions. One subtask reads.
    The position is an LSN of the write-ahead log (WAL). The slot is told it when the checkpoint is complete, so an
    epoch that runs again reads the same changes.

    A record has the columns of the table and two more: ``row_kind``, which is ``+I`` (inserted), ``-U`` and ``+U``
    (before and after an update) or ``-D`` (deleted), as `RowKind` is printed; and ``commit_time``, in UTC.

    The first attempt of a job creates the slot, and a publication of the table, if they do not exist. The changes since
    then are read, and before them, with ``snapshot``, the rows that are there already. **The server keeps the WAL until
    the slot has read it.** When the job is given up, drop both: ``SELECT pg_drop_replication_slot('...')``, ``DROP
    PUBLICATION ...``.

    Errors say what to do: ``wal_level`` is not ``logical``; the slot is gone or has lost WAL; a checkpoint is restored
    whose changes the slot no longer has; columns of the table were added, dropped or changed; the table was truncated;
    the publication was changed, so that changes may be missing. If they are, ``snapshot`` closes the gap.

    Args:
        conninfo: How to connect, as libpq knows it. The role needs ``REPLICATION``, and to create the publication it
            must own the table and may create in the database. Take the password from the environment (``PGPASSWORD``)
            or from ``~/.pgpass``.
        table: The table, ``name`` or ``schema.name``.
        slot: The name of the slot: lower-case letters, digits and ``_``. Each source needs its own.
        publication: The name of the publication, which sources may share. Default: that of the slot.
        row_type: Columns of the table to read, by name, with their types. Default: all columns, and a change of the
            columns is an error.
        changelog_mode: ``all`` has both rows of an update, and all columns of a deleted row. The table needs ``REPLICA
            IDENTITY FULL``. ``upsert`` has no ``-U``, and of a deleted row only the key, with null in the other
            columns. The table needs a primary key or a replica identity index. An update that changes the key is
            ``-D`` and ``+U``. Default: ``all``.
        snapshot: Whether a job that starts from empty state first reads the rows that the table has, in one epoch, as
            ``+I`` with the time of reading. Their changes follow without a gap. Default: only changes are read.
        bounded: Whether the input ends with the changes that are committed when the first epoch is planned. Default: it
            ends if ``env.execute()`` runs the program, and continues from run to run in Dagster. Changes after the end
            are an error, also while other sources of the job go on.
        max_records_per_epoch: Maximum number of changes between two barriers, where the rows of an update count as one.
            A transaction with more is read as a whole. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes of WAL, likewise. The WAL has the changes of all tables.
        skip_truncate: Whether ``TRUNCATE`` is skipped. Default: it is an error, because no row says what is gone.
        discovery_interval: How long a job that runs on waits before it looks for changes again. Default: 1 second.
        batch_rows: Maximum number of records in a batch.

    Raises:
        ConfigurationError: An argument is wrong, or psycopg is not installed.
    """

    registered: ClassVar[str] = "postgres_change"
    dagster_kind = "postgres"

    def __init__(
        self,
        conninfo: str,
        table: str,
        slot: str,
        *,
        publication: str | None = None,
        row_type: RowTypeInfo | None = None,
        changelog_mode: str = "all",
        snapshot: bool = False,
        bounded: bool | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        skip_truncate: bool = False,
        discovery_interval: timedelta = Source.discovery_interval,
        batch_rows: int = 8192,
    ) -> None:
        call = "PostgresChangeSource()"
        check_name(f"{call} as conninfo", conninfo)
        check_name(f"{call} as table", table)
        self._added = {"row_kind": Types.STRING(), "commit_time": Types.SQL_TIMESTAMP()}
        self._declare(row_type, bounded, max_records_per_epoch, max_bytes_per_epoch, batch_rows, discovery_interval)
        check_argument(f"snapshot of {call}", snapshot, bool, "True or False")
        if publication is not None:
            check_name(f"{call} as publication", publication)
        check_installed(call[:-2], "psycopg", "postgres")
        if not isinstance(slot, str) or not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
            raise ConfigurationError(f"slot {slot!r} of {call} must be lower-case letters, digits and _, at most 63")
        if changelog_mode not in ("all", "upsert"):
            raise ConfigurationError(f"changelog_mode={changelog_mode!r} of {call} must be 'all' or 'upsert'")
        self.conninfo, (self.schema, self.table) = conninfo, schema_and_table(table)
        self.slot, self.publication = slot, publication or slot
        self.changelog_mode, self.snapshot, self.skip_truncate = changelog_mode, snapshot, skip_truncate
        self.all_columns = row_type is None

    def uris(self) -> list[str]:
        return [table_uri(self.conninfo, self.schema, self.table)]

    @property
    def takes_from(self) -> str:
        """What only one job can read, because what it has read is gone there: see `taken_by`."""
        return table_uri(self.conninfo, None, f"slot={self.slot}")
