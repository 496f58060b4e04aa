"""Aggregations in columns, those that users wrote, and records as functions of batches take and return them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.aggregations import BatchAggregate
from dagster_flinkpy.datastream.functions import AggregateFunction
from dagster_flinkpy.errors import FlinkPyError, TypeMismatchError, shorten
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS, user_error
from dagster_flinkpy.runtime.operators.grouped_rows import Segments
from dagster_flinkpy.state.cell_table import CellTable

__all__ = [
    "BatchFold",
    "Cells",
    "ColumnFold",
    "RecordAggregate",
    "check_table",
    "record_batch",
    "shown_value",
    "table_column",
]

Cells = npt.NDArray[np.int64]


class ColumnFold(ABC):
    """A vectorised aggregation; its accumulators are the values of a table.

    Args:
        state_type: Type of the accumulators.
        numbers: The fields of a record that must have a number; None is the record itself. Default: none.
    """

    carries = False
    """Whether an accumulator has more than numbers: what its first record has in other fields."""

    def __init__(self, state_type: TypeInformation, numbers: Sequence[int | None] = ()) -> None:
        self.state_type, self.numbers = state_type, numbers

    @abstractmethod
    def add(
        self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells, new: Cells | None = None
    ) -> None:
        """Merges accumulators into cells of state.

        Args:
            table: The table of the accumulators.
            cells: The cell of each row; may repeat.
            accumulators: Those of single records (:meth:`lift`), or of records that were combined earlier.
            rows: The indices of the accumulators to merge, in order; may repeat.
            new: The first position of each cell that has no accumulator, if the caller knows.

        Raises:
            IntegerOverflowError: A sum is out of range.
        """

    @abstractmethod
    def running(self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells) -> pa.Array[Any]:
        """Merges like :meth:`add`, and returns the result of each row's cell after that row."""

    @property
    @abstractmethod
    def combines(self) -> bool:
        """Whether accumulators of parts of a cell's records can be merged to that of all of them."""

    @abstractmethod
    def combine(self, accumulators: pa.Array[Any], groups: Cells, first: Cells) -> pa.Array[Any] | None:
        """Merges the accumulators of each group, in order.

        Args:
            accumulators: A column of accumulators.
            groups: The group of each, as numbers from 0.
            first: The first row of each group.

        Returns:
            The accumulator of each group, or None if a sum might be out of range for its type.
        """

    @abstractmethod
    def lift(self, records: pa.Array[Any]) -> pa.Array[Any]:
        """Returns the accumulator of each record alone.

        Raises:
            TypeMismatchError: A record has no number in the field.
        """

    def results(self, table: CellTable, cells: Cells) -> pa.Array[Any]:
        """Returns the results of cells that have an accumulator."""
        return self.results_of(table.column.take(cells))

    @abstractmethod
    def results_of(self, accumulators: pa.Array[Any]) -> pa.Array[Any]:
        """Returns the results of accumulators."""


def check_table(returned: Any, what: str, wanted: str = "a record batch or a table") -> None:
    """Checks that a function has returned columns."""
    if not isinstance(returned, (pa.RecordBatch, pa.Table)):
        raise TypeMismatchError(f"{what} returned {shown_value(returned)}; it must return {wanted}")


def table_column(table: Any, kind: TypeInformation, what: str) -> pa.Array[Any]:
    """Returns the records of a table as a column of the declared type. An error names what does not fit."""
    if not isinstance(kind, RowTypeInfo):
        if table.num_columns != 1:
            raise TypeMismatchError(f"{what}: declared {kind}, got the columns {table.schema.names}")
        return fit_column(table.column(0), kind, what)
    if sorted(table.schema.names) != sorted(kind.field_names):
        raise TypeMismatchError(
            f"{what}: declared the fields {list(kind.field_names)}, got the columns {table.schema.names}"
        )
    columns = [
        fit_column(table.column(name), field, f"{what}, field {name!r}")
        for name, field in zip(kind.field_names, kind.field_types, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind.arrow_type))


def record_batch(records: pa.Array[Any], kind: TypeInformation) -> pa.RecordBatch:
    """Returns a column of records as a batch with a column per field, or one column ``value``."""
    column: Any = records
    if not isinstance(kind, RowTypeInfo):
        return pa.RecordBatch.from_arrays([column], names=["value"])
    if column.null_count:
        record = pc.index(column.is_null(), True).as_py()
        raise TypeMismatchError(f"record {record} of a batch is None; filter such records out first")
    return pa.RecordBatch.from_arrays(column.flatten(), names=list(kind.field_names))


def shown_value(value: Any) -> str:
    """Returns a value as a message shows it: columns and tables, which take many lines, by their type."""
    text = repr(value)
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>" if "\n" in text else shorten(text, 200)


