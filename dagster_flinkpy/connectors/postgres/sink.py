"""A table of PostgreSQL as a two-phase-commit sink."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from dagster_flinkpy.common.arguments import check_argument, check_installed, check_name, names_in
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import FilledColumns, columns_of
from dagster_flinkpy.connectors.postgres.sql_types import schema_and_table, sql_type, table_uri
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered
from dagster_flinkpy.storage import StorageLocation

__all__ = ["PostgresSink"]


class PostgresSink(TwoPhaseCommittingSink):
    """Writes rows into a table of PostgreSQL. Needs ``pip install 'dagster-flinkpy[postgres]'``.

    Subtasks stage their rows on the store. When the checkpoint is complete, the driver writes all of them in one
    transaction. The same transaction adds a row to the table ``flinkpy_commits`` in the schema of the table, so a
    checkpoint that is committed again adds nothing. Readers see all rows of a checkpoint or none.

    By default rows are appended. With ``key``, a row replaces the row with the same key. With ``partition_column``, for
    jobs with time partitions, the rows of a partition replace those that earlier runs of the partition have written.

    Args:
        conninfo: How to connect, as libpq knows it: ``postgresql://user@host/database`` or ``host=... dbname=...``.
            Take the password from the environment (``PGPASSWORD``) or from ``~/.pgpass``.
        table: The table, ``name`` or ``schema.name``. It must exist, unless ``create`` is set.
        staging: The folder for staged rows, local or on S3. Not with ``prepare_transactions``.
        key: Columns with a unique index.
        partition_column: A column that the sink fills with the key of the Dagster partition. It must not be one of the
            fields.
        prepare_transactions: Whether subtasks write straight into the table, each in a transaction that is prepared
            (``PREPARE TRANSACTION``) at the barrier and committed on completion. That saves a copy of big epochs.
            Appends only. The server must allow it (``max_prepared_transactions``), and readers may see the rows of one
            subtask before those of another.
        create: Whether to create the table if it does not exist and the sink has not written to it. Default: False.

    Raises:
        ConfigurationError: Arguments contradict each other, or psycopg is not installed.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        staging: StorageLocation | str | None = None,
        *,
        key: Sequence[str] = (),
        partition_column: str | None = None,
        prepare_transactions: bool = False,
        create: bool = False,
    ) -> None:
        check_name("PostgresSink() as conninfo", conninfo)
        check_name("PostgresSink() as table", table)
        check_argument("PostgresSink()", staging, (str, StorageLocation, type(None)), "a folder for staged rows")
        check_installed("PostgresSink", "psycopg", "postgres")
        self.key = names_in("PostgresSink()", "key", key)
        if key and partition_column is not None:
            raise ConfigurationError(
                "give a key or a partition_column: rows replace rows with the same key, or those of a partition"
            )
        if prepare_transactions and (key or partition_column is not None or staging is not None):
            raise ConfigurationError(
                "prepare_transactions=True only appends and stages nothing: leave out key, partition_column and staging"
            )
        if not prepare_transactions and staging is None:
            raise ConfigurationError("PostgresSink needs staging, a folder for the rows of incomplete checkpoints")
        self.conninfo, (self.schema, self.table) = conninfo, schema_and_table(table)
        self.staging = StorageLocation(staging) if isinstance(staging, str) else staging
        self.filled = None if partition_column is None else FilledColumns(partition_column)
        self.prepare_transactions = prepare_transactions
        self.create = create

    def validate(self, type_info: TypeInformation | None) -> None:
        where = f"the sink of table {self.table!r}"
        if type_info is None:
            raise ConfigurationError(
                f"{where} needs typed records: declare output_type=..., such as Types.ROW_NAMED([...], [...]), on the "
                "operator before it"
            )
        columns = columns_of(type_info)
        for name, kind in columns.items():
            sql_type(name, kind)
        if missing := [name for name in self.key if name not in columns]:
            raise ConfigurationError(f"{where} has the key {missing[0]!r}, but the records have {list(columns)}")
        if self.filled is not None:
            self.filled.check_free(where, columns)

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        self.validate(type_info)
        name = "postgres_preparing_writer" if self.prepare_transactions else "postgres_staging_writer"
        return call_registered(name, self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        name = "postgres_ledger_committer" if self.filled is None else "postgres_partition_committer"
        if self.prepare_transactions:
            name = "postgres_prepared_committer"
        return call_registered(name, self, context)

    @property
    def replaces_whole_partitions(self) -> bool:
        return self.filled is not None

    def for_owner(self, owner: str) -> PostgresSink:
        """Returns the sink with which an owner, such as an asset, replaces what it has written, and nothing of others.

        It creates the table if it does not exist, with the columns ``dagster_asset_key`` and ``dagster_partition_key``.

        Args:
            owner: The owner.

        Raises:
            ConfigurationError: The sink replaces rows by key, or prepares transactions.
        """
        if self.key or self.prepare_transactions:
            raise ConfigurationError(
                f"{owner!r} replaces all of its rows in table {self.table!r}: leave out key and prepare_transactions"
            )
        sink = copy.copy(self)
        sink.filled = FilledColumns(owner=owner)
        return sink

    def folders(self) -> list[str]:
        return [] if self.staging is None else [self.staging.url]

    def kinds(self) -> set[str]:
        return {"postgres"}

    def uri(self) -> str:
        return table_uri(self.conninfo, self.schema, self.table)
