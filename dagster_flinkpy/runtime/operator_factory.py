"""Which operator runs which declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream import operators as specs
from dagster_flinkpy.runtime import (
    aggregate_operators,
    batch_operators,
    broadcast_operators,
    exchange_operators,
    keyed_operators,
    operators,
    sink_operators,
)
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
    specs.BroadcastProcessSpec: broadcast_operators.BroadcastProcessOperator,
    specs.KeyedBroadcastProcessSpec: broadcast_operators.KeyedBroadcastProcessOperator,
    specs.KeyedBatchSpec: batch_operators.KeyedBatchOperator,
    specs.ReduceSpec: aggregate_operators.create_reduce_operator,
    specs.RollingAggregateSpec: aggregate_operators.create_rolling_operator,
    specs.WindowSpec: aggregate_operators.create_window_operator_or_aggregate,
    specs.SinkSpec: sink_operators.SinkOperator,
    specs.ExchangeSinkSpec: exchange_operators.ExchangeSinkOperator,
    specs.ExchangeSourceSpec: exchange_operators.ExchangeSourceOperator,
    specs.SparkSourceSpec: exchange_operators.ExchangeSourceOperator,
    specs.SparkTransformSpec: exchange_operators.ExchangeSourceOperator,
    specs.PrintSpec: sink_operators.PrintOperator,
    specs.CollectSpec: sink_operators.CollectOperator,
}


def create_operator(context: OperatorContext) -> StreamOperator:
    """The operator for a vertex."""
    spec = context.vertex.spec
    return _OPERATORS[type(spec)](context, spec)
