"""Windows by count with the default trigger: positions and counts are in columns.

State and results are those of the general windower with the assigner and the trigger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    PurgingTrigger,
)
from dagster_flinkpy.runtime.operators.grouped_rows import Segments
from dagster_flinkpy.runtime.operators.windows.contents import CountWindows, make_contents
from dagster_flinkpy.runtime.operators.windows.window_operator import Ints, Windower, WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.cell_table import CellTable

__all__ = ["CountWindower", "is_by_count"]

Mask = npt.NDArray[np.bool_]


def is_by_count(spec: WindowSpec) -> bool:
    """Returns whether windows are those by count, with the default trigger."""
    counting = type(spec.assigner) in (CountTumblingWindowAssigner, CountSlidingWindowAssigner)
    trigger = spec.trigger
    return counting and type(trigger) is PurgingTrigger and type(trigger.nested_trigger) is CountTrigger


class CountWindower(Windower):
    """Tumbling and sliding windows by count, which fire and end when they are full."""

    def __init__(self, operator: WindowOperator) -> None:
        assigner: Any = operator.spec.assigner
        trigger: Any = operator.spec.trigger
        self._count, self._size = trigger.nested_trigger.window_size, assigner.window_size
        self._slide = assigner.window_slide if isinstance(assigner, CountSlidingWindowAssigner) else self._size
        backend, namespace_type = operator.backend, operator.codec.namespace_type
        self._positions = backend.get_cells(assigner.position_state)
        self._counts = backend.get_cells(trigger.nested_trigger.count_state, namespace_type)
        self._contents = make_contents(operator)

    def process(self, batch: StreamBatch, seats: Ints) -> None:
        rows, windows = self._windows_of(_take_next(self._positions, seats))
        seats, (ids, codes) = seats[rows], np.unique(windows, return_inverse=True)
        contents = self._contents
        cells = contents.table.find(seats, ids.tolist(), codes)
        full, left_empty = self._count_each(seats, ids.tolist(), codes)
        contents.take(batch)
        if full.any():
            contents.add_firing(seats, cells, rows, CountWindows(windows), fires=full, purge=True)
        else:
            contents.add(seats, cells, rows)
        contents.drop(cells[left_empty])

    def advance(self, until: int, *, event_time: bool) -> None:
        """Does nothing: windows by count have no timers."""

    def _windows_of(self, positions: Ints) -> tuple[Ints, Ints]:
        """Returns rows and the numbers of their windows, the newest window of a row first."""
        # newest, oldest, counts: int64, one a position: its windows, and how many they are.
        newest = positions // self._slide
        oldest = np.maximum(0, -((self._size - 1 - positions) // self._slide))
        counts = np.maximum(newest - oldest + 1, 0)
        rows = np.repeat(np.arange(len(positions)), counts)
        return rows, newest[rows] - np.arange(len(rows)) + np.repeat(np.cumsum(counts) - counts, counts)

    def _count_each(self, seats: Ints, windows: list[int], codes: Ints) -> tuple[Mask, Mask]:
        """Counts records. Returns whether the window is full after each, and whether it is empty after the last one."""
        # before, counts: int64, one a group: its count before these records, and after them.
        # full, left_empty: bool, one a record.
        cells = self._counts.find(seats, windows, codes)
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


def _numbers(table: CellTable, cells: Ints) -> Ints:
    """Returns the numbers in some cells, 0 for those without."""
    column: Any = table.column
    return np.where(table.contains(cells), column.values[cells], 0)


def _take_next(positions: CellTable, seats: Ints) -> Ints:
    """Returns how many records of its key each record follows, and counts them."""
    segments = Segments.of(seats)
    before = _numbers(positions, segments.groups)
    positions.update(segments.groups, pa.array(before + segments.counts))
    found = np.empty(len(seats), dtype=np.int64)
    found[segments.order] = np.repeat(before, segments.counts) + _ranks(segments)
    return found


def _ranks(segments: Segments) -> Ints:
    """Returns how many rows of its group each row follows, in the order of the segments."""
    return np.arange(len(segments.order)) - np.repeat(segments.starts, segments.counts)
