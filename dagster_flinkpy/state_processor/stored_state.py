"""One state of a savepoint or checkpoint, readable with Arrow, pandas, Polars or Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.savepoints.savepoint import has_pickled_values
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.spark.versions import frame_of_parts
from dagster_flinkpy.state.handles import TIMERS, DistributionMode, OperatorStateHandle, TableSnapshot
from dagster_flinkpy.state.layout import TableLayout
from dagster_flinkpy.state.reader import (
    KeySet,
    operator_state_schema,
    parts_of,
    read_operator_state,
    read_rows,
    read_table,
    table_schema,
)
from dagster_flinkpy.storage import StorageLocation

__all__ = ["KeyedStateRows", "OperatorRows", "OperatorStateRows", "StatesByName", "StoredState"]

_THREADS = 8
"""Number of subtasks whose state is read at the same time."""


@dataclass(frozen=True)
class StoredState(ABC):
    """A named state of one operator. Nothing is read until one of its methods is called."""

    uid: str
    """Uid of the operator."""
    name: str
    files: StorageLocation
    """The folder that the paths of its files are relative to."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER; for operator state SPLIT_DISTRIBUTE, UNION or BROADCAST."""

    @property
    @abstractmethod
    def types(self) -> Mapping[str, TypeInformation]:
        """The declared types by column. Raw state has no declared types."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns."""

    @property
    @abstractmethod
    def subtasks(self) -> tuple[int, ...]:
        """Indices of the subtasks that hold a part of the state."""

    @abstractmethod
    def read_subtask(self, position: int) -> pa.Table:
        """Reads the rows of one of :attr:`subtasks`, by its position there.

        Raises:
            CorruptStateError: A file is missing or damaged; the message names it.
        """

    @abstractmethod
    def for_keys(self, keys: Iterable[Any]) -> StoredState:
        """Returns the state of the given keys only. Files and row groups that cannot contain them are not read.

        Args:
            keys: Python values, or an Arrow array with the type of the column ``key``.

        Raises:
            ConfigurationError: This is operator state, which has no keys.
            TypeMismatchError: A key does not have the type of the column ``key``.
        """

    def read_parts(self, position: int) -> Iterator[pa.Table]:
        """Yields the rows of one of :attr:`subtasks` in parts, each of which is read when it is requested.

        Raises:
            CorruptStateError: As :meth:`read_subtask`.
        """
        yield self.read_subtask(position)

    def to_tables(self) -> Iterator[pa.Table]:
        """Yields the rows, subtask by subtask, in parts of about a million. Each is read when it is requested."""
        return (part for position in range(len(self.subtasks)) for part in self.read_parts(position))

    def to_arrow(self) -> pa.Table:
        """Reads all rows. Pickled values stay bytes, and expired rows are included with their ``expires_at``.

        Raises:
            CorruptStateError: A file is missing or damaged; the message names it.
        """
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            parts = list(threads.map(self.read_subtask, range(len(self.subtasks))))
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Reads some columns of all rows, in any order, which takes less time than :meth:`to_arrow`.

        Args:
            columns: Names of columns of :attr:`schema`.

        Raises:
            CorruptStateError: A file is missing or damaged; the message names it.
        """
        return self.to_arrow().select(list(columns))

    def to_pandas(self) -> Any:
        """Reads all rows like :meth:`to_arrow`, as a pandas DataFrame. Integers beside nulls are no floats."""
        return self.to_arrow().to_pandas(integer_object_nulls=True)

    def to_polars(self) -> Any:
        """Reads all rows like :meth:`to_arrow`, as a Polars DataFrame. Polars must be installed."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def to_spark(self, session: Any) -> Any:
        """Returns the rows as a Spark DataFrame. Spark reads them, with one task for each subtask.

        Args:
            session: A SparkSession whose executors have this library installed and can reach the storage.
        """
        return frame_of_parts(session, self.schema, self._read_batches, len(self.subtasks))

    def _read_batches(self, position: int) -> Iterator[pa.RecordBatch]:
        for part in self.read_parts(position):
            yield from part.to_batches()

    def to_pylist(self, *, allow_pickled_state: bool = False) -> list[dict[str, Any]]:
        """Reads all rows as Python values of the declared types, such as ``Row``, tuple and ``Instant``.

        Args:
            allow_pickled_state: Whether to unpickle pickled values. Whoever wrote them can run code in this process.
                By default they stay bytes.
        """
        table = self.to_arrow()
        columns = []
        for name, column in zip(table.column_names, table.columns, strict=True):
            kind = self.types.get(name)
            plain = kind is None or (has_pickled_values(kind.to_json()) and not allow_pickled_state)
            columns.append(column.to_pylist() if kind is None or plain else kind.from_arrow(column.combine_chunks()))
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class OperatorRows(StoredState):
    """Operator state."""

    def for_keys(self, keys: Iterable[Any]) -> StoredState:
        raise ConfigurationError(f"state {self.name!r} of operator {self.uid!r} is operator state, which has no keys")


