"""Deletes savepoints, and checkpoints that no job owns (Flink: ``flink savepoint --dispose``)."""

from __future__ import annotations

import re
from dataclasses import replace

from dagster_flinkpy.checkpoint.claims import named_by_others
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind
from dagster_flinkpy.checkpoint.savepoints.savepoint import load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import if_killed

__all__ = ["DISPOSAL_KEY", "dispose_savepoint"]

DISPOSAL_KEY = "disposal"
"""An object in the folder of a savepoint that is being deleted."""


def dispose_savepoint(location: StorageLocation, *, owner: str, now_ms: int) -> None:
    """Deletes a savepoint, or a checkpoint that its job does not own.

    A savepoint's files are deleted first and its ``_metadata`` last, so that the call can be repeated after a crash.
    Other files in its folder stay. So do files that forks name; a sweep deletes them when no fork needs them any more.

    Args:
        location: The folder of a savepoint, or ``chk-n`` of a job.
        owner: Names the caller, for messages of other runs.
        now_ms: The time, in milliseconds since 1970.

    Raises:
        RestoreError: There is no such savepoint or checkpoint.
        CorruptMetadataError: Its metadata cannot be read, so its files are unknown.
        CheckpointError: Its job retains the checkpoint, a retained checkpoint needs its files, or a run may be active.
    """
    folder = location.open()
    metadata = load_savepoint(folder)
    parent, _, name = location.url.rpartition("/")
    jobs = CompletedCheckpointStore(replace(location, url=parent).open())
    if metadata.kind is CheckpointKind.CHECKPOINT:
        _dispose_checkpoint(jobs, name, owner, now_ms)
        return
    found = read_head(jobs.store)
    for checkpoint_id in found[0].kept if found else ():
        if any(path.startswith(f"{name}/") for path in jobs.load(checkpoint_id).files()):
            raise CheckpointError(f"checkpoint {checkpoint_id} of the job needs state files of {location.url}")
    folder.put(DISPOSAL_KEY, b"")  # from now on, no job is forked from it: see ``forks.fork_job``
    # Forks need their files also when HEAD of their job was lost.
    named = set[str]().union(*named_by_others(jobs.store).values())
    folder.delete_many(sorted(path for path in metadata.files() if f"{name}/{path}" not in named))
    folder.delete(METADATA_NAME)
    folder.delete(DISPOSAL_KEY)


def _dispose_checkpoint(jobs: CompletedCheckpointStore, name: str, owner: str, now_ms: int) -> None:
    match = re.fullmatch(r"chk-(\d+)", name)
    if match is None:
        raise CheckpointError(f"{jobs.store.url}/{name} is a copy of a checkpoint, and its files are elsewhere")
    leader = jobs.leader()
    if leader is not None and leader.alive(now_ms):
        raise CheckpointError(
            f"{leader.owner!r} may still be running {jobs.store.url}, and its next checkpoint may need a file that "
            f"would be deleted. Wait until it ends; {if_killed(jobs.store.url)}."
        )
    attempt = jobs.begin_attempt(owner, now_ms)
    try:
        jobs.dispose(attempt, int(match[1]))
    finally:
        jobs.end_attempt(attempt)
