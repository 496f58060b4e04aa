"""A Delta Lake table as a two-phase-commit sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dagster_flinkpy.common.arguments import check_installed
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors.commit.table_sink import StagedParquet
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.datastream.connectors.tables import TableForm
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["DeltaSink"]


class DeltaSink(LakeSink):
    """Writes rows into a Delta Lake table. Needs ``pip install 'dagster-flinkpy[delta]'``.

    Subtasks stage Parquet files in the folder of the table. When the checkpoint is complete, the driver adds all of
    them in one version of the table's log. Readers see all rows of a checkpoint or none. The table is created if it
    does not exist.

    By default rows are appended. With ``key``, a row replaces the row with the same key. With ``partition_column``, for
    jobs with time partitions, the rows of a partition replace those that earlier runs of the partition have written, in
    the same version of the log.

    Args:
        location: The folder of the table, on S3 or local.
        partition_by: Partition columns of the table. Text, whole numbers, booleans or dates. Default: none.
        sort_by: Columns by which the rows of each file are sorted, nulls last. Default: as they come.
        max_file_bytes: The size after which a file is full and another one begins. Default: a checkpoint ends it.
        partition_column: A text column that the sink fills with the key of the Dagster partition. It must not be one of
            the fields, nor named ``partition``. It is the first partition column of the table.
        key: Columns that identify a row: it replaces the row with the same key. Text, whole numbers, booleans, dates or
            timestamps. Of several rows of a checkpoint with the same key the last one counts. Subtasks then stage their
            rows, and the driver merges them into the table. Default: rows are appended.
        merge_schema: Whether columns that the table does not have are added to it, when the job starts. Rows that are
            there have null in them. Default: the job is refused.

    Raises:
        ConfigurationError: An argument cannot work, or deltalake is not installed.
    """

    table_format: ClassVar[str] = "delta"
    unreadable: ClassVar[str] = "%[0-9A-Fa-f]{2}"
    without = (Types.SQL_TIME(), Types.BIG_INT())

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        max_file_bytes: int | None = None,
        partition_column: str | None = None,
        key: Sequence[str] = (),
        merge_schema: bool = False,
    ) -> None:
        check_installed("DeltaSink", "deltalake", "delta")
        if key and (partition_column is not None or sort_by or max_file_bytes is not None):
            raise ConfigurationError(
                "with a key, rows replace rows with the same key, and delta-rs writes the files: leave out "
                "partition_column, sort_by and max_file_bytes"
            )
        files = StagedParquet(location, partition_by=partition_by, sort_by=sort_by, max_file_bytes=max_file_bytes)
        staged = StagedParquet(files.location.child("_flinkpy_staged"))
        super().__init__(files, staged, partition_column=partition_column, key=key, merge_schema=merge_schema)

    @property
    def what(self) -> str:
        return f"Delta table {self.location.url}"

    @property
    def partition_by(self) -> list[str]:
        """All partition columns of the table."""
        return [*([] if self.filled is None else self.filled.names), *self.files.partition_by]

    @property
    def form(self) -> TableForm:
        return TableForm("delta", None if self.filled is None else self.filled.partition)

    def kinds(self) -> set[str]:
        return {"deltalake"}
