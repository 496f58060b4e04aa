"""The timers of windows that merge, such as sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.files.time_order import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.layout import hashes_of
from dagster_flinkpy.state.session_table import SessionTable, delta_of_sessions, window_column
from dagster_flinkpy.state.timers.timer_table import TimeParts, TimerTable, Times

__all__ = ["SessionTimers"]


class SessionTimers(TimerTable[tuple[Times, Cells]]):
    """The timers of sessions: at the last millisecond, and when late records are no longer accepted.

    They are stored in the same form as those of :class:`TimerQueue`, and fire in the same order. They fire many at a
    time: times, and as many sessions. The caller notes in a session that it has fired, and removes those that are over.

    Args:
        sessions: The windows in flight.
    """

    namespace_type: TypeInformation

    def __init__(self, *args: Any, sessions: SessionTable, **kwargs: Any) -> None:
        self._due, self._sessions = TimeParts(_by_time), sessions
        super().__init__(*args, **kwargs)
        sessions.follow(self)

    def register(self, cells: Cells) -> None:
        """Registers the timers of sessions with a new end. The timers of their former windows are deleted.

        Args:
            cells: The sessions, without repetitions.
        """
        sessions = self._sessions
        cells = cells[sessions.live[cells] & (sessions.due[cells] != sessions.end[cells])]
        sessions.due[cells] = sessions.end[cells]
        waiting = cells[~sessions.fired[cells]]
        self._due.add(sessions.end[waiting] - 1, waiting)
        if sessions.lateness:
            over = sessions.over_at(cells)
            self._due.add(over[over < MAX_TIME], cells[over < MAX_TIME])

    def fired(self, cells: Cells) -> None:
        """Notes that sessions have fired, but are not over."""
        sessions = self._sessions
        sessions.fired[cells] = sessions.changed[cells] = True
        stored = cells[sessions.stored[cells]]  # Perhaps with another allowed lateness.
        sessions.due[stored] = MIN_TIME
        self.register(stored)

    @property
    def size(self) -> int:
        return len(self._due)

    def in_storage(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Returns for which sessions storage has timers."""
        return self._sessions.stored[cells]

    def keep(self, used: Cells) -> None:
        """Keeps the timers of some sessions only, given in ascending order, which are numbered anew in this order."""
        times, cells = self._due.take(MAX_TIME)
        numbers = np.searchsorted(used, cells)
        kept = np.append(used, -1)[numbers] == cells
        self._due.add(times[kept], numbers[kept])

    def clear(self) -> None:
        super().clear()
        self._due.clear()

    def _next(self, timestamp: int) -> tuple[Times, Cells] | None:
        # times, cells, starts, ends: int64, one a timer, by time, and then as they fire. exist, once: bool, likewise.
        if timestamp < MIN_TIME:
            return None
        sessions = self._sessions
        times, cells = self._due.take(timestamp)
        # Timers were deleted if their session has ended or has another end.
        exist = times == sessions.end[cells] - 1
        if sessions.lateness:
            exist |= times == sessions.over_at(cells)
        exist &= sessions.live[cells]
        times, cells = times[exist], cells[exist]
        starts, ends = sessions.start[cells], sessions.end[cells]
        order, tied = self._order(times, sessions.seat[cells], lambda i: (int(starts[i]), int(ends[i])))
        times, cells = times[order], cells[order]
        if tied:  # A session may be due twice.
            once = np.ones(len(times), dtype=np.bool_)
            once[1:] = (times[1:] != times[:-1]) | (cells[1:] != cells[:-1])
            times, cells = times[once], cells[once]
        return (times, cells) if len(times) else None

    def _changes(self) -> pa.Table | None:
        # put, gone: cells, ascending. seats, starts, ends, times: one a timer, of put and then of gone.
        # When a stored session fires, the allowed lateness may be another one than when it was stored.
        sessions = self._sessions
        put, gone = sessions.to_write(fired=True)
        rows = [
            self._timers_of(put, sessions.start[put], sessions.end[put], sessions.fired[put]),
            self._timers_of(gone, sessions.stored_start[gone], sessions.stored_end[gone], sessions.stored_fired[gone]),
        ]
        seats, starts, ends, times = (np.concatenate(pair) for pair in zip(*rows, strict=True))
        columns = {"namespace": window_column(self.namespace_type, starts, ends), "time": pa.array(times)}
        return self._rows(*delta_of_sessions(seats, (starts, ends, times), columns, len(rows[0][0])))

    def _timers_of(self, cells: Cells, starts: Cells, ends: Cells, fired: npt.NDArray[np.bool_]) -> tuple[Cells, ...]:
        """Returns seats, starts, ends and times of the timers of sessions with some windows."""
        # cells, starts, ends, over, fired: one a session. at_end, later: positions in them, ascending; rows: both.
        over = self._sessions.over(ends)
        at_end = np.flatnonzero(~fired)
        later = np.flatnonzero((over < MAX_TIME) & (fired | (over != ends - 1)))
        rows = np.concatenate([at_end, later])
        times = np.concatenate([ends[at_end] - 1, over[later]])
        return self._sessions.seat[cells[rows]], starts[rows], ends[rows], times

    def _written(self) -> None:
        super()._written()
        self._sessions.written_with_timers()

    def _fill(self, table: pa.Table) -> None:
        seats = self._touch(one_chunk(table.column("key")), hashes_of(table.column("sort_key").to_numpy()))
        starts, ends = (column.to_numpy() for column in one_chunk(table.column("namespace")).flatten())
        cells = self._sessions.at(seats, starts)
        same = (cells >= 0) & (self._sessions.start[cells] == starts) & (self._sessions.end[cells] == ends)
        self._due.add(table.column("time").to_numpy()[same], cells[same])  # The others have changed in the meantime.


def _by_time(times: Times, cells: Cells) -> tuple[Times, Cells]:
    order = np.argsort(times)
    return times[order], cells[order]
