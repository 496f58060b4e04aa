"""Windows with the default trigger, for many keys at a time: timers, positions and counts are in columns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
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
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.grouped_rows import Segments
from dagster_flinkpy.runtime.operators.windows.contents import CountWindows, Due, TimeWindows, make_contents
from dagster_flinkpy.runtime.operators.windows.window_operator import (
    MERGING_WINDOWS,
    Ints,
    Windower,
    WindowOperator,
    has_default_trigger,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import firsts_of, numbered
from dagster_flinkpy.state.files.cache import MAX_TIME
from dagster_flinkpy.state.handles import EVENT_TIMERS, PROCESSING_TIMERS

__all__ = ["AlignedWindower", "CountWindower", "SessionWindower", "is_aligned", "is_by_count", "is_session"]

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


_SESSIONS = (
    EventTimeSessionWindows,
    DynamicEventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
)


def is_session(spec: WindowSpec) -> bool:
    """Returns whether windows are sessions with the default trigger."""
    return type(spec.assigner) in _SESSIONS and has_default_trigger(spec)


class SessionWindower(Windower):
    """Sessions, each of which is a cell. A batch is added to the newest sessions of its keys at once.

    Only the records of keys with late or older records are placed one by one. State, timers and results are those of
    `MergingWindower`; only sums of floating-point numbers in columns may be rounded in another order.
    """

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._gap: int | None = getattr(operator.spec.assigner, "session_gap", None)
        self._sessions, self._timers = operator.backend.get_sessions(
            MERGING_WINDOWS,
            EVENT_TIMERS if operator.event_time else PROCESSING_TIMERS,
            operator.codec.namespace_type,
            operator.lateness,
        )
        self._contents = make_contents(operator, self._sessions)

    def process(self, batch: StreamBatch, seats: Ints) -> None:
        sessions, contents = self._sessions, self._contents
        starts, ends = self._windows_of(batch, seats)
        sessions.compact()
        passed = self._operator.context.watermark + 1 if self._operator.event_time else -inf
        cells, touched = sessions.join(seats, starts, ends, passed)
        joined, others = np.flatnonzero(cells >= 0), np.flatnonzero(cells < 0)
        contents.add(seats[joined], cells[joined], joined)
        self._timers.register(touched)
        if len(others) and contents.any_order:
            late = np.isin(seats[others], seats[others[ends[others] <= passed]])
            self._unite(others[~late], seats, starts, ends)
            others = others[late]
        if len(others):
            self._place_each(others, batch, seats, starts, ends)

    def _windows_of(self, batch: StreamBatch, seats: Ints) -> tuple[Ints, Ints]:
        """Returns start and end of the window of each record."""
        operator = self._operator
        if self._gap is not None and operator.event_time:
            operator.check_times(batch, seats)
        starts, lasts = batch.timestamps, self._contents.take(batch)
        if self._gap is None:
            return self._assign_each(batch, seats)
        if not operator.event_time:
            starts = lasts = np.full(len(batch), operator.context.job.clock.now())
        _check_end(int(lasts.max()) + self._gap)
        return starts, lasts + self._gap

    def _assign_each(self, batch: StreamBatch, seats: Ints) -> tuple[Ints, Ints]:
        """Lets the assigner look at each record."""
        keys, context, contents = self._operator.backend.key_context, self._operator.assigner_context, self._contents
        assigner: Any = self._operator.spec.assigner
        values = contents.values = list(batch.each_value())  # type: ignore[union-attr]
        windows = []
        value: Any = UNKNOWN
        try:
            for keys.seat, value, timestamp in zip(seats.tolist(), values, batch.each_timestamp(), strict=True):
                windows.append(assigner.assign_windows(value, timestamp, context)[0])
        except USER_EXCEPTIONS as e:
            raise self._operator.failed(e, value) from e
        _check_end(max(end for _, end in windows))
        bounds = np.array(windows, dtype=np.int64)
        return bounds[:, 0], bounds[:, 1]

    def _unite(self, rows: Ints, seats: Ints, starts: Ints, ends: Ints) -> None:
        """Adds records of which none is late, of keys of which not only the newest session counts."""
        if not len(rows):
            return
        cells, touched, ended, heirs = self._sessions.unite(seats[rows], starts[rows], ends[rows])
        self._contents.merge(self._sessions.seat[heirs], heirs, ended, rows[firsts_of(cells)[heirs]])
        self._contents.add(seats[rows], cells, rows)
        self._timers.register(touched)

    def _place_each(self, rows: Ints, batch: StreamBatch, seats: Ints, starts: Ints, ends: Ints) -> None:
        """Adds records one by one, because they are late, or because not only the newest session of their key counts.

        ``rows`` are their positions; seats, starts and ends are those of all records.
        """
        sessions, contents, watermark = self._sessions, self._contents, self._operator.context.watermark
        passed, over = -inf, -inf
        if self._operator.event_time:
            passed = watermark + 1
            over = inf if watermark == MAX_WATERMARK else passed - self._operator.lateness
        chains: dict[int, list[int]] = {}
        touched: dict[int, None] = {}
        late: list[int] = []
        waiting: list[tuple[int, int, int]] = []

        def add(windows: TimeWindows | None = None) -> None:
            """Adds the records that wait; with windows, these fire."""
            of_seats, cells, of_rows = np.array(waiting, dtype=np.int64).reshape(-1, 3).T
            waiting.clear()
            if windows is None:
                contents.add(of_seats, cells, of_rows)
            else:
                contents.add_firing(of_seats, cells, of_rows, windows)

        each = zip(*(column.tolist() for column in (rows, seats[rows], starts[rows], ends[rows])), strict=True)
        for row, seat, start, end in each:
            if (chain := chains.get(seat)) is None:
                chain = chains[seat] = sessions.chain(seat)
            found = self._place(chain, seat, start, end, over)
            if not found:
                late.append(row)
                continue
            cell, *others = found
            if others:
                add()
                ended = np.array(others)
                of_seat, heir, cause = (np.full(len(others), each) for each in (seat, cell, row))
                contents.merge(of_seat, heir, ended, cause)
                sessions.retire(ended)
                for other in others:
                    touched.pop(other, None)
            touched[cell] = None
            fires = sessions.end.item(cell) <= passed
            if fires:
                add()
                sessions.fired[cell] = True
            waiting.append((seat, cell, row))
            if fires:
                add(self._windows(np.array([cell])))
        add()
        sessions.link(chains)
        cells = np.array(list(touched), dtype=np.int64)
        sessions.changed[cells] = True
        self._timers.register(cells)
        self._operator.skip(batch, np.array(late, dtype=np.int64))

    def _place(self, chain: list[int], seat: int, start: int, end: int, over: float) -> list[int]:
        """Adds a window to the sessions of a key, a chain in order of time.

        Returns the session, and those that become part of it; nothing if the window touches no session and ends at
        ``over`` or before.
        """
        sessions = self._sessions
        first = bisect_left(chain, start, key=sessions.end.item)
        last = bisect_right(chain, end, lo=first, key=sessions.start.item)
        if first < last:
            cell, *others = chain[first:last]
            sessions.move(cell, min(start, sessions.start.item(cell)), max(end, sessions.end.item(chain[last - 1])))
            del chain[first + 1 : last]
            return [cell, *others]
        if end <= over:
            return []
        cell = sessions.begin_one(seat, start, end)
        chain.insert(first, cell)
        return [cell]

    def _windows(self, cells: Ints) -> TimeWindows:
        return TimeWindows(self._sessions.start[cells], self._sessions.end[cells])

    def advance(self, until: int, *, event_time: bool) -> None:
        if event_time is not self._operator.event_time:
            return
        sessions = self._sessions
        for times, cells in self._timers.advance_to(until):
            # With an allowed lateness, sessions end later than they fire.
            fires = (times == sessions.end[cells] - 1) & ~sessions.fired[cells]
            ends = times == sessions.over_at(cells)
            self._contents.fire(Due(sessions.seat[cells], cells, self._windows(cells), times, fires, ends))
            self._timers.fired(cells[fires & ~ends])
            self._contents.drop(cells[ends])
            sessions.end_all(cells[ends])


def _check_end(end: int) -> None:
    if end > MAX_TIME:
        raise ConfigurationError(f"a session would end at {end}, but times must be 64-bit ints, in milliseconds")
