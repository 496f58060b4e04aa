"""Sources and two-phase-commit sinks."""

from dagster_flinkpy.connectors.parquet_sink import ParquetSink
from dagster_flinkpy.connectors.parquet_source import ParquetSource
from dagster_flinkpy.connectors.postgres_sink import PostgresSink

__all__ = ["ParquetSink", "ParquetSource", "PostgresSink"]
