"""Reads the table that a Delta Lake sink has committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from dagster_flinkpy.connectors.columns.column_casts import cast_column
from dagster_flinkpy.connectors.delta.table import storage_options, table_url
from dagster_flinkpy.connectors.files.parquet_table import TableRows
from dagster_flinkpy.spark.versions import data_frame

__all__ = ["DeltaRows"]


@dataclass(frozen=True)
class DeltaRows(TableRows):
    """The rows of the latest version of a table.

    A column that the table does not have is null: no checkpoint of the program that has it is committed yet.
    """

    partition_column: str | None = None
    """The column that has the Dagster partition."""

    def to_arrow(self) -> pa.Table:
        url, options = table_url(self.location), storage_options(self.location)
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
