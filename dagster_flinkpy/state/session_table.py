"""Windows that merge, such as sessions: the windows in flight of each key, and when they are due."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import KeySlots, TouchedKeys
from dagster_flinkpy.state.layout import hashes_of
from dagster_flinkpy.state.runs import RunFiles
from dagster_flinkpy.state.tables import OverlayTable
from dagster_flinkpy.state.time_order import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.timer_table import TimerTable

__all__ = ["Session", "SessionTable", "SessionTimers", "SessionValues"]

Window = tuple[int, int]
"""Start and end in milliseconds."""
Timers = tuple[Window, tuple[int, ...]]
"""The window of timers, and their times."""
Times = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]


class _Stored:
    """What storage has of a session."""

    __slots__ = ("timers", "value", "window")

    def __init__(self) -> None:
        self.window: Window | None = None
        """The window under which it is stored; None if its window is not stored."""
        self.timers: Timers | None = None
        """The timers that storage may have."""
        self.value = False
        """Whether storage has the current value."""


class Session:
    """A window in flight of one key."""

    __slots__ = ("due", "end", "fired", "live", "slot", "start", "state_window", "stored", "value")

    def __init__(self, slot: int, start: int, end: int, state_window: Window) -> None:
        self.slot, self.start, self.end = slot, start, end
        self.state_window = state_window
        """The namespace of its contents."""
        self.value: Any = None
        """The reduced value or the accumulator."""
        self.live = True
        self.due: int | None = None
        """The end of the window for which the timers are registered."""
        self.fired: int | None = None
        """The end of the window when it last fired. With this end, it has no more timer to fire."""
        self.stored: _Stored | None = None
        """None if storage has nothing of it."""

    @property
    def window(self) -> Window:
        """Start and end in milliseconds."""
        return self.start, self.end


class SessionTable(OverlayTable):
    """The windows in flight. It is stored like the map state of ``MergingWindowSet``: from window to state window.

    Args:
        lateness: Allowed lateness in milliseconds.
    """

    def __init__(self, *args: Any, lateness: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lateness = lateness
        """Allowed lateness in milliseconds."""
        self.by_slot: dict[int, list[Session]] = {}
        """The sessions of each key that has any, in order of time. They do not touch each other."""
        self.has_values = False
        """Whether sessions have values, which :class:`SessionValues` stores."""
        self._changed: dict[Session, None] = {}
        self._live = 0

    @property
    def size(self) -> int:
        return self._live + len(self._changed)

    @property
    def changed(self) -> Iterable[Session]:
        """The sessions that differ from what storage has, and some that do not."""
        return self._changed

    def over_at(self, session: Session) -> int:
        """Returns the time at which a session is dropped, at most the greatest possible time."""
        return min(session.end - 1 + self.lateness, MAX_TIME)

    def timers(self, session: Session) -> Timers | None:
        """Returns the timers of a session, or None if it is not in flight."""
        if not session.live:
            return None
        times = () if session.fired == session.end else (session.end - 1,)
        over = self.over_at(session)
        return session.window, ((*times, over) if over < MAX_TIME and over not in times else times)

    def begin(self, slot: int, start: int, end: int, index: int | None = None) -> Session:
        """Adds a session of a key, after those with a lower index; by default as the last one."""
        session = Session(slot, start, end, (start, end))
        self._live += 1
        sessions = self.by_slot.get(slot)
        if sessions is None:
            self.by_slot[slot] = [session]
        else:
            sessions.insert(len(sessions) if index is None else index, session)
        return session

    def mark(self, sessions: dict[Session, None]) -> None:
        """Marks sessions as changed."""
        self._changed.update(sessions)
        for session in sessions:
            if session.stored is not None:
                session.stored.value = False

    def find(self, slot: int, window: Window) -> Session | None:
        """Returns the session of a key that is in flight as this window."""
        sessions = self.by_slot.get(slot, [])
        i = bisect_left(sessions, window[0], key=_start)
        return sessions[i] if i < len(sessions) and sessions[i].window == window else None

    def end(self, ended: Sequence[Session]) -> None:
        """Removes sessions."""
        by_slot = self.by_slot
        for session in ended:
            sessions = by_slot[session.slot]
            if len(sessions) == 1:
                del by_slot[session.slot]
            else:
                sessions.remove(session)
        self.taken_out(ended)

    def taken_out(self, ended: Sequence[Session]) -> None:
        """Marks sessions as removed that were taken out of :attr:`by_slot`."""
        self._live -= len(ended)
        changed = self._changed
        for session in ended:
            session.live = False
            if session.stored is None:
                changed.pop(session, None)
            else:
                session.stored.value = False
                changed[session] = None

    def load(self, keys: KeySlots) -> None:
        assert self.map_key_type is not None
        found: dict[int, dict[Window, Window]] = {}
        for match, slots, deleted, _ in self._find(keys):
            windows = self.map_key_type.from_arrow(match.run.take("map_key", match.rows))
            rows = zip(slots, windows, self._stored_values(match), deleted, strict=True)
            for slot, window, state_window, gone in rows:
                known = found.setdefault(slot, {})
                if gone:
                    known.pop(window, None)
                else:
                    known[window] = state_window
        for slot, known in found.items():
            if known:
                self.by_slot[slot] = [self._restored(slot, *item) for item in sorted(known.items())]
                self._live += len(known)

    def _restored(self, slot: int, window: Window, state_window: Window) -> Session:
        session = Session(slot, *window, state_window)
        session.due = session.end
        session.stored = _Stored()
        session.stored.window, session.stored.timers, session.stored.value = window, self.timers(session), True
        return session

    def clear(self) -> None:
        self._live = 0
        self.by_slot.clear()
        self._changed.clear()

    def written(self) -> None:
        """Forgets the changes that this table, the timers and the values have written."""
        self._changed = {session: None for session in self._changed if not self._is_written(session)}

    def _is_written(self, session: Session) -> bool:
        stored = session.stored
        if stored is None or stored.timers != self.timers(session):
            return False
        return (stored.value or not self.has_values) and stored.window == (session.window if session.live else None)

    def _changes(self) -> pa.Table | None:
        put: dict[tuple[int, Window], Window] = {}
        gone: dict[tuple[int, Window], None] = {}
        for session in self._changed:
            before = None if session.stored is None else session.stored.window
            now = session.window if session.live else None
            if now is not None and now != before:
                put[session.slot, now] = session.state_window
            if before is not None and now != before:
                gone[session.slot, before] = None
        gone = {row: None for row in gone if row not in put}
        rows = [*put, *gone]
        state_windows: list[Any] = [*put.values(), *[None] * len(gone)]
        columns: dict[str, list[Any]] = {"map_key": [window for _, window in rows], "value": state_windows}
        return self._delta([slot for slot, _ in rows], columns, [False] * len(put) + [True] * len(gone))

    def _written(self) -> None:
        for session in self._changed:
            _stored_part(session).window = session.window if session.live else None
        self.written()


class SessionValues(OverlayTable):
    """The reduced values or accumulators of sessions. They are stored in the same form as those of a CellTable.

    Args:
        sessions: The windows in flight. Their table must be declared before this one.
    """

    def __init__(self, *args: Any, sessions: SessionTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sessions = sessions
        sessions.has_values = True

    @property
    def size(self) -> int:
        return 0  # The sessions have them.

    def load(self, keys: KeySlots) -> None:
        found: dict[tuple[int, Window], Any] = {}
        for match, _, deleted, cells in self._find(keys):
            for cell, gone, value in zip(cells, deleted, self._stored_values(match), strict=True):
                found[cell] = None if gone else value
        for slot in {slot for slot, _ in found}:
            for session in self._sessions.by_slot.get(slot, ()):
                session.value = found.get((slot, session.state_window))

    def clear(self) -> None:
        """Does nothing: the values go with their sessions."""

    def _changes(self) -> pa.Table | None:
        put = {
            (session.slot, session.state_window): session.value
            for session in self._sessions.changed
            if session.live and session.value is not None and not (session.stored is not None and session.stored.value)
        }
        gone = {
            (session.slot, session.state_window): None
            for session in self._sessions.changed
            if session.stored is not None and not (session.live and session.value is not None)
        }
        gone = {cell: None for cell in gone if cell not in put}
        values = [*put.values(), *gone.values()]
        return self._delta([*put, *gone], {"value": values}, [False] * len(put) + [True] * len(gone))

    def _written(self) -> None:
        for session in self._sessions.changed:
            _stored_part(session).value = True
        self._sessions.written()


def _stored_part(session: Session) -> _Stored:
    """Returns what storage has of a session, to change it."""
    if session.stored is None:
        session.stored = _Stored()
    return session.stored


class SessionTimers(TimerTable):
    """The timers of sessions: at the last millisecond, and when late records are no longer accepted.

    They are stored in the same form as those of :class:`TimerQueue`.

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

    def advance_to(self, timestamp: int) -> Iterator[list[tuple[int, Session]]]:
        """Fires the timers up to a time.

        Args:
            timestamp: The time in milliseconds, inclusive.

        Yields:
            Times and sessions in the order of :meth:`TimerQueue.advance_to`. The caller notes in a session that it has
            fired, and removes those that are over.
        """
        while True:
            due = self._due(min(timestamp, self._unread_from - 1))
            if due:
                yield due
            elif self._unread_from <= timestamp:
                self._read(timestamp)
            else:
                self._fired(timestamp + 1)
                return

    @property
    def size(self) -> int:
        return len(self._fresh) + sum(len(times) for times, _ in self._parts)

    def clear(self) -> None:
        super().clear()
        self._fresh_times: list[int] = []
        self._fresh: list[Session] = []
        self._parts: list[tuple[Times, Objects]] = []  # Each in order of time, the largest first.

    def _due(self, timestamp: int) -> list[tuple[int, Session]]:
        if self._fresh:
            times, sessions = np.array(self._fresh_times, dtype=np.int64), np.empty(len(self._fresh), dtype=object)
            sessions[:] = self._fresh
            self._fresh_times, self._fresh = [], []
            self._add_part(times, sessions)
        if timestamp < MIN_TIME:
            return []
        times_due: list[int] = []
        due: list[Session] = []
        left = []
        for times, sessions in self._parts:
            stop = int(np.searchsorted(times, timestamp, side="right"))
            times_due += times[:stop].tolist()
            due += sessions[:stop].tolist()
            if stop < len(times):
                left.append((times[stop:], sessions[stop:]))
        self._parts = left
        # The timers of a session that ended or has another end were deleted.
        lateness, over_at = self._sessions.lateness, self._sessions.over_at
        pairs = zip(times_due, due, strict=True)
        return self._in_order(
            [
                pair
                for pair in pairs
                if pair[1].live and (pair[0] == pair[1].end - 1 or (lateness and pair[0] == over_at(pair[1])))
            ]
        )

    def _add_part(self, times: Times, sessions: Objects) -> None:
        # Merging parts of similar size keeps their number small, and sorts each timer only a few times.
        while self._parts and len(self._parts[-1][0]) <= 2 * len(times):
            more, others = self._parts.pop()
            times, sessions = np.concatenate([more, times]), np.concatenate([others, sessions])
        order = np.argsort(times)
        self._parts.append((times[order], sessions[order]))

    def _in_order(self, due: list[tuple[int, Session]]) -> list[tuple[int, Session]]:
        if len(due) < 2:
            return due
        keys = self.keys.all()
        assert keys is not None
        times = np.array([time for time, _ in due], dtype=np.int64)
        sort_keys = keys.sort_keys[[session.slot for _, session in due]]
        order = np.lexsort((sort_keys, times))
        tied = (times[order[1:]] == times[order[:-1]]) & (sort_keys[order[1:]] == sort_keys[order[:-1]])
        if not tied.any():
            return [due[i] for i in order.tolist()]
        names = {slot: key for key, slot in self.keys.slots.items()}
        rank = self.keys.codec.rank

        def place(i: int) -> tuple[Any, ...]:
            session = due[i][1]
            return int(times[i]), int(sort_keys[i]), rank(names[session.slot]), session.window

        # A session may be due twice.
        return list(dict.fromkeys(due[i] for i in sorted(order.tolist(), key=place)))

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
        if not rows:
            return None
        keys = self.keys.all()
        assert keys is not None
        slots = np.array([slot for slot, _, _ in rows], dtype=np.int64)
        arrays: dict[str, pa.Array[Any]] = {
            "sort_key": pa.array(keys.sort_keys[slots]),
            "key": keys.column.take(pa.array(slots)),
            "namespace": self._type.to_arrow([window for _, window, _ in rows]),
            "time": pa.array([time for _, _, time in rows], type=pa.int64()),
            "deleted": pa.array([False] * len(put) + [True] * len(gone), type=pa.bool_()),
        }
        schema = self.layout.local_schema
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _written(self) -> None:
        super()._written()
        for session in self._sessions.changed:
            _stored_part(session).timers = self._sessions.timers(session)
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


_start = attrgetter("start")
