"""Finds a savepoint or checkpoint by its path, and the store that has its files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoint import files_location, load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.storage import StorageLocation

__all__ = ["StoredCheckpoint", "open_checkpoint"]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A savepoint or checkpoint, and where its files are."""

    metadata: CheckpointMetadata
    files: StorageLocation
    """What the paths of its files are relative to: the folder of a savepoint, or the job's."""


def open_checkpoint(location: StorageLocation) -> StoredCheckpoint:
    """Reads the metadata of a savepoint or checkpoint.

    Args:
        location: the folder of a savepoint or of a checkpoint (``.../chk-7``), the ``_metadata`` in it, or the folder
            of a job, of which it is the latest checkpoint.

    Raises:
        RestoreError: there is none.
        CorruptMetadataError: it cannot be read.
    """
    folder = replace(location, url=location.url.removesuffix(f"/{METADATA_NAME}"))
    store = folder.open()
    latest = CompletedCheckpointStore(store).latest()
    if latest is not None:
        return StoredCheckpoint(latest, folder)
    metadata = load_savepoint(store)
    return StoredCheckpoint(metadata, files_location(metadata, folder))
