"""A table of PostgreSQL as a source, read in the order of a column."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_installed, check_name
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.postgres.sql_types import schema_and_table, table_uri
from dagster_flinkpy.connectors.sources.declared_source import RowSource
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["PostgresSource"]


class PostgresSource(RowSource, PartitionedSource):
    """Reads the rows of a table in PostgreSQL, and then those that are added to it.

    Needs ``pip install 'dagster-flinkpy[postgres]'``. The position is the last value of a column, or of several, that
    only grows: a ``bigint`` from a sequence, or a time of insertion. The column needs an index. Each epoch reads the
    rows after the position, in ranges that subtasks read side by side.

    **Rows are never missed because their transaction commits late**, if a transaction takes the value while it runs, as
    ``GENERATED AS IDENTITY``, ``nextval()`` and ``DEFAULT now()`` do: rows are read only when all transactions have
    ended that were in flight when their values were the newest ones. So a transaction that stays open, even one that
    only reads, holds the source back; a message names its process. Refused are a sequence with ``CACHE`` above 1, a
    standby server, and nulls in the column. If values come from elsewhere, such as the clock of a client, choose
    ``delay`` so that rows are committed by then. Rows that appear behind the position in the range of the last epoch
    are an error.

    Rows that are changed or deleted after they were read are not read again; `PostgresChangeSource` does that. If they
    are changed while an epoch reads them, the epoch fails.

    Args:
        conninfo: How to connect, as libpq knows it: ``postgresql://user@host/database`` or ``host=... dbname=...``.
            Take the password from the environment (``PGPASSWORD``) or from ``~/.pgpass``.
        table: The table, ``name`` or ``schema.name``. It may be partitioned, but not a view.
        column: The column that only grows, or several that do so together, such as ``["created_at", "id"]``. Types:
            whole numbers, text, ``uuid``, ``date``, ``timestamp`` (in UTC) and ``timestamptz``.
        row_type: Columns to read, by name, with their types. Default: all columns of the table.
        bounded: Whether the input ends with the rows that are committed when the first epoch is planned. Default: it
            ends if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_records_per_epoch: Maximum number of rows between two barriers. Rows of the same value are never torn apart,
            so there can be more. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes, likewise: of the rows as text, with the columns that are read. An
            epoch reads at least the rows of one value.
        delay: How old a time must be before its rows are read, and how long a time partition must be over. Only for a
            column of times. Input that ends with the existing rows has all of them. Default: 1 second.
        discovery_interval: How long a job that runs on waits before it looks for rows again. Default: 1 second.
        batch_rows: Maximum number of records in a batch.

    In a job with ``partitions_def``, a partition reads the rows whose time is in it. The column must be a time then.

    Raises:
        ConfigurationError: An argument is wrong, or psycopg is not installed.
    """

    registered: ClassVar[str] = "postgres"
    dagster_kind = "postgres"

    def __init__(
        self,
        conninfo: str,
        table: str,
        column: str | Sequence[str],
        *,
        row_type: RowTypeInfo | None = None,
        bounded: bool | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        delay: timedelta | None = None,
        discovery_interval: timedelta = Source.discovery_interval,
        batch_rows: int = 8192,
    ) -> None:
        self.columns = (column,) if isinstance(column, str) else tuple(column) if isinstance(column, Sequence) else ()
        check_name("PostgresSource() as conninfo", conninfo)
        check_name("PostgresSource() as table", table)
        self._declare(row_type, bounded, max_records_per_epoch, max_bytes_per_epoch, batch_rows, discovery_interval)
        check_argument("delay of PostgresSource()", delay, (timedelta, type(None)), "a timedelta")
        check_installed("PostgresSource", "psycopg", "postgres")
        if not self.columns or not all(isinstance(name, str) and name for name in self.columns):
            raise ConfigurationError(f"PostgresSource() needs the name of a column that only grows, not {column!r}")
        if delay is not None and delay < timedelta(0):
            raise ConfigurationError(f"delay={delay} of PostgresSource() must not be negative")
        if bounded and delay is not None:
            raise ConfigurationError(
                "PostgresSource(bounded=True) reads all rows that are committed: leave out delay, or bounded"
            )
        self.conninfo, (self.schema, self.table) = conninfo, schema_and_table(table)
        self.delay = delay
        self.partition: TimePartition | None = None

    def for_partition(self, partition: TimePartition) -> PostgresSource:
        part = self._part()
        part.partition = partition
        return part

    def uris(self) -> list[str]:
        return [table_uri(self.conninfo, self.schema, self.table)]
