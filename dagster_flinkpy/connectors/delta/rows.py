"""Reads the table that a Delta Lake sink has committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from dagster_flinkpy.connectors.columns.column_casts import cast_column
from dagster_flinkpy.connectors.delta.table import storage_options
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.spark.versions import data_frame
from dagster_flinkpy.storage import StorageLocation

__all__ = ["DeltaRows"]


@dataclass(frozen=True)
class DeltaRows:
    """The rows of the latest version of a table. Nothing is read until one of its methods is called.

    A column that the table does not have is null: no checkpoint of the program that has it is committed yet.
    """

    location: StorageLocation
    """The folder of the table."""
    schema: pa.Schema
    """The columns to read."""
    partition_column: str | None = None
    """The column that has the Dagster partition."""
    partitions: Sequence[str] | None = None
    """The Dagster partitions to read, or None for all rows."""

    def select(self, columns: Sequence[str]) -> DeltaRows:
        """Returns the table with some of its columns.

        Raises:
            ConfigurationError: The table has no such column.
        """
        if unknown := [name for name in columns if name not in self.schema.names]:
            raise ConfigurationError(f"table {self.location.url} has no column {unknown[0]!r}: {self.schema.names}")
        return replace(self, schema=pa.schema([self.schema.field(name) for name in columns]))

    def to_arrow(self) -> pa.Table:
        """Reads the rows."""
        url, options = self.location.url, storage_options(self.location)
        if not DeltaTable.is_deltatable(url, options):
            return self.schema.empty_table()
        dataset = DeltaTable(url, storage_options=options).to_pyarrow_dataset()
        condition = None
        if self.partitions is not None and self.partition_column is not None:
            condition = pc.field(self.partition_column).isin(list(self.partitions))
        there = [name for name in self.schema.names if name in dataset.schema.names]
        rows = dataset.to_table(there, filter=condition)
        columns = [
            cast_column(field.name, rows.column(field.name), field.type)
            if field.name in there
            else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def to_spark(self, session: Any) -> Any:
        """Returns the rows as a Spark DataFrame. They go through this process, because Spark cannot read the log."""
        return data_frame(session, self.to_arrow())
