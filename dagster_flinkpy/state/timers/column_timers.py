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
    """The log of the timers of one moment: slots with a status. The last status of a slot counts."""

    def __init__(self) -> None:
        self._slots: list[Cells] = []
        self._status: list[Status] = []
        self._tidy = 0  # Slots at the beginning that are distinct.
        self.size = 0
        self.pending = False
        """Whether any timer may exist."""
        self.queued = False
        """Whether the moment is in the queue of moments that may be due."""

    def add(self, slots: Cells, status: int, *, first: bool = False) -> None:
        """Adds a status to the log; with ``first``, before all known entries."""
        at = 0 if first else len(self._slots)
        self._slots.insert(at, slots)
        self._status.insert(at, np.full(len(slots), status, dtype=np.int8))
        self.size += len(slots)
        self._tidy = 0 if first else self._tidy
        self.pending |= status != _DELETED
        if self.size > 2 * self._tidy + _LOGGED:
            self.tidy()

    def tidy(self) -> tuple[Cells, Status]:
        """Returns the distinct slots, and the status of each."""
        # slots: int64, status: int8, one an entry, the oldest first. last: int8, by slot. distinct: slots, ascending.
        if self._tidy < self.size:
            slots, status = np.concatenate(self._slots), np.concatenate(self._status)
            last = np.full(int(slots.max()) + 1, _UNKNOWN, dtype=np.int8)  # By slot.
            last[slots] = status
            gone = slots[status >= _DELETED]
            last[gone[last[gone] == _REGISTERED]] = _RENEWED
            # A registered timer that is already stored need not be written.
            stored = slots[status == _STORED]
            last[stored[last[stored] != _DELETED]] = _STORED
            distinct = np.flatnonzero(last != _UNKNOWN)
            self._set(distinct, last[distinct])
        if not self.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8)
        return self._slots[0], self._status[0]

    def fire(self) -> Cells:
        """Removes the existing timers and returns their slots. All stored timers of this moment must be known."""
        slots, status = self.tidy()
        left = status != _REGISTERED  # A timer that never was in storage leaves no tombstone.
        self._set(slots[left], np.full(int(left.sum()), _DELETED, dtype=np.int8))
        self.pending = False
        existing: Cells = slots[status != _DELETED]
        return existing

    def _set(self, slots: Cells, status: Status) -> None:
        self._slots, self._status = [slots], [status]
        self._tidy = self.size = len(slots)


class ColumnTimers(TimerTable[tuple[int, Any, Cells]]):
    """The timers of one name. They are stored in the same form as those of :class:`TimerQueue`.

    It is made for many keys with few times and namespaces. Each pair of time and namespace is a numbered *moment*. The
    timers of a moment fire together: time, namespace, and the slots in the order of their key groups and hashes.
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

    def register(self, slots: Cells, moments: Cells) -> None:
        """Registers timers of keys. A timer that already exists stays."""
        self._set(slots, moments, _REGISTERED)

    def delete(self, slots: Cells, moments: Cells) -> None:
        """Deletes timers of keys. A timer that does not exist is ignored."""
        self._set(slots, moments, _DELETED)

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
            slots = log.fire()
            if not log.size:
                del self._moments[time, namespace], self._logs[number]
            if len(slots):
                return time, self._codec.decode_all([namespace])[0], slots[self._by_key(slots)]
        return None

    def _by_key(self, slots: Cells) -> npt.NDArray[np.int64]:
        keys = self.keys.all()
        assert keys is not None
        return sort_order(keys.sort_keys[slots], [keys.column.take(pa.array(slots))])

    def _set(self, slots: Cells, moments: Cells, status: int, *, first: bool = False) -> None:
        # moments, slots: int64, one a timer. ordered: moments, ascending. bounds: where each moment but the first
        # begins.
        if not len(slots):
            return
        if (moments == moments[0]).all():
            self._log(int(moments[0]), slots, status, first)
            return
        order = np.argsort(moments, kind="stable")
        ordered, sorted_slots = moments[order], slots[order]
        bounds = np.flatnonzero(np.diff(ordered)) + 1
        for number, part in zip(ordered[np.r_[0, bounds]].tolist(), np.split(sorted_slots, bounds), strict=True):
            self._log(number, part, status, first)

    def _log(self, number: int, slots: Cells, status: int, first: bool) -> None:
        (time, namespace), log = self._logs[number]
        log.add(slots, status, first=first)
        if log.pending and not log.queued:
            log.queued = True
            heapq.heappush(self._queue, (time, self._codec.rank(namespace), number))

    def _changes(self) -> pa.Table | None:
        # slots: int64, status: int8, moments: int64 (positions in self._logs), one a timer, by moment and then by slot.
        # changed: positions in them, ascending.
        tidied = [log.tidy() for _, log in self._logs.values()]
        if not tidied:
            return None
        slots = np.concatenate([slots for slots, _ in tidied])
        status = np.concatenate([status for _, status in tidied])
        moments = np.repeat(np.arange(len(tidied)), [len(slots) for slots, _ in tidied])
        # If nothing is stored, a timer that was registered and deleted needs no tombstone.
        changed = np.flatnonzero(status != _STORED if len(self.runs) else np.isin(status, (_REGISTERED, _RENEWED)))
        moments = moments[changed]
        namespaces = self.namespace_type.to_arrow(
            self._codec.decode_all([namespace for (_, namespace), _ in self._logs.values()])
        )
        times = np.array([time for (time, _), _ in self._logs.values()], dtype=np.int64)[moments]
        columns = {"namespace": namespaces.take(pa.array(moments)), "time": pa.array(times)}
        return self._rows(slots[changed], columns, status[changed] == _DELETED)

    def _fill(self, table: pa.Table) -> None:
        columns = {name: table.column(name).combine_chunks() for name in ("key", "namespace", "time")}
        slots = self._touch(columns["key"], hashes_of(table.column("sort_key").to_numpy()))
        pairs = pa.StructArray.from_arrays([columns["time"], columns["namespace"]], names=["time", "namespace"])
        first, codes = distinct_rows(pairs)
        rows = pa.array(first)
        namespaces = self.namespace_type.from_arrow(columns["namespace"].take(rows))
        numbers = self.moments(columns["time"].take(rows).to_pylist(), namespaces)
        # Changes that were made in the meantime take precedence.
        self._set(slots, np.array(numbers, dtype=np.int64)[codes], _STORED, first=True)
