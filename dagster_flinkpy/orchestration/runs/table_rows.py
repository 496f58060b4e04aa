"""Counts the rows of a sink's table for Dagster's ``dagster/row_count``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterInstance

from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.job_graph import JobVertex
from dagster_flinkpy.datastream.operator_specs import SinkSpec
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.job_run import JobRun

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.parquet_table import RowCount

__all__ = ["table_rows"]


def table_rows(run: JobRun, vertex: JobVertex) -> dict[str, Any]:
    """Returns the row count of the table of a `ParquetSink` as metadata, or no metadata for other operators.

    If the rows cannot be counted, the table gets no number, and the run's log says why. The step does not fail, because
    the checkpoint is complete.

    Args:
        run: The step.
        vertex: The operator.
    """
    if not isinstance(vertex.spec, SinkSpec) or not isinstance(vertex.spec.sink, ParquetSink):
        return {}
    from pyarrow import ArrowException, schema

    from dagster_flinkpy.connectors.parquet_table import ParquetTable

    table = ParquetTable(vertex.spec.sink.location, schema([]))
    try:
        count = table.count_rows(_counted_before(run.context.instance, run.specs[vertex.uid].key))
    except (StorageError, ArrowException) as error:
        run.context.log.warning(f"The rows of table {table.location.url} were not counted: {error}")
        return {}
    if count is None:
        return {}
    facts = FlinkCheckpointMetadataSet(table_files=count.files, table_digest=count.digest)
    return {**TableMetadataSet(row_count=count.rows), **dict(facts)}


def _counted_before(instance: DagsterInstance, key: AssetKey) -> RowCount | None:
    """Returns the row count in the metadata of the asset's last materialization."""
    from dagster_flinkpy.connectors.parquet_table import RowCount

    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return None
    metadata = event.asset_materialization.metadata
    rows, facts = TableMetadataSet.extract(metadata).row_count, FlinkCheckpointMetadataSet.extract(metadata)
    if rows is None or facts.table_files is None or facts.table_digest is None:
        return None
    return RowCount(rows, facts.table_files, facts.table_digest)
