"""A Delta Lake table as a source."""

from __future__ import annotations

from importlib.util import find_spec

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.table_source import TableSource
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["DeltaSource"]


class DeltaSource(TableSource):
    """Reads a Delta Lake table, and then what is added to it. Needs ``pip install 'dagster-flinkpy[delta]'``.

    The first epoch reads the latest version. After that it reads the files that each version adds, in the order of
    versions. Files that ``OPTIMIZE`` has merged are not read again. Each data file is a split.

    Args:
        location: The folder of the table, on S3 or local.
        row_type: Columns to read, by name, with the types to cast them to. Default: all columns of the table.
        bounded: Whether the input ends with the version that is the latest when an epoch is planned. Default: it ends
            if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        max_files_per_epoch: Maximum number of data files between two barriers. Default: all that exist.
        max_records_per_epoch: Maximum number of rows between two barriers, over all subtasks. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes of data files between two barriers, likewise. With one of the two
            an epoch may end amid a file, and the driver reads the footers of the files of an epoch.
        skip_changes: Whether versions that delete or change rows (``DELETE``, ``UPDATE``, ``MERGE``, overwrite) are
            skipped, with the rows that they add. Default: they are an error.
        batch_rows: Maximum number of records in a batch.

    Raises:
        ConfigurationError: A number is not positive, or deltalake is not installed.
    """

    log_name = "delta_log"

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
        batch_rows: int = 8192,
    ) -> None:
        if find_spec("deltalake") is None:
            raise ConfigurationError("DeltaSource needs deltalake: pip install 'dagster-flinkpy[delta]'")
        super().__init__(
            location,
            row_type=row_type,
            bounded=bounded,
            max_files_per_epoch=max_files_per_epoch,
            max_records_per_epoch=max_records_per_epoch,
            max_bytes_per_epoch=max_bytes_per_epoch,
            skip_changes=skip_changes,
            batch_rows=batch_rows,
        )

    def kinds(self) -> set[str]:
        return {"deltalake"}
