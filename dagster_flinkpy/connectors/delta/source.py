"""A Delta Lake table as a source."""

from __future__ import annotations

from dagster_flinkpy.common.arguments import check_installed
from dagster_flinkpy.common.typeinfo import RowTypeInfo, Types
from dagster_flinkpy.connectors.lake.table_source import TableSource
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["DeltaSource"]

_ADDED = {"row_kind": Types.STRING(), "commit_version": Types.LONG()}


class DeltaSource(TableSource):
    """Reads a Delta Lake table, and then what is added to it. Needs ``pip install 'dagster-flinkpy[delta]'``.

    The first epoch reads the latest version. After that it reads the files that each version adds, in the order of
    versions. Files that ``OPTIMIZE`` has merged are not read again. Each data file is a split.

    Args:
        location: The folder of the table, on S3 or local.
        row_type: Columns to read, by name, and their types, which may be wider. Default: all columns of the table.
        bounded: Whether the input ends with the version that is the latest when an epoch is planned. Default: it ends
            if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_files_per_epoch: Maximum number of data files between two barriers. Default: all that exist.
        max_records_per_epoch: Maximum number of rows between two barriers, over all subtasks. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes of data files between two barriers, likewise. With one of the two
            an epoch may end amid a file, and the driver reads the footers of the files of an epoch.
        skip_changes: Whether versions that delete or change rows (``DELETE``, ``UPDATE``, ``MERGE``, overwrite) are
            skipped, with the rows that they add. Default: they are an error.
        partition_column: For a job with a time-window ``partitions_def``: the column by which the table is partitioned.
            A partition reads the files whose value is in its window, as they are in the latest version.
        partition_format: The ``strftime`` format of the values of ``partition_column``, unless these are timestamps,
            which are in UTC. Default: ``%Y-%m-%d``.
        change_feed: Whether the source reads changes: rows that are inserted, updated and deleted, in order, in one
            subtask. Records have two more columns: ``row_kind`` (``+I``, ``-U``, ``+U``, ``-D``) and
            ``commit_version``. The first epoch has the rows of the latest version as ``+I``. Default: only what is
            added is read.
        batch_rows: Maximum number of records in a batch.

    Raises:
        ConfigurationError: A number is not positive, or deltalake is not installed.
    """

    dagster_kind = "deltalake"
    _when_added = "with change_feed=True "
    log_name = "delta_log"
    unreadable = "%[0-9A-Fa-f]{2}"

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        row_type: RowTypeInfo | None = None,
        bounded: bool | None = None,
        max_files_per_epoch: int | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        skip_changes: bool = False,
        partition_column: str | None = None,
        partition_format: str = "%Y-%m-%d",
        change_feed: bool = False,
        batch_rows: int = 8192,
    ) -> None:
        check_installed("DeltaSource", "deltalake", "delta")
        if change_feed and (skip_changes or partition_column is not None):
            raise ConfigurationError(
                "change_feed=True of DeltaSource() reads changes, in the order of versions: leave out skip_changes and "
                "partition_column"
            )
        self.change_feed, self._added = change_feed, _ADDED if change_feed else {}
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

    @property
    def in_order(self) -> bool:
        return self.change_feed
