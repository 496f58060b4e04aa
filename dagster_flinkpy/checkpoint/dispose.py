"""Deletes savepoints, and checkpoints that no job owns (Flink: ``flink savepoint --dispose``)."""

from __future__ import annotations

import re
from dataclasses import replace

from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind
from dagster_flinkpy.checkpoint.savepoint import load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["dispose_savepoint"]


def dispose_savepoint(location: StorageLocation, *, owner: str, now_ms: int) -> None:
    """Delete a savepoint, or a checkpoint that was left unclaimed.

    A savepoint's files go first and its ``_metadata`` last, so that it can be disposed of again after a crash. Other
    files in its folder are left alone.

    Args:
        location: the folder: of a savepoint, or ``chk-n`` of a job.
        owner: names who does it, for a run that meets it.
        now_ms: milliseconds since 1970.

    Raises:
        RestoreError: there is none.
        CorruptMetadataError: it cannot be read, so nobody knows which files are its own.
        CheckpointError: a checkpoint that its job retains is, or needs files of, what is to be deleted; or a run of the
            job is at work on the checkpoints.
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
            raise CheckpointError(f"{location.url} has state files that checkpoint {checkpoint_id} of its job needs")
    folder.delete_many(sorted(metadata.files()))
    folder.delete(METADATA_NAME)


def _dispose_checkpoint(jobs: CompletedCheckpointStore, name: str, owner: str, now_ms: int) -> None:
    match = re.fullmatch(r"chk-(\d+)", name)
    if match is None:
        raise CheckpointError(f"{jobs.store.url}/{name} is a copy of a checkpoint, whose files are elsewhere")
    leader = jobs.leader()
    if leader is not None and leader.alive(now_ms):
        raise CheckpointError(
            f"{leader.owner!r} may be at work on {jobs.store.url}, and what it is about to complete may need a file "
            "that would be deleted. Let it end first; if it is dead, run 'flinkpy leader release'."
        )
    attempt = jobs.begin_attempt(owner, now_ms)
    try:
        jobs.dispose(attempt, int(match[1]))
    finally:
        jobs.end_attempt(attempt)
