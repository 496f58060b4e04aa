"""Windows that merge, such as sessions: the windows in flight of each key, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells, grown, numbered
from dagster_flinkpy.state.files.cache import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.index import distinct_words
from dagster_flinkpy.state.keys import KeySeats
from dagster_flinkpy.state.overlay_table import OverlayTable

__all__ = ["SessionTable", "delta_of_sessions", "window_column"]

Mask = npt.NDArray[np.bool_]

_SPARE_SESSIONS = 65_536
"""Compaction waits until there are this many sessions more than twice those in use."""
_FEW_KEYS = 8
"""The sessions of so many keys are followed one by one: columns of few numbers take longer than the numbers do."""

_NUMBERS = ("seat", "start", "end", "state_start", "state_end", "older", "due", "stored_start", "stored_end")
_FLAGS = ("live", "fired", "changed", "stored", "stored_fired")


class _Follower(Protocol):
    """Has something for each session."""

    def in_storage(self, cells: Cells) -> Mask:
        """Returns for which sessions storage has something."""

    def keep(self, used: Cells) -> None:
        """Keeps some sessions only, given in ascending order, which are numbered anew in this order."""


class SessionTable(OverlayTable):
    """The windows in flight. It is stored like the map state of ``MergingWindowSet``: from window to state window.

    Each session has a number, its *cell*. The sessions of a key do not touch each other.

    Args:
        lateness: Allowed lateness in milliseconds.
    """

    seat: Cells
    start: Cells
    end: Cells
    state_start: Cells
    """The state window is the namespace of the contents."""
    state_end: Cells
    older: Cells
    """The next older session of the key. Negative if it has none; one that is not live counts as none."""
    due: Cells
    """The end of the window for which the timers are registered; ``MIN_TIME`` if they are not."""
    live: Mask
    fired: Mask
    """Whether the session has fired with its present end, so that it has no more timer to fire."""
    changed: Mask
    """Whether the window, or its timers, may differ from the stored ones. Timers are written last, and reset it."""
    stored: Mask
    stored_start: Cells
    stored_end: Cells
    stored_fired: Mask
    """Whether the timer at the last millisecond is not among the stored ones."""

    def __init__(self, *args: Any, lateness: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lateness = lateness
        """Allowed lateness in milliseconds."""
        self._followers: list[_Follower] = []
        self.clear()

    def follow(self, follower: _Follower) -> None:
        """Adds what has something for each session: timers, values."""
        self._followers.append(follower)

    def __len__(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        return self._size

    def seats(self, cells: Cells) -> Cells:
        """Returns the seats of sessions."""
        return self.seat[cells]

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the state windows of sessions."""
        kind: Any = self.map_key_type
        return window_column(kind, self.state_start[cells], self.state_end[cells])

    def identities(self, cells: Cells) -> pa.Array[Any]:
        """Returns seats and state windows, by which storage tells sessions apart."""
        columns = [pa.array(each[cells]) for each in (self.seat, self.state_start, self.state_end)]
        return pa.StructArray.from_arrays(columns, names=["seat", "start", "end"])

    def stored_at(self, seats: Cells, state_windows: pa.Array[Any]) -> Cells:
        """Returns the sessions with some state windows; -1 for those that are not in flight."""
        starts, ends = _bounds(state_windows)
        cells = self.at(seats, starts)  # A state window lies in the window of its session.
        found = (cells >= 0) & (self.state_start[cells] == starts) & (self.state_end[cells] == ends)
        return np.where(found, cells, -1)

    def clear(self) -> None:
        self._size = self._compacted = 0
        self.newest: Cells = np.full(1, -1, dtype=np.int64)
        """By seat: the newest session; negative, or one that is not live, if there is none."""
        for name in _NUMBERS:
            setattr(self, name, np.zeros(1, dtype=np.int64))
        for name in _FLAGS:
            setattr(self, name, np.zeros(1, dtype=np.bool_))

    def over_at(self, cells: Cells) -> Cells:
        """Returns the times at which sessions are dropped, at most the greatest possible time."""
        return self.over(self.end[cells])

    def over(self, ends: Cells) -> Cells:
        """Returns the times at which sessions with these ends are dropped."""
        return np.where(ends - 1 > MAX_TIME - self.lateness, MAX_TIME, ends - 1 + self.lateness)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def begin(self, seats: Cells, starts: Cells, ends: Cells) -> Cells:
        """Adds sessions, which must be linked, and returns their numbers."""
        first = self._reserve(len(seats))
        added = slice(first, self._size)
        self.seat[added], self.start[added], self.end[added] = seats, starts, ends
        self.state_start[added], self.state_end[added] = starts, ends
        self.older[added], self.due[added], self.live[added] = -1, MIN_TIME, True
        return np.arange(first, self._size)

    def begin_one(self, seat: int, start: int, end: int) -> int:
        """Adds a session, which must be linked, and returns its number. For one, it is several times faster."""
        cell = self._reserve(1)
        self.seat[cell] = seat
        self.start[cell] = self.state_start[cell] = start
        self.end[cell] = self.state_end[cell] = end
        self.older[cell] = -1
        self.due[cell] = MIN_TIME
        self.live[cell] = True
        return cell

    def _reserve(self, count: int) -> int:
        """Makes room for more sessions, and returns the first of their numbers."""
        first, self._size = self._size, self._size + count
        if self._size > len(self.live):
            for name in (*_NUMBERS, *_FLAGS):
                setattr(self, name, grown(getattr(self, name), self._size, 0))
        return first

    def end_all(self, cells: Cells) -> None:
        """Ends sessions."""
        self.retire(cells)
        # Nearly always, the oldest sessions of a key end first.
        seats = set(self.seat[cells[self._alive(self.older[cells]) >= 0]].tolist())
        self.link({seat: self.chain(seat, ended=True) for seat in seats})

    def retire(self, cells: Cells) -> None:
        """Ends sessions of keys that are linked anew, or whose older sessions have ended."""
        self.live[cells] = False
        self.changed[cells] = True

    def join(self, seats: Cells, starts: Cells, ends: Cells, passed: float) -> tuple[Cells, Cells]:
        """Adds windows to the newest sessions of their keys, in order, or begins newer ones.

        Keys with a window that is older than the newest session, or ends too early, are left out.

        Args:
            seats: The seat of each window; may repeat.
            starts: The start of each window.
            ends: The end of each window.
            passed: Windows with an end up to this time are left out.

        Returns:
            The session of each window, -1 for those left out; and these sessions without repetitions.
        """
        # seats, starts, ends, newest, keys, reach, before, begins, numbers: one a window, by seat and then as they
        # came; rows: where each came from. opens: positions of the first window of each session, ascending; new, cells,
        # reached, older: one a session.
        found = np.full(len(seats), -1, dtype=np.int64)
        rows = np.argsort(seats, kind="stable")
        seats, starts, ends = seats[rows], starts[rows], ends[rows]
        while len(rows):
            first = np.concatenate([[True], seats[1:] != seats[:-1]])  # Of each key.
            newest = self._alive(self.newest[seats])
            newest_end = np.where(newest >= 0, self.end[newest], MIN_TIME)
            keys = np.cumsum(first) - 1
            reach = _running_max(np.maximum(ends, newest_end), keys)  # The end of the newest session by then.
            before = np.concatenate([newest_end[:1], reach[:-1]])
            before[first] = newest_end[first]
            begins = starts > before
            opens = np.flatnonzero(begins | first)
            numbers = np.cumsum(begins | first) - 1
            new = begins[opens]
            cells = newest[opens]
            left_out = starts < np.where(new, starts[opens], self.start[cells])[numbers]
            left_out |= ends <= passed
            if left_out.any():
                kept = ~np.bincount(keys, weights=left_out).astype(np.bool_)[keys]
                rows, seats, starts, ends = rows[kept], seats[kept], starts[kept], ends[kept]
                continue
            reached = reach[np.concatenate([opens[1:], [len(rows)]]) - 1]
            cells[new] = self.begin(seats[opens[new]], starts[opens[new]], reached[new])
            older = np.where(first[opens], newest[opens], np.concatenate([[-1], cells[:-1]]))
            self.older[cells[new]] = older[new]
            self._set_ends(cells[~new], reached[~new])
            self.newest[seats[opens]] = cells  # The last one of each key counts.
            self.changed[cells] = True
            found[rows] = cells[numbers]
            return found, cells
        return found, rows

    def unite(self, seats: Cells, starts: Cells, ends: Cells) -> tuple[Cells, Cells, Cells, Cells]:
        """Adds windows to sessions of any age, or begins new ones; sessions that a window joins become one.

        The outcome does not depend on the order of the windows, as long as nothing fires in between.

        Args:
            seats: The seat of each window; may repeat.
            starts: The start of each window.
            ends: The end of each window.

        Returns:
            The session of each window; these sessions without repetitions; the sessions that have ended because they
            became part of another one, in order of time; and for each of those, that other one.
        """
        # seats, starts, ends, cells, reach, numbers: one a window or known session, by seat and start. opens: positions
        # where a session begins, ascending; owners, new, reached, touched: one a session. old, gone: positions of known
        # sessions, ascending.
        known = self._since(seats, starts)
        cells = np.concatenate([known, np.full(len(seats), -1, dtype=np.int64)])
        seats, starts, ends = (
            np.concatenate([column[known], added])
            for column, added in ((self.seat, seats), (self.start, starts), (self.end, ends))
        )
        order = np.lexsort((starts, seats))
        seats, starts, ends, cells = seats[order], starts[order], ends[order], cells[order]
        first = np.concatenate([[True], seats[1:] != seats[:-1]])  # Of each key.
        reach = _running_max(ends, np.cumsum(first) - 1)
        opens = np.flatnonzero(first | (starts > np.concatenate([[0], reach[:-1]])))
        numbers = np.repeat(np.arange(len(opens)), np.diff(np.append(opens, len(seats))))
        reached = reach[np.append(opens[1:], len(seats)) - 1]
        old = np.flatnonzero(cells >= 0)
        owners = np.full(len(opens), -1, dtype=np.int64)
        owners[numbers[old[::-1]]] = cells[old[::-1]]  # The oldest one is written last.
        new = owners < 0
        owners[new] = self.begin(seats[opens[new]], starts[opens[new]], reached[new])
        gone = old[owners[numbers[old]] != cells[old]]
        ended, heirs = cells[gone], owners[numbers[gone]]
        touched = np.zeros(len(opens), dtype=np.bool_)
        touched[numbers[cells < 0]] = True
        self._move_all(owners[touched], starts[opens[touched]], reached[touched])
        self.retire(ended)
        self.changed[owners[touched]] = True
        follows = np.flatnonzero(~first[opens])  # The others are behind the sessions that were not looked at, if any.
        self.older[owners[follows]] = owners[follows - 1]
        self.newest[seats[opens]] = owners  # The last one of each key counts.
        found = np.empty(len(order), dtype=np.int64)
        found[order] = owners[numbers]
        return found[len(known) :], owners[touched], ended, heirs

    def _since(self, seats: Cells, times: Cells) -> Cells:
        """Returns the sessions of keys, which may repeat, from the newest one to one that ends before all times."""
        # distinct, since, cells: int64, one a key; of keys that have a session left, the newest of these.
        found: list[Cells] = []
        walked: list[int] = []
        distinct, codes = numbered(seats)
        since = np.full(len(distinct), MAX_TIME)
        np.minimum.at(since, codes, times)
        cells = self.newest[distinct]
        while len(left := np.flatnonzero(self._alive(cells) >= 0)) > _FEW_KEYS:
            cells, since = cells[left], since[left]
            found.append(cells)
            left = np.flatnonzero(self.end[cells] >= since)
            cells, since = self.older[cells[left]], since[left]
        for cell, time in zip(cells[left].tolist(), since[left].tolist(), strict=True):
            while cell >= 0 and self.live.item(cell):
                walked.append(cell)
                cell = self.older.item(cell) if self.end.item(cell) >= time else -1
        return np.concatenate([*found, np.array(walked, dtype=np.int64)])

    def _move_all(self, cells: Cells, starts: Cells, ends: Cells) -> None:
        """Sets the windows of sessions, like :meth:`move`."""
        earlier = cells[(starts < self.start[cells]) & self.stored[cells]]
        self.due[earlier] = MIN_TIME  # The stored timers are those of the former window.
        self.start[cells] = starts
        self._set_ends(cells, ends)

    def move(self, cell: int, start: int, end: int) -> None:
        """Sets the window of a session, which contains its former one."""
        if start < self.start.item(cell):
            if self.stored.item(cell):
                self.due[cell] = MIN_TIME  # The stored timers are those of the former window.
            self.start[cell] = start
        if end > self.end.item(cell):
            self.fired[cell] = False
            self.end[cell] = end

    def _set_ends(self, cells: Cells, ends: Cells) -> None:
        self.fired[cells] &= ends == self.end[cells]
        self.end[cells] = ends

    def chain(self, seat: int, *, ended: bool = False) -> list[int]:
        """Returns the sessions of a key, in order of time; with ``ended``, also those behind one that has ended."""
        found = []
        cell = self.newest.item(seat)
        while cell >= 0 and (ended or self.live.item(cell)):
            if self.live.item(cell):
                found.append(cell)
            cell = self.older.item(cell)
        return found[::-1]

    def link(self, chains: dict[int, list[int]]) -> None:
        """Sets the sessions of keys, in order of time; those of a key with an empty list stay as they are."""
        # cells: int64, the sessions of seats, one seat after the other, by time. stops: one a seat, ascending: where
        # its sessions end.
        seats = [seat for seat, cells in chains.items() if cells]
        if not seats:
            return
        cells = np.fromiter(chain.from_iterable(chains.values()), dtype=np.int64)
        stops = np.cumsum([len(chains[seat]) for seat in seats], dtype=np.int64)
        self.older[cells[1:]] = cells[:-1]
        self.older[cells[np.concatenate([[0], stops[:-1]])]] = -1
        self.newest[seats] = cells[stops - 1]

    def at(self, seats: Cells, times: Cells) -> Cells:
        """Returns the newest session of each key that starts at a time or before it; -1 if there is none."""
        # known: cells; cells: known, and then -1 for each time; by seat and start, so that a session comes before its
        # start: order, and last, the place of the last session by then.
        known = self._since(seats, times)
        cells = np.concatenate([known, np.full(len(seats), -1, dtype=np.int64)])
        of, starts = np.concatenate([self.seat[known], seats]), np.concatenate([self.start[known], times])
        order = np.lexsort((starts, of))
        last = np.maximum.accumulate(np.where(order < len(known), np.arange(len(order)), 0))
        found = np.empty_like(cells)
        found[order] = np.where(of[order[last]] == of[order], cells[order[last]], -1)
        return found[len(known) :]

    def _alive(self, cells: Cells) -> Cells:
        return np.where((cells >= 0) & self.live[cells], cells, -1)

    def compact(self) -> None:
        """Numbers the sessions anew if most of them have ended."""
        # used: bool, by cell. cells: former numbers, ascending. numbers: int64, by former number: the new one, or -1.
        if self._size < 2 * self._compacted + _SPARE_SESSIONS:
            return
        used = self.live | self.stored
        everything = np.arange(self._size)
        for follower in self._followers:
            used[: self._size] |= follower.in_storage(everything)
        cells = np.flatnonzero(used)
        self._compacted = len(cells)
        if 2 * len(cells) >= self._size:
            return
        numbers = np.full(len(used), -1, dtype=np.int64)
        numbers[cells] = np.arange(len(cells))
        for name in (*_NUMBERS, *_FLAGS):
            setattr(self, name, grown(getattr(self, name)[cells], len(cells) + 1, 0))
        self.older = np.where(self.older >= 0, numbers[self.older], -1)
        self.newest = np.where(self.newest >= 0, numbers[self.newest], -1)
        self._size = len(cells)
        for follower in self._followers:
            follower.keep(cells)

    # --- storage -----------------------------------------------------------------------------------------------------

    def load(self, keys: KeySeats) -> None:
        assert self.map_key_type is not None
        self.newest = grown(self.newest, keys.first + len(keys.column), -1)
        seats, starts, ends, state_windows = self._in_flight(keys)
        cells = self.begin(seats, starts, ends)
        self.state_start[cells], self.state_end[cells] = _bounds(state_windows)
        self.due[cells] = self.stored_end[cells] = ends
        self.stored_start[cells], self.stored[cells] = starts, True
        self.older[cells[1:]] = np.where(seats[1:] == seats[:-1], cells[:-1], -1)
        self.newest[seats] = cells  # The last one of each key counts.

    def _in_flight(self, keys: KeySeats) -> tuple[Cells, Cells, Cells, pa.Array[Any]]:
        """Returns seats, starts, ends and state windows of the stored sessions of some keys, in order."""
        # seats, starts, ends: int64, one a stored row, the oldest run first. order: by seat, start and end; ordered
        # likewise; last: bool, by place in order.
        found = self._find(keys)
        if not len(found):
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, self.layout.local_schema.empty_table().column("value").combine_chunks()
        seats = found.wanted + keys.first
        starts, ends = _bounds(found.take("map_key"))
        order = np.lexsort((ends, starts, seats))  # Stable, so that of equal rows that of the newest run is last.
        ordered = [column[order] for column in (seats, starts, ends)]
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
        kept = order[last & ~found.deleted()[order]]
        return seats[kept], starts[kept], ends[kept], found.take("value").take(pa.array(kept))

    def _changes(self) -> pa.Table | None:
        # put, gone: cells, ascending. starts, ends: of put, and then of gone.
        put, gone = self.to_write()
        starts = np.concatenate([self.start[put], self.stored_start[gone]])
        ends = np.concatenate([self.end[put], self.stored_end[gone]])
        cells = np.concatenate([put, gone])
        kind: Any = self.map_key_type
        columns = {
            "map_key": window_column(kind, starts, ends),
            "value": window_column(kind, self.state_start[cells], self.state_end[cells]),
        }
        return self._rows(*delta_of_sessions(self.seat[cells], (starts, ends), columns, len(put)))

    def to_write(self, *, fired: bool = False) -> tuple[Cells, Cells]:
        """Returns the sessions to be stored anew, and those whose stored windows are to be deleted, ascending.

        Args:
            fired: Whether those that have fired are among them, though their windows are stored. Default: False.
        """
        # changed: cells, ascending. live, stored, same: bool, one a cell of changed.
        changed = np.flatnonzero(self.changed & (self.live | self.stored))
        live, stored = self.live[changed], self.stored[changed]
        same = live & stored
        same &= self.start[changed] == self.stored_start[changed]
        same &= self.end[changed] == self.stored_end[changed]
        if fired:
            same &= ~self.fired[changed]
        return changed[live & ~same], changed[stored & ~same]

    def _written(self) -> None:
        """Does nothing: the timers are still to be written."""

    def written_with_timers(self) -> None:
        """Marks all changes as written."""
        changed = np.flatnonzero(self.changed)
        self.stored[changed], self.stored_fired[changed] = self.live[changed], self.fired[changed]
        self.stored_start[changed], self.stored_end[changed] = self.start[changed], self.end[changed]
        self.changed[changed] = False


