"""Writes savepoints of completed checkpoints while the job's attempt is at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import without_committables
from dagster_flinkpy.checkpoint.savepoint import check_target, write_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["SavepointWriter"]


@dataclass(frozen=True)
class SavepointWriter:
    """Writes savepoints of a job's completed checkpoints."""

    job: StorageLocation
    """The job's prefix."""
    store: CompletedCheckpointStore
    check_leader: Callable[[], object]
    """Raises a FencedError if a newer attempt took over."""

    def check(self, target: str | None, format_type: SavepointFormatType) -> StorageLocation:
        """Returns the folder to write to.

        Args:
            target: Its path or URL. None stands for the job's prefix.
            format_type: The format of the savepoint.

        Raises:
            ConfigurationError: It is no location, or a native savepoint would be outside the job's prefix.
        """
        location = self.job if target is None else replace(self.job, url=target)
        check_target(format_type, self.job.url, location.url)
        return location

    def write(self, checkpoint: CheckpointMetadata, target: str | None, format_type: SavepointFormatType) -> str:
        """Writes a checkpoint that is complete and committed as a savepoint, and returns the URL of the savepoint.

        Raises:
            ConfigurationError: A native savepoint would be outside the job's prefix.
            CorruptStateError: A file is damaged or missing, such as because the checkpoint was subsumed.
            FencedError: A newer attempt took over and has subsumed the checkpoint.
        """
        location = self.check(target, format_type)
        try:
            folder = write_savepoint(without_committables(checkpoint), self.store.store, location.open(), format_type)
        except CorruptStateError:
            self.check_leader()  # a newer attempt may have subsumed the checkpoint meanwhile
            raise
        return f"{location.url}/{folder}"
