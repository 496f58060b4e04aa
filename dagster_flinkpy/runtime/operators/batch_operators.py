"""The operators of vectorised functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.batch_function import BatchState
from dagster_flinkpy.datastream.functions import RuntimeContext
from dagster_flinkpy.datastream.operator_specs import FilterBatchSpec, InputsSpec, MapBatchSpec
from dagster_flinkpy.datastream.state import StateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.batch_fold import check_table, record_batch, shown_value, table_column
from dagster_flinkpy.runtime.operators.keyed_operators import KeyedStateOperator, touch_keys
from dagster_flinkpy.runtime.operators.stream_operator import (
    OperatorContext,
    StreamOperator,
    TaskRuntimeContext,
    called,
)
from dagster_flinkpy.runtime.shuffle.batch import KeyColumn, StreamBatch
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.cell_table import CellTable
from dagster_flinkpy.state.keys import hash_keys

__all__ = ["FilterBatchOperator", "KeyedBatchOperator", "MapBatchOperator"]


class _ColumnState(BatchState):
    """The state that ``process_batch`` can use: the state of the keys in its batch."""

    def __init__(self, backend: ColumnarKeyedStateBackend, uid: str) -> None:
        self._backend, self._uid = backend, uid
        self._tables: dict[str, tuple[ValueStateDescriptor, CellTable]] = {}
        self._keys: KeyColumn | None = None
        self._seats: npt.NDArray[np.int64] | None = None
        self._others: tuple[Any, npt.NDArray[np.int64]] | None = None
        """Other keys, and their seats: a function often reads and writes the same ones."""

    def select(self, keys: KeyColumn) -> None:
        """Selects the keys of a batch. Their state is read when it is asked for, often for distinct keys only."""
        self._keys, self._seats, self._others = keys, None, None
        self._backend.make_room()

    def lookup(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> pa.Array[Any]:
        return self._table(descriptor).lookup(self._seats_of(descriptor, keys))

    def update(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any], values: pa.Array[Any]) -> None:
        table, seats = self._table(descriptor), self._seats_of(descriptor, keys)
        what = f"operator {self._uid!r}, state {descriptor.name!r}"
        if len(keys) != len(values):
            raise TypeMismatchError(f"{what}: update() got {len(keys)} keys and {len(values)} values")
        table.update(seats, fit_column(values, descriptor.type_info, what))

    def delete(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> None:
        self._table(descriptor).delete(self._seats_of(descriptor, keys))

    def _table(self, descriptor: ValueStateDescriptor) -> CellTable:
        if not isinstance(descriptor, ValueStateDescriptor):
            raise ConfigurationError(
                f"operator {self._uid!r}: state in columns needs a ValueStateDescriptor, not {descriptor!r}; other "
                "kinds of state are for process()"
            )
        known = self._tables.get(descriptor.name)
        if known is None or known[0] is not descriptor:
            known = (descriptor, self._backend.get_cells(descriptor))
            self._tables[descriptor.name] = known
        return known[1]

    def _seats_of(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> npt.NDArray[np.int64]:
        if (bound := self._keys) is None:
            raise ConfigurationError(f"operator {self._uid!r}: state can only be used in process_batch()")
        if keys is bound.column:
            if self._seats is None:
                self._seats = touch_keys(self._backend, bound, beside=True)
            return self._seats
        if self._others is not None and keys is self._others[0]:
            return self._others[1]
        column = fit_column(keys, bound.type_info, f"operator {self._uid!r}, the keys of state {descriptor.name!r}")
        if column.null_count:
            raise TypeMismatchError(f"operator {self._uid!r}: a key of state {descriptor.name!r} is None")
        seats = self._backend.touch_column(column, hash_keys(bound.type_info, column), beside=True)
        self._others = (keys, seats)
        return seats


class KeyedBatchOperator(KeyedStateOperator):
    """A vectorised process function of one or several inputs, which share keyed state."""

    def __init__(self, context: OperatorContext, spec: InputsSpec) -> None:
        super().__init__(context)
        self.functions = (spec.function,)
        self._state = _ColumnState(self.backend, context.vertex.uid)

    def runtime_context(self) -> RuntimeContext:
        return TaskRuntimeContext(self.context, self._refuse_state)

    def _refuse_state(self, descriptor: StateDescriptor) -> Any:
        raise ConfigurationError(
            f"operator {self.context.vertex.uid!r}: a function of batches must use state {descriptor.name!r} through "
            "its argument `state`"
        )

    def process(self, input_index: int, batch: StreamBatch) -> None:
        function, keys = self.inputs[input_index], self.bind(batch)
        self._state.select(keys)
        try:
            results = function(keys.column, record_batch(batch.column, batch.type_info), self._state)
            if results is None:
                return
            tables: Iterable[Any] = (results,) if isinstance(results, (pa.RecordBatch, pa.Table)) else results
            for table in tables:
                self._emit_table(table, batch, function)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, called(function)) from e

    def _emit_table(self, table: Any, batch: StreamBatch, function: Callable[..., Any]) -> None:
        vertex = self.context.vertex
        check_table(table, f"operator {vertex.uid!r}: {called(function)}", "record batches or tables")
        if not table.num_rows:
            return
        timestamps = batch.timestamps
        if table.num_rows != len(batch):
            timestamps = np.full(table.num_rows, timestamps.max())
        self.emit(table_column(table, vertex.output_type, f"operator {vertex.uid!r}"), timestamps)


class MapBatchOperator(StreamOperator):
    """Maps a batch to a batch of as many records."""

    def __init__(self, context: OperatorContext, spec: MapBatchSpec) -> None:
        super().__init__(context)
        self._map = spec.function

    def process(self, input_index: int, batch: StreamBatch) -> None:
        vertex = self.context.vertex
        table = self.call("map_batch()", lambda: self._map(record_batch(batch.column, batch.type_info)))
        what = f"operator {vertex.uid!r}: {called(self._map)}"
        check_table(table, what)
        if table.num_rows != len(batch):
            raise TypeMismatchError(
                f"{what} returned {table.num_rows} rows for {len(batch)} records; it must return one for each. To drop "
                "records, call filter_batch()"
            )
        self.emit(table_column(table, vertex.output_type, f"operator {vertex.uid!r}"), batch.timestamps)


class FilterBatchOperator(StreamOperator):
    """Keeps the records for which a column of booleans is true."""

    def __init__(self, context: OperatorContext, spec: FilterBatchSpec) -> None:
        super().__init__(context)
        self._filter = spec.function

    def process(self, input_index: int, batch: StreamBatch) -> None:
        mask = self.call("filter_batch()", lambda: self._filter(record_batch(batch.column, batch.type_info)))
        keep = self._checked(mask, len(batch))
        if keep.any():
            self.context.emit(None, batch if keep.all() else batch.filter(keep))

    def _checked(self, mask: Any, records: int) -> npt.NDArray[np.bool_]:
        what = f"operator {self.context.vertex.uid!r}: {called(self._filter)} returned"
        if isinstance(mask, (pa.Array, pa.ChunkedArray)):
            if not pa.types.is_boolean(mask.type):
                raise TypeMismatchError(f"{what} a column of {mask.type}; it must return one of booleans")
            column = one_chunk(mask) if isinstance(mask, pa.ChunkedArray) else mask
            mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeMismatchError(f"{what} {shown_value(mask)}; it must return an Arrow or numpy array of booleans")
        if mask.shape != (records,):
            raise TypeMismatchError(f"{what} {mask.size} booleans for {records} records; it must return one for each")
        return mask
