"""Which operator runs which declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream import operators as specs
from dagster_flinkpy.runtime import keyed_operators, operators, window_operator
from dagster_flinkpy.runtime.operators import OperatorContext, StreamOperator

__all__ = ["create_operator"]

_OPERATORS: dict[type[specs.OperatorSpec], Callable[[OperatorContext, Any], StreamOperator]] = {
    specs.SourceSpec: operators.SourceOperator,
    specs.TimestampsSpec: operators.TimestampsOperator,
    specs.MapSpec: operators.MapOperator,
    specs.FilterSpec: operators.FilterOperator,
    specs.FlatMapSpec: operators.FlatMapOperator,
    specs.ProcessSpec: operators.ProcessOperator,
    specs.CoProcessSpec: operators.CoProcessOperator,
    specs.KeyedProcessSpec: keyed_operators.KeyedProcessOperator,
    specs.KeyedCoProcessSpec: keyed_operators.KeyedCoProcessOperator,
    specs.ReduceSpec: keyed_operators.ReduceOperator,
    specs.WindowSpec: window_operator.create_window_operator,
    specs.SinkSpec: operators.SinkOperator,
    specs.CollectSpec: operators.CollectOperator,
}


def create_operator(context: OperatorContext) -> StreamOperator:
    """The operator for a vertex."""
    spec = context.vertex.spec
    return _OPERATORS[type(spec)](context, spec)
