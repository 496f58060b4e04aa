"""Timers of many keys at a time, for operators that work in columns."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells
from dagster_flinkpy.state.keys import KeyCodec
from dagster_flinkpy.state.layout import distinct_rows, hashes_of, sort_order
from dagster_flinkpy.state.timers.timer_table import TimerTable

__all__ = ["ColumnTimers"]

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
