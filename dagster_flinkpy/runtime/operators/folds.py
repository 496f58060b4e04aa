"""The built-in aggregations in columns, one or several of them, for many cells of state at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import struct_field
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.adapters import Accumulation
from dagster_flinkpy.datastream.aggregations import (
    Aggregations,
    BatchAggregate,
    CountAggregate,
    MeanAggregate,
    field_of,
)
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.batch_fold import BatchFold, Cells, ColumnFold
from dagster_flinkpy.runtime.operators.grouped_rows import FoldKind, IntegerOverflowError, Segments, accumulate, fits
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.columns import FixedColumn, StructColumn

__all__ = ["aggregating", "fields_of", "fold_of", "naming", "spread"]

Numbers = npt.NDArray[Any]

_SUMMED = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64())
"""Types for which the arithmetic of Python and numpy agrees. (Python sums float32 values in double precision.)"""


@dataclass(frozen=True)
class _Part:
    """One number of an accumulator, and the values that are folded into it."""

    leaf: FixedColumn
    kind: FoldKind
    values: Numbers

    def add(self, cells: Cells, fresh: Cells, first: Cells) -> None:
        """Folds the values into cells; ``fresh`` are the new cells, ``first`` their first rows."""
        values, stored = self.values, self.leaf.values
        self._begin(cells, fresh, first)
        integers = values.dtype.kind == "i"
        if self.kind == "sum":
            if not integers or fits(values, stored[cells]):
                with np.errstate(over="ignore", invalid="ignore"):
                    np.add.at(stored, cells, values)
                return
        elif integers:
            (np.minimum if self.kind == "min" else np.maximum).at(stored, cells, values)
            return
        segments = Segments.of(cells)
        # A new accumulator has zero, or its first value, and folding that value again changes nothing.
        running = accumulate(self.kind, values, segments, stored[segments.groups], np.zeros(len(segments.groups), bool))
        stored[segments.groups] = running[segments.last]

    def _begin(self, cells: Cells, fresh: Cells, first: Cells) -> None:
        """Sets the initial values of new cells, and of those that were stored before the program had this number."""
        valid = self.leaf.valid
        valid[fresh] = True
        unset = np.flatnonzero(~valid[cells])[::-1]  # the first value of a cell is written last
        for some, rows in ((fresh, first), (cells[unset], unset)):
            if self.kind == "sum":
                # Starting from negative zero, a sum of one value is exactly that value.
                self.leaf.values[some] = -0.0 if self.values.dtype.kind == "f" else 0
            else:
                self.leaf.values[some] = self.values[rows]
            valid[some] = True

    def running(self, segments: Segments, fresh: npt.NDArray[np.bool_]) -> Numbers:
        """Folds the values and returns the result after each row."""
        stored, groups = self.leaf.values, segments.groups
        fresh = fresh | ~self.leaf.valid[groups]
        self.leaf.valid[groups] = True
        running = accumulate(self.kind, self.values, segments, stored[groups], fresh)
        stored[groups] = running[segments.last]
        by_row = np.empty_like(running)
        by_row[segments.order] = running
        return by_row


@contextmanager
def naming(rows: Cells) -> Iterator[None]:
    """Lets an overflow name the accumulator, not its place among those that are merged."""
    try:
        yield
    except IntegerOverflowError as error:
        raise IntegerOverflowError(int(rows[error.row])) from None


class _LeafFold(ColumnFold):
    """A built-in aggregation: an accumulator is numbers, of which each is added up, or is the least or greatest.

    Args:
        state_type: Type of the accumulators.
        leaves: The numbers of an accumulator, each with the operation that merges two: the index of its field, or None
            if the accumulator is a number.
        numbers: The fields of a record that must have a number; None is the record itself.
    """

    def __init__(
        self, state_type: TypeInformation, leaves: Sequence[tuple[int | None, FoldKind]], numbers: Sequence[int | None]
    ) -> None:
        super().__init__(state_type, numbers)
        self.leaves = leaves

    def add(
        self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells, new: Cells | None = None
    ) -> None:
        first = table.first_missing(cells) if new is None else new
        fresh = cells[first]
        self._start(table, fresh, rows[first], accumulators)
        with naming(rows):
            for part in self._parts(table, accumulators, rows):
                part.add(cells, fresh, first)
        table.mark(cells)

    def running(self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells) -> pa.Array[Any]:
        segments = Segments.of(cells)
        fresh = ~table.contains(segments.groups)
        self._start(table, segments.groups[fresh], rows[segments.order[segments.starts[fresh]]], accumulators)
        with naming(rows):
            parts = [part.running(segments, fresh) for part in self._parts(table, accumulators, rows)]
        table.mark(segments.groups)
        folded = {field: pa.array(part) for (field, _), part in zip(self.leaves, parts, strict=True)}
        if None in folded:
            return self.results_of(folded[None])
        column = table.column
        assert isinstance(column, StructColumn)
        fields = [folded[i] if i in folded else child.take(cells) for i, child in enumerate(column.children)]
        return self.results_of(column.with_children(cells, fields))

    @property
    def combines(self) -> bool:
        # The first NaN of a minimum decides, so it matters which values come before it.
        kind = self.state_type.arrow_type
        types = {field: kind if field is None else kind[field].type for field, _ in self.leaves}
        return not any(fold != "sum" and pa.types.is_floating(types[field]) for field, fold in self.leaves)

    def combine(self, accumulators: pa.Array[Any], groups: Cells, first: Cells) -> pa.Array[Any] | None:
        merged: dict[int | None, pa.Array[Any]] = {}
        for field, kind in self.leaves:
            result = _merged(_leaf(accumulators, field), kind, groups, first)
            if result is None:
                return None
            merged[field] = pa.array(result)
        if None in merged:
            return merged[None]
        rows, fields = pa.array(first), list(accumulators.type)
        children = [merged[i] if i in merged else _field(accumulators, i).take(rows) for i in range(len(fields))]
        return pa.StructArray.from_arrays(children, fields=fields)

    def _start(self, table: CellTable, cells: Cells, first: Cells, accumulators: pa.Array[Any]) -> None:
        """Creates the accumulators of new cells from their first rows, without their numbers."""
        if self.carries and len(cells):
            table.update(cells, accumulators.take(pa.array(first)))
        elif isinstance(table.column, StructColumn):
            table.column.valid[cells] = True

    def _parts(self, table: CellTable, accumulators: pa.Array[Any], rows: Cells) -> list[_Part]:
        """Returns the parts of the accumulators, with the values to fold."""
        column: Any = table.column
        return [
            _Part(column if field is None else column.children[field], kind, _leaf(accumulators, field)[rows])
            for field, kind in self.leaves
        ]


class _RecordFold(_LeafFold):
    """Folds one field of the records; the other fields have the values of the cell's first record.

    An accumulator is a record.
    """

    def __init__(self, kind: FoldKind, record_type: TypeInformation, field: int | None) -> None:
        super().__init__(record_type, [(field, kind)], [field])
        self._kind, self._field = kind, field
        self.carries = field is not None

    def lift(self, records: pa.Array[Any]) -> pa.Array[Any]:
        _check_numbers(records, self._field, self._kind)
        return records

    def results_of(self, accumulators: pa.Array[Any]) -> pa.Array[Any]:
        return accumulators


class _NumbersFold(_LeafFold):
    """One or several aggregations; an accumulator has their numbers.

    Args:
        each: The aggregations: what they compute, and of which field of the records; for ``count``, a field of booleans
            if there is one. The field None is the record itself.
        kinds: How their numbers are merged.
        state_type: Type of the accumulators: a row with a field for each number, or a number.
        result_type: Type of the results: structs, or one column if there is one aggregation.
    """

    def __init__(
        self,
        each: Sequence[tuple[str, bool, int | None]],
        kinds: Sequence[FoldKind],
        state_type: TypeInformation,
        result_type: pa.DataType | None = None,
    ) -> None:
        self._structs = pa.types.is_struct(state_type.arrow_type)
        places = range(len(kinds)) if self._structs else [None]
        numbers = dict.fromkeys(field for kind, _, field in each if kind != "count")
        super().__init__(state_type, list(zip(places, kinds, strict=True)), list(numbers))
        self._each, self._result_type = each, result_type

    def lift(self, records: pa.Array[Any]) -> pa.Array[Any]:
        ones = pa.array(np.ones(len(records), dtype=np.int64))
        columns: list[pa.Array[Any]] = []
        for kind, of_field, field in self._each:
            if kind == "count":
                columns.append(_field(records, field).fill_null(False).cast(pa.int64()) if of_field else ones)
                continue
            values = _check_numbers(records, field, kind)
            columns += [values.cast(pa.float64(), safe=False), ones] if kind == "mean" else [values]
        if not self._structs:
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.state_type.arrow_type))

    def results_of(self, accumulators: pa.Array[Any]) -> pa.Array[Any]:
        structs: Any = accumulators
        numbers = iter(structs.flatten() if self._structs else [accumulators])
        columns = []
        for kind, _, _ in self._each:
            number = next(numbers)
            columns.append(pc.divide(number, next(numbers).cast(pa.float64())) if kind == "mean" else number)
        if self._result_type is None:
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self._result_type))


def _merged(values: Numbers, kind: FoldKind, groups: Cells, first: Cells) -> Numbers | None:
    """Returns the result of each group; None if a sum might be out of range."""
    if kind != "sum":
        result: Numbers = values[first]
        (np.minimum if kind == "min" else np.maximum).at(result, groups, values)
        return result
    if values.dtype.kind == "i" and not fits(values, values[:1] & 0):
        return None
    # Starting from negative zero, a sum of one value is exactly that value.
    result = np.full(len(first), -0.0 if values.dtype.kind == "f" else 0, dtype=values.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(result, groups, values)
    return result


def _field(records: pa.Array[Any], field: int | None) -> pa.Array[Any]:
    return records if field is None else struct_field(records, field)


def _leaf(accumulators: pa.Array[Any], field: int | None) -> Numbers:
    column = _field(accumulators, field)
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers


def _check_numbers(records: pa.Array[Any], field: int | None, what: str) -> pa.Array[Any]:
    """Returns the field of the records, after checking that each has a number in it."""
    column = _field(records, field)
    if column.null_count:
        record = records[pc.index(column.is_null(), True).as_py()].as_py()
        name = "" if field is None else f" field {records.type[field].name!r}:"
        raise TypeMismatchError(f"{name} {what}() of None, in record {record!r}; filter such records out first".strip())
    return column


def fold_of(
    function: object, record_type: TypeInformation, state_type: TypeInformation, operator: str = ""
) -> ColumnFold | None:
    """Returns the aggregation in columns that is equivalent to a function, or None if there is none."""
    if isinstance(function, BatchAggregate):
        return BatchFold(function, operator)
    if isinstance(function, CountAggregate):
        return _NumbersFold([("count", False, None)], ["sum"], state_type)
    if isinstance(function, MeanAggregate):
        field, _ = field_of(record_type, function.position)
        return _NumbersFold([("mean", True, field)], ["sum", "sum"], state_type)
    if isinstance(function, Aggregations):
        each = [
            (one.kind, one.field is not None, field_of(record_type, one.field or 0)[0])
            for one in function.each.values()
        ]
        result_type = pa.struct([(name, kind.arrow_type) for name, kind in function.results.items()])
        return _NumbersFold(each, function.kinds, function.accumulator_type, result_type)
    if isinstance(function, Accumulation) and function.fold in ("sum", "min", "max"):
        field, kind = field_of(record_type, function.position)
        if kind is not None and kind.arrow_type in _SUMMED and state_type == record_type:
            return _RecordFold(function.fold, record_type, field)
    return None


@contextmanager
def aggregating(context: OperatorContext, batch: StreamBatch) -> Iterator[None]:
    """Lets errors of an aggregation name the operator and, for an overflow, the record."""
    where = f"operator {context.vertex.uid!r}: "
    try:
        yield
    except IntegerOverflowError as error:
        assert batch.keys is not None
        record, key = batch.column[error.row].as_py(), batch.keys.column[error.row].as_py()
        what = "records combined to" if batch.combined else "record"
        raise TypeMismatchError(
            f"{where}with {what} {record!r}, the sum of key {key!r} is out of range for its type; sum a wider type, "
            "such as Types.LONG() or Types.DOUBLE()"
        ) from error
    except TypeMismatchError as error:
        if str(error).startswith(where):  # by whoever called a function of the user
            raise
        raise TypeMismatchError(f"{where}{error}") from error


def spread(keys: pa.Array[Any], *, flat: bool) -> list[pa.Array[Any]]:
    """Returns the columns of a key in a result; if it is flat, its column is a struct of them."""
    structs: Any = keys
    return list(structs.flatten()) if flat else [keys]


def fields_of(results: pa.Array[Any]) -> list[pa.Array[Any]]:
    """Returns the columns of results; those of several aggregations are structs."""
    structs: Any = results
    return list(structs.flatten()) if pa.types.is_struct(results.type) else [results]
