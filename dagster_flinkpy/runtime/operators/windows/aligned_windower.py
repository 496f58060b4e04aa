"""Windows of one size with the default trigger, in time and by count: timers, positions and counts are in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.runtime.operators.grouped_rows import Segments
from dagster_flinkpy.runtime.operators.windows.contents import CountWindows, Due, TimeWindows, make_contents
from dagster_flinkpy.runtime.operators.windows.window_operator import (
    Ints,
    Windower,
    WindowOperator,
    has_default_trigger,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import numbered
from dagster_flinkpy.state.stored_names import EVENT_TIMERS, PROCESSING_TIMERS

__all__ = ["AlignedWindower", "CountWindower", "is_aligned", "is_by_count"]

_ASSIGNERS = (
    TumblingEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingProcessingTimeWindows,
    SlidingProcessingTimeWindows,
)


def is_aligned(spec: WindowSpec) -> bool:
    """Returns whether windows are tumbling or sliding ones with the default trigger."""
    return type(spec.assigner) in _ASSIGNERS and has_default_trigger(spec)


class AlignedWindower(Windower):
    """Tumbling and sliding windows in time, which many keys share: adds all records of a batch to them at once."""

    def __init__(self, operator: WindowOperator) -> None:
        assigner: Any = operator.spec.assigner
        self._operator, self._lateness = operator, operator.lateness
        self._size, self._offset = assigner.size, assigner.offset
        self._slide = getattr(assigner, "slide", self._size)
        timers = EVENT_TIMERS if operator.event_time else PROCESSING_TIMERS
        self._timers = operator.backend.get_column_timers(timers, operator.codec.namespace_type)
        self._contents = make_contents(operator, overlap=self._slide < self._size)

    def process(self, batch: StreamBatch, seats: Ints) -> None:
        operator, contents = self._operator, self._contents
        times = batch.timestamps
        if operator.event_time:
            operator.check_times(batch, seats)
        else:  # All records come at one time, and no window is over before its timer fires.
            times = np.full(len(batch), operator.context.job.clock.now())
        rows, starts = self._windows_of(times)
        watermark = operator.context.watermark
        some_fired = operator.event_time and len(starts) > 0 and int(starts.min()) + self._size - 1 <= watermark
        if some_fired:
            is_open = self._over_at(starts) > watermark
            rows, starts = rows[is_open], starts[is_open]
        skipped = np.ones(len(times), dtype=np.bool_)
        skipped[rows] = False
        operator.skip(batch, np.flatnonzero(skipped))
        if not len(rows):
            return
        contents.take(batch)
        seats = seats[rows]
        cells = contents.table.find(seats, *self._distinct(starts))
        if some_fired:
            # They fire again, once for each record (Flink: EventTimeTrigger).
            fired = starts + (self._size - 1) <= watermark
            if fired.any():
                again, firsts, held = seats[fired], starts[fired], cells[fired]
                new = contents.table.first_missing(held)
                contents.add_firing(again, held, rows[fired], TimeWindows(firsts, firsts + self._size))
                self._register(again[new], firsts[new], fires=False)
                rows, seats, starts, cells = (column[~fired] for column in (rows, seats, starts, cells))
        new = contents.table.first_missing(cells)
        contents.add_to_windows(seats, cells, rows, times, TimeWindows(starts, starts + self._size), new)
        self._register(seats[new], starts[new], fires=True)

    def _windows_of(self, times: Ints) -> tuple[Ints, Ints]:
        """Returns rows and the starts of their windows, the newest window of a row first."""
        # newest, counts: int64, one a row: the start of its newest window, and how many windows it is in.
        # before: int64, one a row and window: how many newer windows the row is in.
        first, last = (time - (time - self._offset) % self._slide for time in (int(times.min()), int(times.max())))
        newest = np.full(len(times), first) if first == last else times - (times - self._offset) % self._slide
        if self._slide == self._size:
            return np.arange(len(times)), newest
        counts = -((times - newest - self._size) // self._slide)
        rows = np.repeat(np.arange(len(times)), counts)
        before = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, newest[rows] - before * self._slide

    def _over_at(self, starts: Ints) -> Ints:
        """Returns the times at which windows are over, at most the greatest possible watermark."""
        lasts = starts + (self._size - 1)
        return np.where(lasts > MAX_WATERMARK - self._lateness, MAX_WATERMARK, lasts + self._lateness)

    def _distinct(self, starts: Ints) -> tuple[list[tuple[int, int]], Ints]:
        """Returns the distinct windows of some starts, and the index of the window of each."""
        if len(starts) and starts.min() == starts.max():
            first, codes = starts[:1], np.zeros(len(starts), dtype=np.int64)
        else:
            first, codes = numbered(starts)
        return [(start, start + self._size) for start in first.tolist()], codes

    def _register(self, seats: Ints, starts: Ints, *, fires: bool) -> None:
        """Registers the timers of new windows, of which those that have fired need no timer for that."""
        if not len(seats):
            return
        windows, codes = self._distinct(starts)
        due = [[end - 1 for _, end in windows]] if fires else []
        if self._lateness:
            due.append(self._over_at(np.array([start for start, _ in windows])).tolist())
        for times in due:
            self._timers.register(seats, codes, times, windows)

    def advance(self, until: int, *, event_time: bool) -> None:
        if event_time is not self._operator.event_time:
            return
        contents = self._contents
        for time, (start, end), seats in self._timers.advance_to(until):
            cells = contents.table.find(seats, [(start, end)], np.zeros(len(seats), dtype=np.int64))
            # With an allowed lateness, windows end later than they fire.
            over = time == min(end - 1 + self._lateness, MAX_WATERMARK)
            first, last, times, fires, ends = (
                np.full(len(seats), each) for each in (start, end, time, time == end - 1, over)
            )
            contents.fire(Due(seats, cells, TimeWindows(first, last), times, fires, ends))
            if over:
                contents.drop(cells)
                contents.table.release((start, end))


Mask = npt.NDArray[np.bool_]


def is_by_count(spec: WindowSpec) -> bool:
    """Returns whether windows are those by count, with the default trigger."""
    counting = type(spec.assigner) in (CountTumblingWindowAssigner, CountSlidingWindowAssigner)
    trigger = spec.trigger
    return counting and type(trigger) is PurgingTrigger and type(trigger.nested_trigger) is CountTrigger


class CountWindower(Windower):
    """Tumbling and sliding windows by count, which fire and end when they are full.

    State and results are those of the general windower with the assigner and the trigger.
    """

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
