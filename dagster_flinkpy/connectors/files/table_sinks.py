"""Folders of Parquet files, CSV files and JSON lines as two-phase-commit sinks.

A writer stages its files of an epoch as uploads, which readers cannot see. The committer completes the uploads after
the checkpoint. It recognises an upload that is already completed by the content of the object.
"""

from __future__ import annotations

from typing import ClassVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import check_json_type, check_parquet_type, is_binary, is_nested
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.datastream.connectors.tables import RowCount, TableForm
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CsvSink", "JsonLinesSink", "ParquetSink"]


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


_COMPRESSIONS = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class CsvSink(TableSink):
    """Writes CSV files, with a header, into a location. Readers only see files of completed checkpoints.

    Text is quoted, so that a null (nothing) and an empty text (two quotes) differ. A file with a single column cannot
    have nulls: their lines would be empty, which readers skip. Files are named as those of `ParquetSink`.

    Args:
        location: A folder on S3, or a local one.
        partition_by: As for `ParquetSink`.
        sort_by: As for `ParquetSink`.
        max_file_bytes: As for `ParquetSink`.
        compression: ``none``, ``gzip`` or ``zstd``. Default: ``none``.
    """

    file_format: ClassVar[str] = "csv"
    compressions: ClassVar[dict[str, str]] = _COMPRESSIONS

    def validate_column(self, name: str, type_info: TypeInformation) -> None:
        if is_nested(type_info) or is_binary(type_info):
            raise ConfigurationError(
                f"column {name!r} of the CSV sink {self.location.url} is {type_info}, which CSV cannot contain: map() "
                "it to text, or use JsonLinesSink or ParquetSink"
            )


class JsonLinesSink(TableSink):
    """Writes files with a JSON object per line into a location. Readers only see files of completed checkpoints.

    Decimals, dates and times become text, and so do the keys of maps. Each value is a Python object for a moment, so
    this is the slowest of the formats. Files are named as those of `ParquetSink`.

    Args:
        location: A folder on S3, or a local one.
        partition_by: As for `ParquetSink`.
        sort_by: As for `ParquetSink`.
        max_file_bytes: As for `ParquetSink`.
        compression: ``none``, ``gzip`` or ``zstd``. Default: ``none``.
    """

    file_format: ClassVar[str] = "json"
    compressions: ClassVar[dict[str, str]] = _COMPRESSIONS

    def validate_column(self, name: str, type_info: TypeInformation) -> None:
        check_json_type(name, type_info)
