"""Timers: keyed state in order of time (Flink: ``InternalTimerServiceImpl``)."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.files.cache import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.layout import distinct_rows, hashes_of
from dagster_flinkpy.state.timers.timer_table import TimeParts, TimerTable

__all__ = ["TimerQueue"]

Times = npt.NDArray[np.int64]
Cells = npt.NDArray[np.int64]
"""The seat of a key in the lower 32 bits, the number of a namespace above. Inverted (``~``) if a timer is deleted."""
_SEAT_BITS = 32
_SEAT = (1 << _SEAT_BITS) - 1
_Timer = tuple[int, int]
"""Time and cell."""


class TimerQueue(TimerTable[tuple[int, Any, Any]]):
    """The timers of one name. Time, key and namespace identify a timer; registering it twice makes one timer.

    Only changed timers and the next due timers are in memory. Stored timers are read when they are due. A change is
    only written down; changes are brought in order together when timers fire, and the last change of a timer counts.

    Timers fire one by one: time, key and namespace, in order of time, then key group, key hash, key and namespace. The
    order does not depend on the parallelism or on where epochs end. A timer's key is the current one when it fires.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._log_times, self._log_cells = array("q"), array("q")
        """The changes that are not in order yet."""
        self._parts = TimeParts(_latest)
        """Earlier changes."""
        self._namespace: Any = None
        super().__init__(*args, **kwargs)

    def set_current_namespace(self, namespace: Any) -> None:
        """Sets the namespace for later changes."""
        if self._codec is None:
            raise ConfigurationError(f"timers {self.name!r} have no namespace")
        encode = self._codec.encode
        self._namespace = namespace if encode is None else encode(namespace)
        self._space = self._number(self._namespace) << _SEAT_BITS

    def register(self, timestamp: int) -> None:
        """Registers a timer for the current key and namespace.

        Args:
            timestamp: The time in milliseconds.

        Raises:
            ConfigurationError: The time is not a 64-bit int.
        """
        if type(timestamp) is bool:
            raise self._rejected(timestamp)
        try:
            self._log_cells.append(self._space + self.keys.seat)
            self._log_times.append(timestamp)
        except (TypeError, OverflowError):
            raise self._rejected(timestamp) from None

    def delete(self, timestamp: int) -> None:
        """Deletes a timer of the current key and namespace. A timer that does not exist is ignored."""
        if type(timestamp) is bool:
            raise self._rejected(timestamp)
        try:
            self._log_cells.append(~(self._space + self.keys.seat))
            self._log_times.append(timestamp)
        except (TypeError, OverflowError):
            raise self._rejected(timestamp) from None

    @property
    def size(self) -> int:
        return len(self._log_times) + len(self._parts) + len(self._due) + len(self._past_times)

    def clear(self) -> None:
        super().clear()
        del self._log_times[:], self._log_cells[:]
        self._parts.clear()
        self._stored: tuple[Times, Cells] | None = None  # Timers from storage that are due.
        self._past_times, self._past_cells = array("q"), array("q")  # Timers that were due, and may be in storage.
        self._namespaces, self._numbers = [self._namespace], {self._namespace: 0}
        self._space = 0
        self._firing: int | None = None  # Timers up to this time are firing.
        self._due: list[_Timer] = []  # The next one is the last.
        self._added: list[tuple[Any, _Timer]] = []  # A heap of those registered while firing, with their places.
        self._dropped: set[_Timer] = set()  # Those deleted while firing.
        self._looked_at = 0  # Changes that do not concern the timers that fire.

    def times_to(self, timestamp: int) -> Iterator[int]:
        """Fires the timers up to a time like :meth:`advance_to`, and yields their times. Timers have no namespaces."""
        keys, log = self.keys, self._log_times
        for time, _, _ in self.advance_to(timestamp):
            yield time
            # If no timer has changed in the meantime, the next one is what was found first.
            while self._due and self._looked_at == len(log) and not self._added and not self._dropped:
                time, keys.seat = self._due.pop()
                yield time

    def _next(self, timestamp: int) -> tuple[int, Any, Any] | None:
        if timestamp != self._firing:
            self._begin(timestamp)
        elif self._looked_at < len(self._log_times):
            self._change_due(timestamp)
        while self._due or self._added:
            timer = self._pop()
            if timer in self._dropped:
                self._dropped.discard(timer)
                continue
            time, cell = timer
            self.keys.seat = cell & _SEAT
            codec = self._codec
            return (
                time,
                self.keys.current_key(),
                codec and codec.decode_all([self._namespaces[cell >> _SEAT_BITS]])[0],
            )
        self._firing = None
        return None

    def _begin(self, timestamp: int) -> None:
        """Finds the due timers."""
        # times, cells: int64, one a timer, by time; a negative cell is ~cell of a deleted one. order: as they fire.
        self._settle()
        if timestamp < MIN_TIME:
            return
        times, cells = self._parts.take(timestamp)
        if self._stored is not None:  # Changes that were made in the meantime take precedence.
            before, stored = self._stored
            times, cells = _latest(np.concatenate([before, times]), np.concatenate([stored, cells]))
            self._stored = None
        if not len(times):
            return
        if len(self.runs):
            self._past_times.frombytes(times.tobytes())
            self._past_cells.frombytes(np.minimum(cells, ~cells).tobytes())
        exist = cells >= 0
        times, cells = times[exist], cells[exist]
        order, _ = self._order(times, cells & _SEAT, lambda i: self._namespaces[cells[i] >> _SEAT_BITS])
        self._due = list(zip(times[order[::-1]].tolist(), cells[order[::-1]].tolist(), strict=True))
        self._firing, self._looked_at = timestamp, len(self._log_times)

    def _change_due(self, timestamp: int) -> None:
        """Looks for changes that were made while firing, and makes those of timers that are due."""
        i = self._looked_at
        while i < len(self._log_times):
            if self._log_times[i] > timestamp:
                i += 1
                continue
            time, cell = self._log_times.pop(i), self._log_cells.pop(i)
            timer = time, max(cell, ~cell)
            if len(self.runs):
                self._past_times.append(time)
                self._past_cells.append(min(cell, ~cell))
            if cell < 0:
                self._dropped.add(timer)
            else:
                self._dropped.discard(timer)
                heapq.heappush(self._added, (self._place(timer), timer))
        self._looked_at = i

    def _pop(self) -> _Timer:
        """Removes and returns the next timer."""
        if not self._added:
            return self._due.pop()
        if self._due and self._place(self._due[-1]) < self._added[0][0]:
            return self._due.pop()
        timer = heapq.heappop(self._added)[1]
        while self._added and self._added[0][1] == timer:
            heapq.heappop(self._added)
        if self._due and self._due[-1] == timer:
            self._due.pop()
        return timer

    def _place(self, timer: _Timer) -> Any:
        time, cell = timer
        return self._rank(time, cell & _SEAT, self._namespaces[cell >> _SEAT_BITS])

    def _settle(self) -> None:
        """Brings the changes in order."""
        left = [*self._due, *(timer for _, timer in self._added)]
        if left:  # Those who fired them have stopped.
            kept = [timer for timer in left if timer not in self._dropped]
            self._log_times[:0] = array("q", [time for time, _ in kept])
            self._log_cells[:0] = array("q", [cell for _, cell in kept])
        self._due, self._added, self._firing = [], [], None
        self._dropped.clear()
        if self._log_times:
            self._parts.add(np.array(self._log_times, dtype=np.int64), np.array(self._log_cells, dtype=np.int64))
            del self._log_times[:], self._log_cells[:]

    def _changes(self) -> pa.Table | None:
        # times, cells: int64, one a timer, by time; a negative cell is ~cell of a deleted one. used: namespaces,
        # ascending; codes: positions in used, one a timer.
        self._settle()
        times, cells = self._parts.take(MAX_TIME)
        if self._past_times:
            past = np.array(self._past_times, dtype=np.int64), np.array(self._past_cells, dtype=np.int64)
            times, cells = _latest(np.concatenate([past[0], times]), np.concatenate([past[1], cells]))
        if not len(self.runs):  # There is nothing to delete.
            times, cells = times[cells >= 0], cells[cells >= 0]
        deleted, cells = cells < 0, np.maximum(cells, ~cells)
        columns: dict[str, pa.Array[Any]] = {"time": pa.array(times)}
        if self.namespace_type is not None and self._codec is not None:
            used, codes = np.unique(cells >> _SEAT_BITS, return_inverse=True)
            known = self._codec.decode_all([self._namespaces[number] for number in used.tolist()])
            columns["namespace"] = self.namespace_type.to_arrow(list(known)).take(pa.array(codes))
        return self._rows(cells & _SEAT, columns, deleted)

    def _rejected(self, timestamp: Any) -> ConfigurationError:
        """Takes back half of a change, and returns the error to raise."""
        self.require_key()
        del self._log_cells[len(self._log_times) :]
        return ConfigurationError(
            f"timer of key {self.keys.current_key()!r}: its time is {timestamp!r}, but must be a 64-bit int, in "
            "milliseconds"
        )

    def _fill(self, table: pa.Table) -> None:
        seats = self._touch(one_chunk(table.column("key")), hashes_of(table.column("sort_key").to_numpy()))
        if self.namespace_type is not None and self._codec is not None:
            column = one_chunk(table.column("namespace"))
            first, codes = distinct_rows(column)
            known = self._codec.encode_all(self.namespace_type.from_arrow(column.take(pa.array(first))))
            seats |= np.array([self._number(namespace) << _SEAT_BITS for namespace in known], dtype=np.int64)[codes]
        self._stored = table.column("time").to_numpy(), seats

    def _number(self, namespace: Any) -> int:
        """Returns the number of a namespace, given by its dict key."""
        number = self._numbers.get(namespace)
        if number is None:
            number = self._numbers[namespace] = len(self._namespaces)
            self._namespaces.append(namespace)
        return number


def _latest(times: Times, cells: Cells) -> tuple[Times, Cells]:
    """Returns the last change of each timer, in order of time."""
    # times, cells, timers: int64, one a change, by time, and of equal times the oldest first. groups: int64, ascending:
    # the number of the time of each. rows: changes of times with several timers, ascending.
    order = np.argsort(times, kind="stable")
    times, cells = times[order], cells[order]
    timers = np.maximum(cells, ~cells)
    new_time, new_timer = times[1:] != times[:-1], timers[1:] != timers[:-1]
    if (mixed := new_timer & ~new_time).any():
        # Where several timers have the same time, the changes of each are brought together.
        groups = np.concatenate([[0], np.cumsum(new_time)])
        several = np.zeros(int(groups[-1]) + 1, dtype=np.bool_)
        several[groups[1:][mixed]] = True
        rows = np.flatnonzero(several[groups])
        cells[rows] = cells[rows[np.lexsort((timers[rows], groups[rows]))]]
        timers = np.maximum(cells, ~cells)
        new_timer = timers[1:] != timers[:-1]
    last = np.ones(len(times), dtype=np.bool_)
    last[:-1] = new_time | new_timer
    return times[last], cells[last]
