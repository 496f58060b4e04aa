"""Operations on a job's checkpoints without its program: take a savepoint, stop, restore, release the leadership.

Only the program can commit to sinks. So no operation touches a checkpoint that may still have something to commit.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import DEFAULT_NUM_RETAINED
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.locations.savepoint_target import check_target, folders_of
from dagster_flinkpy.checkpoint.metadata import (
    ANCESTORS,
    COMMITS,
    END_OF,
    REPEATS,
    RESTORED_BY,
    STOPPED,
    CheckpointKind,
    CheckpointMetadata,
)
from dagster_flinkpy.checkpoint.recomputation import REPLACES, TO_REPLACE, ReplacedRows
from dagster_flinkpy.checkpoint.restore import restore_targets
from dagster_flinkpy.checkpoint.savepoints.savepoint import (
    files_location,
    import_savepoint,
    load_savepoint,
    pickled_state,
    write_savepoint,
)
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import head_of_job
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointError, CorruptStateError, RestoreError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LeaderRecord, if_killed

__all__ = [
    "number_retained",
    "refuse_beside_run",
    "release_leadership",
    "restore_savepoint",
    "stop_with_savepoint",
    "trigger_savepoint",
    "without_committables",
    "without_committed",
]


def without_committables(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Returns a checkpoint without its committables, which are committed and must not be committed by a restore."""
    return replace(
        metadata,
        operators=tuple(
            replace(o, subtasks=tuple(replace(s, committables=()) for s in o.subtasks)) for o in metadata.operators
        ),
    )


def without_committed(metadata: CheckpointMetadata, graph: JobGraph, committed: int | None) -> CheckpointMetadata:
    """Returns a checkpoint without what sinks had to commit that a program no longer has, if it is committed.

    Args:
        metadata: The checkpoint.
        graph: The program.
        committed: The checkpoint up to which all sinks are known to have committed.
    """
    if committed is None or committed < metadata.checkpoint_id:
        return metadata
    sinks = {target.uid for target in restore_targets(graph) if target.commits}
    without = {operator.uid: operator for operator in without_committables(metadata).operators}
    operators = (operator if operator.uid in sinks else without[operator.uid] for operator in metadata.operators)
    return replace(metadata, operators=tuple(operators))


def trigger_savepoint(
    job: StorageLocation,
    target: StorageLocation | None = None,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
) -> str:
    """Writes the latest checkpoint of a job as a savepoint. A run of the job may be active.

    Args:
        job: The job's prefix.
        target: The folder to write to. Default: the job's prefix, where a native savepoint must be.
        format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.

    Returns:
        The URL of the savepoint.

    Raises:
        ConfigurationError: The target must not be used; see
            :func:`~dagster_flinkpy.checkpoint.locations.savepoint_target.check_target`.
        CheckpointError: There is no checkpoint, or it may still have something to commit.
        HeadLostError: ``HEAD`` was lost.
        CorruptMetadataError: Its metadata cannot be read.
        CorruptStateError: A state file is missing or damaged.
    """
    checkpoints, target = CompletedCheckpointStore(job.open()), target or job
    while True:
        latest = checkpoints.latest()
        if latest is None:
            head_of_job(checkpoints.store)  # raises if it was lost
            raise CheckpointError(
                f"{job.url} has no completed checkpoint to make a savepoint of: give the folder of a job, of which "
                "'flinkpy job list' shows those of a folder of checkpoints, or run the job first"
            )
        check_target(target, job, format_type, folders_of(latest.operators))
        leader = checkpoints.leader()
        _check_committed(job, latest, None if leader is None else leader.committed)
        try:
            folder = write_savepoint(without_committables(latest), checkpoints.store, target.open(), format_type)
        except CorruptStateError:
            now = checkpoints.latest()
            if now is not None and now.checkpoint_id == latest.checkpoint_id:
                raise
            continue  # it was subsumed in the meantime, or all were deleted
        return f"{target.url}/{folder}"


