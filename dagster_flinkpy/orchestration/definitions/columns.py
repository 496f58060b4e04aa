"""The columns of an operator's records and their lineage, as far as the program declares them."""

from __future__ import annotations

from collections.abc import Mapping

from dagster import AssetKey, TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    FilterSpec,
    SinkSpec,
    TimestampsSpec,
)
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet

__all__ = ["column_metadata"]

_PASS_ON = (SinkSpec, BlockingEdgeSinkSpec, FilterSpec, TimestampsSpec)
"""Operators that pass their records on unchanged."""


def column_metadata(graph: JobGraph, uid: str, assets: Mapping[str, AssetKey]) -> TableMetadataSet:
    """Returns Dagster's ``dagster/column_schema`` and ``dagster/column_lineage`` of an operator.

    There is a schema if the records have a declared type: a column for each field of rows and tuples, or one column
    ``value`` for other types, as `ParquetSink` writes them. There is lineage only if records are passed on unchanged,
    because it is not known what a function does to them.

    Args:
        graph: The program.
        uid: Uid of the operator.
        assets: Assets of the operators that this one reads from, by uid.
    """
    vertex, inputs = graph.vertex(uid), graph.inputs(uid)
    passes_on = isinstance(vertex.spec, _PASS_ON)
    types = {edge.type_info for edge in inputs} if passes_on else {vertex.output_type}
    columns = _columns(types.pop()) if len(types) == 1 else []
    if not columns:
        return TableMetadataSet()
    sources: list[str] = []
    # The columns of a side output differ from those of the asset it comes from.
    if passes_on and all(edge.side_output is None for edge in inputs):
        sources = [edge.source for edge in inputs]
    elif type(vertex.spec) is BlockingEdgeSourceSpec:
        sources = [vertex.spec.source.sink_uid]
    lineage = None
    if sources and all(source in assets for source in sources):
        keys = dict.fromkeys(assets[source] for source in sources)
        lineage = TableColumnLineage({c.name: [TableColumnDep(key, c.name) for key in keys] for c in columns})
    return TableMetadataSet(column_schema=TableSchema(columns), column_lineage=lineage)


def _columns(type_info: TypeInformation) -> list[TableColumn]:
    if isinstance(type_info, PickledBytesTypeInfo):
        return []
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        fields = zip(type_info.field_names, type_info.field_types, strict=True)
        return [TableColumn(name, of.arrow_name) for name, of in fields]
    return [TableColumn("value", type_info.arrow_name)]
