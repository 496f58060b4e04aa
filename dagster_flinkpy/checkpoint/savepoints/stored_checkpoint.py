"""Finds a savepoint or checkpoint by its path, and the location of its files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints.savepoint import files_location, load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import head_of_job
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LEADER_KEY

__all__ = ["StoredCheckpoint", "open_checkpoint"]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A savepoint or checkpoint, and where its files are."""

    metadata: CheckpointMetadata
    files: StorageLocation
    """The folder that the paths of its files are relative to: the savepoint's or the job's."""


def open_checkpoint(location: StorageLocation) -> StoredCheckpoint:
    """Reads the metadata of a savepoint or checkpoint.

    Args:
        location: The folder of a savepoint or of a checkpoint (``.../chk-7``), the ``_metadata`` in it, or the folder
            of a job, which means its latest checkpoint.

    Raises:
        RestoreError: There is no savepoint or checkpoint.
        HeadLostError: It is the folder of a job whose ``HEAD`` was lost.
        CorruptMetadataError: It cannot be read.
    """
    folder = replace(location, url=location.url.removesuffix(f"/{METADATA_NAME}"))
    store = folder.open()
    latest = CompletedCheckpointStore(store).latest()
    if latest is not None:
        return StoredCheckpoint(latest, folder)
    try:
        metadata = load_savepoint(store)
    except RestoreError:
        if store.head(LEADER_KEY) is not None or any(store.list_folders("chk-")):
            head_of_job(store)  # raises if it was lost
        raise
    return StoredCheckpoint(metadata, files_location(metadata, folder))
