"""Tumbling and sliding windows with the default trigger: a batch is added to all its windows at once.

The timers are in columns. Per record and window, Python only adds to the window's contents (``pane_states.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import filterfalse, islice
from operator import is_, length_hint
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    EventTimeTrigger,
    MergingWindowAssigner,
    ProcessingTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.count_windows import CountWindowOperator
from dagster_flinkpy.runtime.operators.keyed_operators import EVENT_TIMERS, PROCESSING_TIMERS, touch_keys
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.session_windows import SessionWindowOperator
from dagster_flinkpy.runtime.operators.window_operator import MergingWindowOperator, WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["AlignedWindows", "create_window_operator"]

Ints = npt.NDArray[np.int64]

_ASSIGNERS: dict[type, type] = {
    TumblingEventTimeWindows: EventTimeTrigger,
    SlidingEventTimeWindows: EventTimeTrigger,
    TumblingProcessingTimeWindows: ProcessingTimeTrigger,
    SlidingProcessingTimeWindows: ProcessingTimeTrigger,
}
"""The assigners, and their default triggers."""


def create_window_operator(context: OperatorContext, spec: WindowSpec) -> WindowOperator:
    """Creates the fastest operator for a window spec."""
    if SessionWindowOperator.has(spec):
        return SessionWindowOperator(context, spec)
    if CountWindowOperator.has(spec):
        return CountWindowOperator(context, spec)
    if isinstance(spec.assigner, MergingWindowAssigner):
        return MergingWindowOperator(context, spec)
    if AlignedWindows.has(spec):
        return AlignedWindowOperator(context, spec)
    return WindowOperator(context, spec)


class AlignedWindows:
    """Assigns the windows of many records at once.

    Args:
        spec: A window spec for which :meth:`has` is true.
    """

    def __init__(self, spec: WindowSpec) -> None:
        assigner: Any = spec.assigner
        self.size, self._offset = assigner.size, assigner.offset
        self._slide = getattr(assigner, "slide", self.size)
        self.event_time = assigner.is_event_time()
        self.lateness = spec.allowed_lateness if self.event_time else 0
        self.timers = EVENT_TIMERS if self.event_time else PROCESSING_TIMERS

    @staticmethod
    def has(spec: WindowSpec) -> bool:
        """Returns whether windows are tumbling or sliding ones with the default trigger."""
        return type(spec.trigger) is _ASSIGNERS.get(type(spec.assigner))

    def times(self, batch: StreamBatch, context: OperatorContext) -> tuple[Ints, int]:
        """Returns the times that decide about the windows of records, and the time until which windows are over.

        In processing time, all records of a batch come at one time, and no window is over before its timer fires.
        """
        if self.event_time:
            return batch.timestamps, context.watermark
        return np.full(len(batch), context.job.clock.now()), MIN_WATERMARK

    def of(self, times: Ints) -> tuple[Ints, Ints]:
        """Returns rows and the starts of their windows, the newest window of a row first."""
        first, last = (time - (time - self._offset) % self._slide for time in (int(times.min()), int(times.max())))
        newest = np.full(len(times), first) if first == last else times - (times - self._offset) % self._slide
        if self._slide == self.size:
            return np.arange(len(times)), newest
        counts = -((times - newest - self.size) // self._slide)
        rows = np.repeat(np.arange(len(times)), counts)
        before = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, newest[rows] - before * self._slide

    def open_ones(self, rows: Ints, starts: Ints, watermark: int) -> tuple[Ints, Ints, bool]:
        """Leaves out windows that are over; also returns whether any of the others has fired before."""
        fired_before = bool(len(starts)) and int(starts.min()) + self.size - 1 <= watermark
        if fired_before:
            is_open = self.ends(starts) > watermark
            rows, starts = rows[is_open], starts[is_open]
            fired_before = bool(self.lateness) and len(starts) > 0
        return rows, starts, fired_before

    def ends(self, starts: Ints) -> Ints:
        """Returns the times at which windows are over, at most the greatest possible watermark."""
        lasts = starts + (self.size - 1)
        return np.where(lasts > MAX_WATERMARK - self.lateness, MAX_WATERMARK, lasts + self.lateness)

    def distinct(self, starts: Ints) -> tuple[list[tuple[int, int]], Ints]:
        """Returns the distinct windows of some starts, and the index of the window of each."""
        if len(starts) and starts.min() == starts.max():
            first, codes = starts[:1], np.zeros(len(starts), dtype=np.int64)
        else:
            encoded = pa.array(starts).dictionary_encode()
            first, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        return [(start, start + self.size) for start in first.tolist()], codes

    def late(self, rows: Ints, times: Ints, watermark: int) -> npt.NDArray[np.bool_]:
        """Returns which records are late, if ``rows`` are those with open windows.

        A record between two sliding windows is in no window, but not late.
        """
        skipped = np.ones(len(times), dtype=np.bool_)
        skipped[rows] = False
        late: npt.NDArray[np.bool_] = skipped & (times + self.lateness <= watermark)
        return late


class AlignedWindowOperator(WindowOperator):
    """Tumbling and sliding windows with the default trigger."""

    shared_windows = True

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        self._windows = AlignedWindows(spec)
        super().__init__(context, spec)

    def _open_timers(self) -> None:
        self._column_timers = self.backend.get_column_timers(self._windows.timers, self._codec.namespace_type)
        if self._event_time:
            self._restore_processing_timers()

    # --- records -----------------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys, (times, watermark) = self.bind(batch), self._windows.times(batch, self.context)
        slots = touch_keys(self.backend, keys)
        self.backend.key_context.slot = None  # an error before the first record has no key
        if not len(times):
            return
        timeless = np.flatnonzero(times == NO_TIMESTAMP)
        if len(timeless):
            self._reject(batch, int(timeless[0]), slots)
        rows, starts, some_fired = self._windows.open_ones(*self._windows.of(times), watermark)
        late = np.flatnonzero(self._windows.late(rows, times, watermark))
        for row, value in zip(late.tolist(), batch.values_at(late) if len(late) else (), strict=True):
            self._skip(value, int(times[row]))
        if some_fired:
            fired = starts + (self._windows.size - 1) <= watermark
            again = rows[fired]
            self._add_late(slots[again], starts[fired], times[again].tolist(), batch.values_at(again))
            rows, starts = rows[~fired], starts[~fired]
        self._add_each(slots[rows], starts, batch.values_at(rows))
        self.collector.flush()

    def _reject(self, batch: StreamBatch, row: int, slots: Ints) -> None:
        """Raises the assigner's error about a record without event time."""
        keys, value = self.backend.key_context, next(islice(batch.each_value(), row, None))
        keys.slot = int(slots[row])
        try:
            self._spec.assigner.assign_windows(value, NO_TIMESTAMP, self._assigner)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window", key=keys.current_key(), value=value) from e

    def _add_each(self, slots: Ints, starts: Ints, values: list[Any]) -> None:
        """Adds records to windows that have not fired, and registers the timers of those that are new."""
        windows, codes = self._windows.distinct(starts)
        table, left = self._contents.table, iter(values)
        cells = table.find(slots, windows, codes)
        new = table.empty(cells)
        try:
            self._contents.add_each(slots.tolist(), cells, left)
        except USER_EXCEPTIONS as e:
            value = values[len(values) - length_hint(left) - 1]
            raise self.user_error(e, "window", key=self.backend.key_context.current_key(), value=value) from e
        self._register([end - 1 for _, end in windows], windows, codes[new], slots[new])
        if self._windows.lateness:
            self._register_ends(windows, codes[new], slots[new])

    def _add_late(self, slots: Ints, starts: Ints, times: Sequence[int], values: Sequence[Any]) -> None:
        """Fires windows that have already fired again, once for each record (Flink: ``EventTimeTrigger``)."""
        keys, contents = self.backend.key_context, self._contents
        windows, codes = self._windows.distinct(starts)
        cells = contents.table.find(slots, windows, codes)
        new = contents.table.empty(cells)
        for i, value in enumerate(values):
            keys.slot = int(slots[i])
            try:
                contents.add_each((keys.slot,), cells[i : i + 1], (value,))
                self._fire_with(TimeWindow(*windows[codes[i]]), contents.get_of(int(cells[i])), times[i])
            except USER_EXCEPTIONS as e:
                raise self.user_error(e, "window", key=keys.current_key(), value=value) from e
        self._register_ends(windows, codes[new], slots[new])

    def _register_ends(self, windows: Sequence[tuple[int, int]], codes: Ints, slots: Ints) -> None:
        ends = self._windows.ends(np.array([start for start, _ in windows], dtype=np.int64))
        self._register(ends.tolist(), windows, codes, slots)

    def _register(self, times: Sequence[int], windows: Sequence[tuple[int, int]], codes: Ints, slots: Ints) -> None:
        """Registers a timer for each slot; ``codes`` are the indices of its time and window."""
        if len(slots):
            moments = np.array(self._column_timers.moments(times, windows), dtype=np.int64)
            self._column_timers.register(slots, moments[codes])

    # --- timers ------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance_to(watermark)

    def on_processing_time(self, now: int) -> None:
        if self._event_time:
            super().on_processing_time(now)
        else:
            self._advance_to(now - 1)

    def _advance_to(self, until: int) -> None:
        if not self._has_keys:
            return
        for time, namespace, slots in self._column_timers.advance_to(until):
            cells = self._contents.table.find(slots, [namespace], np.zeros(len(slots), dtype=np.int64))
            try:
                self._on_time(time, TimeWindow(*namespace), slots.tolist(), cells)
            except USER_EXCEPTIONS as e:
                key = self.backend.key_context.current_key()
                raise self.user_error(e, "window function", key=key) from e
        self.collector.flush()

    def _on_time(self, time: int, window: TimeWindow, slots: list[int], cells: Ints) -> None:
        """Fires or drops a window of many keys; with an allowed lateness, it is dropped later than it fires."""
        if time == window.end - 1:
            contents = self._contents.get_each(slots, cells, last=not self._windows.lateness)
            if self._spec.window_function is None:
                self.collector.collect(filterfalse(partial(is_, None), contents), time)
            else:
                for each in contents:
                    self._fire_with(window, each, time)
        if time == self._cleanup_time(window):
            self._contents.clear_each(cells)
            self._contents.table.release_namespace(window)
            if self._clears:
                for self.backend.key_context.slot in slots:
                    self._end(window)
