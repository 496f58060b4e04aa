"""Sessions with the default trigger: a batch is added to the newest sessions of its keys at once.

Per record, Python only adds to the contents of a session. Only the records of keys with late or older records are
compared one by one. State, timers and results are those of :class:`MergingWindowOperator`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import starmap
from math import inf
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.datastream.window import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    TimeWindow,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.keyed_operators import EVENT_TIMERS, PROCESSING_TIMERS, touch_keys
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.session_contents import session_contents
from dagster_flinkpy.runtime.operators.window_operator import MERGING_WINDOWS, WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.state.session_values import SessionValues
from dagster_flinkpy.state.time_order import MAX_TIME

__all__ = ["SessionWindowOperator"]

_ASSIGNERS: dict[type, type] = {
    EventTimeSessionWindows: EventTimeTrigger,
    DynamicEventTimeSessionWindows: EventTimeTrigger,
    ProcessingTimeSessionWindows: ProcessingTimeTrigger,
    DynamicProcessingTimeSessionWindows: ProcessingTimeTrigger,
}
"""The assigners, and their default triggers."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class SessionWindowOperator(WindowOperator):
    """Sessions with the default trigger.

    Args:
        context: The context in which the operator runs.
        spec: A window spec for which :meth:`has` is true.
    """

    def __init__(self, context: OperatorContext, spec: WindowSpec) -> None:
        super().__init__(context, spec)
        table = self._contents.table if self._keeps_elements else self._contents
        self._held = session_contents(spec, self._sessions, table)

    @staticmethod
    def has(spec: WindowSpec) -> bool:
        """Returns whether windows are sessions with the default trigger."""
        return type(spec.trigger) is _ASSIGNERS.get(type(spec.assigner))

    def _open_timers(self) -> None:
        name, lateness = PROCESSING_TIMERS, 0
        if self._event_time:
            name, lateness = EVENT_TIMERS, self._spec.allowed_lateness
        window_type = self._codec.namespace_type
        self._sessions, self._session_timers = self.backend.get_sessions(MERGING_WINDOWS, name, window_type, lateness)

    def _open_contents(self, descriptor: StateDescriptor) -> Any:
        if self._keeps_elements:
            return super()._open_contents(descriptor)
        kind: Any = "REDUCING" if self._spec.aggregate is None else "AGGREGATING"
        window_type, value_type = self._codec.namespace_type, descriptor.type_info
        name = descriptor.name
        return self.backend.get_session_values(SessionValues, self._sessions, name, kind, window_type, value_type)

    # --- records -----------------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        slots, sessions = touch_keys(self.backend, self.bind(batch)), self._sessions
        self.backend.key_context.slot = None  # an error before the first record has no key
        values = list(batch.each_value())
        starts, ends = self._windows(batch, slots, values)
        sessions.compact()
        passed = self.context.watermark + 1 if self._event_time else -inf
        cells, touched = sessions.join(slots, starts, ends, passed)
        joined, others = np.flatnonzero(cells >= 0), np.flatnonzero(cells < 0)
        left = iter(values if not len(others) else [values[row] for row in joined.tolist()])
        try:
            self._held.add_each(slots[joined].tolist(), cells[joined].tolist(), left)
        except USER_EXCEPTIONS as e:
            raise self._failed(e, values[joined[len(joined) - length_hint(left) - 1]]) from e
        self._session_timers.register(touched)
        if len(others):
            self._add_others(others, slots, starts, ends, batch.timestamps, values)
        self.collector.flush()

    def _failed(self, error: BaseException, value: Any) -> Exception:
        return self.user_error(error, "window", key=self.backend.key_context.current_key(), value=value)

    def _windows(self, batch: StreamBatch, slots: Ints, values: list[Any]) -> tuple[Ints, Ints]:
        """Returns start and end of the window of each record."""
        assigner: Any = self._spec.assigner
        if type(assigner) is EventTimeSessionWindows and not (batch.timestamps == NO_TIMESTAMP).any():
            if len(slots):
                self._check_end(int(batch.timestamps.max()) + assigner.session_gap)
            return batch.timestamps, batch.timestamps + assigner.session_gap
        keys, assign, context = self.backend.key_context, assigner.assign_windows, self._assigner
        windows = []
        value: Any = UNKNOWN
        try:
            for keys.slot, value, timestamp in zip(slots.tolist(), values, batch.each_timestamp(), strict=True):
                windows.append(assign(value, timestamp, context)[0])
        except USER_EXCEPTIONS as e:
            raise self._failed(e, value) from e
        self._check_end(max((end for _, end in windows), default=0))
        bounds = np.array(windows, dtype=np.int64).reshape(-1, 2)
        return bounds[:, 0], bounds[:, 1]

    @staticmethod
    def _check_end(end: int) -> None:
        if end > MAX_TIME:
            raise ConfigurationError(f"a session would end at {end}, but times must be 64-bit ints, in milliseconds")

    def _add_others(self, rows: Ints, slots: Ints, starts: Ints, ends: Ints, times: Ints, values: list[Any]) -> None:
        """Adds records one by one, because they are late, or because not only the newest session of their key counts.

        Args:
            rows: The positions of these records.
            slots: The slots of all records.
            starts: The starts of the windows of all records.
            ends: The ends of their windows.
            times: Their timestamps.
            values: All records.
        """
        keys, sessions, held, watermark = self.backend.key_context, self._sessions, self._held, self.context.watermark
        passed, over = -inf, -inf
        if self._event_time:
            passed = watermark + 1
            over = inf if watermark == MAX_WATERMARK else passed - self._spec.allowed_lateness
        chains: dict[int, list[int]] = {}
        touched: dict[int, None] = {}
        value: Any = UNKNOWN
        windows = zip(
            slots[rows].tolist(), starts[rows].tolist(), ends[rows].tolist(), times[rows].tolist(), strict=True
        )
        try:
            for row, (keys.slot, start, end, timestamp) in zip(rows.tolist(), windows, strict=True):
                value = values[row]
                chain = chains.get(keys.slot)
                if chain is None:
                    chain = chains[keys.slot] = sessions.chain(keys.slot)
                cell = self._place(chain, start, end, over, touched) if chain or end > over else None
                if cell is None:
                    self._skip(value, timestamp)
                    continue
                held.add_each((keys.slot,), (cell,), (value,))
                touched[cell] = None
                if sessions.end.item(cell) <= passed:
                    sessions.fired[cell] = True
                    self._fire_session(cell, timestamp)
        except USER_EXCEPTIONS as e:
            raise self._failed(e, value) from e
        sessions.link(chains)
        cells = np.array(list(touched), dtype=np.int64)
        sessions.mark(cells)
        self._session_timers.register(cells)

    def _place(self, chain: list[int], start: int, end: int, over: float, touched: dict[int, None]) -> int | None:
        """Adds a window to the sessions of the current key, and merges those that it touches.

        Args:
            chain: The sessions of the key, in order of time.
            start: The start of the window.
            end: The end of the window.
            over: New sessions with an end up to this time are over.
            touched: The sessions to which records were added.

        Returns:
            The session, or None if the window touches no session and is over.
        """
        sessions = self._sessions
        first = bisect_left(chain, start, key=sessions.end.item)
        last = bisect_right(chain, end, lo=first, key=sessions.start.item)
        if first == last:
            if end <= over:
                return None
            cell = sessions.begin_one(self.backend.key_context.slot, start, end)
            chain.insert(first, cell)
            return cell
        cell, *others = chain[first:last]
        sessions.move(cell, min(start, sessions.start.item(cell)), max(end, sessions.end.item(chain[last - 1])))
        if others:
            del chain[first + 1 : last]
            for other in others:
                self._held.merge(cell, other)
                touched.pop(other, None)
            sessions.retire(np.array(others))
        return cell

    def _fire_session(self, cell: int, timestamp: int) -> None:
        """Evaluates a session of the current key."""
        sessions = self._sessions
        (contents,) = self._held.get_each((self.backend.key_context.slot,), np.array([cell]), last=False)
        self._fire_with(TimeWindow(sessions.start.item(cell), sessions.end.item(cell)), contents, timestamp)

    # --- timers ------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance_to(watermark)

    def on_processing_time(self, now: int) -> None:
        if not self._event_time:
            self._advance_to(now - 1)

    def _advance_to(self, time: int) -> None:
        if not self._has_keys:
            return
        sessions = self._sessions
        try:
            for times, cells in self._session_timers.advance_to(time):
                # With an allowed lateness, sessions end later than they fire.
                fires = (times == sessions.end[cells] - 1) & ~sessions.fired[cells]
                ends = times == sessions.over_at(cells)
                self._on_times(times, cells, fires, ends)
                self._session_timers.fired(cells[fires & ~ends])
                self._held.drop(cells[ends])
                sessions.end_all(cells[ends])
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "window function", key=self.backend.key_context.current_key()) from e
        self.collector.flush()

    def _on_times(self, times: Ints, cells: Ints, fires: Flags, ends: Flags) -> None:
        """Evaluates the sessions that fire, and tells the window function which ones end."""
        keys, sessions = self.backend.key_context, self._sessions
        last = not self._event_time or not self._spec.allowed_lateness  # otherwise they end later than they fire
        results = self._held.get_each(sessions.slot[cells[fires]].tolist(), cells[fires], last=last)
        if self._spec.window_function is None:
            self.collector.collect_each(results, times[fires].tolist())
            return
        rows = np.flatnonzero(fires | ends) if self._clears else np.flatnonzero(fires)
        cells = cells[rows]
        slots, windows = (
            sessions.slot[cells].tolist(),
            zip(sessions.start[cells].tolist(), sessions.end[cells].tolist(), strict=True),
        )
        for slot, window, time, fire, end in zip(
            slots,
            starmap(TimeWindow, windows),
            times[rows].tolist(),
            fires[rows].tolist(),
            ends[rows].tolist(),
            strict=True,
        ):
            if fire:
                self._fire_with(window, next(results), time)
            if end and self._clears:
                keys.slot = slot
                self._end(window)
