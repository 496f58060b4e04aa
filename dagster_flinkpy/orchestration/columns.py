"""Columns of what an operator gives, and where they come from, as far as its declaration says so for certain."""

from __future__ import annotations

from collections.abc import Mapping

from dagster import AssetKey, TableColumn, TableColumnDep, TableColumnLineage, TableSchema
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operators import ExchangeSinkSpec, FilterSpec, SinkSpec, TimestampsSpec

__all__ = ["column_metadata"]

_PASS_ON = (SinkSpec, ExchangeSinkSpec, FilterSpec, TimestampsSpec)
"""Operators whose records are those they get."""


def column_metadata(graph: JobGraph, uid: str, assets: Mapping[str, AssetKey]) -> TableMetadataSet:
    """Dagster's ``dagster/column_schema`` and ``dagster/column_lineage`` of an operator.

    There is a schema where records have declared types: a column per field of rows and tuples, else one ``value``, as
    `ParquetSink` writes them. There is lineage where records are passed on as they are: what a function does to them is
    not known.

    Args:
        graph: The program.
        uid: Of the operator.
        assets: Of the operators it reads from, by uid.
    """
    vertex, inputs = graph.vertex(uid), graph.inputs(uid)
    passes_on = isinstance(vertex.spec, _PASS_ON)
    types = {edge.type_info for edge in inputs} if passes_on else {vertex.output_type}
    columns = _columns(types.pop()) if len(types) == 1 else []
    if not columns:
        return TableMetadataSet()
    lineage = None
    # A side output is no part of the asset's own columns.
    if passes_on and all(edge.side_output is None and edge.source in assets for edge in inputs):
        sources = dict.fromkeys(assets[edge.source] for edge in inputs)
        lineage = TableColumnLineage({c.name: [TableColumnDep(key, c.name) for key in sources] for c in columns})
    return TableMetadataSet(column_schema=TableSchema(columns), column_lineage=lineage)


def _columns(type_info: TypeInformation) -> list[TableColumn]:
    if isinstance(type_info, PickledBytesTypeInfo):
        return []
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        fields = zip(type_info.field_names, type_info.field_types, strict=True)
        return [TableColumn(name, of.arrow_name) for name, of in fields]
    return [TableColumn("value", type_info.arrow_name)]
