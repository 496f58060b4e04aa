"""What windows hold, cell by cell: values that Python functions make of records, or accumulators in columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat, starmap
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.aggregations import WithKeyAndWindow
from dagster_flinkpy.datastream.window import CountWindow, TimeWindow
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.batch_fold import ColumnFold
from dagster_flinkpy.runtime.operators.folds import aggregating, fields_of, naming, spread
from dagster_flinkpy.runtime.operators.windows.window_operator import Ints, WindowOperator
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import NumberColumn, SharedColumn
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state.value_folds import PaneState, fold_values

__all__ = ["Contents", "CountWindows", "Due", "TimeWindows", "make_contents"]

Mask = npt.NDArray[np.bool_]


class TimeWindows(NamedTuple):
    """Windows in time."""

    starts: Ints
    ends: Ints

    def each(self) -> Iterator[Any]:
        """Yields the windows for functions."""
        starts, ends = self
        if len(starts) and (starts == starts[0]).all() and (ends == ends[0]).all():
            return repeat(TimeWindow(int(starts[0]), int(ends[0])), len(starts))
        return starmap(TimeWindow, zip(starts.tolist(), ends.tolist(), strict=True))

    def at(self, rows: Ints | Mask) -> TimeWindows:
        """Returns some of them."""
        return TimeWindows(self.starts[rows], self.ends[rows])


class CountWindows(NamedTuple):
    """Windows by count."""

    numbers: Ints

    def each(self) -> Iterator[Any]:
        """Yields the windows for functions."""
        return map(CountWindow, self.numbers.tolist())

    def at(self, rows: Mask) -> CountWindows:
        """Returns some of them."""
        return CountWindows(self.numbers[rows])


Windows = TimeWindows | CountWindows
"""A column of windows."""


class Due(NamedTuple):
    """Windows in time of which each fires, or ends, or both."""

    seats: Ints
    cells: Ints
    windows: TimeWindows
    times: Ints
    fires: Mask
    ends: Mask


class Contents(ABC):
    """What windows hold."""

    any_order = False
    """Whether it makes no difference in which order records are added and cells merged."""

    def __init__(self, operator: WindowOperator, table: CellTable) -> None:
        self._operator, self.table = operator, table

    @abstractmethod
    def take(self, batch: StreamBatch) -> Ints:
        """Takes the records to be added next, and returns the time of the last one of which each was combined."""

    @abstractmethod
    def add(self, seats: Ints, cells: Ints, rows: Ints, new: Ints | None = None) -> None:
        """Adds records to cells, in order.

        Args:
            seats: The seat of each cell.
            cells: The cells; may repeat.
            rows: The position of a record for each.
            new: The first position of each cell that holds nothing, if the caller knows.
        """

    def add_to_windows(
        self, seats: Ints, cells: Ints, rows: Ints, times: Ints, windows: TimeWindows, new: Ints
    ) -> None:
        """Adds records like :meth:`add`, to windows of one size.

        Args:
            seats: The seat of each cell.
            cells: The cells; may repeat.
            rows: The position of a record for each, ascending.
            times: The times of the records, by position.
            windows: Their windows, the newest one of a record first.
            new: The first position of each cell that holds nothing.
        """
        self.add(seats, cells, rows, new)

    @abstractmethod
    def add_firing(
        self, seats: Ints, cells: Ints, rows: Ints, windows: Windows, *, fires: Mask | None = None, purge: bool = False
    ) -> None:
        """Adds records like :meth:`add`, and fires windows as soon as a record was added.

        Args:
            seats: The seat of each cell.
            cells: The cells; may repeat.
            rows: The position of a record for each.
            windows: Their windows.
            fires: After which records the window fires. Default: after each.
            purge: Whether a window is empty after it has fired. Default: False.
        """

    @abstractmethod
    def fire(self, due: Due) -> None:
        """Evaluates windows that fire, and tells the window function which ones end."""

    @abstractmethod
    def merge(self, seats: Ints, cells: Ints, others: Ints, rows: Ints) -> None:
        """Moves what other cells hold to cells.

        Args:
            seats: The seat of each cell.
            cells: The cells; may repeat.
            others: The other cell for each.
            rows: The record because of which they merge, for errors.
        """

    def drop(self, cells: Ints) -> None:
        """Forgets what cells hold."""
        self.table.delete(cells)


class RecordContents(Contents):
    """What functions make of records; or all records, as a list. If windows merge, ``sessions`` are those in flight."""

    _column = NumberColumn

    def __init__(self, operator: WindowOperator, sessions: SessionTable | None) -> None:
        descriptor, windows = operator.descriptor(), operator.codec.namespace_type
        table = operator.backend.get_cells(descriptor, windows, sessions, column=self._column)
        super().__init__(operator, table)
        self._fold = fold_values(descriptor)
        self._state = PaneState(table, self._fold)
        self._keys = operator.backend.key_context

    def take(self, batch: StreamBatch) -> Ints:
        self._batch = batch
        self.values: list[Any] | None = None
        """The records, if their windows may share them or somebody has seen them before."""
        return batch.timestamps

    def add(self, seats: Ints, cells: Ints, rows: Ints, new: Ints | None = None) -> None:
        self.table.reserve()
        self._add_to_places(seats, rows, self.table.column.changing(cells))
        self.table.mark(cells)

    def _add_to_places(self, seats: Ints, rows: Ints, changing: Iterator[tuple[slice, list[Any], list[int]]]) -> None:
        """Adds records to what ``changing`` of the column yields."""
        for part, held, at in changing:
            with self._each_of(rows[part]) as values:
                self._fold.add_each(self._keys, held, zip(seats[part].tolist(), at, values, strict=True))

    def _values(self, rows: Ints) -> list[Any]:
        return self._batch.values_at(rows) if self.values is None else list(map(self.values.__getitem__, rows.tolist()))

    @contextmanager
    def _each_of(self, rows: Ints) -> Iterator[Iterator[Any]]:
        """Lets records be taken one by one; an error of a function names the last one that was."""
        values = self._values(rows)
        left = iter(values)
        try:
            yield left
        except USER_EXCEPTIONS as e:
            raise self._operator.failed(e, values[len(values) - length_hint(left) - 1]) from e

    def add_firing(
        self, seats: Ints, cells: Ints, rows: Ints, windows: Windows, *, fires: Mask | None = None, purge: bool = False
    ) -> None:
        fires = np.ones(len(rows), dtype=np.bool_) if fires is None else fires
        times = self._batch.timestamps[rows][fires].tolist()
        with self._each_of(rows) as values:
            firing = self._firing(
                zip(values, fires.tolist(), cells.tolist(), strict=True),
                zip(windows.at(fires).each(), times, strict=True),
                purge,
            )
            self._state.add_each(seats.tolist(), cells, firing)

    def _firing(
        self, records: Iterator[tuple[Any, bool, int]], windows: Iterator[tuple[Any, int]], purge: bool
    ) -> Iterator[Any]:
        """Yields each value, and fires its window when the value was added: before the next one is requested."""
        for value, fires, cell in records:
            yield value
            if fires:
                window, timestamp = next(windows)
                self._operator.fire(window, self._state.get_of(cell, last=purge), timestamp)
                if purge:
                    self.table.forget(cell)

    def fire(self, due: Due) -> None:
        operator, fires = self._operator, due.fires
        last = not operator.lateness  # Otherwise they end later than they fire.
        try:
            results = self._state.get_each(due.seats[fires].tolist(), due.cells[fires], last=last)
            if operator.spec.window_function is None:
                operator.collector.collect_each(results, due.times[fires].tolist())
                return
            if not operator.clears:
                windows, times = due.windows.at(fires).each(), due.times[fires].tolist()
                for window, result, time in zip(windows, results, times, strict=True):
                    operator.fire(window, result, time)
                return
            chosen = fires | due.ends
            columns = (column[chosen].tolist() for column in (due.seats, due.times, due.fires, due.ends))
            for window, seat, time, fire, end in zip(due.windows.at(chosen).each(), *columns, strict=True):
                if fire:
                    operator.fire(window, next(results), time)
                if end:
                    self._keys.seat = seat
                    operator.end(window)
        except USER_EXCEPTIONS as e:
            raise operator.user_error(e, "window function", key=self._keys.current_key()) from e

    def merge(self, seats: Ints, cells: Ints, others: Ints, rows: Ints) -> None:
        for self._keys.seat, cell, other, row in zip(
            seats.tolist(), cells.tolist(), others.tolist(), rows.tolist(), strict=True
        ):
            try:
                self._state.merge(cell, other)
            except USER_EXCEPTIONS as e:
                raise self._operator.failed(e, self._values(np.array([row]))[0]) from e


class SharedContents(RecordContents):
    """Contents of windows of one size that overlap. Those of a key that have the same records share what they hold."""

    _column = SharedColumn

    def take(self, batch: StreamBatch) -> Ints:
        times, aggregate = super().take(batch), self._operator.aggregate
        if aggregate is not None and batch.may_share(aggregate.add):
            self.values = list(batch.values)
        return times

    def add_to_windows(
        self, seats: Ints, cells: Ints, rows: Ints, times: Ints, windows: TimeWindows, new: Ints
    ) -> None:
        if not len(rows):
            return
        # The records that come to a cell are neighbours if they are sorted by key and time; order: such an order. Here,
        # a record's number is its place in it. begins, counts: int64, by number: its pairs. turned: the pairs, by
        # number and then from the oldest window on. of: int64, a number for each of them.
        begins = np.flatnonzero(_begin(rows))
        at, owners = times[rows[begins]], seats[begins]
        order = np.lexsort((at, owners))
        begins, counts = begins[order], np.diff(begins, append=len(rows))[order]
        turned = np.repeat(begins + np.cumsum(counts) - 1, counts) - np.arange(len(rows))
        of = np.repeat(np.arange(len(begins)), counts)
        owners, at, starts = owners[order], at[order], windows.starts[turned]
        change = _begin(owners)[1:]
        before, after = np.full(len(at), -(2**63)), np.full(len(at), 2**63 - 1)
        before[1:][~change], after[:-1][~change] = at[:-1][~change], at[1:][~change]
        # firsts, lasts: the numbers of the first and the last record of each cell, by key and window.
        first = np.repeat(before, counts) < starts
        last = np.repeat(after, counts) >= starts + (windows.ends[0] - windows.starts[0])
        firsts, lasts, cells = of[first], of[last], cells[turned[first]]
        # Neighbours that have the same records now, and had before, are a part. A record is added to a part once.
        places = self.table.column.places(cells)
        begin = _begin(firsts) | _begin(lasts) | _begin(places)
        heads = np.flatnonzero(begin)
        with aggregating(self._operator.context, self._batch):
            places = self.table.column.divide(cells, np.cumsum(begin) - 1, places[heads])
        self._add_to_parts(owners, rows[begins], order, firsts[heads], lasts[heads], places)
        self.table.mark(cells)

    def _add_to_parts(self, seats: Ints, rows: Ints, order: Ints, firsts: Ints, lasts: Ints, places: Ints) -> None:
        """Adds records to places, in the order in which they came: from the number ``firsts`` to ``lasts`` to each."""
        # of, numbers: int64, one a record and place.
        counts = lasts - firsts + 1
        of = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(of)) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        arrival = np.argsort(order[numbers].astype(np.min_scalar_type(len(order))), kind="stable")
        numbers, of = numbers[arrival], of[arrival]
        self._add_to_places(seats[numbers], rows[numbers], self.table.column.changing(places, of))


class ColumnContents(Contents):
    """The accumulators of an aggregation in columns."""

    any_order = True

    def __init__(self, operator: WindowOperator, fold: ColumnFold, sessions: SessionTable | None) -> None:
        windows, function = operator.codec.namespace_type, operator.spec.window_function
        super().__init__(operator, operator.backend.get_cells(operator.descriptor(), windows, sessions))
        self._fold, self._merges = fold, sessions is not None
        self._front = function if isinstance(function, WithKeyAndWindow) else None

    def take(self, batch: StreamBatch) -> Ints:
        self._batch = batch
        if not batch.combined:
            with aggregating(self._operator.context, batch):
                self._accumulators = self._fold.lift(batch.column)
            return batch.timestamps
        self._accumulators = batch.column
        if not self._merges:
            return batch.timestamps
        structs: Any = batch.column
        self._accumulators, lasts = structs.flatten()
        times: Ints = lasts.to_numpy()
        return times

    def add(self, seats: Ints, cells: Ints, rows: Ints, new: Ints | None = None) -> None:
        if len(rows):
            with aggregating(self._operator.context, self._batch):
                self._fold.add(self.table, cells, self._accumulators, rows, new)

    def add_firing(
        self, seats: Ints, cells: Ints, rows: Ints, windows: Any, *, fires: Mask | None = None, purge: bool = False
    ) -> None:
        assert fires is None and not purge and not self._batch.combined
        with aggregating(self._operator.context, self._batch):
            results = self._fold.running(self.table, cells, self._accumulators, rows)
        self._emit(results, seats, windows, self._batch.timestamps[rows])

    def fire(self, due: Due) -> None:
        rows = np.flatnonzero(due.fires)
        rows = rows[self.table.contains(due.cells[rows])]
        if len(rows):
            results = self._fold.results(self.table, due.cells[rows])
            self._emit(results, due.seats[rows], due.windows.at(rows), due.times[rows])

    def merge(self, seats: Ints, cells: Ints, others: Ints, rows: Ints) -> None:
        held = self.table.contains(others)
        cells, others, rows = cells[held], others[held], rows[held]
        if len(cells):
            with aggregating(self._operator.context, self._batch), naming(rows):
                self._fold.add(self.table, cells, self.table.lookup(others), np.arange(len(others)))
            self.table.delete(others)

    def _emit(self, results: pa.Array[Any], seats: Ints, windows: TimeWindows, times: Ints) -> None:
        if self._front is not None:
            key = self._operator.backend.key_context.column(seats)
            keys = spread(key, flat=self._front.flat) if self._front.key_fields else []
            columns = [*keys, pa.array(windows.starts), pa.array(windows.ends), *fields_of(results)]
            kind: Any = self._operator.context.vertex.output_type
            results = pa.StructArray.from_arrays(columns, fields=list(kind.arrow_type))
        self._operator.emit(results, times)


def _begin(integers: Ints) -> Mask:
    """Returns which integers, at least one, differ from the one before."""
    return np.append(True, integers[1:] != integers[:-1])


def make_contents(
    operator: WindowOperator, sessions: SessionTable | None = None, *, overlap: bool = False
) -> RecordContents | ColumnContents:
    """Returns what the windows of an operator hold. ``overlap`` is whether they are of one size and overlap."""
    if operator.fold is None:
        return SharedContents(operator, None) if overlap else RecordContents(operator, sessions)
    return ColumnContents(operator, operator.fold, sessions)
