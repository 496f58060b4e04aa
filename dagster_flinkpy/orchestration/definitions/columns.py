"""The columns of an operator's records and their lineage, as far as the program declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dagster import AssetKey, TableColumnDep, TableColumnLineage, TableSchema

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.datastream.adapters import Accumulation, KeyedFilterAdapter
from dagster_flinkpy.datastream.aggregations import Aggregations, CountAggregate, MeanAggregate, WithKeyAndWindow
from dagster_flinkpy.datastream.operator_specs import (
    BlockingEdgeSinkSpec,
    BlockingEdgeSourceSpec,
    FilterBatchSpec,
    FilterSpec,
    RollingAggregateSpec,
    SinkSpec,
    TimestampsSpec,
    WindowSpec,
)
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, JobVertex
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.tables import table_columns

__all__ = ["ColumnLineage", "column_metadata"]

_PASS_ON = (SinkSpec, BlockingEdgeSinkSpec, FilterSpec, FilterBatchSpec, TimestampsSpec)
"""Operators that pass their records on unchanged."""

_MOST_PAIRS = 1_000
"""A function of more columns than that has no lineage: each column may come from each, which says nothing."""

Columns = Mapping[str, Sequence[tuple[str, str]]]
"""By column, the columns that it may come from, each with the uid of its operator."""


def column_metadata(
    graph: JobGraph, uid: str, lineage: Mapping[str, Sequence[tuple[AssetKey, str]]]
) -> TableMetadataSet:
    """Returns Dagster's ``dagster/column_schema`` and ``dagster/column_lineage`` of an operator.

    There is a schema if the records have a declared type: a column for each field of rows and tuples, or one column
    ``value`` for other types, as `ParquetSink` writes them.

    Args:
        graph: The program.
        uid: Uid of the operator.
        lineage: By column, the columns of other assets that it may come from.
    """
    if (declared := _type_of(graph, graph.vertex(uid))) is None:
        return TableMetadataSet()
    deps = {column: [TableColumnDep(key, name) for key, name in origins] for column, origins in lineage.items()}
    known = TableColumnLineage(deps) if any(deps.values()) else None
    return TableMetadataSet(column_schema=TableSchema(table_columns(declared)), column_lineage=known)


class ColumnLineage:
    """From which columns of a job's assets the columns of its operators come.

    It is exact for operators of the library: those that pass records on, and built-in aggregations. What a function of
    the user does is not known: each column may come from each column that the function gets. There is no lineage
    through records without a declared type, or from a side output.

    Args:
        graph: The program, with its blocking edges cut.
        shown: The uids of the operators that are assets. Lineage goes through the others.
    """

    def __init__(self, graph: JobGraph, shown: Iterable[str]) -> None:
        self._graph, self._shown = graph, set(shown)
        self._of: dict[str, Columns | None] = {}
        for vertex in graph.vertices:
            self._of[vertex.uid] = self._through_hidden(_direct(graph, vertex))

    def of(self, uid: str) -> Columns:
        """Returns the lineage of an operator's columns; nothing if it is not known, or for a source."""
        return self._of[uid] or {}

    def _through_hidden(self, direct: Columns | None) -> Columns | None:
        """Returns the lineage with assets only; None if some of it is not known."""
        if direct is None:
            return None
        found = dict[str, list[tuple[str, str]]]()
        for column, origins in direct.items():
            beyond = dict[tuple[str, str], None]()
            for uid, name in origins:
                if uid in self._shown:
                    beyond[uid, name] = None
                elif (hidden := self._of[uid]) is None:
                    return None
                else:
                    beyond |= dict.fromkeys(hidden.get(name, ()))
            found[column] = list(beyond)
        return found


def _direct(graph: JobGraph, vertex: JobVertex) -> Columns | None:
    """Returns the lineage from the operators right before; None if it is not known, and for sources."""
    if type(vertex.spec) is BlockingEdgeSourceSpec:
        columns = _names(vertex.output_type)
        return None if columns is None else {c: [(vertex.spec.source.sink_uid, c)] for c in columns}
    columns, inputs = _names(_type_of(graph, vertex)), graph.inputs(vertex.uid)
    if columns is None or not inputs or any(edge.side_output is not None for edge in inputs):
        return None
    found: dict[str, list[tuple[str, str]]] = {column: [] for column in columns}
    for edge in inputs:
        if (before := _names(edge.type_info)) is None:
            return None
        pairs = _between(vertex, edge, columns, before)
        if pairs is None:
            return None
        for column, origins in pairs.items():
            found[column] += [(edge.source, origin) for origin in origins if (edge.source, origin) not in found[column]]
    return found


def _between(
    vertex: JobVertex, edge: JobEdge, columns: Sequence[str], before: Sequence[str]
) -> Mapping[str, Sequence[str]] | None:
    """Returns from which columns of an input each column may come; None if that would say nothing."""
    spec = vertex.spec
    function = spec.reduce if isinstance(spec, WindowSpec) else getattr(spec, "function", None)
    if isinstance(spec, _PASS_ON) or isinstance(function, KeyedFilterAdapter):
        return {column: [column] for column in columns}
    if isinstance(function, Accumulation):
        return {column: [name] for column, name in zip(columns, before, strict=True)}
    if isinstance(spec, RollingAggregateSpec) or (
        isinstance(spec, WindowSpec) and isinstance(spec.window_function, WithKeyAndWindow)
    ):
        return _aggregated(spec, edge, columns, before)
    return None if len(columns) * len(before) > _MOST_PAIRS else dict.fromkeys(columns, before)


def _aggregated(
    spec: RollingAggregateSpec | WindowSpec, edge: JobEdge, columns: Sequence[str], before: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Returns the lineage of results with the key, and the start and end of a window, in front."""
    selector, aggregate = edge.partitioner.selector, spec.aggregate
    named = (selector,) if isinstance(selector, str) else selector if isinstance(selector, tuple) else ()
    lineage: dict[str, Sequence[str]] = {column: [column] if column in named else before for column in columns}
    if isinstance(spec, WindowSpec):
        lineage |= {"window_start": (), "window_end": ()}
    if isinstance(aggregate, CountAggregate):
        lineage["count"] = ()
    elif isinstance(aggregate, MeanAggregate):
        lineage["mean"] = _field(aggregate.position, before)
    elif isinstance(aggregate, Aggregations):
        lineage |= {name: _field(one.field, before) for name, one in aggregate.each.items()}
    return lineage


def _field(field: int | str | None, before: Sequence[str]) -> Sequence[str]:
    if field is None:
        return ()
    return (field if isinstance(field, str) else before[field],)


def _type_of(graph: JobGraph, vertex: JobVertex) -> TypeInformation | None:
    """Returns the type of an operator's records, if it is declared. A sink has that of its inputs, if it is one."""
    passes_on = isinstance(vertex.spec, _PASS_ON)
    types = {edge.type_info for edge in graph.inputs(vertex.uid)} if passes_on else {vertex.output_type}
    found = types.pop() if len(types) == 1 else None
    return None if isinstance(found, PickledBytesTypeInfo) else found


def _names(type_info: TypeInformation | None) -> list[str] | None:
    return None if type_info is None or isinstance(type_info, PickledBytesTypeInfo) else list(columns_of(type_info))
