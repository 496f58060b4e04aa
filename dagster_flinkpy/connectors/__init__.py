"""Sources and two-phase-commit sinks."""

from dagster_flinkpy.connectors.asset_source import AssetSource, Materialization
from dagster_flinkpy.connectors.delta.sink import DeltaSink
from dagster_flinkpy.connectors.delta.source import DeltaSource
from dagster_flinkpy.connectors.files.parquet_source import ParquetSource
from dagster_flinkpy.connectors.files.table_sinks import CsvSink, JsonLinesSink, ParquetSink
from dagster_flinkpy.connectors.foreach_epoch import Epoch, ForeachEpoch
from dagster_flinkpy.connectors.iceberg.sink import IcebergSink
from dagster_flinkpy.connectors.iceberg.source import IcebergSource
from dagster_flinkpy.connectors.kinesis.source import KinesisSource
from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres.sink import PostgresSink
from dagster_flinkpy.connectors.postgres.source import PostgresSource
from dagster_flinkpy.connectors.spark.python_data_source import PythonDataSource

__all__ = [
    "AssetSource",
    "CsvSink",
    "DeltaSink",
    "DeltaSource",
    "Epoch",
    "ForeachEpoch",
    "IcebergSink",
    "IcebergSource",
    "JsonLinesSink",
    "KinesisSource",
    "Materialization",
    "ParquetSink",
    "ParquetSource",
    "PostgresChangeSource",
    "PostgresSink",
    "PostgresSource",
    "PythonDataSource",
]
