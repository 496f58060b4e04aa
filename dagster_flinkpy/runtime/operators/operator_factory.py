"""Creates operators from their specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream import operator_specs as specs
from dagster_flinkpy.datastream.aggregations import WithKeyAndWindow
from dagster_flinkpy.datastream.window import (
    EventTimeSessionWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
)
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
from dagster_flinkpy.runtime.operators.batch_fold import ColumnFold
from dagster_flinkpy.runtime.operators.folds import fold_of
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.operators.windows.column_windowers import (
    AlignedWindower,
    CountWindower,
    SessionWindower,
    is_aligned,
    is_by_count,
    is_session,
)
from dagster_flinkpy.runtime.operators.windows.general_windower import GeneralWindower, MergingWindower
from dagster_flinkpy.runtime.operators.windows.window_operator import Windower, WindowOperator

__all__ = ["create_operator", "create_window_operator", "window_fold_of", "windower_of"]


def create_window_operator(context: OperatorContext, spec: specs.WindowSpec) -> WindowOperator:
    """Creates the operator of windows, with the fastest windower for them, and a built-in aggregation in columns."""
    return WindowOperator(context, spec, windower_of(spec), window_fold_of(spec, context.vertex.uid))


def windower_of(spec: specs.WindowSpec) -> type[Windower]:
    """Returns the fastest windower for a window spec."""
    if is_session(spec):
        return SessionWindower
    if is_by_count(spec):
        return CountWindower
    if isinstance(spec.assigner, MergingWindowAssigner):
        return MergingWindower
    return AlignedWindower if is_aligned(spec) else GeneralWindower


def window_fold_of(spec: specs.WindowSpec, operator: str) -> ColumnFold | None:
    """Returns the aggregation in columns of windows, or None if it needs each record as a Python value.

    Windows are aligned, or sessions. If sessions merge, it shows in which order their records came, unless there are
    only numbers that are merged in any order.
    """
    function = spec.window_function
    if not (function is None or type(function) is WithKeyAndWindow):
        return None
    fold = fold_of(spec.reduce or spec.aggregate, spec.element_type, spec.accumulator_type, operator)
    if is_aligned(spec):
        return fold
    fixed = type(spec.assigner) in (EventTimeSessionWindows, ProcessingTimeSessionWindows)
    if fold is None or not fixed or not is_session(spec):
        return None
    return fold if fold.combines and not fold.carries else None


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
    specs.WindowSpec: create_window_operator,
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
