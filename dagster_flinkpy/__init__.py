"""Flink's state and fault-tolerance model for PySpark pipelines, run by Dagster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dagster_flinkpy.registry import register

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.component.pipeline_component import FlinkPipelineComponent

__version__ = "0.2.0"

__all__ = ["FlinkPipelineComponent", "__version__"]


def __getattr__(name: str) -> object:
    """Imports the component when `dg` or a ``defs.yaml`` asks for it, because Dagster's components import slowly."""
    if name == "FlinkPipelineComponent":
        return import_module("dagster_flinkpy.orchestration.component.pipeline_component").FlinkPipelineComponent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "FlinkPipelineComponent"]


register("executor", "dagster_flinkpy.runtime.master.local_executor:LocalExecutor")
register("blocking_edge_writer", "dagster_flinkpy.runtime.blocking.blocking_edge:BlockingEdgeWriter")
register("blocking_edge_enumerator", "dagster_flinkpy.runtime.blocking.blocking_edge:BlockingEdgeEnumerator")
register("blocking_edge_reader", "dagster_flinkpy.runtime.blocking.segments:read_segments")
register("spark_source_enumerator", "dagster_flinkpy.runtime.blocking.dataframe_enumerators:SparkSourceEnumerator")
register(
    "spark_transform_enumerator", "dagster_flinkpy.runtime.blocking.dataframe_enumerators:SparkTransformEnumerator"
)
register("spark_source_type", "dagster_flinkpy.runtime.blocking.dataframe_types:type_of_source")
register("spark_transform_type", "dagster_flinkpy.runtime.blocking.dataframe_types:type_of_transform")
register("source_coordinator", "dagster_flinkpy.connectors.sources.source_coordinator:SourceCoordinator")
register("file_enumerator", "dagster_flinkpy.connectors.files.file_source:FileEnumerator")
register("file_reader", "dagster_flinkpy.connectors.files.text_reader:read_text")
register("file_writer", "dagster_flinkpy.connectors.files.file_sink:FileWriter")
register("file_committer", "dagster_flinkpy.connectors.files.file_sink:file_committer")
register("transaction_writer", "dagster_flinkpy.connectors.commit.transactions:TransactionWriter")
register("transaction_committer", "dagster_flinkpy.connectors.commit.transactions:TransactionCommitter")
register("table_writer", "dagster_flinkpy.connectors.commit.table_writer:TableWriter")
register("table_file_reader", "dagster_flinkpy.connectors.lake.table_files:read_table_file")
register("table_file_row_type", "dagster_flinkpy.connectors.lake.table_files:table_row_type")
register("table_file_rows", "dagster_flinkpy.connectors.lake.table_files:count_rows")
register("python_data_source_row_type", "dagster_flinkpy.connectors.spark.python_data_reader:type_of_schema")
register("python_data_source_enumerator", "dagster_flinkpy.connectors.spark.python_data_reader:PartitionEnumerator")
register("python_data_source_reader", "dagster_flinkpy.connectors.spark.python_data_reader:read_partition")
register("asset_enumerator", "dagster_flinkpy.orchestration.runs.asset_enumerator:MaterializationEnumerator")
register("columns_of_rows", "dagster_flinkpy.connectors.columns.column_casts:columns_of_rows")
register("delta_log", "dagster_flinkpy.connectors.delta.log:DeltaLog")
register("delta_row_count", "dagster_flinkpy.connectors.delta.table:row_count")
register("iceberg_row_count", "dagster_flinkpy.connectors.iceberg.table:row_count")
register("iceberg_log", "dagster_flinkpy.connectors.iceberg.log:IcebergLog")
register("iceberg_committer", "dagster_flinkpy.connectors.iceberg.committer:IcebergCommitter")
register("iceberg_partition_committer", "dagster_flinkpy.connectors.iceberg.committer:IcebergPartitionCommitter")
register("iceberg_upsert_committer", "dagster_flinkpy.connectors.iceberg.committer:IcebergUpsertCommitter")
register("keyed_rows_writer", "dagster_flinkpy.connectors.lake.writer:KeyedRowsWriter")
register("delta_upsert_committer", "dagster_flinkpy.connectors.delta.committer:DeltaUpsertCommitter")
register("staged_rows_writer", "dagster_flinkpy.connectors.commit.staged_rows:StagedRowsWriter")
register("foreach_committer", "dagster_flinkpy.connectors.foreach_committer:ForeachCommitter")
register("lake_writer", "dagster_flinkpy.connectors.lake.writer:LakeWriter")
register("delta_committer", "dagster_flinkpy.connectors.delta.committer:DeltaCommitter")
register("delta_partition_committer", "dagster_flinkpy.connectors.delta.committer:DeltaPartitionCommitter")
register("postgres_row_type", "dagster_flinkpy.connectors.postgres.scan:table_row_type")
register("postgres_enumerator", "dagster_flinkpy.connectors.postgres.enumerator:PostgresEnumerator")
register("postgres_reader", "dagster_flinkpy.connectors.postgres.scan:read_rows")
register("postgres_change_row_type", "dagster_flinkpy.connectors.postgres.change_reader:change_row_type")
register("postgres_change_enumerator", "dagster_flinkpy.connectors.postgres.change_enumerator:PostgresChangeEnumerator")
register("postgres_change_reader", "dagster_flinkpy.connectors.postgres.change_reader:read_changes")
register("postgres_staging_writer", "dagster_flinkpy.connectors.postgres.writer:PostgresStagingWriter")
register("postgres_preparing_writer", "dagster_flinkpy.connectors.postgres.writer:PreparingWriter")
register("postgres_ledger_committer", "dagster_flinkpy.connectors.postgres.committer:LedgerCommitter")
register("postgres_partition_committer", "dagster_flinkpy.connectors.postgres.committer:PostgresPartitionCommitter")
register("postgres_prepared_committer", "dagster_flinkpy.connectors.postgres.committer:PreparedTransactionCommitter")
register("check_json_type", "dagster_flinkpy.connectors.columns.column_types:check_json_type")
register("record_decoder", "dagster_flinkpy.connectors.columns.record_formats:record_decoder")
register("record_encoder", "dagster_flinkpy.connectors.columns.record_formats:record_encoder")
register("kafka_enumerator", "dagster_flinkpy.connectors.kafka.enumerator:KafkaEnumerator")
register("kafka_reader", "dagster_flinkpy.connectors.kafka.reader:read_partition")
register("staging_location", "dagster_flinkpy.connectors.commit.table_sink:checked_location")
register("kafka_staging_writer", "dagster_flinkpy.connectors.kafka.writer:KafkaStagingWriter")
register("kafka_direct_writer", "dagster_flinkpy.connectors.kafka.writer:DirectWriter")
register("kafka_appending_committer", "dagster_flinkpy.connectors.kafka.committer:AppendingCommitter")
register("kafka_committer", "dagster_flinkpy.connectors.kafka.committer:KafkaCommitter")
register("kinesis_enumerator", "dagster_flinkpy.connectors.kinesis.client:KinesisEnumerator")
register("kinesis_reader", "dagster_flinkpy.connectors.kinesis.client:read_shard")
