"""The vectorised rolling aggregations. State has the same format as that of :class:`ReduceOperator`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import ReduceSpec, RollingAggregateSpec
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.operators.batch_fold import Cells, ColumnFold
from dagster_flinkpy.runtime.operators.folds import aggregating, fields_of, fold_of, spread
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator, ReduceOperator, touch_keys
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.columns import grown
from dagster_flinkpy.state.stored_names import ROLLING

__all__ = ["RollingAggregateOperator", "create_reduce_operator", "create_rolling_operator"]


def create_reduce_operator(context: OperatorContext, spec: ReduceSpec) -> StreamOperator:
    """Creates the operator of a reduction: vectorised if it is a built-in aggregation of numbers."""
    fold = None if spec.final_only else fold_of(spec.function, spec.type_info, spec.type_info)
    if fold is None:
        return ReduceOperator(context, spec)
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=False, flat=False)


def create_rolling_operator(context: OperatorContext, spec: RollingAggregateSpec) -> StreamOperator:
    """Creates the operator of a running aggregation whose results have names."""
    fold = fold_of(spec.aggregate, spec.record_type, spec.aggregate.accumulator_type, context.vertex.uid)
    assert fold is not None
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=True, flat=spec.flat)


class RollingAggregateOperator(KeyedStateOperator):
    """A running aggregation per key, with a result after each record."""

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context)
        self._fold, self._with_key, self._flat = fold, with_key, flat
        self._state = self.backend.get_cells(ValueStateDescriptor(ROLLING, fold.state_type))

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        seats = touch_keys(self.backend, keys)
        with aggregating(self.context, batch):
            results = self._fold.running(self._state, seats, self._fold.lift(batch.column), np.arange(len(batch)))
        self._emit_of(keys.column, results, batch.timestamps)

    def _emit_of(self, keys: Any, results: pa.Array[Any], timestamps: Cells) -> None:
        if self._with_key:
            kind: Any = self.context.vertex.output_type
            columns = [*spread(keys, flat=self._flat), *fields_of(results)]
            results = pa.StructArray.from_arrays(columns, fields=list(kind.arrow_type))
        self.emit(results, timestamps)


class MiniBatchAggregateOperator(RollingAggregateOperator):
    """A running aggregation with a result per key and epoch, at the barrier (Flink: ``MiniBatchGroupAggFunction``).

    If state outgrows memory within an epoch, keys so far have their results early, and may have another one.
    """

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context, fold, with_key=with_key, flat=flat)
        self._changed: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Whether the key of each seat has had records since its last result."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if self.backend.is_full:
            self._emit_changed()  # seats are about to stand for other keys
        seats = self.seats(batch)
        with aggregating(self.context, batch):
            accumulators = batch.column if batch.combined else self._fold.lift(batch.column)
            self._fold.add(self._state, seats, accumulators, np.arange(len(batch)))
        self._changed = grown(self._changed, int(seats.max(initial=-1)) + 1, 0)
        self._changed[seats] = True

    def on_watermark(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            self._emit_changed()  # what follows may give its last results at this watermark

    def snapshot(self) -> OperatorSnapshot:
        self._emit_changed()
        return super().snapshot()

    def _emit_changed(self) -> None:
        seats = np.flatnonzero(self._changed)
        self._changed[:] = False
        if len(seats):
            keys = self.backend.key_context.column(seats) if self._with_key else None
            self._emit_of(keys, self._fold.results(self._state, seats), np.full(len(seats), NO_TIMESTAMP))
