"""Windows that merge, such as sessions: the windows in flight of each key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.tables import OverlayTable
from dagster_flinkpy.state.time_order import MAX_TIME

__all__ = ["Session", "SessionTable", "SessionValues", "Timers", "Window", "stored_part"]

Window = tuple[int, int]
"""Start and end in milliseconds."""
Timers = tuple[Window, tuple[int, ...]]
"""The window of timers, and their times."""


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
        self.by_slot: list[list[Session] | None] = []
        """The sessions of each key, in order of time; None if it has none. They do not touch each other."""
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
        sessions = self.by_slot[slot]
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
        sessions = self.by_slot[slot] or []
        i = bisect_left(sessions, window[0], key=_start)
        return sessions[i] if i < len(sessions) and sessions[i].window == window else None

    def end(self, ended: Sequence[Session]) -> None:
        """Removes sessions."""
        by_slot = self.by_slot
        for session in ended:
            sessions = by_slot[session.slot]
            assert sessions is not None
            if len(sessions) == 1:
                by_slot[session.slot] = None
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
        self.by_slot.extend([None] * len(keys.column))
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
            stored_part(session).window = session.window if session.live else None
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
            for session in self._sessions.by_slot[slot] or ():
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
            stored_part(session).value = True
        self._sessions.written()


def stored_part(session: Session) -> _Stored:
    """Returns what storage has of a session, to change it."""
    if session.stored is None:
        session.stored = _Stored()
    return session.stored


_start = attrgetter("start")