class StatesByName(ABC):
    """The states of a savepoint."""

    @abstractmethod
    def state(self, uid: str, name: str) -> StoredState:
        """Returns a state by the uid of its operator and its name.

        Raises:
            RestoreError: There is no such operator or state; the message lists the existing ones.
        """

    def timers(self, uid: str, domain: TimeDomain = TimeDomain.EVENT_TIME) -> StoredState:
        """Returns the pending timers of an operator: ``key``, ``time``, and for windows their ``namespace``.

        Raises:
            RestoreError: The operator has no timers.
        """
        return self.state(uid, TIMERS[domain])


@dataclass(frozen=True)
class KeyedStateRows(StoredState):
    """Keyed state or timers. :class:`SavepointReader` creates it."""

    max_parallelism: int
    """Max parallelism of the operator."""
    tables: tuple[tuple[int, TableSnapshot], ...]
    """Each subtask with its part of the state; at least one."""
    keys: KeySet | None = None
    """The keys to read, or None for all."""

    @property
    def kind(self) -> str:
        return self.tables[0][1].kind

    @property
    def types(self) -> Mapping[str, TypeInformation]:
        return TableLayout.of(self.tables[0][1]).types

    @property
    def schema(self) -> pa.Schema:
        # Spark has no unsigned integers.
        return table_schema(self.tables[0][1]).set(0, pa.field("key_group", pa.int32()))

    @property
    def subtasks(self) -> tuple[int, ...]:
        return tuple(subtask for subtask, _ in self._wanted())

    def _wanted(self) -> list[tuple[int, TableSnapshot]]:
        keys = self.keys
        return [
            (subtask, table)
            for subtask, table in self.tables
            if keys is None or any(keys.within(run.span) for run in table.runs)
        ]

    def read_subtask(self, position: int) -> pa.Table:
        _, table = self._wanted()[position]
        return read_table(table, self.files.open(), keys=self.keys).cast(self.schema)

    def read_parts(self, position: int) -> Iterator[pa.Table]:
        _, table = self._wanted()[position]
        for part in parts_of(table) if self.keys is None else [table]:
            yield read_table(part, self.files.open(), keys=self.keys).cast(self.schema)

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        if self.keys is not None:
            return super().read_columns(columns)
        schema, store = pa.schema([self.schema.field(name) for name in columns]), self.files.open()
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            parts = list(threads.map(lambda table: read_rows(table, store, columns), [t for _, t in self._wanted()]))
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])

    def for_keys(self, keys: Iterable[Any]) -> KeyedStateRows:
        return replace(self, keys=KeySet.of(keys, self.types["key"], self.max_parallelism))


@dataclass(frozen=True)
class OperatorStateRows(OperatorRows):
    """Operator state. :class:`SavepointReader` creates it."""

    handles: tuple[tuple[int, OperatorStateHandle], ...]
    """Each subtask with its part of the state; at least one."""

    @property
    def kind(self) -> str:
        return self.handles[0][1].mode.value

    @property
    def types(self) -> Mapping[str, TypeInformation]:
        return {column: type_from_json(kind) for column, kind in self.handles[0][1].types.items()}

    @property
    def schema(self) -> pa.Schema:
        return operator_state_schema(self.handles[0][1].types)

    @property
    def subtasks(self) -> tuple[int, ...]:
        # Broadcast state is the same in all subtasks.
        copies = 1 if self.handles[0][1].mode is DistributionMode.BROADCAST else len(self.handles)
        return tuple(subtask for subtask, _ in self.handles[:copies])

    def read_subtask(self, position: int) -> pa.Table:
        _, handle = self.handles[position]
        return read_operator_state(handle.partitions, handle.types, self.files.open())
