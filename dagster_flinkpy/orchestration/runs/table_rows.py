"""Counts the rows of a sink's table for Dagster's ``dagster/row_count``."""

from __future__ import annotations

from typing import Any

from dagster import AssetKey, DagsterInstance

from dagster_flinkpy.datastream.connectors.tables import CountedTable, RowCount
from dagster_flinkpy.datastream.operator_specs import SinkSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.job_run import JobRun

__all__ = ["table_rows"]


def table_rows(run: JobRun, vertex: JobVertex) -> dict[str, Any]:
    """Returns the row count of the table of a sink that counts its rows (`CountedTable`) as metadata.

    Other operators get no metadata.

    If the rows cannot be counted, the table gets no number, and the run's log says why. The step does not fail, because
    the checkpoint is complete.

    Args:
        run: The step.
        vertex: The operator.
    """
    sink = vertex.spec.sink if isinstance(vertex.spec, SinkSpec) else None
    if not isinstance(sink, CountedTable):
        return {}
    try:
        count = sink.count_rows(_counted_before(run.context.instance, run.specs[vertex.uid].key))
    except Exception as error:  # clients of catalogs raise errors of all kinds
        run.context.log.warning(f"The rows of table {sink.uri()} were not counted: {error}")
        return {}
    if count is None:
        return {}
    facts = FlinkCheckpointMetadataSet(table_files=count.files, table_digest=count.digest)
    return {**TableMetadataSet(row_count=count.rows), **dict(facts)}


def _counted_before(instance: DagsterInstance, key: AssetKey) -> RowCount | None:
    """Returns the row count in the metadata of the asset's last materialization."""
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return None
    metadata = event.asset_materialization.metadata
    rows, facts = TableMetadataSet.extract(metadata).row_count, FlinkCheckpointMetadataSet.extract(metadata)
    return None if rows is None else RowCount(rows, facts.table_files, facts.table_digest)
