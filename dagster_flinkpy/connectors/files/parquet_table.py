"""Reads the table that a Parquet sink has committed: a folder of files, with a subfolder per partition if any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import cast_column
from dagster_flinkpy.connectors.commit.staged_files import partition_folder, partition_values
from dagster_flinkpy.datastream.connectors.tables import RowCount
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.spark.versions import frame_of_parts
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.object_store import RangedFile

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ParquetTable", "TableRows", "table_schema"]

_THREADS = 8
"""How many files are read at the same time."""

_MOST_COUNTED = 2_000
"""The maximum number of files whose footers are read to count rows."""


def table_schema(type_info: TypeInformation) -> pa.Schema:
    """Returns the columns that records of a type have in a table: the fields of rows and tuples, or else ``value``."""
    flat = isinstance(type_info, (RowTypeInfo, TupleTypeInfo))
    return pa.schema(list(type_info.arrow_type) if flat else [("value", type_info.arrow_type)])


@dataclass(frozen=True)
class TableRows:
    """The committed rows of a sink's table. Nothing is read until one of its methods is called."""

    location: StorageLocation
    """The folder of the table."""
    schema: pa.Schema
    """The columns to read."""
    partitions: Sequence[str] | None = None
    """The Dagster partitions to read, or None for all rows."""

    def select(self, columns: Sequence[str]) -> Self:
        """Returns the table with some of its columns."""
        if unknown := [name for name in columns if name not in self.schema.names]:
            raise ConfigurationError(f"table {self.location.url} has no column {unknown[0]!r}: {self.schema.names}")
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))


@dataclass(frozen=True)
class ParquetTable(TableRows):
    """The rows of a Parquet sink.

    A column that is missing in a file is taken from its folders (``country=DE/``). Otherwise it is null, because an
    older version of the program wrote the file.
    """

    def files(self) -> list[tuple[str, int]]:
        """Lists the committed files: key below the location, and size in bytes."""
        store = self.location.open()
        folders = [""] if self.partitions is None else [partition_folder(key) for key in self.partitions]
        # A few folders are listed one by one; many are listed all at once.
        wanted = tuple(folders)
        listed = [store.list(folder) for folder in folders] if len(folders) <= _THREADS else [store.list()]
        return [
            (info.key, info.size)
            for infos in listed
            for info in infos
            if info.key.endswith(".parquet") and info.key.startswith(wanted)
        ]

    def count_rows(self, known: RowCount | None = None) -> RowCount | None:
        """Counts the rows. Reads only the footers of files that were not counted before.

        The names of a sink's files ascend with the checkpoints, so new files come after the existing ones.

        Args:
            known: An earlier result. It saves work if its files still exist and are first in the listing.

        Returns:
            The number of rows, or None if more than 2,000 files would have to be read.

        Raises:
            StorageError: The folder or a file cannot be read.
            ArrowException: A file is not Parquet.
        """
        files = sorted(self.files())
        before, counted = 0, 0
        if known is not None and known.files is not None and known.digest == self._digest(files[: known.files]):
            before, counted = known.rows, known.files
        rest = files[counted:]
        if len(rest) > _MOST_COUNTED:
            return None
        with ThreadPoolExecutor(_THREADS) as threads:
            rows = before + sum(threads.map(self._rows_of, rest))
        return RowCount(rows, len(files), self._digest(files))

    def _rows_of(self, file: tuple[str, int]) -> int:
        with pq.ParquetFile(RangedFile(self.location.open(), *file)) as parquet:
            return int(parquet.metadata.num_rows)

    def _digest(self, files: Sequence[tuple[str, int]]) -> str:
        return hashlib.sha256(json.dumps([self.location.url, *files]).encode()).hexdigest()[:16]

    def to_arrow(self) -> pa.Table:
        with ThreadPoolExecutor(_THREADS) as threads:
            parts = list(threads.map(self.read_file, self.files()))
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def to_spark(self, session: Any, files: Sequence[tuple[str, int]] | None = None) -> Any:
        """Returns the rows as a Spark DataFrame. Spark reads them, with one task for each file.

        Args:
            session: A SparkSession whose executors have this library installed and can reach the storage.
            files: Some of `files`. Default: all.
        """
        files = self.files() if files is None else files
        return frame_of_parts(session, self.schema, partial(self._read_batches, files), len(files))

    def _read_batches(self, files: Sequence[tuple[str, int]], position: int) -> Iterator[pa.RecordBatch]:
        yield from self.read_file(files[position]).to_batches()

    def read_file(self, file: tuple[str, int]) -> pa.Table:
        """Reads one of `files`."""
        key, size = file
        with pq.ParquetFile(RangedFile(self.location.open(), key, size), pre_buffer=True) as parquet:
            there = [name for name in self.schema.names if name in parquet.schema_arrow.names]
            rows = parquet.read(columns=there)
            count = parquet.metadata.num_rows
        in_path = partition_values(key)
        columns = [
            cast_column(field.name, rows.column(field.name), field.type)
            if field.name in there
            else pa.repeat(pa.scalar(in_path.get(field.name), pa.string()).cast(field.type), count)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)
