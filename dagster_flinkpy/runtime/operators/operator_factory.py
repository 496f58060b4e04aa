"""Creates operators from their specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream import operator_specs as specs
from dagster_flinkpy.runtime.operators import (
    async_wait_operator,
    batch_operators,
    broadcast_operators,
    function_operators,
    keyed_operators,
    sink_operators,
    source_reader_operator,
    timestamps_operator,
)
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.operators.windows import factory as window_factory

__all__ = ["create_operator"]

_OPERATORS: dict[type[specs.OperatorSpec], Callable[[OperatorContext, Any], StreamOperator]] = {
    specs.SourceSpec: source_reader_operator.create_source_operator,
    specs.TimestampsSpec: timestamps_operator.TimestampsOperator,
    specs.MapSpec: function_operators.MapOperator,
    specs.FilterSpec: function_operators.FilterOperator,
    specs.FlatMapSpec: function_operators.FlatMapOperator,
    specs.AsyncWaitSpec: async_wait_operator.AsyncWaitOperator,
    specs.MapBatchSpec: batch_operators.MapBatchOperator,
    specs.FilterBatchSpec: batch_operators.FilterBatchOperator,
    specs.ProcessSpec: function_operators.ProcessOperator,
    specs.CoProcessSpec: function_operators.ProcessOperator,
    specs.MultipleInputProcessSpec: function_operators.ProcessOperator,
    specs.KeyedProcessSpec: keyed_operators.KeyedProcessOperator,
    specs.KeyedCoProcessSpec: keyed_operators.KeyedProcessOperator,
    specs.KeyedMultipleInputProcessSpec: keyed_operators.KeyedProcessOperator,
    specs.BroadcastProcessSpec: broadcast_operators.BroadcastProcessOperator,
    specs.KeyedBroadcastProcessSpec: broadcast_operators.KeyedBroadcastProcessOperator,
    specs.KeyedBatchSpec: batch_operators.KeyedBatchOperator,
    specs.KeyedMultipleInputBatchSpec: batch_operators.KeyedBatchOperator,
    specs.ReduceSpec: keyed_operators.create_reduce_operator,
    specs.RollingAggregateSpec: keyed_operators.create_rolling_operator,
    specs.WindowSpec: window_factory.create_window_operator,
    specs.SinkSpec: sink_operators.SinkOperator,
    specs.BlockingEdgeSinkSpec: sink_operators.BlockingEdgeSinkOperator,
    specs.BlockingEdgeSourceSpec: sink_operators.BlockingEdgeSourceOperator,
    specs.SparkSourceSpec: sink_operators.BlockingEdgeSourceOperator,
    specs.SparkTransformSpec: sink_operators.BlockingEdgeSourceOperator,
    specs.PrintSpec: sink_operators.PrintOperator,
    specs.CollectSpec: sink_operators.CollectOperator,
}


def create_operator(context: OperatorContext) -> StreamOperator:
    """Creates the operator of a vertex."""
    spec = context.vertex.spec
    return _OPERATORS[type(spec)](context, spec)
