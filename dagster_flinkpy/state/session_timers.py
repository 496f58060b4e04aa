"""The timers of windows that merge, such as sessions."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, sub
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import TouchedKeys
from dagster_flinkpy.state.layout import hashes_of
from dagster_flinkpy.state.runs import RunFiles
from dagster_flinkpy.state.session_table import Session, SessionTable, Timers, Window, stored_part
from dagster_flinkpy.state.time_order import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.time_parts import TimeParts, Times, Values
from dagster_flinkpy.state.timer_table import TimerTable

__all__ = ["SessionTimers"]

_slot, _end, _live = attrgetter("slot"), attrgetter("end"), attrgetter("live")


class SessionTimers(TimerTable[tuple[list[int], list[Session]]]):
    """The timers of sessions: at the last millisecond, and when late records are no longer accepted.

    They are stored in the same form as those of :class:`TimerQueue`, and fire in the same order. They fire many at a
    time: times, and as many sessions. The caller notes in a session that it has fired, and removes those that are over.

    Args:
        keys: The touched keys of the backend.
        files: Where runs are kept.
        handles: The restored runs.
        name: The name of the timers.
        namespace_type: The type of the windows.
        sessions: The windows in flight.
        make_room: Frees memory in the backend, if needed, before due keys are touched.
        touch: Reads the state of keys, given with their hashes, into the overlay and returns their slots.
    """

    def __init__(
        self,
        keys: TouchedKeys,
        files: RunFiles,
        handles: Sequence[RunHandle],
        name: str,
        *,
        namespace_type: TypeInformation,
        sessions: SessionTable,
        make_room: Callable[[], None],
        touch: Callable[[pa.Array[Any], npt.NDArray[np.int32]], npt.NDArray[np.int64]],
    ) -> None:
        self._parts = TimeParts(np.object_, _by_time)
        super().__init__(keys, files, handles, name, namespace_type=namespace_type, make_room=make_room)
        self._type = namespace_type
        self._sessions, self._touch = sessions, touch

    def register(self, sessions: Iterable[Session]) -> None:
        """Registers the timers of sessions with a new end. The timers of their former windows are deleted.

        Raises:
            ConfigurationError: The end of a session is not a 64-bit int.
        """
        for session in sessions:
            end = session.end
            if session.due == end or not session.live:
                continue
            if end - 1 > MAX_TIME:
                raise ConfigurationError(
                    f"a session would end at {end}, but times must be 64-bit ints, in milliseconds"
                )
            session.due = end
            if session.fired != end:
                self._fresh_times.append(end - 1)
                self._fresh.append(session)
            if self._sessions.lateness and (over := self._sessions.over_at(session)) < MAX_TIME:
                self._fresh_times.append(over)
                self._fresh.append(session)

    def fired(self, session: Session) -> None:
        """Notes that a session has fired."""
        session.fired = session.end
        if self._sessions.lateness:
            self._sessions.mark({session: None})
            if session.stored is not None:  # Perhaps with another allowed lateness.
                session.due = None
                self.register((session,))

    @property
    def size(self) -> int:
        return len(self._fresh) + len(self._parts)

    def clear(self) -> None:
        super().clear()
        self._fresh_times = array("q")
        self._fresh: list[Session] = []
        self._parts.clear()

    def _next(self, timestamp: int) -> tuple[list[int], list[Session]] | None:
        if self._fresh:
            sessions = np.empty(len(self._fresh), dtype=object)
            sessions[:] = self._fresh
            self._parts.add(np.array(self._fresh_times, dtype=np.int64), sessions)
            self._fresh_times, self._fresh = array("q"), []
        if timestamp < MIN_TIME:
            return None
        times, sessions = self._parts.take(timestamp)
        times, sessions = self._existing(times, sessions)
        slots = np.fromiter(map(_slot, sessions.tolist()), dtype=np.int64, count=len(sessions))
        order, tied = self._order(times, slots, lambda i: sessions[i].window)
        due = times[order].tolist(), sessions[order].tolist()
        if tied:  # A session may be due twice.
            pairs = dict.fromkeys(zip(*due, strict=True))
            due = [time for time, _ in pairs], [session for _, session in pairs]
        return due if len(times) else None

    def _existing(self, times: Times, sessions: Values) -> tuple[Times, Values]:
        """Leaves out timers that were deleted, because their session ended or has another end."""
        listed = sessions.tolist()
        live = np.fromiter(map(_live, listed), dtype=np.bool_, count=len(listed))
        last = np.fromiter(map(sub, map(_end, listed), repeat(1)), dtype=np.int64, count=len(listed))
        exist = times == last
        if lateness := self._sessions.lateness:
            exist |= times == np.where(last > MAX_TIME - lateness, MAX_TIME, last + lateness)
        exist &= live
        return times[exist], sessions[exist]

    def _changes(self) -> pa.Table | None:
        put: set[tuple[int, Window, int]] = set()
        gone: set[tuple[int, Window, int]] = set()
        for session in self._sessions.changed:
            now = _rows(session, self._sessions.timers(session))
            before = _rows(session, None if session.stored is None else session.stored.timers)
            # When a stored session fires, the allowed lateness may be another one than when it was stored.
            put |= now if session.fired == session.end else now - before
            gone |= before - now
        gone -= put
        rows = [*put, *gone]
        slots = np.array([slot for slot, _, _ in rows], dtype=np.int64)
        times = np.array([time for _, _, time in rows], dtype=np.int64)
        windows = self._type.to_arrow([window for _, window, _ in rows])
        return self._table(slots, times, windows, np.arange(len(rows)) >= len(put))

    def _written(self) -> None:
        super()._written()
        for session in self._sessions.changed:
            stored_part(session).timers = self._sessions.timers(session)
        self._sessions.written()

    def _fill(self, table: pa.Table) -> None:
        slots = self._touch(table.column("key").combine_chunks(), hashes_of(table.column("sort_key").to_numpy()))
        windows = self._type.from_arrow(table.column("namespace").combine_chunks())
        for slot, window, time in zip(slots.tolist(), windows, table.column("time").to_pylist(), strict=True):
            session = self._sessions.find(slot, window)
            if session is not None:  # It may have changed in the meantime.
                self._fresh_times.append(time)
                self._fresh.append(session)


def _rows(session: Session, timers: Timers | None) -> set[tuple[int, Window, int]]:
    return set() if timers is None else {(session.slot, timers[0], time) for time in timers[1]}


def _by_time(times: Times, sessions: Values) -> tuple[Times, Values]:
    order = np.argsort(times)
    return times[order], sessions[order]
