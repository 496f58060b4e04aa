"""Creates the operator of windows."""

from __future__ import annotations

from dagster_flinkpy.datastream.aggregations import WithKeyAndWindow
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    EventTimeSessionWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
)
from dagster_flinkpy.runtime.operators.batch_fold import ColumnFold
from dagster_flinkpy.runtime.operators.folds import fold_of
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext
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

__all__ = ["create_window_operator", "window_fold_of", "windower_of"]


def create_window_operator(context: OperatorContext, spec: WindowSpec) -> WindowOperator:
    """Creates the operator of windows, with the fastest windower for them, and a built-in aggregation in columns."""
    return WindowOperator(context, spec, windower_of(spec), window_fold_of(spec, context.vertex.uid))


def windower_of(spec: WindowSpec) -> type[Windower]:
    """Returns the fastest windower for a window spec."""
    if is_session(spec):
        return SessionWindower
    if is_by_count(spec):
        return CountWindower
    if isinstance(spec.assigner, MergingWindowAssigner):
        return MergingWindower
    return AlignedWindower if is_aligned(spec) else GeneralWindower


def window_fold_of(spec: WindowSpec, operator: str) -> ColumnFold | None:
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
