"""The columns of an operator's records and their lineage, as far as the program declares them."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import AssetKey, TableColumnDep, TableColumnLineage, TableSchema

from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, FilterSpec, SinkSpec, TimestampsSpec
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.table_columns import table_columns

__all__ = ["PASS_ON", "column_metadata"]

PASS_ON = (SinkSpec, BlockingEdgeSinkSpec, FilterSpec, TimestampsSpec)
"""Operators that pass their records on unchanged."""


def column_metadata(graph: JobGraph, uid: str, origins: Sequence[AssetKey]) -> TableMetadataSet:
    """Returns Dagster's ``dagster/column_schema`` and ``dagster/column_lineage`` of an operator.

    There is a schema if the records have a declared type: a column for each field of rows and tuples, or one column
    ``value`` for other types, as `ParquetSink` writes them. There is lineage only if records are passed on unchanged,
    because it is not known what a function does to them.

    Args:
        graph: The program.
        uid: Uid of the operator.
        origins: Assets whose records reach the operator unchanged.
    """
    vertex = graph.vertex(uid)
    passes_on = isinstance(vertex.spec, PASS_ON)
    types = {edge.type_info for edge in graph.inputs(uid)} if passes_on else {vertex.output_type}
    columns = table_columns(types.pop()) if len(types) == 1 else []
    if not columns:
        return TableMetadataSet()
    lineage = None
    if origins:
        lineage = TableColumnLineage({c.name: [TableColumnDep(key, c.name) for key in origins] for c in columns})
    return TableMetadataSet(column_schema=TableSchema(columns), column_lineage=lineage)
