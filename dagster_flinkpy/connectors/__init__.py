"""Sources and two-phase-commit sinks."""

from dagster_flinkpy.connectors.asset_source import AssetSource, Materialization
from dagster_flinkpy.connectors.delta_sink import DeltaSink
from dagster_flinkpy.connectors.delta_source import DeltaSource
from dagster_flinkpy.connectors.foreach_epoch import Epoch, ForeachEpoch
from dagster_flinkpy.connectors.iceberg_sink import IcebergSink
from dagster_flinkpy.connectors.iceberg_source import IcebergSource
from dagster_flinkpy.connectors.kinesis_source import KinesisSource
from dagster_flinkpy.connectors.parquet_sink import ParquetSink
from dagster_flinkpy.connectors.parquet_source import ParquetSource
from dagster_flinkpy.connectors.postgres_change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres_sink import PostgresSink
from dagster_flinkpy.connectors.postgres_source import PostgresSource
from dagster_flinkpy.connectors.python_data_source import PythonDataSource
from dagster_flinkpy.connectors.text_sinks import CsvSink, JsonLinesSink

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
