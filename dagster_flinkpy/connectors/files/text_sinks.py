"""Folders of CSV files and of JSON lines as two-phase-commit sinks."""

from __future__ import annotations

from typing import ClassVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import check_json_type, is_binary, is_nested
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CsvSink", "JsonLinesSink"]

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
