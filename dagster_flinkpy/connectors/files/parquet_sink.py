"""A folder of Parquet files as a two-phase-commit sink.

A writer stages its files of an epoch as uploads, which readers cannot see. The committer completes the uploads after
the checkpoint. It recognises an upload that is already completed by the content of the object.
"""

from __future__ import annotations

from typing import ClassVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import check_parquet_type
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.datastream.connectors.tables import RowCount, TableForm

__all__ = ["ParquetSink"]


class ParquetSink(TableSink):
    """Writes Parquet files into a location. Readers only see files of completed checkpoints.

    Rows and tuples become one column per field; any other type becomes one column ``value``. Files are named
    ``{job}.{uid}.{checkpoint}.{subtask}.{attempt}-{execution}.parquet``, with a number at the end if a subtask writes
    several. If the run has a Dagster partition, they are in the folder ``partition={partition}/``. A subtask without
    records writes no file.

    Args:
        location: A folder on S3, or a local one.
        partition_by: Columns whose values become folders, ``country=DE/day=2026-01-02/``, instead of columns of the
            files. Text, whole numbers, booleans or dates. Default: none.
        sort_by: Columns by which the rows of each file are sorted, nulls last. The rows of a file are then in memory
            until it is full. Default: rows stay in the order in which they come.
        max_file_bytes: The size after which a file is full and another one begins. Default: a checkpoint ends it.
        compression: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``. Default: ``zstd``.
    """

    file_format: ClassVar[str] = "parquet"
    compressions: ClassVar[dict[str, str]] = dict.fromkeys(("zstd", "snappy", "gzip", "lz4", "none"), "")

    def validate_column(self, name: str, type_info: TypeInformation) -> None:
        check_parquet_type(name, type_info, f"the Parquet sink {self.location.url}")

    @property
    def form(self) -> TableForm:
        return TableForm("parquet")

    def count_rows(self, known: RowCount | None = None) -> RowCount | None:
        """Counts the rows by the footers of the files."""
        from pyarrow import schema

        from dagster_flinkpy.connectors.files.parquet_table import ParquetTable

        return ParquetTable(self.location, schema([])).count_rows(known)
