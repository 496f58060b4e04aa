"""Timers of many keys at a time, for operators that work in columns."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.keys import KeyCodec
from dagster_flinkpy.state.layout import distinct_rows, hashes_of, sort_order
from dagster_flinkpy.state.timers.timer_table import TimerTable

__all__ = ["ColumnTimers"]

_UNKNOWN, _STORED, _REGISTERED, _DELETED, _RENEWED = -1, 0, 1, 2, 3
"""The status of a timer. Renewed means that it is registered after it was deleted, and that storage may have it."""
_LOGGED = 65_536
"""The log of a moment is compacted when it has grown by this many timers."""
_TIMERS_PER_ROW = 16
"""Timers in columns take far less memory than a row of another overlay."""

Status = npt.NDArray[np.int8]


class _Log:
    """The log of the timers of one moment: seats with a status. The last status of a seat counts."""

    def __init__(self) -> None:
        self._seats: list[Cells] = []
        self._status: list[Status] = []
        self._tidy = 0  # Seats at the beginning that are distinct.
        self.size = 0
        self.pending = False
        """Whether any timer may exist."""
        self.queued = False
        """Whether the moment is in the queue of moments that may be due."""

    def add(self, seats: Cells, status: int, *, first: bool = False) -> None:
        """Adds a status to the log; with ``first``, before all known entries."""
        at = 0 if first else len(self._seats)
        self._seats.insert(at, seats)
        self._status.insert(at, np.full(len(seats), status, dtype=np.int8))
        self.size += len(seats)
        self._tidy = 0 if first else self._tidy
        self.pending |= status != _DELETED
        if self.size > 2 * self._tidy + _LOGGED:
            self.tidy()

    def tidy(self) -> tuple[Cells, Status]:
        """Returns the distinct seats, and the status of each."""
        # seats: int64, status: int8, one an entry, the oldest first. last: int8, by seat. distinct: seats, ascending.
        if self._tidy < self.size:
            seats, status = np.concatenate(self._seats), np.concatenate(self._status)
            last = np.full(int(seats.max()) + 1, _UNKNOWN, dtype=np.int8)  # By seat.
            last[seats] = status
            gone = seats[status >= _DELETED]
            last[gone[last[gone] == _REGISTERED]] = _RENEWED
            # A registered timer that is already stored need not be written.
            stored = seats[status == _STORED]
            last[stored[last[stored] != _DELETED]] = _STORED
            distinct = np.flatnonzero(last != _UNKNOWN)
            self._set(distinct, last[distinct])
        if not self.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8)
        return self._seats[0], self._status[0]

    def fire(self) -> Cells:
        """Removes the existing timers and returns their seats. All stored timers of this moment must be known."""
        seats, status = self.tidy()
        left = status != _REGISTERED  # A timer that never was in storage leaves no tombstone.
        self._set(seats[left], np.full(int(left.sum()), _DELETED, dtype=np.int8))
        self.pending = False
        existing: Cells = seats[status != _DELETED]
        return existing

    def _set(self, seats: Cells, status: Status) -> None:
        self._seats, self._status = [seats], [status]
        self._tidy = self.size = len(seats)


class ColumnTimers(TimerTable[tuple[int, Any, Cells]]):
    """The timers of one name. They are stored in the same form as those of :class:`TimerQueue`.

    It is made for many keys with few times and namespaces. Each pair of time and namespace is a numbered *moment*. The
    timers of a moment fire together: time, namespace, and the seats in the order of their key groups and hashes.
    """

    namespace_type: TypeInformation

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._codec = KeyCodec(self.namespace_type)

    def moments(self, times: Sequence[int], namespaces: Sequence[Any]) -> list[int]:
        """Returns a number for each pair of time (milliseconds) and namespace. It is valid until timers fire."""
        found = []
        for pair in zip(times, self._codec.encode_all(namespaces), strict=True):
            number = self._moments.get(pair)
            if number is None:
                number = self._moments[pair] = self._next_number
                self._logs[number] = (pair, _Log())
                self._next_number += 1
            found.append(number)
        return found

    def register(self, seats: Cells, moments: Cells) -> None:
        """Registers timers of keys. A timer that already exists stays."""
        self._set(seats, moments, _REGISTERED)

    def delete(self, seats: Cells, moments: Cells) -> None:
        """Deletes timers of keys. A timer that does not exist is ignored."""
        self._set(seats, moments, _DELETED)

    @property
    def size(self) -> int:
        return -(-sum(log.size for _, log in self._logs.values()) // _TIMERS_PER_ROW)

    def clear(self) -> None:
        super().clear()
        self._moments: dict[tuple[int, Hashable], int] = {}
        self._logs: dict[int, tuple[tuple[int, Hashable], _Log]] = {}  # By number: the moment, and its log.
        self._next_number = 0
        self._queue: list[tuple[int, Any, int]] = []  # A heap of moments: time, rank of the namespace, number.

    def _next(self, timestamp: int) -> tuple[int, Any, Cells] | None:
        while self._queue and self._queue[0][0] <= timestamp:
            number = heapq.heappop(self._queue)[-1]
            (time, namespace), log = self._logs[number]
            log.queued = False
            if not log.pending:
                continue
            seats = log.fire()
            if not log.size:
                del self._moments[time, namespace], self._logs[number]
            if len(seats):
                return time, self._codec.decode_all([namespace])[0], seats[self._by_key(seats)]
        return None

    def _by_key(self, seats: Cells) -> npt.NDArray[np.int64]:
        keys = self.keys.all()
        assert keys is not None
        return sort_order(keys.sort_keys[seats], [keys.column.take(pa.array(seats))])

    def _set(self, seats: Cells, moments: Cells, status: int, *, first: bool = False) -> None:
        # moments, seats: int64, one a timer. ordered: moments, ascending. bounds: where each moment but the first
        # begins.
        if not len(seats):
            return
        if (moments == moments[0]).all():
            self._log(int(moments[0]), seats, status, first)
            return
        order = np.argsort(moments, kind="stable")
        ordered, sorted_seats = moments[order], seats[order]
        bounds = np.flatnonzero(np.diff(ordered)) + 1
        for number, part in zip(ordered[np.r_[0, bounds]].tolist(), np.split(sorted_seats, bounds), strict=True):
            self._log(number, part, status, first)

    def _log(self, number: int, seats: Cells, status: int, first: bool) -> None:
        (time, namespace), log = self._logs[number]
        log.add(seats, status, first=first)
        if log.pending and not log.queued:
            log.queued = True
            heapq.heappush(self._queue, (time, self._codec.rank(namespace), number))

    def _changes(self) -> pa.Table | None:
        # seats: int64, status: int8, moments: int64 (positions in self._logs), one a timer, by moment and then by seat.
        # changed: positions in them, ascending.
        tidied = [log.tidy() for _, log in self._logs.values()]
        if not tidied:
            return None
        seats = np.concatenate([seats for seats, _ in tidied])
        status = np.concatenate([status for _, status in tidied])
        moments = np.repeat(np.arange(len(tidied)), [len(seats) for seats, _ in tidied])
        # If nothing is stored, a timer that was registered and deleted needs no tombstone.
        changed = np.flatnonzero(status != _STORED if len(self.runs) else np.isin(status, (_REGISTERED, _RENEWED)))
        moments = moments[changed]
        namespaces = self.namespace_type.to_arrow(
            self._codec.decode_all([namespace for (_, namespace), _ in self._logs.values()])
        )
        times = np.array([time for (time, _), _ in self._logs.values()], dtype=np.int64)[moments]
        columns = {"namespace": namespaces.take(pa.array(moments)), "time": pa.array(times)}
        return self._rows(seats[changed], columns, status[changed] == _DELETED)

    def _fill(self, table: pa.Table) -> None:
        columns = {name: table.column(name).combine_chunks() for name in ("key", "namespace", "time")}
        seats = self._touch(columns["key"], hashes_of(table.column("sort_key").to_numpy()))
        pairs = pa.StructArray.from_arrays([columns["time"], columns["namespace"]], names=["time", "namespace"])
        first, codes = distinct_rows(pairs)
        rows = pa.array(first)
        namespaces = self.namespace_type.from_arrow(columns["namespace"].take(rows))
        numbers = self.moments(columns["time"].take(rows).to_pylist(), namespaces)
        # Changes that were made in the meantime take precedence.
        self._set(seats, np.array(numbers, dtype=np.int64)[codes], _STORED, first=True)
