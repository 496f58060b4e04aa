"""What can be done to a job's checkpoints without its program: savepoint, stop, restore, take the leadership away.

Sinks commit with the program alone. So nothing here touches a checkpoint that may still have something to commit.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.metadata import STOPPED, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoint import (
    check_target,
    files_location,
    import_savepoint,
    load_savepoint,
    pickled_state,
    write_savepoint,
)
from dagster_flinkpy.checkpoint.store import Attempt, CompletedCheckpointStore
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import CheckpointError, CorruptStateError, RestoreError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LeaderRecord

__all__ = [
    "number_retained",
    "refuse_beside_run",
    "release_leadership",
    "restore_savepoint",
    "stop_with_savepoint",
    "trigger_savepoint",
    "without_committables",
]


def without_committables(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """A checkpoint all of whose committables are committed: whoever restores it must not commit them again."""
    return replace(
        metadata,
        operators=tuple(
            replace(o, subtasks=tuple(replace(s, committables=()) for s in o.subtasks)) for o in metadata.operators
        ),
    )


def trigger_savepoint(
    job: StorageLocation,
    target: StorageLocation | None = None,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
) -> str:
    """Keep the latest checkpoint of a job as a savepoint. A run of the job may be at work.

    Args:
        job: the job's prefix.
        target: the folder that gets the savepoint; None: the job's prefix, where a native one must be.
        format_type: whether it is self-contained, or refers to files of the job's checkpoints.

    Returns:
        The URL of the savepoint.

    Raises:
        ConfigurationError: a native savepoint is to be outside of the job's prefix.
        CheckpointError: there is no checkpoint, or it may have something to commit yet.
        CorruptMetadataError: its metadata cannot be read.
        CorruptStateError: a state file is missing or damaged.
    """
    checkpoints, target = CompletedCheckpointStore(job.open()), target or job
    while True:
        latest = checkpoints.latest()
        if latest is None:
            raise CheckpointError(f"{job.url} has no completed checkpoint to make a savepoint of")
        leader = checkpoints.leader()
        _check_committed(job, latest, None if leader is None else leader.committed)
        try:
            folder = write_savepoint(without_committables(latest), checkpoints.store, target.open(), format_type)
        except CorruptStateError:
            now = checkpoints.latest()
            if now is not None and now.checkpoint_id == latest.checkpoint_id:
                raise
            continue  # it was subsumed, or all were deleted, meanwhile
        return f"{target.url}/{folder}"


def stop_with_savepoint(
    job: StorageLocation,
    target: StorageLocation | None = None,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    *,
    owner: str,
    now_ms: int,
) -> str:
    """Keep the latest checkpoint as a savepoint, and have further runs find the job finished until one is restored.

    Args:
        job: the job's prefix.
        target: the folder that gets the savepoint; None: the job's prefix, where a native one must be.
        format_type: whether it is self-contained, or refers to files of the job's checkpoints.
        owner: names who does it.
        now_ms: milliseconds since 1970.

    Returns:
        The URL of the savepoint.

    Raises:
        ConfigurationError: a native savepoint is to be outside of the job's prefix.
        CheckpointError: a run may be at work; or there is no checkpoint, or it may have something to commit yet.
    """
    check_target(format_type, job.url, (target or job).url)
    checkpoints, attempt = _begin(job, owner, now_ms)
    try:
        latest = attempt.latest
        if latest is None:
            raise CheckpointError(f"{job.url} has no completed checkpoint to stop with")
        _check_committed(job, latest, attempt.committed, superseded=True)
        if not latest.stopped:
            stopped = {**latest.properties, STOPPED: True}
            _complete(checkpoints, attempt, without_committables(latest), latest.checkpoint_id, stopped, now_ms)
    finally:
        checkpoints.end_attempt(attempt)
    return trigger_savepoint(job, target, format_type)


def restore_savepoint(
    job: StorageLocation, savepoint: StorageLocation, *, owner: str, now_ms: int, allow_pickled_state: bool = False
) -> int:
    """Make a savepoint the latest checkpoint of a job. Whether it fits the program, the next run finds out.

    Args:
        job: the job's prefix.
        savepoint: its folder; it stays its owner's.
        owner: names who does it.
        now_ms: milliseconds since 1970.
        allow_pickled_state: restores pickled state, too; whoever wrote it can run code in the job.

    Returns:
        Id of the checkpoint.

    Raises:
        CheckpointError: a run may be at work, or the latest checkpoint may have something to commit yet.
        RestoreError: there is no savepoint, or it has pickled state.
    """
    source = savepoint.open()
    metadata = load_savepoint(source)
    pickled = pickled_state(metadata, untyped_edges=True)
    if pickled and not allow_pickled_state:
        raise RestoreError(
            f"savepoint {savepoint.url} has pickled state ({', '.join(pickled)}), which can run code of whoever wrote "
            "it; if you trust it, allow pickled state"
        )
    checkpoints, attempt = _begin(job, owner, now_ms)
    try:
        if attempt.latest is not None:
            _check_committed(job, attempt.latest, attempt.committed, superseded=True)
        files = files_location(metadata, savepoint).open()
        restored = without_committables(import_savepoint(source, checkpoints.store, f"{attempt.token}-0", files=files))
        attempt.start_after(restored.checkpoint_id)
        properties = {name: value for name, value in restored.properties.items() if name != STOPPED}
        restored = replace(restored, job_id=job.url.rpartition("/")[2])
        return _complete(checkpoints, attempt, restored, restored.checkpoint_id, properties, now_ms)
    finally:
        checkpoints.end_attempt(attempt)


def release_leadership(job: StorageLocation, *, owner: str, now_ms: int) -> LeaderRecord | None:
    """Take the leadership of a job away from whoever has it: it completes and commits nothing more.

    Args:
        job: the job's prefix.
        owner: names who does it, for the run that is fenced.
        now_ms: milliseconds since 1970.

    Returns:
        Who had it; None: nobody ever, and nothing is done.
    """
    checkpoints = CompletedCheckpointStore(job.open())
    if checkpoints.leader() is None:
        return None
    attempt = checkpoints.begin_attempt(owner, now_ms)
    checkpoints.end_attempt(attempt)
    return attempt.former


def number_retained(job: StorageLocation) -> int:
    """How many checkpoints a job keeps, as it seems; at least 1.

    Args:
        job: the job's prefix.
    """
    found = read_head(job.open())
    if found is None:
        return 1
    ends = {end.checkpoint_id for end in found[0].partitions}
    return max(1, len({*found[0].retained} - ends - {*found[0].unclaimed}))


def refuse_beside_run(job: StorageLocation, now_ms: int) -> None:
    """Refuses to go on where a run may be at work, which an attempt would fence.

    Args:
        job: the job's prefix.
        now_ms: milliseconds since 1970.

    Raises:
        CheckpointError: a run may be at work; says which.
    """
    leader = CompletedCheckpointStore(job.open()).leader()
    if leader is not None and leader.alive(now_ms):
        raise CheckpointError(
            f"{leader.owner!r} may be at work on {job.url}. Let it end first; if it is dead, run "
            "'flinkpy leader release'."
        )


def _begin(job: StorageLocation, owner: str, now_ms: int) -> tuple[CompletedCheckpointStore, Attempt]:
    refuse_beside_run(job, now_ms)
    # As many as the job keeps, so that nothing goes that a restore can be made of.
    checkpoints = CompletedCheckpointStore(job.open(), number_retained(job))
    return checkpoints, checkpoints.begin_attempt(owner, now_ms)


def _check_committed(
    job: StorageLocation, latest: CheckpointMetadata, committed: int | None, *, superseded: bool = False
) -> None:
    prepared = any(s.committables for o in latest.operators for s in o.subtasks)
    # One of a partition replaces the rows of older ones, though it may have none of its own.
    replaces = superseded and latest.partition is not None
    if (prepared or replaces) and committed != latest.checkpoint_id:
        raise CheckpointError(
            f"checkpoint {latest.checkpoint_id} of {job.url} may have something to commit yet, which only its program "
            "can do: a run that ends in order notes that it has. Run the job once more, or use its Dagster jobs."
        )


def _complete(
    checkpoints: CompletedCheckpointStore,
    attempt: Attempt,
    metadata: CheckpointMetadata,
    parent_id: int,
    properties: dict[str, object],
    now_ms: int,
) -> int:
    older = attempt.head.retained
    metadata = replace(
        metadata,
        checkpoint_id=checkpoints.assign_checkpoint_id(attempt),
        kind=CheckpointKind.CHECKPOINT,
        parent_id=parent_id,
        timestamp_ms=now_ms,
        partition=None,  # it reads none, and must not replace the rows of the one before
        fencing_token=attempt.token,
        properties=properties,
    )
    checkpoints.write_metadata(attempt, metadata)
    checkpoints.complete(attempt, metadata)
    attempt.committed = metadata.checkpoint_id
    checkpoints.subsume(attempt, older)
    return metadata.checkpoint_id
