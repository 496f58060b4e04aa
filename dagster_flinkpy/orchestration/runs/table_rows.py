"""Counts the rows of a sink's table for Dagster's ``dagster/row_count``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterInstance

from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink
from dagster_flinkpy.datastream.job_graph import JobVertex
from dagster_flinkpy.datastream.operator_specs import SinkSpec
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.job_run import JobRun

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.files.parquet_table import RowCount

__all__ = ["table_rows"]


def table_rows(run: JobRun, vertex: JobVertex) -> dict[str, Any]:
    """Returns the row count of the table of a `ParquetSink`, `DeltaSink` or `IcebergSink` as metadata.

    Other operators get no metadata.

    If the rows cannot be counted, the table gets no number, and the run's log says why. The step does not fail, because
    the checkpoint is complete.

    Args:
        run: The step.
        vertex: The operator.
    """
    sink = vertex.spec.sink if isinstance(vertex.spec, SinkSpec) else None
    if isinstance(sink, (DeltaSink, IcebergSink)):
        return _logged_rows(run, sink)
    if not isinstance(sink, ParquetSink):
        return {}
    from pyarrow import ArrowException, schema

    from dagster_flinkpy.connectors.files.parquet_table import ParquetTable

    table = ParquetTable(sink.location, schema([]))
    try:
        count = table.count_rows(_counted_before(run.context.instance, run.specs[vertex.uid].key))
    except (StorageError, ArrowException) as error:
        _warn(run, table.location.url, error)
        return {}
    if count is None:
        return {}
    facts = FlinkCheckpointMetadataSet(table_files=count.files, table_digest=count.digest)
    return {**TableMetadataSet(row_count=count.rows), **dict(facts)}


def _logged_rows(run: JobRun, sink: DeltaSink | IcebergSink) -> dict[str, Any]:
    from dagster_flinkpy.connectors.logged_rows import rows_of_delta, rows_of_iceberg

    try:
        rows = rows_of_delta(sink) if isinstance(sink, DeltaSink) else rows_of_iceberg(sink)
    except Exception as error:  # clients of catalogs raise errors of all kinds
        _warn(run, sink.uri(), error)
        return {}
    return dict(TableMetadataSet(row_count=rows))


def _warn(run: JobRun, table: str, error: Exception) -> None:
    run.context.log.warning(f"The rows of table {table} were not counted: {error}")


def _counted_before(instance: DagsterInstance, key: AssetKey) -> RowCount | None:
    """Returns the row count in the metadata of the asset's last materialization."""
    from dagster_flinkpy.connectors.files.parquet_table import RowCount

    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return None
    metadata = event.asset_materialization.metadata
    rows, facts = TableMetadataSet.extract(metadata).row_count, FlinkCheckpointMetadataSet.extract(metadata)
    if rows is None or facts.table_files is None or facts.table_digest is None:
        return None
    return RowCount(rows, facts.table_files, facts.table_digest)