class BatchFold(ColumnFold):
    """An aggregation in columns that the user wrote."""

    combines = True

    def __init__(self, aggregate: BatchAggregate, operator: str) -> None:
        super().__init__(aggregate.accumulator_type)
        self._function, self._record_type = aggregate.function, aggregate.record_type
        self._result_type = aggregate.result_type
        self._operator = operator

    def add(
        self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells, new: Cells | None = None
    ) -> None:
        # held: bool, one a group. groups: int64, ascending in the end, one a value of column: those held, and the rows.
        segments = Segments.of(cells)
        held = table.contains(segments.groups)
        column = accumulators.take(pa.array(rows[segments.order]))
        groups = np.repeat(np.arange(len(segments.groups)), segments.counts)
        if held.any():
            column = pa.concat_arrays([table.lookup(segments.groups[held]), column])
            groups = np.concatenate([np.flatnonzero(held), groups])
            order = np.argsort(groups, kind="stable")
            column, groups = column.take(pa.array(order)), groups[order]
        table.update(segments.groups, self.merge(column, groups, len(segments.groups)))

    def running(self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells) -> pa.Array[Any]:
        # The first rows of all cells are merged at once, then the second ones, and so on.
        segments = Segments.of(cells)
        merged, places = [], []
        for rank in range(int(segments.counts.max(initial=0))):
            place = segments.order[segments.starts[segments.counts > rank] + rank]
            self.add(table, cells[place], accumulators, rows[place])
            merged.append(table.lookup(cells[place]))
            places.append(place)
        if not merged:
            return self.results_of(accumulators.slice(0, 0))
        by_row = np.argsort(np.concatenate(places))
        return self.results_of(pa.concat_arrays(merged).take(pa.array(by_row)))

    def combine(self, accumulators: pa.Array[Any], groups: Cells, first: Cells) -> pa.Array[Any]:
        order = np.argsort(groups, kind="stable")
        return self.merge(accumulators.take(pa.array(order)), groups[order], len(first))

    def lift(self, records: pa.Array[Any]) -> pa.Array[Any]:
        lifted = self._call("lift", self._function.lift, record_batch(records, self._record_type))
        return self._column("lift", lifted, self.state_type, len(records), "record")

    def merge(self, column: pa.Array[Any], groups: npt.NDArray[np.int64], count: int) -> pa.Array[Any]:
        """Returns the accumulator of each group.

        Args:
            column: Accumulators, sorted by group.
            groups: The group of each, as ascending numbers from 0.
            count: The number of groups.
        """
        if len(column) == count:
            return column
        batch = record_batch(column, self.state_type)
        merged = self._call("merge", self._function.merge, batch, pa.array(groups, type=pa.int64()))
        return self._column("merge", merged, self.state_type, count, "group")

    def results_of(self, accumulators: pa.Array[Any]) -> pa.Array[Any]:
        batch = record_batch(accumulators, self.state_type)
        results = self._call("get_results", self._function.get_results, batch)
        return self._column("get_results", results, self._result_type, len(accumulators), "accumulator")

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except USER_EXCEPTIONS as e:
            if isinstance(e, FlinkPyError):
                raise
            what = f"{name}() of {type(self._function).__name__}, operator {self._operator!r}"
            raise user_error(e, what=what, operator=self._operator, subtask=None) from e

    def _column(self, name: str, table: Any, kind: Any, rows: int, each: str) -> pa.Array[Any]:
        """Returns what a method has returned as a column, after checking it."""
        what = f"operator {self._operator!r}: {name}() of {type(self._function).__name__}"
        check_table(table, what)
        if table.num_rows != rows:
            raise TypeMismatchError(
                f"{what} returned {table.num_rows} rows, and there are {rows} {each}s; it must return one for each"
            )
        return table_column(table, kind, what)


class RecordAggregate(AggregateFunction):
    """An aggregation in columns that gets one record at a time, where windows need Python values."""

    def __init__(self, fold: BatchFold, aggregate: BatchAggregate) -> None:
        self._fold, self._aggregate = fold, aggregate

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        lifted = self._fold.lift(self._aggregate.record_type.to_arrow([value]))
        return self._one(lifted if accumulator is None else pa.concat_arrays([self._held(accumulator), lifted]))

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return self._one(pa.concat_arrays([self._held(acc_a), self._held(acc_b)]))

    def get_result(self, accumulator: Any) -> Any:
        return self._aggregate.result_type.from_arrow(self._fold.results_of(self._held(accumulator)))[0]

    def _held(self, accumulator: Any) -> pa.Array[Any]:
        return self._aggregate.accumulator_type.to_arrow([accumulator])

    def _one(self, column: pa.Array[Any]) -> Any:
        merged = self._fold.merge(column, np.zeros(len(column), dtype=np.int64), 1)
        return self._aggregate.accumulator_type.from_arrow(merged)[0]
