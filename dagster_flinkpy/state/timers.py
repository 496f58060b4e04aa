"""Timers: keyed state in order of time (Flink: ``InternalTimerServiceImpl``)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import KeySlots, TouchedKeys
from dagster_flinkpy.state.layout import SortKeys, merge_runs
from dagster_flinkpy.state.runs import RunFiles
from dagster_flinkpy.state.tables import OverlayTable

__all__ = ["TimerQueue"]

LOAD_TIMERS = 65_536
"""Due timers that are read from storage at once; more only where they share one time."""

_MIN_TIME, _MAX_TIME = -(1 << 63), (1 << 63) - 1

_TimerId = tuple[int, Any, Any]
"""Time, dict key of the key, dict key of the namespace."""
_Entry = tuple[int, int, Any, Any, _TimerId]
"""Time, sort key, rank of the key, rank of the namespace: the order of firing; and the timer."""


class TimerQueue(OverlayTable):
    """The timers of one name. A timer is known by its time, key and namespace; registering it twice makes one.

    Only what changes is held in memory, and the next due timers. What is in storage is read when it is due.

    Args:
        keys: the touched keys of the backend.
        files: where runs are kept.
        handles: the restored runs.
        name: of the queue.
        namespace_type: None for timers without a namespace.
        make_room: frees memory in the backend, if there is need, before due keys are touched.
        touch: reads the state of keys into the overlay.
    """

    def __init__(
        self,
        keys: TouchedKeys,
        files: RunFiles,
        handles: Sequence[RunHandle],
        name: str,
        *,
        namespace_type: TypeInformation | None,
        make_room: Callable[[], None],
        touch: Callable[[Sequence[Any], pa.Array[Any], SortKeys], object],
    ) -> None:
        super().__init__(keys, files, handles, name, "TIMER", namespace_type=namespace_type)
        self._make_room = make_room
        self._touch = touch
        self._changed: dict[_TimerId, bool] = {}  # Whether the timer exists.
        self._heap: list[_Entry] = []  # May hold timers that were deleted, and a timer twice.
        self._unread_from = _MIN_TIME  # Stored timers before this time are in the heap, or were.

    def register(self, timestamp: int) -> None:
        """Registers a timer for the current key and namespace.

        Args:
            timestamp: milliseconds.

        Raises:
            ConfigurationError: it is no int of 64 bits.
        """
        timer = self._timer(timestamp)
        if not self._changed.get(timer):
            self._changed[timer] = True
            heapq.heappush(self._heap, self._entry(timer, self.keys.sort_keys[self.keys.slot]))

    def delete(self, timestamp: int) -> None:
        """Deletes a timer of the current key and namespace; one that is not there is fine."""
        self._changed[self._timer(timestamp)] = False

    def advance_to(self, timestamp: int) -> Iterator[tuple[int, Any, Any]]:
        """Fires the timers up to a time, those too that are registered meanwhile.

        Timers come in order of time, then key group, key hash, key and namespace: whatever the parallelism and
        wherever epochs end. Each is removed, and its key made the current one, as it is yielded.

        Args:
            timestamp: milliseconds; timers of this time are due.

        Yields:
            Time, key and namespace.
        """
        while True:
            if self._heap and self._heap[0][0] <= timestamp and self._heap[0][0] < self._unread_from:
                timer = heapq.heappop(self._heap)[-1]
                while self._heap and self._heap[0][-1] == timer:
                    heapq.heappop(self._heap)
                if self._changed.get(timer, True):
                    self._changed[timer] = False
                    time, key, namespace = timer
                    self.keys.select(key)
                    codec = self._namespace_codec
                    yield time, self.keys.codec.decode_all([key])[0], codec and codec.decode_all([namespace])[0]
            elif self._unread_from <= timestamp:
                self._read(timestamp)
            else:
                return

    @property
    def size(self) -> int:
        return len(self._heap) + len(self._changed)

    def load(self, keys: KeySlots) -> None:
        """Does nothing: a timer is registered and deleted without looking at what is stored."""

    def clear(self) -> None:
        self._changed.clear()
        self._heap.clear()
        self._unread_from = _MIN_TIME

    def _changes(self) -> pa.Table | None:
        slots = [self.keys.slots[key] for _, key, _ in self._changed]
        cells: list[Any] = slots
        if self._namespace_codec is not None:
            cells = [(slot, namespace) for slot, (_, _, namespace) in zip(slots, self._changed, strict=True)]
        times = [time for time, _, _ in self._changed]
        return self._delta(cells, {"time": times}, [not exists for exists in self._changed.values()])

    def _written(self) -> None:
        self.clear()  # All timers are in storage now, and are read again when they are due.

    def _timer(self, timestamp: int) -> _TimerId:
        self.require_key()
        if isinstance(timestamp, np.integer):
            timestamp = int(timestamp)
        if type(timestamp) is not int or not _MIN_TIME <= timestamp <= _MAX_TIME:
            raise ConfigurationError(
                f"timer of key {self.keys.current_key()!r}: its time is {timestamp!r}; it must be 64-bit int "
                "milliseconds"
            )
        return timestamp, self.keys.current, self._namespace

    def _entry(self, timer: _TimerId, sort_key: int) -> _Entry:
        time, key, namespace = timer
        codec = self._namespace_codec
        return time, sort_key, self.keys.codec.rank(key), codec and codec.rank(namespace), timer

    def _read(self, timestamp: int) -> None:
        """Reads the next due timers from storage and touches their keys."""
        self._make_room()  # May clear this queue, so it comes first.
        runs = list(self.runs.newest_first())
        start, stop = self._unread_from, timestamp
        times = [run.column("time").to_numpy() for run in runs]
        due = [np.flatnonzero((time >= start) & (time <= stop)) for time in times]
        if sum(map(len, due)) > LOAD_TIMERS:
            all_due = np.concatenate([time[rows] for time, rows in zip(times, due, strict=True)])
            stop = int(np.partition(all_due, LOAD_TIMERS)[LOAD_TIMERS])
            due = [rows[time[rows] <= stop] for time, rows in zip(times, due, strict=True)]
            self._unread_from = stop + 1
        else:
            later = [time[time > stop] for time in times]
            self._unread_from = min((int(time.min()) for time in later if len(time)), default=_MAX_TIME + 1)
        found = [run.rows(rows) for run, rows in zip(runs, due, strict=True) if len(rows)]
        if found:
            self._fill(merge_runs(self.layout, found, drop_deleted=True))

    def _fill(self, table: pa.Table) -> None:
        column = table.column("key").combine_chunks()
        sort_keys = table.column("sort_key").to_numpy()
        keys = self.layout.key_type.from_arrow(column)
        self._touch(keys, column, sort_keys)
        namespaces: Sequence[Any] = [None] * len(table)
        if self.namespace_type is not None and self._namespace_codec is not None:
            stored = self.namespace_type.from_arrow(table.column("namespace").combine_chunks())
            namespaces = self._namespace_codec.encode_all(stored)
        timers = zip(table.column("time").to_pylist(), self.keys.codec.encode_all(keys), namespaces, strict=True)
        self._heap += [self._entry(timer, key) for timer, key in zip(timers, sort_keys.tolist(), strict=True)]
        heapq.heapify(self._heap)
