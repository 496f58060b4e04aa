"""Flink's state and fault-tolerance model for PySpark pipelines, run by Dagster."""

from __future__ import annotations

from dagster_flinkpy.registry import register

__version__ = "0.1.0"

__all__ = ["__version__"]

register("executor", "dagster_flinkpy.runtime.local_executor:LocalExecutor")
register("exchange_writer", "dagster_flinkpy.connectors.exchange:SegmentWriter")
register("exchange_committer", "dagster_flinkpy.connectors.exchange:ExchangeCommitter")
register("exchange_enumerator", "dagster_flinkpy.connectors.exchange:ExchangeEnumerator")
register("exchange_reader", "dagster_flinkpy.connectors.exchange:read_segments")
register("spark_source_enumerator", "dagster_flinkpy.connectors.spark_form:SparkSourceEnumerator")
register("spark_transform_enumerator", "dagster_flinkpy.connectors.spark_form:SparkTransformEnumerator")
register("spark_source_type", "dagster_flinkpy.connectors.spark_types:type_of_source")
register("spark_transform_type", "dagster_flinkpy.connectors.spark_types:type_of_transform")
register("file_enumerator", "dagster_flinkpy.connectors.file_source:FileEnumerator")
register("file_reader", "dagster_flinkpy.connectors.file_source:read_lines")
register("file_writer", "dagster_flinkpy.connectors.file_sink:FileWriter")
register("file_committer", "dagster_flinkpy.connectors.file_sink:file_committer")
