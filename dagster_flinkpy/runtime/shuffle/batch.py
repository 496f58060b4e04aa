"""Batches of records, as a column, as Python values, or both, depending on what is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.copies import changes, copied, only_reads, unchanging_types
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["NO_TIMESTAMP", "KeyColumn", "Pace", "StreamBatch", "each_int"]

NO_TIMESTAMP = -(2**63)
"""The timestamp of a record without event time (Flink: ``Long.MIN_VALUE``)."""

_AT_ONCE = 2048
"""How many records are converted to Python values at a time: few enough to stay in the processor's cache."""


def each_int(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Iterable[int]:
    """Yields the numbers as Python ints."""
    parts = (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
    return chain.from_iterable(part.tolist() for part in parts)


@dataclass(frozen=True)
class KeyColumn:
    """The keys of a batch and their Java hash codes."""

    type_info: TypeInformation
    column: pa.Array
    hashes: np.ndarray[Any, np.dtype[np.int32]]
    encoded: pa.DictionaryArray | None = None
    """The column as a dictionary, if keys repeat. It has each key once, in order of appearance, and no other."""
    seldom_repeat: bool = False
    """Whether it does not pay to look for keys that repeat."""


class StreamBatch:
    """Records of one stream, each with a timestamp.

    A batch is made from a column or from Python values. The other form is made on demand and kept. Turning values into
    a column also checks their types; a chained function then gets the original values.

    Args:
        type_info: Type of the records.
        timestamps: Event times in milliseconds, ``int64``; :data:`NO_TIMESTAMP` for records without event time.
        column: The records as a column of ``type_info.arrow_type``.
        values: The records as Python values.
        keys: The keys, on a keyed edge.
        producer: Uid of the operator that emitted the records; type errors name it.
        combined: Whether the records are accumulators that the sender has made of all its records of a key and time.
            Default: False.
    """

    __slots__ = ("_checked", "_column", "_values", "combined", "keys", "producer", "timestamps", "type_info")

    def __init__(
        self,
        type_info: TypeInformation,
        timestamps: np.ndarray[Any, np.dtype[np.int64]],
        *,
        column: pa.Array | None = None,
        values: Sequence[Any] | None = None,
        keys: KeyColumn | None = None,
        producer: str = "",
        combined: bool = False,
    ) -> None:
        self.type_info = type_info
        self.combined = combined
        self.timestamps = timestamps
        self.keys = keys
        self.producer = producer
        self._column = column
        self._values = values
        self._checked = False

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def column(self) -> pa.Array:
        """Returns the records as a column.

        Raises:
            TypeMismatchError: A value does not have the declared type. The message names operator, field and value.
        """
        if self._column is None:
            assert self._values is not None
            try:
                self._column = self.type_info.to_arrow(self._values)
            except TypeMismatchError as e:
                raise TypeMismatchError(f"operator {self.producer!r}: {e}") from e
            if self._column.null_count and isinstance(self.type_info, RowTypeInfo | TupleTypeInfo):
                raise TypeMismatchError(
                    f"operator {self.producer!r}: a record is None instead of {self.type_info}; to emit no record, let "
                    "a function of process() or flat_map() yield nothing, or call filter()"
                )
        return self._column

    @property
    def values(self) -> Sequence[Any]:
        """Returns the records as Python values; rows have the field names of their type.

        Raises:
            TypeMismatchError: A value does not have the declared type. The message names operator, field and value.
        """
        if self._values is None:
            self._values = self.type_info.from_arrow(self._column)
        elif not self._checked:
            if not isinstance(self.type_info, PickledBytesTypeInfo):
                _ = self.column  # this is the fastest exact type check
            if self.type_info.names_fields:
                for value in self._values:
                    self.type_info.name_fields(value)
        self._checked = True
        return self._values

    def each_value(self) -> Iterable[Any]:
        """Yields the values once, without keeping them."""
        return self._each_of(self.column) if self._values is None else self.values

    def lent(self, function: Any) -> Iterator[Any]:
        """Yields the values for a function that only looks at them. If it changes some, nobody else sees that."""
        if self.may_share(function):
            return iter(self.values)
        column = self.column
        if self._values is not None and isinstance(self.type_info, PickledBytesTypeInfo):
            return map(copied, self._values)
        return self._each_of(column)

    def may_share(self, function: Any) -> bool:
        """Returns whether nobody can tell that a function had a value: it cannot change, or is only read."""
        return not changes(self.type_info) or (self._values is None and only_reads(function, self.type_info))

    def _each_of(self, column: pa.Array) -> Iterator[Any]:
        parts = (column.slice(start, _AT_ONCE) for start in range(0, len(self), _AT_ONCE))
        return chain.from_iterable(map(self.type_info.from_arrow, parts))

    def let_go(self) -> list[Any]:
        """Returns the values, of which only the column is kept.

        So a function that gets one may be the only one to hold it. Call it when nobody else reads the values.
        """
        values = self.values
        if self._column is None or not isinstance(values, list):
            return list(values)
        self._values = None
        return values

    def drop_values(self) -> None:
        """Keeps only the column, if there is one."""
        if self._column is not None:
            self._values = None

    def value_at(self, position: int) -> Any:
        """Returns a value, as it was before functions changed it if only the column is left."""
        if self._values is not None:
            return self._values[position]
        return self.type_info.from_arrow(self.column.slice(position, 1))[0]

    def values_at(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> list[Any]:
        """Returns the values at some positions; a value that can change is another copy each time."""
        if not changes(self.type_info):
            return list(map(self.values.__getitem__, rows.tolist()))
        column, first = self.column, int(rows[0]) if len(rows) else 0
        adjoin = bool((rows == np.arange(first, first + len(rows))).all())
        return self.type_info.from_arrow(column.slice(first, len(rows)) if adjoin else column.take(pa.array(rows)))

    def each_timestamp(self) -> Iterable[int]:
        """Yields the timestamps as Python ints."""
        times = self.timestamps
        if len(times) and (times == times[0]).all():
            return repeat(int(times[0]), len(times))
        return each_int(times)

    def copy(self) -> StreamBatch:
        """Returns a batch of the same records, with timestamps that can be replaced."""
        batch = StreamBatch(
            self.type_info, self.timestamps, column=self._column, values=self._values, producer=self.producer
        )
        batch._checked = self._checked
        return batch

    def apart(self) -> StreamBatch:
        """Returns a batch with copies of the Python values, which functions may change."""
        batch = self.copy()
        if self._values is not None:
            unchanging = unchanging_types(self.type_info)
            batch._values = [value if type(value) in unchanging else copied(value) for value in self._values]
        return batch

    def slice(self, start: int, end: int) -> StreamBatch:
        """Returns a batch of the records from one position up to another one, with their keys."""
        keys = self.keys
        if keys is not None:
            keys = KeyColumn(keys.type_info, keys.column.slice(start, end - start), keys.hashes[start:end])
        return StreamBatch(
            self.type_info,
            self.timestamps[start:end],
            column=self.column.slice(start, end - start),
            keys=keys,
            producer=self.producer,
            combined=self.combined,
        )

    def filter(self, mask: np.ndarray[Any, np.dtype[np.bool_]], *, keys: bool = False) -> StreamBatch:
        """Returns the records where ``mask`` is true."""
        keep = np.flatnonzero(mask)
        kept = None
        if keys and self.keys is not None:
            column = self.keys.column.take(pa.array(keep))
            kept = KeyColumn(self.keys.type_info, column, self.keys.hashes[keep])
        batch = StreamBatch(
            self.type_info,
            self.timestamps[keep],
            column=None if self._column is None else self._column.take(pa.array(keep)),
            values=None if self._values is None else [self._values[i] for i in keep.tolist()],
            keys=kept,
            producer=self.producer,
        )
        batch._checked = self._checked
        return batch


class Pace:
    """Cuts batches into parts of a second at most, so that others have their turn.

    Args:
        cuts: False leaves them as they are.
    """

    def __init__(self, *, cuts: bool) -> None:
        self.rows = 1 if cuts else sys.maxsize  # a function may take a second for each
        """How many records a part has at most."""
        self._least = 1
        self.is_slow = False
        """Whether parts may take 0.1 s or more."""
        self.waits: Callable[[], bool] = lambda: False  # whether those who receive the records have no room for more
        self._records = self._seconds = 0.0
        """How many records the last parts had, and how long they took. What was long ago counts little."""
        self._part: tuple[int, float, float | None] = 0, 0.0, 0.0  # records, begin, end (None: receivers had no room)

    def keep_together(self, records: int) -> None:
        """Makes no part smaller than this, because it would not take less time."""
        self._least, self.rows = records, max(self.rows, records)

    def process(self, batch: StreamBatch, function: Callable[[StreamBatch], object]) -> Iterator[int]:
        """Gives a batch to a function part by part, and yields after each how many records it has had.

        Most batches are one part: these grow as long as one four times as large would take half a second at most. If
        those who receive the records have no room, the time until they have counts, too.
        """
        end = 0
        while end < len(batch):
            self._learn()
            start, began = end, time.monotonic()
            end = min(start + self.rows, len(batch))
            function(batch if end - start == len(batch) else batch.slice(start, end))
            self._part = end - start, began, None if self.waits() else time.monotonic()
            yield end

    def _learn(self) -> None:
        records, began, ended = self._part
        seconds = ended - began if ended is not None else min(time.monotonic() - began, 10)  # maybe there was no input
        self._part = 0, 0.0, 0.0
        kept = 0.5**seconds  # parts that took no time, because there was room, tell nothing new
        self._records, self._seconds = self._records * kept + records, self._seconds * kept + seconds
        if records and self.rows < sys.maxsize:
            fits = round(self._records / 2 / max(self._seconds, 1e-6))
            self.rows = max(min(fits, self.rows * 4 if records == self.rows else self.rows), self._least)
            self.is_slow = self.rows * self._seconds >= self._records / 10
