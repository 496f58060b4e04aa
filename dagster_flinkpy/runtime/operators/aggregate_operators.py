"""The vectorised built-in aggregations: rolling ones, and those over aligned windows.

State and timers have the same format as those of :class:`ReduceOperator` and :class:`WindowOperator`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import ReduceSpec, RollingAggregateSpec, WindowSpec
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import (
    TimeWindowSerializer,
)
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.aggregate_base import (
    AggregateOperator,
    WindowedAggregateOperator,
    fields_of,
    spread,
)
from dagster_flinkpy.runtime.operators.aligned_windows import AlignedWindows, create_window_operator
from dagster_flinkpy.runtime.operators.folds import ColumnFold, fold_of
from dagster_flinkpy.runtime.operators.grouped_rows import IntegerOverflowError
from dagster_flinkpy.runtime.operators.keyed_operators import ReduceOperator, touch_keys
from dagster_flinkpy.runtime.operators.local_aggregate import window_fold_of
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.session_aggregates import SessionAggregateOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.operators.window_contexts import WindowCodec
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.cell_columns import grown

__all__ = [
    "RollingAggregateOperator",
    "WindowAggregateOperator",
    "create_reduce_operator",
    "create_rolling_operator",
    "create_window_operator_or_aggregate",
]

Cells = npt.NDArray[np.int64]


def create_reduce_operator(context: OperatorContext, spec: ReduceSpec) -> StreamOperator:
    """Creates the operator of a reduction: vectorised if it is a built-in aggregation of numbers."""
    fold = None if spec.final_only else fold_of(spec.function, spec.type_info, spec.type_info)
    if fold is None:
        return ReduceOperator(context, spec)
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=False, flat=False)


def create_rolling_operator(context: OperatorContext, spec: RollingAggregateSpec) -> StreamOperator:
    """Creates the operator of a rolling count or mean."""
    fold = fold_of(spec.aggregate, spec.record_type, spec.aggregate.accumulator_type)
    assert fold is not None
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=True, flat=spec.flat)


def create_window_operator_or_aggregate(context: OperatorContext, spec: WindowSpec) -> StreamOperator:
    """Creates a window operator: vectorised for aligned windows and sessions, and built-in aggregations of numbers."""
    fold = window_fold_of(spec)
    if fold is None:
        return create_window_operator(context, spec)
    operator = WindowAggregateOperator if AlignedWindows.has(spec) else SessionAggregateOperator
    return operator(context, spec, fold)


class RollingAggregateOperator(AggregateOperator):
    """A running aggregation per key, with a result after each record."""

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context, fold)
        self._with_key, self._flat = with_key, flat
        self._state = self.backend.get_columns(ValueStateDescriptor("_op_state", fold.state_type), "VALUE")

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        slots = touch_keys(self.backend, keys)
        try:
            results = self._fold.running(self._state, slots, self._fold.lift(batch.column), np.arange(len(batch)))
        except (IntegerOverflowError, TypeMismatchError) as e:
            raise self._fail(e, batch) from e
        self._emit_of(keys.column, results, batch.timestamps)

    def _emit_of(self, keys: pa.Array[Any], results: pa.Array[Any], timestamps: Cells) -> None:
        if self._with_key:
            results = self._struct([*spread(keys, 2 if self._flat else 1), *fields_of(results)])
        self._emit(results, timestamps)


class MiniBatchAggregateOperator(RollingAggregateOperator):
    """A running aggregation with a result per key and epoch, at the barrier (Flink: ``MiniBatchGroupAggFunction``).

    If state outgrows memory within an epoch, keys so far have their results early, and may have another one.
    """

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context, fold, with_key=with_key, flat=flat)
        self._changed: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Whether the key of each slot has had records since its last result."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        if self.backend.is_full:
            self._emit_changed()  # slots are about to stand for other keys
        slots = touch_keys(self.backend, keys)
        try:
            accumulators = batch.column if batch.combined else self._fold.lift(batch.column)
            self._fold.add(self._state, slots, accumulators, np.arange(len(batch)))
        except (IntegerOverflowError, TypeMismatchError) as e:
            raise self._fail(e, batch) from e
        self._changed = grown(self._changed, int(slots.max(initial=-1)) + 1, 0)
        self._changed[slots] = True

    def on_watermark(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            self._emit_changed()  # what follows may give its last results at this watermark

    def snapshot(self) -> OperatorSnapshot:
        self._emit_changed()
        return super().snapshot()

    def _emit_changed(self) -> None:
        slots = np.flatnonzero(self._changed)
        self._changed[:] = False
        if len(slots):
            keys = self.backend.key_context.column(slots)
            self._emit_of(keys, self._fold.results(self._state, slots), np.full(len(slots), NO_TIMESTAMP))


class WindowAggregateOperator(WindowedAggregateOperator):
    """Tumbling and sliding windows with the default trigger."""

    def __init__(self, context: OperatorContext, spec: WindowSpec, fold: ColumnFold) -> None:
        super().__init__(context, spec, fold)
        self._windows = AlignedWindows(spec)
        self._size = self._windows.size
        self._lateness = self._windows.lateness
        windows: TypeInformation = WindowCodec(TimeWindowSerializer()).namespace_type
        descriptor = ValueStateDescriptor("window-contents", fold.state_type)
        kind: Any = "REDUCING" if spec.aggregate is None else "AGGREGATING"
        self._state = self.backend.get_columns(descriptor, kind, windows)
        self._timers = self.backend.get_column_timers(self._windows.timers, windows)

    # --- records -----------------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        times, watermark = self._windows.times(batch, self.context)
        self._check_times(batch, times)
        slots = touch_keys(self.backend, keys)
        rows, starts, some_fired = self._windows.open_ones(*self._windows.of(times), watermark)
        self._skip(batch, self._windows.late(rows, times, watermark))
        if not len(rows):
            return
        cells, slots = self._cells(slots[rows], starts), slots[rows]
        try:
            accumulators = batch.column if batch.combined else self._fold.lift(batch.column)
            fired = np.zeros(len(rows), dtype=np.bool_)
            if some_fired:
                fired = starts + (self._size - 1) <= watermark
            if fired.any():
                new = np.flatnonzero(~self._state.contains(cells))
                self._add_late(batch, accumulators, rows[fired], starts[fired], cells[fired])
                self._fold.add(self._state, cells[~fired], accumulators, rows[~fired])
            else:
                new = self._fold.add(self._state, cells, accumulators, rows)
        except (IntegerOverflowError, TypeMismatchError) as e:
            raise self._fail(e, batch) from e
        if len(new):
            self._register(slots[new], starts[new], fired[new])

    def _cells(self, slots: Cells, starts: Cells) -> Cells:
        assert self._state.cells is not None
        return self._state.cells.find(slots, *self._windows.distinct(starts))

    def _add_late(
        self, batch: StreamBatch, accumulators: pa.Array[Any], rows: Cells, starts: Cells, cells: Cells
    ) -> None:
        """Fires windows that have already fired again, once for each record (Flink: ``EventTimeTrigger``)."""
        assert batch.keys is not None and not batch.combined
        results = self._fold.running(self._state, cells, accumulators, rows)
        if self._with_key:
            keys = batch.keys.column.take(pa.array(rows))
            results = self._result(keys, starts, starts + self._size, results)
        self._emit(results, batch.timestamps[rows])

    def _register(self, slots: Cells, starts: Cells, fired: npt.NDArray[np.bool_]) -> None:
        """Registers the timers of new windows."""
        windows, codes = self._windows.distinct(starts)
        firing = self._timers.moments([end - 1 for _, end in windows], windows)
        self._timers.register(slots[~fired], np.array(firing, dtype=np.int64)[codes[~fired]])
        if self._lateness:
            cleanup = self._windows.ends(np.array([start for start, _ in windows])).tolist()
            moments = np.array(self._timers.moments(cleanup, windows), dtype=np.int64)
            self._timers.register(slots, moments[codes])

    # --- timers ------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._windows.event_time:
            self._advance_to(watermark)

    def on_processing_time(self, now: int) -> None:
        if not self._windows.event_time:
            self._advance_to(now - 1)

    def _advance_to(self, until: int) -> None:
        if not self._has_keys:
            return
        for time, (start, end), slots in self._timers.advance_to(until):
            assert self._state.cells is not None
            (number,) = self._state.cells.namespace_ids([(start, end)])
            cells, _ = self._state.cells.of(slots, np.full(len(slots), number))
            held = self._state.contains(cells)
            cells, slots = cells[held], slots[held]
            if time == end - 1 and len(cells):
                results = self._fold.results(self._state, cells)
                if self._with_key:
                    keys = self.backend.key_context.column(slots)
                    first, last = (np.full(len(slots), each) for each in (start, end))
                    results = self._result(keys, first, last, results)
                self._emit(results, np.full(len(cells), time))
            if time == min(end - 1 + self._lateness, MAX_WATERMARK):
                self._state.delete(cells)
                self._state.release(number)
