"""The vectorised forms of functions with state, which take batches of records as Arrow columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.functions import Function
from dagster_flinkpy.datastream.state import ValueStateDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchAggregateFunction", "BatchState", "KeyedBatchFunction", "KeyedMultipleInputBatchFunction"]


class BatchState(ABC):
    """Keyed value state for many keys at a time.

    It stores the same as a `ValueState` with the same descriptor, so a program can switch from one form to the other
    and keep its state.
    """

    @abstractmethod
    def lookup(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> pa.Array[Any]:
        """Returns the value of each key, with the Arrow type of the descriptor, or null if there is none.

        Args:
            descriptor: Name and type of the state.
            keys: Some or all keys of the batch, in any order. They may repeat.

        Raises:
            ConfigurationError: A key belongs to another subtask, or the state has a time to live.
            StateSchemaError: The state was stored with another type; the message names both.
        """

    @abstractmethod
    def update(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any], values: pa.Array[Any]) -> None:
        """Sets the value of each key. If a key repeats, its last value counts. A null deletes the value.

        Raises:
            TypeMismatchError: Keys and values differ in number, or do not have their declared types; the message names
                the operator, state, key and value.
        """

    @abstractmethod
    def delete(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> None:
        """Deletes the values of keys."""


class BatchAggregateFunction(ABC):
    """An aggregation in columns, for ``agg()`` and for ``aggregate()`` of windows.

    Records become accumulators, each alone; accumulators of a key (and window) are merged; what is left is the result.
    Only accumulators are state, with a column per field. They are merged in any order and in any number of steps, also
    before the shuffle, so it must make no difference in which: as for a sum or a maximum, and not for the first record.

    The same object is used for all keys, and keeps nothing between two calls. (Flink: ``AggregateFunction``; Ray Data:
    ``AggregateFnV2``.)
    """

    @abstractmethod
    def get_accumulator_type(self) -> RowTypeInfo:
        """Returns the fields of an accumulator, as a row with names."""

    @abstractmethod
    def get_result_type(self) -> RowTypeInfo:
        """Returns the fields of a result, as a row with names."""

    @abstractmethod
    def lift(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """Returns the accumulator of each record alone.

        Args:
            batch: The records, with a column per field, or one column ``value`` if they are plain values.

        Returns:
            The fields of the accumulator type, in any order, with a row per record.
        """

    @abstractmethod
    def merge(self, accumulators: pa.RecordBatch, groups: pa.Array[Any]) -> pa.RecordBatch | pa.Table:
        """Merges the accumulators of each group.

        Args:
            accumulators: At least one row per group, sorted by group.
            groups: The group of each row: int64, ascending, every number from 0.

        Returns:
            The fields of the accumulator type, in any order, with a row per group, in the order of the groups.
        """

    def get_results(self, accumulators: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """Returns the fields of the result type, in any order, with a row per accumulator. Default: accumulators."""
        return accumulators


class KeyedBatchFunction(Function, ABC):
    """A function with keyed state that takes batches of records. The size of a batch is not defined."""

    @abstractmethod
    def process_batch(
        self, keys: pa.Array[Any], batch: pa.RecordBatch, state: BatchState
    ) -> pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None:
        """Processes a batch of records of one input, in order.

        Args:
            keys: The key of each record.
            batch: The records, with a column per field, or one column ``value`` if they are plain values.
            state: Keyed state.

        Returns:
            Records with a column per field of the declared output type, in any order, or one column if it is not a row.
            If there are as many rows as in the batch, each gets the timestamp of its record. Otherwise all rows get the
            newest timestamp of the batch. This applies to each of several results separately.
        """


class KeyedMultipleInputBatchFunction(Function, ABC):
    """A `KeyedBatchFunction` with any number of inputs, which have keys of one type and share state."""

    @abstractmethod
    def get_inputs(self) -> Sequence[Callable[[pa.Array[Any], pa.RecordBatch, BatchState], Any]]:
        """Returns a function for each input, in the order of the connected streams; usually methods of this object.

        It takes and returns the same as `KeyedBatchFunction.process_batch`. This method is called when the program is
        built, and again in each subtask after ``open``.
        """
