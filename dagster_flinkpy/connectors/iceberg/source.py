"""An Iceberg table as a source."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_flinkpy.common.arguments import check_installed, check_name
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.lake.table_source import TableSource
from dagster_flinkpy.storage import StorageLocation

__all__ = ["IcebergSource"]


class IcebergSource(TableSource):
    """Reads an Iceberg table, and then what is appended to it. Needs ``pip install 'dagster-flinkpy[iceberg]'``.

    The first epoch reads the current snapshot. After that it reads the files that each snapshot appends, in their
    order. Files that were only rewritten are not read again. Each data file, which must be Parquet, is a split.

    Args:
        table: The table, ``namespace.name``.
        location: The folder of the table, on S3 or local.
        catalog: The name of the catalog. Default: ``default``.
        properties: Settings of the catalog, as for `IcebergSink`.
        row_type: Columns to read, by name, and their types, which may be wider. Default: all columns of the table.
        bounded: Whether the input ends with the snapshot that is the current one when an epoch is planned. Default: it
            ends if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_files_per_epoch: Maximum number of data files between two barriers. Default: all that exist.
        max_records_per_epoch: Maximum number of rows between two barriers, over all subtasks. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes of data files between two barriers, likewise. With one of the two
            an epoch may end amid a file, and the driver reads the footers of the files of an epoch.
        skip_changes: Whether snapshots that delete or overwrite rows are skipped, with the rows that they add. Default:
            they are an error.
        partition_column: For a job with a time-window ``partitions_def``: the column by which the table is partitioned,
            by its values or by ``year``, ``month``, ``day`` or ``hour``. A partition reads the files whose value is in
            its window, as they are in the current snapshot.
        partition_format: The ``strftime`` format of the values of ``partition_column``, unless these are
            timestamps, or the table is partitioned by units of time: both are in UTC. Default: ``%Y-%m-%d``.
        batch_rows: Maximum number of records in a batch.
        branch: The branch of the table that is read. Default: ``main``.

    Raises:
        ConfigurationError: A number is not positive, or pyiceberg is not installed.
    """

    dagster_kind = "iceberg"
    log_name = "iceberg_log"
    unreadable = "[#?]"

    def __init__(
        self,
        table: str,
        location: StorageLocation | str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        row_type: RowTypeInfo | None = None,
        bounded: bool | None = None,
        max_files_per_epoch: int | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        skip_changes: bool = False,
        partition_column: str | None = None,
        partition_format: str = "%Y-%m-%d",
        batch_rows: int = 8192,
        branch: str = "main",
    ) -> None:
        for name, value in (("table", table), ("catalog", catalog), ("branch", branch)):
            check_name(f"IcebergSource() as {name}", value)
        check_installed("IcebergSource", "pyiceberg", "iceberg")
        super().__init__(
            location,
            row_type=row_type,
            bounded=bounded,
            max_files_per_epoch=max_files_per_epoch,
            max_records_per_epoch=max_records_per_epoch,
            max_bytes_per_epoch=max_bytes_per_epoch,
            skip_changes=skip_changes,
            partition_column=partition_column,
            partition_format=partition_format,
            batch_rows=batch_rows,
        )
        self.table, self.catalog, self.properties, self.branch = table, catalog, dict(properties or {}), branch
