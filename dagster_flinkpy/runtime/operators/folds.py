"""The built-in aggregations in columns: sum, min, max, count and mean, for many cells of state at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.adapters import Accumulation
from dagster_flinkpy.datastream.aggregations import CountAggregate, MeanAggregate, field_of
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.grouped_rows import FoldKind, Segments, accumulate, fits
from dagster_flinkpy.state.cell_columns import FixedColumn, StructColumn
from dagster_flinkpy.state.column_table import ColumnTable

__all__ = ["ColumnFold", "fold_of"]

Cells = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_SUMMED = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())
"""Types for which the arithmetic of Python and numpy agrees. (Python sums float32 values in double precision.)"""


@dataclass(frozen=True)
class _Part:
    """One number of an accumulator, and the values that are folded into it."""

    leaf: FixedColumn
    kind: FoldKind
    values: Numbers
    initial: float | None
    """Initial value of a new accumulator; None stands for the first value."""

    def add(self, cells: Cells, fresh: Cells, first: Cells) -> None:
        """Folds the values into cells; ``fresh`` are the new cells, ``first`` their first rows."""
        values, stored = self.values, self.leaf.values
        self.leaf.valid[fresh] = True
        integers = values.dtype.kind == "i"
        if self.kind == "sum":
            # Starting from negative zero, a sum of one value is exactly that value.
            zero = (0 if integers else -0.0) if self.initial is None else self.initial
            stored[fresh] = zero
            if not integers or fits(values, stored[cells]):
                with np.errstate(over="ignore", invalid="ignore"):
                    np.add.at(stored, cells, values)
                return
        else:
            stored[fresh] = values[first]
            if integers:
                (np.minimum if self.kind == "min" else np.maximum).at(stored, cells, values)
                return
        segments = Segments.of(cells)
        # A new accumulator has zero, or its first value, and folding that value again changes nothing.
        running = accumulate(self.kind, values, segments, stored[segments.groups], np.zeros(len(segments.groups), bool))
        stored[segments.groups] = running[segments.last]

    def running(self, segments: Segments, fresh: npt.NDArray[np.bool_]) -> Numbers:
        """Folds the values and returns the result after each row."""
        stored, groups = self.leaf.values, segments.groups
        self.leaf.valid[groups] = True
        if self.initial is not None:
            stored[groups[fresh]] = self.initial
            fresh = np.zeros_like(fresh)
        running = accumulate(self.kind, self.values, segments, stored[groups], fresh)
        stored[groups] = running[segments.last]
        by_row = np.empty_like(running)
        by_row[segments.order] = running
        return by_row


class ColumnFold(ABC):
    """A vectorised aggregation; its accumulators are the values of a table."""

    state_type: TypeInformation
    """Type of the accumulators."""

    def add(self, table: ColumnTable, cells: Cells, records: pa.Array[Any], rows: Cells) -> Cells:
        """Folds records into cells of state.

        Args:
            table: The table of the accumulators.
            cells: The cell of each row; may repeat.
            records: The column of records.
            rows: The indices of the records to fold, in order; may repeat.

        Returns:
            The first position of each cell that had no accumulator.

        Raises:
            IntegerOverflowError: A sum is out of range.
            TypeMismatchError: A record has no number in the field.
        """
        missing = np.flatnonzero(~table.contains(cells))
        places = cells[missing] - cells[missing].min(initial=2**62)
        owners = np.empty(int(places.max(initial=-1)) + 1, dtype=np.int64)
        owners[places[::-1]] = missing[::-1]  # the last write wins
        first: Cells = missing[owners[places] == missing]
        fresh = cells[first]
        self._start(table, fresh, rows[first], records)
        for part in self._parts(table, records, rows):
            part.add(cells, fresh, first)
        table.mark(cells)
        return first

    def running(self, table: ColumnTable, cells: Cells, records: pa.Array[Any], rows: Cells) -> pa.Array[Any]:
        """Folds like :meth:`add`, and returns the result of each record's cell after that record."""
        segments = Segments.of(cells)
        fresh = ~table.contains(segments.groups)
        self._start(table, segments.groups[fresh], rows[segments.order[segments.starts[fresh]]], records)
        parts = [part.running(segments, fresh) for part in self._parts(table, records, rows)]
        table.mark(segments.groups)
        return self._result(table, cells, parts)

    @abstractmethod
    def results(self, table: ColumnTable, cells: Cells) -> pa.Array[Any]:
        """Returns the results of cells that have an accumulator."""

    @abstractmethod
    def _start(self, table: ColumnTable, cells: Cells, first: Cells, records: pa.Array[Any]) -> None:
        """Creates the accumulators of new cells from their first records, without the numbers of the parts."""

    @abstractmethod
    def _parts(self, table: ColumnTable, records: pa.Array[Any], rows: Cells) -> list[_Part]:
        """Returns the parts of the accumulators, with the values to fold."""

    @abstractmethod
    def _result(self, table: ColumnTable, cells: Cells, parts: list[Numbers]) -> pa.Array[Any]:
        """Returns the results for the given numbers of the parts."""


