"""Timers: keyed state in order of time (Flink: ``InternalTimerServiceImpl``)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import TouchedKeys
from dagster_flinkpy.state.layout import SortKeys
from dagster_flinkpy.state.runs import RunFiles
from dagster_flinkpy.state.time_order import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.timer_table import TimerTable

__all__ = ["TimerQueue"]

_TimerId = tuple[int, Any, Any]
"""Time, dict key of the key, dict key of the namespace."""
_Entry = tuple[int, int, Any, Any, _TimerId]
"""Time, sort key, rank of the key, rank of the namespace: the order of firing; and the timer."""


class TimerQueue(TimerTable[tuple[int, Any, Any]]):
    """The timers of one name. Time, key and namespace identify a timer; registering it twice makes one timer.

    Only changed timers and the next due timers are in memory. Stored timers are read when they are due.

    Timers fire one by one: time, key and namespace, in order of time, then key group, key hash, key and namespace. The
    order does not depend on the parallelism or on where epochs end. A timer's key is the current one when it fires.

    Args:
        keys: The touched keys of the backend.
        files: Where runs are kept.
        handles: The restored runs.
        name: The name of the queue.
        namespace_type: The type of the namespaces, or None for timers without one.
        make_room: Frees memory in the backend, if needed, before due keys are touched.
        touch: Reads the state of keys into the overlay.
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
        self._touch = touch
        self._changed: dict[_TimerId, bool] = {}  # Whether the timer exists.
        self._heap: list[_Entry] = []  # May contain deleted timers, and a timer twice.
        super().__init__(keys, files, handles, name, namespace_type=namespace_type, make_room=make_room)

    def register(self, timestamp: int) -> None:
        """Registers a timer for the current key and namespace.

        Args:
            timestamp: The time in milliseconds.

        Raises:
            ConfigurationError: The time is not a 64-bit int.
        """
        timer = self._timer(timestamp)
        if not self._changed.get(timer):
            self._changed[timer] = True
            heapq.heappush(self._heap, self._entry(timer, self.keys.sort_keys[self.keys.slot]))

    def delete(self, timestamp: int) -> None:
        """Deletes a timer of the current key and namespace. A timer that does not exist is ignored."""
        self._changed[self._timer(timestamp)] = False

    @property
    def size(self) -> int:
        return len(self._heap) + len(self._changed)

    def clear(self) -> None:
        super().clear()
        self._changed.clear()
        self._heap.clear()

    def _changes(self) -> pa.Table | None:
        slots = [self.keys.slots[key] for _, key, _ in self._changed]
        cells: list[Any] = slots
        if self._namespace_codec is not None:
            cells = [(slot, namespace) for slot, (_, _, namespace) in zip(slots, self._changed, strict=True)]
        times = [time for time, _, _ in self._changed]
        return self._delta(cells, {"time": times}, [not exists for exists in self._changed.values()])

    def _next(self, timestamp: int) -> tuple[int, Any, Any] | None:
        while self._heap and self._heap[0][0] <= timestamp:
            timer = heapq.heappop(self._heap)[-1]
            while self._heap and self._heap[0][-1] == timer:
                heapq.heappop(self._heap)
            if self._changed.get(timer, True):
                self._changed[timer] = False
                time, key, namespace = timer
                self.keys.select(key)
                codec = self._namespace_codec
                return time, self.keys.codec.decode_all([key])[0], codec and codec.decode_all([namespace])[0]
        return None

    def _timer(self, timestamp: int) -> _TimerId:
        self.require_key()
        if isinstance(timestamp, np.integer):
            timestamp = int(timestamp)
        if type(timestamp) is not int or not MIN_TIME <= timestamp <= MAX_TIME:
            raise ConfigurationError(
                f"timer of key {self.keys.current_key()!r}: its time is {timestamp!r}, but must be a 64-bit int, in "
                "milliseconds"
            )
        return timestamp, self.keys.current, self._namespace

    def _entry(self, timer: _TimerId, sort_key: int) -> _Entry:
        time, key, namespace = timer
        codec = self._namespace_codec
        return time, sort_key, self.keys.codec.rank(key), codec and codec.rank(namespace), timer

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