def delta_of_sessions(
    seats: Cells, identity: Sequence[Cells], columns: dict[str, pa.Array[Any]], put: int
) -> tuple[Cells, dict[str, pa.Array[Any]], Mask]:
    """Returns the changed rows, and which of them are tombstones.

    Args:
        seats: The seat of each row.
        identity: What identifies a row beside the seat, one number a row each.
        columns: The columns other than those of the key.
        put: How many rows are put. The rows after them are tombstones; a tombstone of a row that is put is left out.
    """
    rows = np.arange(len(seats))
    if 0 < put < len(rows):
        rows, _ = distinct_words(dict(enumerate((seats, *identity))), len(rows))
    deleted = rows >= put
    arrays = {name: column.take(pa.array(rows)) for name, column in columns.items()}
    if "value" in arrays:
        arrays["value"] = arrays["value"].take(pa.array(np.arange(len(rows)), mask=deleted))
    return seats[rows], arrays, deleted


def window_column(kind: TypeInformation, starts: Cells, ends: Cells) -> pa.Array[Any]:
    """Returns windows as a column of their type."""
    return pa.StructArray.from_arrays([pa.array(starts), pa.array(ends)], fields=list(kind.arrow_type))


def _bounds(windows: Any) -> tuple[Cells, Cells]:
    """Returns the starts and ends of a column of windows; null has any."""
    starts, ends = (column.fill_null(0).to_numpy() for column in windows.flatten())
    return starts, ends


def _running_max(values: Cells, groups: Cells) -> Cells:
    """Returns for each position the greatest value of its group so far; groups are in order."""
    # values, groups: int64, one a position; groups ascend. ranks: int64, the place of each value in their order, so
    # that equal values differ.
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values))
    offsets = groups * len(values)
    running = np.maximum.accumulate(ranks + offsets) - offsets
    return values[order[running]]
