"""The savepoints that are stored next to a job's checkpoints."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.traces import SAVEPOINT_PREFIX
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["list_savepoints", "savepoint_choices", "savepoint_location"]

_MOST_CHOICES = 10


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
