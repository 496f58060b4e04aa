"""The common part of the vectorised built-in aggregations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.aggregations import WithKeyAndWindow
from dagster_flinkpy.datastream.operator_specs import WindowSpec
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED
from dagster_flinkpy.runtime.operators.folds import ColumnFold
from dagster_flinkpy.runtime.operators.grouped_rows import IntegerOverflowError
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["AggregateOperator", "WindowedAggregateOperator", "fields_of", "spread"]

Cells = npt.NDArray[np.int64]


class AggregateOperator(KeyedStateOperator):
    """Base of the vectorised aggregations."""

    def __init__(self, context: OperatorContext, fold: ColumnFold) -> None:
        super().__init__(context)
        self._fold = fold

    def _fail(self, error: Exception, batch: StreamBatch) -> Exception:
        """Returns an error that names the operator and, for an overflow, the record."""
        uid = self.context.vertex.uid
        if isinstance(error, IntegerOverflowError):
            assert batch.keys is not None
            record, key = batch.column[error.row].as_py(), batch.keys.column[error.row].as_py()
            what = "records combined to" if batch.combined else "record"
            return TypeMismatchError(
                f"operator {uid!r}: with {what} {record!r}, the sum of key {key!r} is out of range for its type; sum "
                "a wider type, such as Types.LONG() or Types.DOUBLE()"
            )
        return TypeMismatchError(f"operator {uid!r}: {error}")

    def _emit(self, column: pa.Array[Any], timestamps: Cells) -> None:
        vertex = self.context.vertex
        self.context.emit(None, StreamBatch(vertex.output_type, timestamps, column=column, producer=vertex.uid))

    def _struct(self, columns: list[pa.Array[Any]]) -> pa.Array[Any]:
        return pa.StructArray.from_arrays(columns, fields=list(self.context.vertex.output_type.arrow_type))


class WindowedAggregateOperator(AggregateOperator):
    """Base of those over windows."""

    def __init__(self, context: OperatorContext, spec: WindowSpec, fold: ColumnFold) -> None:
        super().__init__(context, fold)
        self._late_tag, function = spec.late_tag, spec.window_function
        self._with_key = isinstance(function, WithKeyAndWindow)
        self._key_fields = function.key_fields if isinstance(function, WithKeyAndWindow) else 0
        self._late = 0

    def _check_times(self, batch: StreamBatch, times: Cells) -> None:
        """Raises an error if a record has no event time."""
        timeless = np.flatnonzero(times == NO_TIMESTAMP)
        if len(timeless):
            record = batch.column[int(timeless[0])].as_py()
            error = ValueError(
                f"record {record!r} has no event time; set a watermark strategy with a timestamp assigner"
            )
            raise self.user_error(error, "window")

    def _skip(self, batch: StreamBatch, late: npt.NDArray[np.bool_]) -> None:
        """Counts or emits late records."""
        assert not (batch.combined and late.any()), "a record that might be late was combined with others"
        if self._late_tag is None:
            self._late += int(late.sum())
        elif late.any():
            self.context.emit(self._late_tag, batch.filter(late))

    def _result(self, keys: pa.Array[Any], starts: Cells, ends: Cells, results: pa.Array[Any]) -> pa.Array[Any]:
        return self._struct([*spread(keys, self._key_fields), pa.array(starts), pa.array(ends), *fields_of(results)])

    def snapshot(self) -> OperatorSnapshot:
        snapshot = super().snapshot()
        snapshot.metrics[LATE_RECORDS_DROPPED] = self._late
        self._late = 0
        return snapshot


def spread(keys: pa.Array[Any], fields: int) -> list[pa.Array[Any]]:
    """Returns the columns of a key in a result; the column of a key with several fields is a struct."""
    structs: Any = keys
    return list(structs.flatten()) if fields > 1 else [keys] * fields


def fields_of(results: pa.Array[Any]) -> list[pa.Array[Any]]:
    """Returns the columns of results; those of several aggregations are structs."""
    structs: Any = results
    return list(structs.flatten()) if pa.types.is_struct(results.type) else [results]