def stop_with_savepoint(
    job: StorageLocation,
    target: StorageLocation | None = None,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    *,
    owner: str,
    now_ms: int,
) -> str:
    """Writes the latest checkpoint as a savepoint, and marks the job as stopped until a savepoint is restored.

    Args:
        job: The job's prefix.
        target: The folder to write to. Default: the job's prefix, where a native savepoint must be.
        format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.
        owner: Names the caller.
        now_ms: The time, in milliseconds since 1970.

    Returns:
        The URL of the savepoint.

    Raises:
        ConfigurationError: The target must not be used; see
            :func:`~dagster_flinkpy.checkpoint.locations.savepoint_target.check_target`.
        CheckpointError: A run may be active, there is no checkpoint, or it may still have something to commit.
    """
    before = CompletedCheckpointStore(job.open()).latest()
    check_target(target or job, job, format_type, folders_of(before.operators if before is not None else ()))
    checkpoints, attempt = _begin(job, owner, now_ms)
    try:
        latest = attempt.latest
        if latest is None:
            raise CheckpointError(f"{job.url} has no completed checkpoint to stop with")
        _check_committed(job, latest, attempt.committed, superseded=True)
        if not latest.stopped:
            commits = {COMMITS: dict(latest.commits)} if latest.commits else {}
            stopped = {**latest.properties, **commits, STOPPED: True, REPEATS: list(latest.read_by)}
            _complete(checkpoints, attempt, without_committables(latest), latest.checkpoint_id, stopped, now_ms)
    finally:
        checkpoints.end_attempt(attempt)
    return trigger_savepoint(job, target, format_type)


def restore_savepoint(
    job: StorageLocation, savepoint: StorageLocation, *, owner: str, now_ms: int, allow_pickled_state: bool = False
) -> int:
    """Makes a savepoint the latest checkpoint of a job. The next run checks whether it fits the program.

    Args:
        job: The job's prefix.
        savepoint: The folder of the savepoint. Its owner does not change.
        owner: Names the caller.
        now_ms: The time, in milliseconds since 1970.
        allow_pickled_state: Whether the savepoint may contain pickled state. Whoever wrote it can run code in the job.

    Returns:
        The id of the checkpoint.

    Raises:
        CheckpointError: A run may be active, or the latest checkpoint may still have something to commit.
        RestoreError: There is no savepoint, it contains pickled state, it is from the middle of a recomputation that
            the job has gone on with, or partitions would not start from it, because it is not the end state of one.
    """
    source = savepoint.open()
    metadata = load_savepoint(source)
    pickled = pickled_state(metadata, untyped_edges=True)
    if pickled and not allow_pickled_state:
        raise RestoreError(
            f"savepoint {savepoint.url} contains pickled state ({', '.join(pickled)}), which can run code of whoever "
            "wrote it. If you trust it, allow pickled state."
        )
    checkpoints, attempt = _begin(job, owner, now_ms, start_over=True)
    try:
        if attempt.latest is not None:
            _check_committed(job, attempt.latest, attempt.committed, superseded=True)
            to_replace = ReplacedRows.of(metadata, TO_REPLACE) or {}
            if metadata.checkpoint_id < attempt.latest.checkpoint_id and attempt.latest.job_id in {
                rows.job_id for rows in to_replace.values()
            }:
                raise RestoreError(
                    f"savepoint {savepoint.url} is from the middle of a recomputation, and the job has gone on since: "
                    "rows would be written again beside others. Continue from the latest checkpoint"
                )
        checkpoints.check_repeats_end(attempt, metadata)
        files = files_location(metadata, savepoint).open()
        restored = without_committables(import_savepoint(source, checkpoints.store, f"{attempt.token}-0", files=files))
        attempt.start_after(restored.checkpoint_id)
        ancestors = [list(each) for each in restored.ancestors_of(job.name)]
        without = (STOPPED, ANCESTORS, RESTORED_BY)
        properties = {name: value for name, value in restored.properties.items() if name not in without}
        properties |= {ANCESTORS: ancestors} if ancestors else {}
        if attempt.latest is not None and attempt.latest.restored_by:
            properties[RESTORED_BY] = list(attempt.latest.restored_by)
        properties[REPEATS] = list(restored.read_by)
        restored = replace(restored, job_id=job.name)
        return _complete(checkpoints, attempt, restored, restored.checkpoint_id, properties, now_ms)
    finally:
        checkpoints.end_attempt(attempt)


