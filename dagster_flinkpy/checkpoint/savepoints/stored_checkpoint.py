"""Finds savepoints and checkpoints: by their path, or next to a job's checkpoints; and the location of their files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints.savepoint import files_location, load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import SAVEPOINT_PREFIX, head_of_job
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.lease import LEADER_KEY

__all__ = ["StoredCheckpoint", "list_savepoints", "open_checkpoint", "savepoint_choices", "savepoint_location"]

_MOST_CHOICES = 10


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


def list_savepoints(job: ObjectStore) -> list[tuple[datetime, str]]:
    """Lists the savepoints next to a job's checkpoints.

    Args:
        job: The object store, rooted at the job's prefix. Savepoints elsewhere are not found.

    Returns:
        The completion time and the folder name of each savepoint, oldest first.
    """
    folders = ((folder, job.head(folder + METADATA_NAME)) for folder in job.list_folders(SAVEPOINT_PREFIX))
    return sorted((info.last_modified, folder.rstrip("/")) for folder, info in folders if info is not None)


def savepoint_choices(job: ObjectStore) -> str:
    """Names the newest savepoints next to a job's checkpoints, for an error message.

    Args:
        job: The object store, rooted at the job's prefix.
    """
    names = [f"{name} ({written:%Y-%m-%d %H:%M} UTC)" for written, name in reversed(list_savepoints(job))]
    if not names:
        return f"There is no savepoint in {job.url}."
    more = f", and {len(names) - _MOST_CHOICES} older ones" if len(names) > _MOST_CHOICES else ""
    return f"The savepoints in {job.url} are, newest first: {', '.join(names[:_MOST_CHOICES])}{more}."


def savepoint_location(path: str, job: StorageLocation) -> StorageLocation:
    """Returns the folder of a savepoint or checkpoint.

    Args:
        path: Its path or URL, or the path of its ``_metadata``. For a savepoint next to the job's checkpoints, the name
            is enough, unless the working directory has a folder of this name.
        job: The job's prefix.
    """
    folder = path.removesuffix(f"/{METADATA_NAME}")
    name = folder.rstrip("/")
    if name.startswith(SAVEPOINT_PREFIX) and "/" not in name and not Path(name).exists():
        return job.child(name)
    return replace(job, url=folder)
