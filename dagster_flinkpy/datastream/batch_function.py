"""The vectorised form of a process function: a batch of records at a time, as Arrow columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.datastream.functions import Function
from dagster_flinkpy.datastream.state import ValueStateDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchState", "KeyedBatchFunction"]


class BatchState(ABC):
    """Keyed value state, many keys at a time.

    What is stored is what a :class:`ValueState` of the same descriptor stores, so a program can go from one form to the
    other and keep its state.
    """

    @abstractmethod
    def lookup(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> pa.Array[Any]:
        """The value of each key, with the Arrow type of the descriptor; null where there is none.

        Args:
            descriptor: Name and type of the state.
            keys: Keys of the batch, as they were given or any of them; may repeat.

        Raises:
            ConfigurationError: A key belongs to another subtask, or the state has a time to live.
            StateSchemaError: The state was stored with another type; names both.
        """

    @abstractmethod
    def update(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any], values: pa.Array[Any]) -> None:
        """Sets the value of each key; where a key repeats its last value counts. A null deletes.

        Raises:
            TypeMismatchError: Keys and values differ in number, or do not have their declared types; names operator,
                state, and key and value.
        """

    @abstractmethod
    def delete(self, descriptor: ValueStateDescriptor, keys: pa.Array[Any]) -> None:
        """Drops the values of keys."""


class KeyedBatchFunction(Function, ABC):
    """A function with keyed state that takes records a batch at a time; of how many records it is, nobody says."""

    @abstractmethod
    def process_batch(
        self, keys: pa.Array[Any], batch: pa.RecordBatch, state: BatchState
    ) -> pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None:
        """Takes records of one input, in order.

        Args:
            keys: The key of each record.
            batch: The records: a column per field; one column ``value`` where they are plain values.
            state: Keyed state.

        Returns:
            Records: a column per field of the declared output type, in any order; one column where that is no row. As
            many rows as the batch has get the timestamps of its records, one by one; any other number of rows gets the
            newest timestamp of the batch. Each of several results is looked at by itself.
        """
