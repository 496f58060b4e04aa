"""Finds the savepoint, or older checkpoint, that an attempt is told to start from, and settles whose it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoint import files_location, import_savepoint, load_savepoint, pickled_state
from dagster_flinkpy.checkpoint.store import Attempt, CompletedCheckpointStore
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ObjectNotFoundError, RestoreError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Found", "find_snapshot"]


@dataclass(frozen=True)
class Found:
    """What an attempt starts from."""

    metadata: CheckpointMetadata
    claimed: StorageLocation | None = None
    """The savepoint, if it is the job's now: to be deleted when the job has a checkpoint of its own."""


def find_snapshot(
    path: str,
    job_id: str,
    graph: JobGraph,
    storage: StorageLocation,
    store: CompletedCheckpointStore,
    attempt: Attempt,
    *,
    claim_mode: RecoveryClaimMode,
    allow_pickled_state: bool,
    progress: Callable[[str], None],
) -> Found:
    """Reads a checkpoint of the job, or copies a savepoint's files to the job's prefix.

    Args:
        path: ``chk-7``, or the path or URL of a savepoint or checkpoint.
        job_id: The job.
        graph: The program.
        storage: How to reach the path.
        store: The job's checkpoints.
        attempt: The attempt; its ids go on after the savepoint's.
        claim_mode: Whose the savepoint or checkpoint is from now on.
        allow_pickled_state: Whether a savepoint outside the job's prefix may have pickled state.
        progress: Is told what goes on.

    Raises:
        RestoreError: There is no such thing, or it may not be restored.
        CorruptMetadataError: It cannot be read.
        CorruptStateError: A file of the savepoint is missing or damaged.
    """
    prefix = store.store.url
    folder = path.removesuffix(METADATA_NAME).rstrip("/")
    location = replace(storage, url=folder)
    own = re.fullmatch(r"chk-(\d+)", folder) or re.fullmatch(rf"{re.escape(prefix)}/chk-(\d+)", location.url)
    if own:
        return Found(_own_checkpoint(int(own[1]), path, job_id, store, attempt, claim_mode, progress))
    if not location.url.startswith(f"{prefix}/") and not allow_pickled_state:
        untyped = any(isinstance(e.type_info, PickledBytesTypeInfo) for e in graph.edges)
        if pickled := pickled_state(load_savepoint(location.open()), untyped_edges=untyped):
            raise RestoreError(
                f"savepoint {location.url} is not below this job's prefix and has pickled state "
                f"({', '.join(pickled)}), which can run code of whoever wrote it; "
                "if you trust it, set allow_pickled_state"
            )
    progress(f"restoring {location.url}")
    # Named after this attempt, so that no other one deletes the copies; and not as what its epochs write.
    files = files_location(load_savepoint(location.open()), location).open()
    savepoint = import_savepoint(location.open(), store.store, f"{attempt.token}-0", files=files)
    attempt.start_after(savepoint.checkpoint_id)
    return Found(savepoint, location if claim_mode is RecoveryClaimMode.CLAIM else None)


def _own_checkpoint(
    checkpoint_id: int,
    path: str,
    job_id: str,
    store: CompletedCheckpointStore,
    attempt: Attempt,
    claim_mode: RecoveryClaimMode,
    progress: Callable[[str], None],
) -> CheckpointMetadata:
    kept = sorted({*attempt.head.kept})
    # One that has a _metadata and never completed is none: what its sinks prepared was aborted.
    with suppress(ObjectNotFoundError):
        if checkpoint_id in kept:
            metadata = store.load(checkpoint_id)
            if claim_mode is RecoveryClaimMode.CLAIM:
                attempt.claim(checkpoint_id)
            else:
                attempt.leave_unclaimed(checkpoint_id)
                progress(f"chk-{checkpoint_id} is left unclaimed: it is kept until it is disposed of")
            return metadata
    names = ", ".join(f"chk-{i}" for i in kept) or "none"
    raise RestoreError(f"job {job_id!r} has no checkpoint {path!r}; it keeps {names}")