class _RecordFold(ColumnFold):
    """Folds one field of the records; the other fields have the values of the cell's first record."""

    def __init__(self, kind: FoldKind, record_type: TypeInformation, field: int | None) -> None:
        self.state_type = record_type
        self._kind = kind
        self._field = field

    def results(self, table: ColumnTable, cells: Cells) -> pa.Array[Any]:
        return table.lookup(cells)

    def _start(self, table: ColumnTable, cells: Cells, first: Cells, records: pa.Array[Any]) -> None:
        if len(cells):
            table.update(cells, records.take(pa.array(first)))

    def _parts(self, table: ColumnTable, records: pa.Array[Any], rows: Cells) -> list[_Part]:
        column: Any = table.column
        leaf: FixedColumn = column if self._field is None else column.children[self._field]
        values = _numbers(records, self._field, self._kind)[rows]
        return [_Part(leaf, self._kind, values, None)]

    def _result(self, table: ColumnTable, cells: Cells, parts: list[Numbers]) -> pa.Array[Any]:
        folded = pa.array(parts[0])
        if self._field is None:
            return folded
        struct: Any = table.column
        children = [folded if i == self._field else child.take(cells) for i, child in enumerate(struct.children)]
        return struct.with_children(cells, children)


class _CountFold(ColumnFold):
    """Counts records."""

    def __init__(self, state_type: TypeInformation) -> None:
        self.state_type = state_type

    def results(self, table: ColumnTable, cells: Cells) -> pa.Array[Any]:
        return table.lookup(cells)

    def _start(self, table: ColumnTable, cells: Cells, first: Cells, records: pa.Array[Any]) -> None:
        """Does nothing: the accumulator of a count has no other part."""

    def _parts(self, table: ColumnTable, records: pa.Array[Any], rows: Cells) -> list[_Part]:
        leaf = table.column
        assert isinstance(leaf, FixedColumn)
        return [_Part(leaf, "sum", np.ones(len(rows), dtype=np.int64), 0)]

    def _result(self, table: ColumnTable, cells: Cells, parts: list[Numbers]) -> pa.Array[Any]:
        return pa.array(parts[0])


class _MeanFold(ColumnFold):
    """Sum and count of a field."""

    def __init__(self, state_type: TypeInformation, field: int | None) -> None:
        self.state_type = state_type
        self._field = field

    def results(self, table: ColumnTable, cells: Cells) -> pa.Array[Any]:
        total, count = self._leaves(table)
        return self._result(table, cells, [total.values[cells], count.values[cells]])

    def _start(self, table: ColumnTable, cells: Cells, first: Cells, records: pa.Array[Any]) -> None:
        struct = table.column
        assert isinstance(struct, StructColumn)
        struct.valid[cells] = True

    @staticmethod
    def _leaves(table: ColumnTable) -> tuple[FixedColumn, FixedColumn]:
        struct: Any = table.column
        total, count = struct.children
        return total, count

    def _parts(self, table: ColumnTable, records: pa.Array[Any], rows: Cells) -> list[_Part]:
        total, count = self._leaves(table)
        values = _numbers(records, self._field, "mean")[rows].astype(np.float64)
        return [_Part(total, "sum", values, 0.0), _Part(count, "sum", np.ones(len(rows), dtype=np.int64), 0)]

    def _result(self, table: ColumnTable, cells: Cells, parts: list[Numbers]) -> pa.Array[Any]:
        with np.errstate(invalid="ignore"):
            return pa.array(parts[0] / parts[1])


def _numbers(records: pa.Array[Any], field: int | None, what: str) -> Numbers:
    column = records if field is None else pc.struct_field(records, [field])
    if column.null_count:
        record = records[pc.index(column.is_null(), True).as_py()].as_py()
        name = "" if field is None else f" field {records.type[field].name!r}:"
        raise TypeMismatchError(f"{name} {what}() of None, in record {record!r}; filter such records out first".strip())
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers


def fold_of(function: object, record_type: TypeInformation, state_type: TypeInformation) -> ColumnFold | None:
    """Returns the aggregation in columns that is equivalent to a function, or None if there is none.

    Args:
        function: The function of a reduction or of a window.
        record_type: Type of the records.
        state_type: Type of the accumulators.
    """
    if isinstance(function, CountAggregate):
        return _CountFold(state_type)
    if isinstance(function, MeanAggregate):
        field, _ = field_of(record_type, function.position)
        return _MeanFold(state_type, field)
    if isinstance(function, Accumulation) and function.fold in ("sum", "min", "max"):
        field, kind = field_of(record_type, function.position)
        if kind is not None and kind.arrow_type in _SUMMED and state_type == record_type:
            return _RecordFold(function.fold, record_type, field)
    return None
