"""Timers of many keys at a time, for operators that work in columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.cell_columns import Cells, grown
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.int_index import IntIndex
from dagster_flinkpy.state.keys import KeyCodec, KeySlots, TouchedKeys
from dagster_flinkpy.state.layout import distinct_rows, hashes_of, merge_runs, sort_order
from dagster_flinkpy.state.runs import RunFiles
from dagster_flinkpy.state.tables import OverlayTable
from dagster_flinkpy.state.timers import LOAD_TIMERS

__all__ = ["ColumnTimers"]

_MIN_TIME, _MAX_TIME = -(1 << 63), (1 << 63) - 1
_UNKNOWN, _REGISTERED, _DELETED, _STORED = 0, 1, 2, 3
_SLOT_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1


class ColumnTimers(OverlayTable):
    """The timers of one name. In storage they are what a :class:`TimerQueue` writes.

    Made for many keys with few times and namespaces; a pair of these is a *moment*, and has a number.

    Args:
        keys: the touched keys of the backend.
        files: where runs are kept.
        handles: the restored runs.
        name: of the timers.
        namespace_type: of the namespaces.
        make_room: frees memory in the backend, if there is need, before due keys are touched.
        touch: reads the state of keys, given with their hashes, into the overlay and gives their slots.
    """

    def __init__(
        self,
        keys: TouchedKeys,
        files: RunFiles,
        handles: Sequence[RunHandle],
        name: str,
        *,
        namespace_type: TypeInformation,
        make_room: Callable[[], None],
        touch: Callable[[pa.Array[Any], npt.NDArray[np.int32]], Cells],
    ) -> None:
        super().__init__(keys, files, handles, name, "TIMER", namespace_type=namespace_type)
        self._type = namespace_type
        self._codec = KeyCodec(namespace_type)
        self._make_room = make_room
        self._touch = touch
        self._index = IntIndex()
        self.clear()

    def moments(self, times: Sequence[int], namespaces: Sequence[Any]) -> list[int]:
        """A number for each pair of time, in milliseconds, and namespace; good until the overlay is cleared."""
        numbers = self._moments
        pairs = zip(times, self._codec.encode_all(namespaces), strict=True)
        return [numbers.setdefault(pair, len(numbers)) for pair in pairs]

    def register(self, slots: Cells, moments: Cells) -> None:
        """Registers timers of keys; one that is there already is fine."""
        self._set(slots, moments, _REGISTERED)

    def delete(self, slots: Cells, moments: Cells) -> None:
        """Deletes timers of keys; one that is not there is fine."""
        self._set(slots, moments, _DELETED)

    def advance_to(self, timestamp: int) -> Iterator[tuple[int, Any, Cells]]:
        """Fires the timers up to a time, and removes them.

        Args:
            timestamp: milliseconds; timers of this time are due.

        Yields:
            Time, namespace, and the slots of its keys, in the order of their key groups and hashes.
        """
        while True:
            due = self._next_moment(min(timestamp, self._unread_from - 1))
            if due is not None:
                (time, namespace), number = due
                timers = np.flatnonzero(
                    (self._codes[: len(self._index)] >> _SLOT_BITS == number) & self._exists[: len(self._index)]
                )
                self._status[timers] = _DELETED
                self._exists[timers] = False
                self._alive[number] = 0
                slots = self._codes[timers] & _SLOT_MASK
                yield time, self._codec.decode_all([namespace])[0], slots[self._order(slots)]
            elif self._unread_from <= timestamp:
                self._read_due(timestamp)
            else:
                return

    @property
    def size(self) -> int:
        return len(self._index)

    def load(self, keys: KeySlots) -> None:
        """Does nothing: a timer is registered and deleted without looking at what is stored."""

    def clear(self) -> None:
        self._index.clear()
        self._moments: dict[tuple[int, Hashable], int] = {}
        self._codes: Cells = np.zeros(0, dtype=np.int64)  # By timer: moment and slot.
        self._status: npt.NDArray[np.int8] = np.zeros(0, dtype=np.int8)
        self._exists: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._alive: Cells = np.zeros(0, dtype=np.int64)  # By moment: how many exist.
        self._unread_from = _MIN_TIME  # Stored timers before this time are here, or were.

    def _next_moment(self, timestamp: int) -> tuple[tuple[int, Any], int] | None:
        due = [item for item in self._moments.items() if item[0][0] <= timestamp and self._alive[item[1]]]
        return min(due, default=None, key=lambda item: (item[0][0], self._codec.rank(item[0][1])))

    def _order(self, slots: Cells) -> npt.NDArray[np.int64]:
        keys = self.keys.all()
        assert keys is not None
        return sort_order(keys.sort_keys[slots], [keys.column.take(pa.array(slots))])

    def _set(self, slots: Cells, moments: Cells, status: int) -> None:
        timers = self._timers(slots, moments)
        self._status[timers] = status
        exists = status != _DELETED
        timers = timers[self._exists[timers] != exists]
        self._exists[timers] = exists
        self._alive += np.bincount(self._codes[np.unique(timers)] >> _SLOT_BITS, minlength=len(self._alive)) * (
            1 if exists else -1
        )

    def _timers(self, slots: Cells, moments: Cells) -> Cells:
        codes = moments << _SLOT_BITS | slots
        timers, first = self._index.add(codes)
        size = len(self._index)
        self._codes = grown(self._codes, size, 0)
        self._status = grown(self._status, size, _UNKNOWN)
        self._exists = grown(self._exists, size, 0)
        self._alive = grown(self._alive, len(self._moments), 0)
        self._codes[size - len(first) : size] = codes[first]
        return timers

    def _changes(self) -> pa.Table | None:
        keys = self.keys.all()
        status = self._status[: len(self._index)]
        # Where nothing is stored, what came and went needs no tombstone.
        timers = np.flatnonzero((status == _REGISTERED) | (status == _DELETED if len(self.runs) else False))
        if not len(timers) or keys is None:
            return None
        slots, moments = self._codes[timers] & _SLOT_MASK, self._codes[timers] >> _SLOT_BITS
        namespaces = self._type.to_arrow(self._codec.decode_all([namespace for _, namespace in self._moments]))
        arrays: dict[str, pa.Array[Any]] = {
            "sort_key": pa.array(keys.sort_keys[slots]),
            "key": keys.column.take(pa.array(slots)),
            "namespace": namespaces.take(pa.array(moments)),
            "time": pa.array(np.array([time for time, _ in self._moments], dtype=np.int64)[moments]),
            "deleted": pa.array(status[timers] == _DELETED),
        }
        order = sort_order(arrays["sort_key"].to_numpy(), [arrays[name] for name in self.layout.identity])
        schema = self.layout.local_schema
        return pa.table([arrays[name] for name in schema.names], schema=schema).take(pa.array(order))

    def _written(self) -> None:
        self.clear()  # All timers are in storage now, and are read again when they are due.

    def _read_due(self, timestamp: int) -> None:
        """Reads the next due timers from storage and touches their keys."""
        self._make_room()  # May clear these timers, so it comes first.
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
        columns = {name: table.column(name).combine_chunks() for name in ("key", "namespace", "time")}
        slots = self._touch(columns["key"], hashes_of(table.column("sort_key").to_numpy()))
        pairs = pa.StructArray.from_arrays([columns["time"], columns["namespace"]], names=["time", "namespace"])
        first, codes = distinct_rows(pairs)
        rows = pa.array(first)
        namespaces = self._type.from_arrow(columns["namespace"].take(rows))
        numbers = self.moments(columns["time"].take(rows).to_pylist(), namespaces)
        moments = np.array(numbers, dtype=np.int64)[codes]
        timers = self._timers(slots, moments)
        fresh = self._status[timers] == _UNKNOWN  # What was set meanwhile counts.
        self._status[timers[fresh]] = _STORED
        self._exists[timers[fresh]] = True
        self._alive += np.bincount(moments[fresh], minlength=len(self._alive))
