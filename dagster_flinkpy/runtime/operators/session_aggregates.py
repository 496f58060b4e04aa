"""Built-in aggregations over sessions, vectorised: a batch is added to all sessions of its keys at once.

Only the records of keys with late ones are placed one by one. State, timers and results are those of
:class:`SessionWindowOperator`; only sums of floating-point numbers may be rounded in another order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.datastream.window import TimeWindowSerializer
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.operators.aggregate_base import WindowedAggregateOperator
from dagster_flinkpy.runtime.operators.folds import ColumnFold
from dagster_flinkpy.runtime.operators.grouped_rows import IntegerOverflowError
from dagster_flinkpy.runtime.operators.keyed_operators import EVENT_TIMERS, PROCESSING_TIMERS, touch_keys
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.window_contexts import WindowCodec
from dagster_flinkpy.runtime.operators.window_operator import MERGING_WINDOWS
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.session_values import SessionColumns
from dagster_flinkpy.state.time_order import MAX_TIME

__all__ = ["SessionAggregateOperator"]

Ints = npt.NDArray[np.int64]


class SessionAggregateOperator(WindowedAggregateOperator):
    """Sessions with the default trigger and a fixed gap."""

    def __init__(self, context: OperatorContext, spec: WindowSpec, fold: ColumnFold) -> None:
        super().__init__(context, spec, fold)
        assigner: Any = spec.assigner
        self._gap, self._event_time = assigner.session_gap, assigner.is_event_time()
        self._lateness = spec.allowed_lateness if self._event_time else 0
        windows: TypeInformation = WindowCodec(TimeWindowSerializer()).namespace_type
        timers = EVENT_TIMERS if self._event_time else PROCESSING_TIMERS
        self._sessions, self._timers = self.backend.get_sessions(MERGING_WINDOWS, timers, windows, self._lateness)
        kind: Any = "REDUCING" if spec.aggregate is None else "AGGREGATING"
        self._values = self.backend.get_session_values(
            SessionColumns, self._sessions, "window-contents", kind, windows, fold.state_type
        )

    # --- records -----------------------------------------------------------------------------------------------------

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys, sessions = self.bind(batch), self._sessions
        if self._event_time:
            self._check_times(batch, batch.timestamps)
        slots = touch_keys(self.backend, keys)
        if not len(slots):
            return
        starts = lasts = batch.timestamps
        if not self._event_time:
            starts = lasts = np.full(len(batch), self.context.job.clock.now())
        try:
            if batch.combined:
                accumulators, last = batch.column.flatten()
                lasts = last.to_numpy()
            else:
                accumulators = self._fold.lift(batch.column)
            ends = self._ends(lasts)
            sessions.compact()
            passed = self.context.watermark + 1 if self._event_time else -inf
            cells, touched = sessions.join(slots, starts, ends, passed)
            joined, others = np.flatnonzero(cells >= 0), np.flatnonzero(cells < 0)
            self._add(cells[joined], accumulators, joined)
            self._timers.register(touched)
            if len(others):
                late = np.isin(slots[others], slots[others[ends[others] <= passed]])
                self._unite(others[~late], slots, starts, ends, accumulators)
                self._place_each(others[late], slots, batch, ends, accumulators)
        except (IntegerOverflowError, TypeMismatchError) as e:
            raise self._fail(e, batch) from e

    def _ends(self, lasts: Ints) -> Ints:
        end = int(lasts.max()) + self._gap
        if end > MAX_TIME:
            raise ConfigurationError(f"a session would end at {end}, but times must be 64-bit ints, in milliseconds")
        ends: Ints = lasts + self._gap
        return ends

    def _add(self, cells: Ints, accumulators: pa.Array[Any], rows: Ints) -> None:
        if len(rows):
            self._fold.add(self._values, cells, accumulators, rows)

    def _unite(self, rows: Ints, slots: Ints, starts: Ints, ends: Ints, accumulators: pa.Array[Any]) -> None:
        """Adds records of which none is late, of keys of which not only the newest session counts."""
        if not len(rows):
            return
        cells, touched, ended, heirs = self._sessions.unite(slots[rows], starts[rows], ends[rows])
        self._merge(ended, heirs, cells, rows)
        self._add(cells, accumulators, rows)
        self._timers.register(touched)

    def _merge(self, ended: Ints, heirs: Ints, cells: Ints, rows: Ints) -> None:
        """Moves the accumulators of sessions that have ended to those that they have become part of.

        Args:
            ended: The sessions that have ended.
            heirs: The sessions that they have become part of.
            cells: The sessions of records, among them those that made sessions merge.
            rows: These records.
        """
        held = self._values.contains(ended)
        ended, heirs = ended[held], heirs[held]
        try:
            self._add(heirs, self._values.lookup(ended), np.arange(len(ended)))
        except IntegerOverflowError as e:
            raise IntegerOverflowError(int(rows[cells == heirs[e.row]][0])) from None
        self._values.drop(ended)

    def _place_each(self, rows: Ints, slots: Ints, batch: StreamBatch, ends: Ints, accumulators: pa.Array[Any]) -> None:
        """Adds records one by one, because some of their keys may be late; those that are not may fire at once."""
        sessions, watermark = self._sessions, self.context.watermark
        over = inf if watermark == MAX_WATERMARK else watermark + 1 - self._lateness
        chains: dict[int, list[int]] = {}
        touched: dict[int, None] = {}
        waiting: tuple[list[int], list[int]] = [], []
        late = np.zeros(len(batch), dtype=np.bool_)

        def add() -> None:
            self._add(np.array(waiting[0], dtype=np.int64), accumulators, np.array(waiting[1], dtype=np.int64))
            waiting[0].clear()
            waiting[1].clear()

        for row in rows.tolist():
            slot, start, end = slots.item(row), batch.timestamps.item(row), ends.item(row)
            chain = chains.get(slot)
            if chain is None:
                chain = chains[slot] = sessions.chain(slot)
            first = bisect_left(chain, start, key=sessions.end.item)
            last = bisect_right(chain, end, lo=first, key=sessions.start.item)
            if first == last:
                if end <= over:
                    late[row] = True
                    continue
                cell = sessions.begin_one(slot, start, end)
                chain.insert(first, cell)
            else:
                cell, *others = chain[first:last]
                sessions.move(cell, min(start, sessions.start.item(cell)), max(end, sessions.end.item(chain[last - 1])))
                if others:
                    add()
                    del chain[first + 1 : last]
                    ended = np.array(others, dtype=np.int64)
                    self._merge(ended, np.full(len(ended), cell), np.array([cell]), np.array([row]))
                    sessions.retire(ended)
                    for other in others:
                        touched.pop(other, None)
            waiting[0].append(cell)
            waiting[1].append(row)
            touched[cell] = None
            if sessions.end.item(cell) <= watermark + 1:
                add()
                sessions.fired[cell] = True
                self._fire(np.array([cell]), batch.timestamps[row : row + 1])
        add()
        sessions.link(chains)
        cells = np.array(list(touched), dtype=np.int64)
        sessions.mark(cells)
        self._timers.register(cells)
        if late.any():
            self._skip(batch, late)

    # --- timers ------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance_to(watermark)

    def on_processing_time(self, now: int) -> None:
        if not self._event_time:
            self._advance_to(now - 1)

    def _advance_to(self, until: int) -> None:
        if not self._has_keys:
            return
        sessions = self._sessions
        for times, cells in self._timers.advance_to(until):
            # With an allowed lateness, sessions end later than they fire.
            fires = (times == sessions.end[cells] - 1) & ~sessions.fired[cells]
            ends = times == sessions.over_at(cells)
            self._fire(cells[fires], times[fires])
            self._timers.fired(cells[fires & ~ends])
            self._values.drop(cells[ends])
            sessions.end_all(cells[ends])

    def _fire(self, cells: Ints, times: Ints) -> None:
        """Emits the results of sessions."""
        held = self._values.contains(cells)
        cells, times = cells[held], times[held]
        if not len(cells):
            return
        results = self._fold.results(self._values, cells)
        if self._with_key:
            keys = self.backend.key_context.column(self._sessions.slot[cells])
            results = self._result(keys, self._sessions.start[cells], self._sessions.end[cells], results)
        self._emit(results, times)
