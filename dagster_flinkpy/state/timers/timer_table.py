"""Stored timers, read in order of time: the cost of firing depends on the due timers, not on all timers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.files.cache import Run
from dagster_flinkpy.state.files.time_order import MAX_TIME, MIN_TIME, Indices, TimedRun
from dagster_flinkpy.state.keys import KeyCodec, KeySeats
from dagster_flinkpy.state.layout import merge_runs
from dagster_flinkpy.state.overlay_table import OverlayTable

__all__ = ["LOAD_TIMERS", "TimeParts", "TimerTable", "Times"]

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
