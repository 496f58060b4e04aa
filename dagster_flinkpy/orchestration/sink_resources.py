"""Two-phase-commit sinks as Dagster resources: sinks for programs, and transactions for plain assets."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dagster import AssetExecutionContext, AssetKey, DagsterInstance, TableSchema
from pydantic import Field

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import (
    CoercibleToAssetKey,
    TableMetadataSet,
    UriMetadataSet,
    assets_of_location,
    run_of,
)
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.resources import StorageResource, resolved
from dagster_flinkpy.orchestration.run_tries import first_try
from dagster_flinkpy.orchestration.tables import table_columns
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.connectors import DeltaSink, IcebergSink, PostgresSink
    from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger, Stages, TransactionRecord
    from dagster_flinkpy.connectors.commit.table_sink import TableSink
    from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
    from dagster_flinkpy.datastream.connectors.kafka_sink import KafkaRecordSerializationSchema, TransactionalKafkaSink
    from dagster_flinkpy.orchestration.outputs.output_transaction import Output, OutputTransaction

__all__ = [
    "AssetTransaction",
    "DeltaSinkResource",
    "FileSinkResource",
    "IcebergSinkResource",
    "KafkaSinkResource",
    "LingeringTransaction",
    "PostgresSinkResource",
    "TwoPhaseCommitSinkResource",
]


@dataclass(frozen=True)
class LingeringTransaction:
    """A transaction of an asset whose run has ended, but which was neither committed nor aborted."""

    asset: str
    table: str
    token: int
    partitions: tuple[str, ...] | None
    """None: the whole output of the asset."""
    run_id: str
    began_ms: int
    is_committing: bool
    """Whether it has begun to commit. Then it will be committed, otherwise aborted."""


class AssetTransaction:
    """A transaction of an asset, from `TwoPhaseCommitSinkResource.transaction`.

    Args:
        transaction: The transaction.
    """

    def __init__(self, transaction: OutputTransaction) -> None:
        self._transaction = transaction

    @property
    def partitions(self) -> tuple[str, ...] | None:
        """The partitions that it replaces, or None if the asset has no partitions."""
        return self._transaction.record.partitions

    def write(self, rows: Any, *, partition: str | None = None) -> None:
        """Stages rows. It may be called several times; the first call determines the columns.

        Args:
            rows: ``pyarrow.Table``, ``RecordBatch`` or ``RecordBatchReader``, ``pandas.DataFrame`` (without its index),
                ``polars.DataFrame``, or ``pyspark.sql.DataFrame``, whose rows Spark's tasks stage.
            partition: The partition to which they belong. Required if the run has several.

        Raises:
            Failure: The target cannot store the rows, they do not have the columns of those before them, or the run
                does not have this partition.
        """
        from dagster_flinkpy.orchestration.outputs.output_rows import write_rows

        with flink_failures():
            write_rows(self._transaction, rows, self._partition(partition))

    def _partition(self, partition: str | None) -> str | None:
        known = self.partitions
        if partition is None and (known is None or len(known) == 1):
            return None if known is None else known[0]
        if partition is None:
            raise ConfigurationError(
                f"the run has {len(known or ())} partitions, so write() needs one: partition={(known or ('',))[0]!r}"
            )
        if partition not in (known or ()):
            raise ConfigurationError(f"the run does not have partition {partition!r}: {list(known or ())}")
        return partition


class TwoPhaseCommitSinkResource(StorageResource, ABC):
    """Tables whose rows appear when they are committed. There is a subclass for each kind of target.

    A program writes into `sink`. A plain asset writes in a `transaction`. A subclass needs a `sink` that has a
    ``for_owner``, and `stages`.
    """

    stages: ClassVar[Stages] = "uploads"
    """How its sinks stage rows: as uploads, which are completed when they commit, or as files."""

    writes_once: ClassVar[bool] = False
    """Whether transactions of assets add rows, which cannot be replaced. Then a run has one of an asset and a table."""

    @abstractmethod
    def sink(self, table: str, **options: Any) -> TwoPhaseCommittingSink:
        """Returns the sink into a table, for a program.

        Args:
            table: The name of the table.
            **options: Further arguments of the sink.

        Raises:
            ConfigurationError: An argument cannot work.
        """

    @contextmanager
    def transaction(
        self,
        context: AssetExecutionContext,
        table: str,
        *,
        asset_key: CoercibleToAssetKey | None = None,
        **options: Any,
    ) -> Iterator[AssetTransaction]:
        """Replaces what an asset has written into a table, by what is written inside of the ``with`` block.

        The rows are staged, and committed once at the end of the block. If the block raises, they are deleted. Of an
        asset with partitions, the partitions of the run are replaced. So a retry, another run of the same partition or
        a backfill replaces rows and adds none. Rows of other assets in the table stay.

        Of several transactions over the same partitions at once, the one that began last counts. The others fail with a
        `FencedError` when they commit. If the process dies, the next transaction over these partitions deletes what it
        has staged, or commits it first if it had begun to commit.

        The materialization gets the number of rows, the columns and the address of the table as metadata.

        Args:
            context: The context of the asset.
            table: The name of the table.
            asset_key: The asset. Required if the step has several.
            **options: Further arguments of the sink, as JSON has them, such as ``sort_by=["time"]``.

        Yields:
            The transaction.

        Raises:
            Failure: A newer transaction over one of the partitions has begun, the target does not take the rows, or the
                store failed.
        """
        from dagster_flinkpy.orchestration.outputs.output_transaction import OutputTransaction

        with flink_failures(context.log):
            if unfit := sorted({"key", "partition_column", "prepare_transactions"} & set(options)):
                raise ConfigurationError(
                    f"a transaction replaces the rows of its asset and partitions by itself: leave out {unfit[0]}"
                )
            key = _asset_key(context, asset_key)
            partitions = _partitions(context, key)
            output = self._output(output_name(key), table, options)
            if not self.writes_once and not output.ledger.read().exists:
                self._warn_of_former_names(context, table)
            run = run_of(context)
            run_id = run.run_id if run else str(uuid.uuid4())
            transaction = OutputTransaction.begin(
                output,
                partitions,
                run_id,
                f"{run_id}/{context.retry_number if run else 0}" if self.writes_once else None,
            )
        try:
            yield AssetTransaction(transaction)
            with flink_failures(context.log):
                transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        if run is None:
            return  # a test has called the asset directly, and nobody records metadata
        for partition in (None,) if partitions is None else tuple(partitions):
            context.add_asset_metadata(_metadata(transaction, partition), key, partition)

    def lingering(self, instance: DagsterInstance) -> list[LingeringTransaction]:
        """Returns the transactions of runs that have ended, which were neither committed nor aborted.

        Args:
            instance: The Dagster instance, which knows the runs.

        Raises:
            StorageError: They cannot be listed.
        """
        return [
            LingeringTransaction(
                ledger.asset,
                ledger.table,
                record.token,
                record.partitions,
                record.run_id,
                record.began_ms,
                record.is_committing,
            )
            for ledger, record in self._lingering(instance)
        ]

    def end_lingering(self, instance: DagsterInstance) -> list[LingeringTransaction]:
        """Ends the transactions of runs that have ended: commits those that had begun to commit, and aborts the others.

        Args:
            instance: The Dagster instance, which knows the runs.

        Returns:
            The transactions.

        Raises:
            SinkCommitError: A table does not take the rows. The transaction lingers on.
            StorageError: The store failed.
        """
        from dagster_flinkpy.orchestration.outputs.output_transaction import abort_transactions

        found = self.lingering(instance)
        for ledger, record in self._lingering(instance):
            if record.is_committing:
                self._output(ledger.asset, ledger.table, record.options).finish(record)
            else:
                store = self.location().child(ledger.table).open()
                abort_transactions(ledger, store, {record.token})
        return found

    def _warn_of_former_names(self, context: AssetExecutionContext, table: str) -> None:
        """Warns of assets that have written to a table and are gone: one may have another name now."""
        from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger

        known = assets_of_location(context)
        if known is None:
            return
        names = {key.to_user_string() for key in known}
        for each in OutputLedger.all(self.location().open()):
            if each.table == table and each.asset not in names:
                context.log.warning(
                    f"table {table!r} has been written to by asset {each.asset!r}, which this code location does not "
                    "have. If that is a former name of this asset, its rows stay beside the new ones: delete those "
                    f"whose dagster_asset_key is {each.asset!r}, and then {each.url}"
                )

    def _lingering(self, instance: DagsterInstance) -> list[tuple[OutputLedger, TransactionRecord]]:
        from dagster_flinkpy.connectors.commit.output_ledger import OutputLedger

        found = []
        for ledger in OutputLedger.all(self.location().open()):
            for record in ledger.read().transactions:
                run = instance.get_run_by_id(record.run_id)
                if run is None or run.is_finished:
                    found.append((ledger, record))
        return found

    def _output(self, asset: str, table: str, options: dict[str, Any]) -> Output:
        from dagster_flinkpy.orchestration.outputs.output_transaction import Output

        sink = self.sink(table, **options).for_owner(asset)
        return Output(asset, table, sink, self.location(), self.stages, options)


class FileSinkResource(TwoPhaseCommitSinkResource):
    """Tables of Parquet, CSV or JSON-lines files. Each table is a folder."""

    file_format: Literal["parquet", "csv", "json"] = Field(default="parquet", description="The format of the files.")

    def sink(self, table: str, **options: Any) -> TableSink:
        """Returns a sink into a table. The arguments are those of `ParquetSink`, `CsvSink` and `JsonLinesSink`."""
        from dagster_flinkpy.connectors import CsvSink, JsonLinesSink, ParquetSink

        made: dict[str, type[TableSink]] = {"parquet": ParquetSink, "csv": CsvSink, "json": JsonLinesSink}
        return made[self.file_format](self.table(table), **options)

    def table(self, table: str) -> StorageLocation:
        """Returns the location of a table, for reading it.

        Raises:
            PathEscapesPrefixError: The table's name is not a plain relative path.
        """
        return self.location().child(table)


class DeltaSinkResource(TwoPhaseCommitSinkResource):
    """Tables of Delta Lake. Each table is a folder. Needs ``pip install 'dagster-flinkpy[delta]'``.

    Transactions of assets write the partition columns ``dagster_asset_key`` and ``dagster_partition_key``.
    """

    def sink(self, table: str, **options: Any) -> DeltaSink:
        """Returns a sink into a table. The arguments are those of `DeltaSink`."""
        from dagster_flinkpy.connectors import DeltaSink

        return DeltaSink(self.table(table), **options)

    def table(self, table: str) -> StorageLocation:
        """Returns the location of a table, for reading it.

        Raises:
            PathEscapesPrefixError: The table's name is not a plain relative path.
        """
        return self.location().child(table)


class IcebergSinkResource(TwoPhaseCommitSinkResource):
    """Tables of Iceberg, ``namespace.name``, each with a folder. Needs ``pip install 'dagster-flinkpy[iceberg]'``.

    Transactions of assets write the columns ``dagster_asset_key`` and ``dagster_partition_key``.
    """

    catalog: str = Field(default="default", description="The name of the catalog.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of the catalog, as pyiceberg knows them. Default: those in ~/.pyiceberg.yaml or the "
        "environment, where passwords belong.",
    )

    def sink(self, table: str, **options: Any) -> IcebergSink:
        """Returns a sink into a table. The arguments are those of `IcebergSink`."""
        from dagster_flinkpy.connectors import IcebergSink

        properties = {name: resolved(value, name) for name, value in self.properties.items()}
        location = self.location().child(table)
        return IcebergSink(table, location, catalog=self.catalog, properties=properties, **options)


class PostgresSinkResource(TwoPhaseCommitSinkResource):
    """Tables of PostgreSQL. Needs ``pip install 'dagster-flinkpy[postgres]'``.

    Rows are staged under ``url``, and deleted when they are in the table. Transactions of assets create the table if it
    does not exist; they write the columns ``dagster_asset_key`` and ``dagster_partition_key``.
    """

    stages: ClassVar[Stages] = "files"

    conninfo: str = Field(
        description="How to connect, as libpq knows it: 'postgresql://user@host/database'. Take the password from the "
        "environment (PGPASSWORD) or from ~/.pgpass."
    )

    def sink(self, table: str, **options: Any) -> PostgresSink:
        """Returns a sink into ``name`` or ``schema.name``. The arguments are those of `PostgresSink`."""
        from dagster_flinkpy.connectors import PostgresSink

        staging = None if options.get("prepare_transactions") else self.location().child(table)
        return PostgresSink(resolved(self.conninfo, "conninfo"), table, staging, **options)


class KafkaSinkResource(TwoPhaseCommitSinkResource):
    """Topics of Kafka. Needs ``pip install 'dagster-flinkpy[kafka]'``.

    Records are staged under ``url``, and deleted when they are in the topic. **Kafka cannot replace records**, so
    transactions of assets add: see `transaction`.
    """

    stages: ClassVar[Stages] = "files"
    writes_once: ClassVar[bool] = True

    bootstrap_servers: str = Field(description="The brokers to ask first: 'host:9092', separated by commas.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of the client, as librdkafka knows them, such as 'sasl.password'.",
    )
    transactional_id_prefix: str = Field(
        default="flinkpy", description="How transactional ids and consumer groups of the sinks begin."
    )

    def sink(self, table: str, **options: Any) -> TransactionalKafkaSink:
        """Returns a sink into a topic.

        Args:
            table: The topic.
            **options: ``record_serializer``, a `KafkaRecordSerializationSchema`; by default rows become JSON objects.
                Without it ``key_field``, the field of rows that is the key, as text.

        Raises:
            ConfigurationError: An argument cannot work.
        """
        return self._sink(table, **options)

    def _sink(
        self,
        table: str,
        *,
        record_serializer: KafkaRecordSerializationSchema | None = None,
        key_field: str | None = None,
        run_key: str | None = None,
    ) -> TransactionalKafkaSink:
        from dagster_flinkpy.common.serialization import SimpleStringSchema
        from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
        from dagster_flinkpy.datastream.connectors.kafka_sink import TransactionalKafkaSink

        if record_serializer is None:
            key = None if key_field is None else SimpleStringSchema()
            record_serializer = KafkaRecordSerializationSchema(table, key=key, key_field=key_field)
        elif key_field is not None or record_serializer.topic != table:
            raise ConfigurationError(
                f"record_serializer says how records become keys, and its topic must be {table!r}, as that of the sink"
            )
        builder = KafkaSink.builder().set_bootstrap_servers(resolved(self.bootstrap_servers, "bootstrap_servers"))
        builder.set_record_serializer(record_serializer).set_staging(self.location().child(table))
        builder.set_transactional_id_prefix(self.transactional_id_prefix)
        for name, value in self.properties.items():
            builder.set_property(name, resolved(value, name))
        sink = builder.build()
        assert isinstance(sink, TransactionalKafkaSink)
        sink.run_key = run_key
        return sink

    @contextmanager
    def transaction(
        self,
        context: AssetExecutionContext,
        table: str,
        *,
        asset_key: CoercibleToAssetKey | None = None,
        **options: Any,
    ) -> Iterator[AssetTransaction]:
        """Adds what is written inside of the ``with`` block to a topic, at once, when the block ends.

        If the block raises, nothing is written. **A run writes once**: if it is retried after it has written, or dies
        while it writes, its records are in the topic once, and those of the retry are dropped. Another run of the asset
        or of a partition, such as a backfill, **adds its records to those that are there**; so does one that repeats a
        run that has succeeded.

        A transaction of an asset and topic in a run is one; a second one fails. Rows become JSON objects.

        Args:
            context: The context of the asset.
            table: The topic. It must exist.
            asset_key: The asset. Required if the step has several.
            **options: ``key_field``, the field that is the key, as text.

        Yields:
            The transaction.

        Raises:
            Failure: A newer transaction over one of the partitions has begun, the topic does not take the records, or
                the store failed.
        """
        with flink_failures(context.log):
            if unfit := sorted({"record_serializer", "run_key"} & set(options)):
                raise ConfigurationError(f"a transaction writes JSON objects, once in a run: leave out {unfit[0]}")
        run_key = first_try(context.instance, run) if (run := run_of(context)) else str(uuid.uuid4())
        with super().transaction(context, table, asset_key=asset_key, run_key=run_key, **options) as transaction:
            yield transaction


def output_name(key: AssetKey) -> str:
    """Returns the name under which the rows and transactions of an asset are known.

    Raises:
        ConfigurationError: Another asset may have the same one.
    """
    name = key.to_user_string()
    if any("/" in part for part in key.path):
        raise ConfigurationError(
            f"asset {key} has a '/' inside a part of its key, so its rows would be those of asset "
            f"{AssetKey(name.split('/'))}, too, which would replace them. Give it that key: it keeps its rows"
        )
    return name


def _asset_key(context: AssetExecutionContext, asset_key: CoercibleToAssetKey | None) -> AssetKey:
    if asset_key is not None:
        key = AssetKey.from_coercible(asset_key)
        if key not in context.assets_def.keys:
            raise ConfigurationError(f"the step does not have asset {key.to_user_string()!r}")
        return key
    keys: Sequence[AssetKey] = sorted(context.assets_def.keys)
    if len(keys) > 1:
        raise ConfigurationError(
            f"the step has several assets, so transaction() needs one: asset_key={keys[0].to_user_string()!r}"
        )
    return keys[0]


def _partitions(context: AssetExecutionContext, key: AssetKey) -> list[str] | None:
    if context.assets_def.get_asset_spec(key).partitions_def is None:
        return None
    return list(context.partition_keys)


def _metadata(transaction: OutputTransaction, partition: str | None) -> dict[str, Any]:
    output, type_info, rows = transaction.output, transaction.type_info, transaction.rows(partition)
    facts = TableMetadataSet(
        column_schema=None if type_info is None else TableSchema(table_columns(type_info)),
        row_count=rows if partition is None else None,
        partition_row_count=None if partition is None else rows,
        table_name=output.table,
        storage_kind=next(iter(sorted(output.sink.kinds())), None),
    )
    return {**facts, **UriMetadataSet(uri=output.sink.uri())}
