"""Sessions with the default trigger: a batch is added to the newest sessions of its keys at once.

Only the records of keys with late or older records are placed one by one. State, timers and results are those of
:class:`MergingWindower`; only sums of floating-point numbers in columns may be rounded in another order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import Any

import numpy as np

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.windows.contents import Due, TimeWindows, make_contents
from dagster_flinkpy.runtime.operators.windows.window_operator import (
    MERGING_WINDOWS,
    Ints,
    Windower,
    WindowOperator,
    has_default_trigger,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.columns import firsts_of
from dagster_flinkpy.state.files.time_order import MAX_TIME
from dagster_flinkpy.state.stored_names import EVENT_TIMERS, PROCESSING_TIMERS

__all__ = ["SessionWindower", "is_session"]

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
    """Sessions, each of which is a cell."""

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