def release_leadership(job: StorageLocation, *, owner: str, now_ms: int) -> LeaderRecord | None:
    """Takes the leadership of a job away from its leader, which can then no longer complete or commit anything.

    Args:
        job: The job's prefix.
        owner: Names the caller, for messages of the fenced run.
        now_ms: The time, in milliseconds since 1970.

    Returns:
        The previous leader, or None if there never was one; then nothing is done.
    """
    checkpoints = CompletedCheckpointStore(job.open())
    return None if checkpoints.leader() is None else checkpoints.take_leadership(owner, now_ms)


def number_retained(job: StorageLocation) -> int:
    """Returns how many checkpoints a job seems to keep, at least the default number.

    A run knows the number that the deployment sets, and deletes the checkpoints above it.

    Args:
        job: The job's prefix.
    """
    found = read_head(job.open())
    if found is None:
        return DEFAULT_NUM_RETAINED
    ends = {end.checkpoint_id for end in found[0].partitions}
    return max(DEFAULT_NUM_RETAINED, len({*found[0].retained} - ends - {*found[0].unclaimed}))


def refuse_beside_run(job: StorageLocation, now_ms: int) -> None:
    """Checks that no run is active, because a new attempt would fence it.

    Args:
        job: The job's prefix.
        now_ms: The time, in milliseconds since 1970.

    Raises:
        CheckpointError: A run may be active. The message names it.
    """
    leader = CompletedCheckpointStore(job.open()).leader()
    if leader is not None and leader.alive(now_ms):
        raise CheckpointError(
            f"{leader.owner!r} may still be running {job.url}. Wait until it ends; {if_killed(job.url)}."
        )


def _begin(
    job: StorageLocation, owner: str, now_ms: int, *, start_over: bool = False
) -> tuple[CompletedCheckpointStore, Attempt]:
    refuse_beside_run(job, now_ms)
    # Retains as many checkpoints as the job does, so that none is deleted that could be restored.
    checkpoints = CompletedCheckpointStore(job.open(), number_retained(job))
    return checkpoints, checkpoints.begin_attempt(owner, now_ms, start_over=start_over)


def _check_committed(
    job: StorageLocation, latest: CheckpointMetadata, committed: int | None, *, superseded: bool = False
) -> None:
    prepared = any(s.committables for o in latest.operators for s in o.subtasks)
    # The checkpoint of a partition, or of operators that are recomputed, replaces rows even if it has no committables.
    replaces = superseded and (latest.partition is not None or REPLACES in latest.properties)
    if (prepared or replaces) and committed != latest.checkpoint_id:
        raise CheckpointError(
            f"checkpoint {latest.checkpoint_id} of {job.url} may still have something to commit, and only the job's "
            "program can commit it. A run that ends normally records that everything is committed: run the job once "
            "more, or use its Dagster jobs."
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
    if metadata.end_of is not None:
        properties = {**properties, END_OF: metadata.end_of}
    metadata = replace(
        metadata,
        checkpoint_id=checkpoints.assign_checkpoint_id(attempt),
        kind=CheckpointKind.CHECKPOINT,
        parent_id=parent_id,
        timestamp_ms=now_ms,
        partition=None,  # it reads no partition, and must not replace the rows of the previous one
        fencing_token=attempt.token,
        properties=properties,
    )
    checkpoints.write_metadata(attempt, metadata)
    checkpoints.complete(attempt, metadata)
    attempt.committed = metadata.checkpoint_id
    checkpoints.subsume(attempt, older)
    return metadata.checkpoint_id
