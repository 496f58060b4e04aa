"""Creates the operator of windows."""

from __future__ import annotations

from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import MergingWindowAssigner
from dagster_flinkpy.runtime.operators.local_aggregate import window_fold_of
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.windows.aligned_windower import AlignedWindower, is_aligned
from dagster_flinkpy.runtime.operators.windows.count_windower import CountWindower, is_by_count
from dagster_flinkpy.runtime.operators.windows.general_windower import GeneralWindower, MergingWindower
from dagster_flinkpy.runtime.operators.windows.session_windower import SessionWindower, is_session
from dagster_flinkpy.runtime.operators.windows.window_operator import Windower, WindowOperator

__all__ = ["create_window_operator", "windower_of"]


def create_window_operator(context: OperatorContext, spec: WindowSpec) -> WindowOperator:
    """Creates the operator of windows, with the fastest windower for them, and a built-in aggregation in columns."""
    return WindowOperator(context, spec, windower_of(spec), window_fold_of(spec))


def windower_of(spec: WindowSpec) -> type[Windower]:
    """Returns the fastest windower for a window spec."""
    if is_session(spec):
        return SessionWindower
    if is_by_count(spec):
        return CountWindower
    if isinstance(spec.assigner, MergingWindowAssigner):
        return MergingWindower
    return AlignedWindower if is_aligned(spec) else GeneralWindower
