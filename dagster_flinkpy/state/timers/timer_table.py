"""Stored timers, read in order of time: the cost of firing depends on the due timers, not on all timers.

`TimerQueue` has timers one by one. Those here are of many keys at a time, for operators that work in columns.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.files.cache import MAX_TIME, MIN_TIME, Indices, Run, TimedRun
from dagster_flinkpy.state.keys import KeyCodec, KeySeats
from dagster_flinkpy.state.layout import distinct_rows, hashes_of, merge_runs, sort_order
from dagster_flinkpy.state.overlay_table import OverlayTable
from dagster_flinkpy.state.session_table import SessionTable, delta_of_sessions, window_column

__all__ = ["LOAD_TIMERS", "ColumnTimers", "SessionTimers", "TimeParts", "TimerTable", "Times"]

Times = npt.NDArray[np.int64]


class TimeParts:
    """Pairs of time and cell, from which those that are due are taken.

    Args:
        tidy: Returns rows in order of time, without those that others replace. Newer rows come last.
    """

    def __init__(self, tidy: Callable[[Times, Cells], tuple[Times, Cells]]) -> None:
        self._tidy = tidy
        self._parts: list[tuple[Times, Cells]] = []  # The oldest and largest first.

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._parts)

    def add(self, times: Times, cells: Cells) -> None:
        """Adds rows, in any order of time."""
        if not len(times):
            return
        # Merging parts of similar size keeps their number small, and sorts each row only a few times.
        while self._parts and len(self._parts[-1][0]) <= 2 * len(times):
            before, others = self._parts.pop()
            times, cells = np.concatenate([before, times]), np.concatenate([others, cells])
        self._parts.append(self._tidy(times, cells))

    def take(self, until: int) -> tuple[Times, Cells]:
        """Removes the rows up to a time, in milliseconds, and returns them in order."""
        # Each part: times: int64, ascending, and cells, as many.
        taken, left = [], []
        for times, cells in self._parts:
            stop = int(np.searchsorted(times, until, side="right"))
            if stop:
                taken.append((times[:stop], cells[:stop]))
            if stop < len(times):
                left.append((times[stop:], cells[stop:]))
        self._parts = left
        if not taken:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return self._tidy(np.concatenate([part for part, _ in taken]), np.concatenate([part for _, part in taken]))

    def clear(self) -> None:
        """Drops all rows."""
        self._parts.clear()


LOAD_TIMERS = 65_536
"""The number of due timers to read from storage at once. It reads more only if they have the same time."""


Due = TypeVar("Due")


class TimerTable(OverlayTable, Generic[Due]):
    """The base of timers: changed timers are in memory; stored timers are read when they are due.

    The type argument is what fires together.

    Args:
        where: See :class:`OverlayTable`.
        make_room: Frees memory in the backend, if needed, before due keys are touched.
        touch: Reads the state of keys, given with their hashes, into the overlay and returns their seats.
    """

    def __init__(
        self,
        *where: Any,
        make_room: Callable[[], None],
        touch: Callable[[pa.Array[Any], npt.NDArray[np.int32]], Indices],
    ) -> None:
        super().__init__(*where)
        self._codec = None if self.namespace_type is None else KeyCodec(self.namespace_type)
        self._make_room, self._touch = make_room, touch
        self.clear()

    def advance_to(self, timestamp: int) -> Iterator[Due]:
        """Fires the timers up to a time, including those registered in the meantime, and removes them.

        Args:
            timestamp: The time in milliseconds, inclusive.

        Yields:
            What is due, in order of time.
        """
        while True:
            due = self._next(min(timestamp, self._unread_from - 1))
            if due is not None:
                yield due
            elif self._unread_from <= timestamp:
                self._read(timestamp)
            else:
                self._fired(timestamp + 1)
                return

    def load(self, keys: KeySeats) -> None:
        """Does nothing: timers are registered and deleted without reading stored ones."""

    def clear(self) -> None:
        self._unread_from = MIN_TIME  # Stored timers before this time are in memory, or were.
        self._fired_before = MIN_TIME  # Stored timers before this time have fired, or were deleted.

    def flush(self) -> None:
        self.runs.fired(self._fired_before)  # Before the write: a timer in the past may have been registered.
        super().flush()

    def _written(self) -> None:
        self.clear()  # All timers are in storage now, and are read again when they are due.

    @abstractmethod
    def _next(self, timestamp: int) -> Due | None:
        """Removes what is due next in memory, up to a time, and returns it; None if nothing is due."""

    @abstractmethod
    def _fill(self, table: pa.Table) -> None:
        """Loads stored timers into memory, and touches their keys."""

    def _order(self, times: Indices, seats: Indices, namespace_of: Callable[[int], Any]) -> tuple[Indices, bool]:
        """Returns the order in which timers fire, and whether the hashes of the keys leave it open.

        Args:
            times: The times, in milliseconds.
            seats: The seats of the keys.
            namespace_of: Returns the dict key of the namespace of a timer, given by its index.
        """
        # times, seats: int64, sort_keys: uint64, one a timer. order: int64, a permutation by time and sort key. same:
        # bool, by place in order but the last: whether the next one has them, too. tied: bool, by place in order.
        if len(times) < 2:
            return np.arange(len(times)), False
        sort_keys = self.keys.sort_keys[seats]
        order = np.lexsort((sort_keys, times))
        same = (times[order[1:]] == times[order[:-1]]) & (sort_keys[order[1:]] == sort_keys[order[:-1]])
        if not same.any():
            return order, False
        tied = np.append(same, False) | np.append(False, same)
        ranks = {i: self._rank(int(times[i]), int(seats[i]), namespace_of(i)) for i in order[tied].tolist()}
        order[tied] = sorted(ranks, key=ranks.__getitem__)
        return order, True

    def _rank(self, time: int, seat: int, namespace: Any) -> Any:
        """Returns the place of a timer in the order of firing."""
        keys, codec = self.keys, self._codec
        return time, keys.sort_keys[seat], keys.codec.rank(keys.encoded(seat)), codec and codec.rank(namespace)

    def _fired(self, before: int) -> None:
        """Records that the stored timers before a time have fired."""
        self._fired_before = max(self._fired_before, before)

    def _read(self, timestamp: int) -> None:
        """Reads the next due timers from storage; those that were read earlier must have fired."""
        self._fired(self._unread_from)
        self._make_room()  # May clear this table, so it comes first.
        runs = self.runs.by_time()
        start, stop = self._unread_from, timestamp
        due = _due(runs, start, stop)
        if sum(len(rows) for _, rows in due) > LOAD_TIMERS:
            earliest = [run.take("time", rows[: LOAD_TIMERS + 1]).to_numpy() for run, rows in due]
            stop = int(np.partition(np.concatenate(earliest), LOAD_TIMERS)[LOAD_TIMERS])
            due = _due(runs, start, stop)
            self._unread_from = stop + 1
        else:
            self._unread_from = min((timed.next_time(stop + 1) for timed in runs), default=MAX_TIME + 1)
        found = [run.rows(np.sort(rows)) for run, rows in due if len(rows)]
        if found:
            self._fill(merge_runs(self.layout, found, drop_deleted=True))


def _due(newest_first: list[TimedRun], start: int, stop: int) -> list[tuple[Run, Indices]]:
    """Returns the rows that decide which timers exist at some times: timers, and tombstones that hide some."""
    due = []
    hidden = MAX_TIME + 1  # Timers of older runs before this time have already fired, so nothing needs to hide them.
    for timed in reversed(newest_first):
        due.append((timed.run, timed.rows(start, stop)))
        due.append((timed.run, timed.rows(max(start, hidden), stop, deleted=True)))
        hidden = min(hidden, timed.fired_before)
    return due[::-1]


_TIMERS_PER_ROW = 16
"""Timers in columns take far less memory than a row of another overlay."""

Moment = tuple[int, Hashable]
"""A time, and the dict key of a namespace."""


class ColumnTimers(TimerTable[tuple[int, Any, Cells]]):
    """The timers of one name. They are stored in the same form as those of :class:`TimerQueue`.

    It is made for many keys with few *moments*, pairs of time and namespace. The timers of a moment fire together:
    time, namespace, and the seats in the order of their key groups and hashes. Nothing else deletes them.
    """

    exact = True
    namespace_type: TypeInformation
    _codec: KeyCodec

    def register(
        self, seats: Cells, codes: Cells, times: Sequence[int], namespaces: Sequence[Any], *, stored: bool = False
    ) -> None:
        """Registers timers of keys. A timer that already exists stays.

        Args:
            seats: The seat of each timer's key.
            codes: The index of each timer's moment in ``times`` and ``namespaces``.
            times: The times of some moments, in milliseconds.
            namespaces: Their namespaces.
            stored: Whether storage has them, of moments that are due. Default: False.
        """
        if not len(seats):
            return  # as those of a file whose timers have all fired
        # order: int64, positions by code. stops: where each code but the last ends.
        moments = list(zip(times, self._codec.encode_all(namespaces), strict=True))
        order = np.argsort(codes, kind="stable") if len(moments) > 1 else np.arange(len(seats))
        stops = np.searchsorted(codes[order], np.arange(1, len(moments)))
        for moment, own in zip(moments, np.split(seats[order], stops), strict=True):
            if moment not in self._waiting:
                heapq.heappush(self._queue, (moment[0], self._codec.rank(moment[1]), moment))
            self._waiting.setdefault(moment, []).append(own)
            self._size += len(own)
            if stored:
                self._stored.setdefault(moment, []).append(own)

    @property
    def size(self) -> int:
        return -(-self._size // _TIMERS_PER_ROW)

    def clear(self) -> None:
        super().clear()
        self._waiting: dict[Moment, list[Cells]] = {}  # The seats of timers that have not fired; may repeat.
        self._stored: dict[Moment, list[Cells]] = {}  # Those of timers that storage has, of moments that were due.
        self._queue: list[tuple[int, Any, Moment]] = []  # A heap of the waiting: time, rank of the namespace, moment.
        self._size = 0

    def _next(self, timestamp: int) -> tuple[int, Any, Cells] | None:
        if not self._queue or self._queue[0][0] > timestamp:
            return None
        *_, (time, namespace) = heapq.heappop(self._queue)
        parts = self._waiting.pop((time, namespace))
        self._size -= sum(map(len, parts))
        seats = _distinct(parts)
        keys = self.keys.all()
        assert keys is not None
        order = sort_order(keys.sort_keys[seats], [keys.column.take(pa.array(seats))])
        return time, self._codec.decode_all([namespace])[0], seats[order]

    def _changes(self) -> pa.Table | None:
        # parts: of each moment the seats whose timers wait, and those whose stored timers have fired. seats, at: int64,
        # one a timer: at is its place in parts.
        moments = [*{**self._waiting, **self._stored}]
        parts = []
        for moment in moments:
            waiting = _distinct(self._waiting.get(moment, []))
            parts += [waiting, np.setdiff1d(_distinct(self._stored.get(moment, [])), waiting, assume_unique=True)]
        if not parts:
            return None
        seats, at = np.concatenate(parts), np.repeat(np.arange(len(parts)), list(map(len, parts)))
        names = self._codec.decode_all([namespace for _, namespace in moments])
        columns = {
            "namespace": self.namespace_type.to_arrow(list(names)).take(pa.array(at // 2)),
            "time": pa.array(np.array([time for time, _ in moments], dtype=np.int64)[at // 2]),
        }
        return self._rows(seats, columns, at % 2 == 1)

    def _fill(self, table: pa.Table) -> None:
        columns = {name: one_chunk(table.column(name)) for name in ("key", "namespace", "time")}
        seats = self._touch(columns["key"], hashes_of(table.column("sort_key").to_numpy()))
        pairs = pa.StructArray.from_arrays([columns["time"], columns["namespace"]], names=["time", "namespace"])
        first, codes = distinct_rows(pairs)
        rows = pa.array(first)
        namespaces = self.namespace_type.from_arrow(columns["namespace"].take(rows))
        self.register(seats, codes, columns["time"].take(rows).to_pylist(), namespaces, stored=True)


def _distinct(parts: Sequence[Cells]) -> Cells:
    """Returns the seats of all parts, ascending. A flag for each seat takes far less time than ``np.unique``."""
    seats = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    flags = np.zeros(int(seats.max(initial=-1)) + 1, dtype=np.bool_)
    flags[seats] = True
    return np.flatnonzero(flags)


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
