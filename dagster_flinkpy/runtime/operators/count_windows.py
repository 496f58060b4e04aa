"""Windows by count with the default trigger: positions and counts are in columns.

For each record, Python only adds it to the contents of its windows. State and results are those of
:class:`WindowOperator` with the assigner and the trigger.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    PurgingTrigger,
)
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.grouped_rows import Segments
from dagster_flinkpy.runtime.operators.keyed_operators import touch_keys
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.window_operator import WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.column_table import ColumnTable

__all__ = ["CountWindowOperator"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class CountWindowOperator(WindowOperator):
    """Tumbling and sliding windows by count, which fire and end when they are full.

    Args:
        context: The context in which the operator runs.
        spec: A window spec for which :meth:`has` is true.
    """

    shared_windows = True

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        super().__init__(context, spec)
        assigner: Any = spec.assigner
        trigger: Any = spec.trigger
        self._count, self._size = trigger.nested_trigger.window_size, assigner.window_size
        self._slide = assigner.window_slide if isinstance(assigner, CountSlidingWindowAssigner) else self._size
        self._positions = self.backend.get_columns(assigner.position_state, "VALUE")
        self._counts = self.backend.get_columns(
            trigger.nested_trigger.count_state, "REDUCING", self._codec.namespace_type
        )

    @staticmethod
    def has(spec: WindowSpec) -> bool:
        """Returns whether windows are those by count, with the default trigger."""
        counting = type(spec.assigner) in (CountTumblingWindowAssigner, CountSlidingWindowAssigner)
        trigger = spec.trigger
        return counting and type(trigger) is PurgingTrigger and type(trigger.nested_trigger) is CountTrigger

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        slots = touch_keys(self.backend, keys)
        self.backend.key_context.slot = None  # an error before the first record has no key
        if not len(slots):
            return
        rows, windows = self._windows_of(_take_next(self._positions, slots))
        slots, (ids, codes) = slots[rows], np.unique(windows, return_inverse=True)
        cells = self._contents.table.find(slots, ids.tolist(), codes)
        full, left_empty = self._count_each(slots, ids.tolist(), codes)
        values, times = batch.values_at(rows), batch.timestamps[rows]
        left = iter(values)
        try:
            if full.any():
                rounds = zip(left, full.tolist(), cells.tolist(), windows.tolist(), times.tolist(), strict=True)
                self._contents.add_each(slots.tolist(), cells, self._fire_full(rounds))
            else:
                self._contents.add_each(slots.tolist(), cells, left)
        except USER_EXCEPTIONS as e:
            value = values[len(values) - length_hint(left) - 1]
            raise self.user_error(e, "window", key=self.backend.key_context.current_key(), value=value) from e
        self._contents.clear_each(cells[left_empty])
        self.collector.flush()

    def _windows_of(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns rows and the numbers of their windows, the newest window of a row first."""
        newest = positions // self._slide
        oldest = np.maximum(0, -((self._size - 1 - positions) // self._slide))
        counts = np.maximum(newest - oldest + 1, 0)
        rows = np.repeat(np.arange(len(positions)), counts)
        return rows, newest[rows] - np.arange(len(rows)) + np.repeat(np.cumsum(counts) - counts, counts)

    def _count_each(self, slots: Ints, windows: list[int], codes: Ints) -> tuple[Mask, Mask]:
        """Counts records.

        Returns:
            Whether the window is full after each record, and whether it is empty after the last one.
        """
        self._counts.compact()
        assert self._counts.cells is not None
        cells = self._counts.cells.find(slots, windows, codes)
        segments = Segments.of(cells)
        # A count from a job with larger windows fires with the next record.
        before = np.minimum(_numbers(self._counts, segments.groups), self._count - 1)
        counts = (before + segments.counts) % self._count
        full, left_empty = np.empty(len(cells), dtype=np.bool_), np.empty(len(cells), dtype=np.bool_)
        full[segments.order] = (np.repeat(before, segments.counts) + _ranks(segments) + 1) % self._count == 0
        left_empty[segments.order] = np.repeat(counts == 0, segments.counts)
        self._counts.update(segments.groups, pa.array(counts))
        self._counts.delete(segments.groups[counts == 0])
        return full, left_empty

    def _fire_full(self, rounds: Iterator[tuple[Any, bool, int, int, int]]) -> Iterator[Any]:
        """Yields each value, and fires its window when the value was added: before the next one is requested."""
        for value, full, cell, window, timestamp in rounds:
            yield value
            if full:
                self._fire_with(CountWindow(window), self._contents.get_of(cell, last=True), timestamp)
                self._contents.table.forget(cell)


def _numbers(table: ColumnTable, cells: Ints) -> Ints:
    """Returns the numbers in some cells, 0 for those without."""
    column: Any = table.column
    return np.where(table.contains(cells), column.values[cells], 0)


def _take_next(positions: ColumnTable, slots: Ints) -> Ints:
    """Returns how many records of its key each record follows, and counts them."""
    segments = Segments.of(slots)
    before = _numbers(positions, segments.groups)
    positions.update(segments.groups, pa.array(before + segments.counts))
    found = np.empty(len(slots), dtype=np.int64)
    found[segments.order] = np.repeat(before, segments.counts) + _ranks(segments)
    return found


def _ranks(segments: Segments) -> Ints:
    """Returns how many rows of its group each row follows, in the order of the segments."""
    return np.arange(len(segments.order)) - np.repeat(segments.starts, segments.counts)
