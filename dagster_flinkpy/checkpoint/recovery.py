"""Rebuilds the ``HEAD`` of a job from its remaining checkpoints, if ``HEAD`` or the latest checkpoint was lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatus
from dagster_flinkpy.checkpoint.counter import read_counter
from dagster_flinkpy.checkpoint.head import Head, read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.checkpoint.offline import refuse_beside_run
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import CHECKPOINT_FOLDER, find_traces
from dagster_flinkpy.checkpoint.verify import verify_checkpoint
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, JobNotFoundError, ObjectNotFoundError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["RecoveredHead", "recover_head"]


@dataclass(frozen=True)
class RecoveredHead:
    """The content of the rebuilt ``HEAD``, and what else a person should know."""

    checkpoint_id: int
    """The latest checkpoint."""
    kept: tuple[int, ...] = ()
    """Older checkpoints, which are kept until someone disposes of them."""
    partitions: tuple[str, ...] = ()
    """Time partitions whose end states are kept."""
    damaged: tuple[str, ...] = ()
    """Descriptions of what was found damaged, one line each."""
    ids_after: int | None = None
    """The last checkpoint id that was taken after it, or None. If that checkpoint was completed and its metadata is
    gone, its rows are committed again. Only the sinks know whether that is the case."""


def recover_head(
    job: StorageLocation,
    *,
    owner: str,
    now_ms: int,
    checkpoint_id: int | None = None,
    last_committed: Callable[[], int | None] = lambda: None,
    force: bool = False,
    on_read: Callable[[int], None] = lambda files: None,
) -> RecoveredHead:
    """Makes the newest checkpoint whose metadata and files all exist the latest one again.

    It may be one that was written but never completed. Then the sinks commit it when the job continues, as after a
    crash. Nothing is deleted. New tokens and ids are greater than all that the remaining objects name.

    Args:
        job: The job's prefix.
        owner: Names the caller.
        now_ms: The time, in milliseconds since 1970.
        checkpoint_id: The checkpoint to use. Default: the newest one that is intact and, according to the statistics,
            has not failed.
        last_committed: Returns the newest checkpoint of which the sinks have committed anything, or None if unknown.
        force: Whether to recover even if a later checkpoint was, or may have been, committed. Its rows are then
            committed again.
        on_read: Called with the number of further state files that have been read.

    Raises:
        JobNotFoundError: The folder has nothing of a job.
        CheckpointError: Nothing is lost, a run may be active, no checkpoint is intact, or a checkpoint after the newest
            intact one was, or may have been, committed. Nothing is changed.
        StorageError: The store failed.
    """
    refuse_beside_run(job, now_ms)
    checkpoints = CompletedCheckpointStore(job.open())
    before = _head_to_rebuild(checkpoints)
    found, damaged = _readable(checkpoints)
    status = {each.checkpoint_id: each.status for each in checkpoints.statistics().history}
    failed = {number for number, each in status.items() if each is CheckpointStatus.FAILED}
    if checkpoint_id is None:
        wanted = sorted(found.keys() - failed, reverse=True)
    elif checkpoint_id in found:
        wanted = [checkpoint_id]
    else:
        raise CheckpointError(_nothing(job, f"checkpoint {checkpoint_id} is not intact", damaged))
    if not found and not damaged and not find_traces(checkpoints.store).found:
        raise JobNotFoundError(
            f"there is nothing of a job in {job.url}. Give the folder of a job, below that of the checkpoints: "
            "'flinkpy job list' shows the jobs of a folder of checkpoints"
        )
    chosen = None
    for candidate in wanted:
        if problems := verify_checkpoint(found[candidate][0], checkpoints.store, on_read=on_read).problems:
            damaged[candidate] = f"chk-{candidate}: {'; '.join(problems)}"
        else:
            chosen = candidate
            break
    if chosen is None:
        raise CheckpointError(_nothing(job, "no checkpoint is intact", damaged))
    completed = {number for number, each in status.items() if each is CheckpointStatus.COMPLETED}
    completed |= {chosen, *(each.parent_id for each, _ in found.values() if each.parent_id is not None)}
    leader, counter = checkpoints.leader(), read_counter(checkpoints.store)
    told = [each for each in (last_committed(), leader.committed if leader else None) if each is not None]
    last = counter[0].last if counter else 0
    if not force:
        unknown = None if told else max({*range(chosen + 1, last + 1)} - failed, default=None)
        _check_nothing_later(job, chosen, max(told, default=0), damaged, unknown)
    attempt = checkpoints.begin_attempt(owner, now_ms, start_over=True)
    try:
        head = _rebuilt(chosen, found, completed, before, attempt.token)
        checkpoints.replace_head(attempt, head)
        if attempt.committed is not None:  # up to a later one, if it was forced
            attempt.committed = min(attempt.committed, chosen)
    finally:
        checkpoints.end_attempt(attempt)
    return RecoveredHead(
        checkpoint_id=chosen,
        kept=tuple(i for i in head.kept if i != chosen),
        partitions=tuple(end.partition for end in head.partitions),
        damaged=tuple(damaged[i] for i in sorted(damaged)),
        ids_after=last if last > chosen else None,
    )


def _head_to_rebuild(checkpoints: CompletedCheckpointStore) -> Head | None:
    """Returns ``HEAD`` if only its latest checkpoint cannot be read, or None if ``HEAD`` is missing or damaged."""
    try:
        found = read_head(checkpoints.store)
    except CorruptMetadataError:
        return None
    if found is None or found[0].lost:
        return None
    try:
        latest = checkpoints.latest()
    except CorruptMetadataError:
        return found[0]
    what = "no checkpoint has been completed" if latest is None else f"checkpoint {latest.checkpoint_id} is the latest"
    raise CheckpointError(f"{checkpoints.store.url} has its HEAD: {what}. There is nothing to recover.")


def _readable(
    checkpoints: CompletedCheckpointStore,
) -> tuple[dict[int, tuple[CheckpointMetadata, str]], dict[int, str]]:
    """Returns, by id, the checkpoints with readable metadata and its checksum, and what is wrong with the others."""
    found: dict[int, tuple[CheckpointMetadata, str]] = {}
    damaged: dict[int, str] = {}
    store = checkpoints.store
    for folder in store.list_folders("chk-"):
        if (number := CHECKPOINT_FOLDER.fullmatch(folder)) is None:
            continue
        checkpoint_id, key = int(number[1]), folder + METADATA_NAME
        try:
            data = fetch_metadata(store, key)
            metadata = CheckpointMetadata.from_bytes(data, f"{store.url}/{key}")
        except ObjectNotFoundError:
            continue
        except CorruptMetadataError as error:
            damaged[checkpoint_id] = str(error)
            continue
        if metadata.checkpoint_id != checkpoint_id or metadata.kind is not CheckpointKind.CHECKPOINT:
            damaged[checkpoint_id] = f"{store.url}/{key} is {metadata.kind.value} {metadata.checkpoint_id}"
            continue
        found[checkpoint_id] = metadata, sha256(data).hexdigest()
    return found, damaged


def _check_nothing_later(
    job: StorageLocation, chosen: int, committed: int, damaged: Mapping[int, str], unknown: int | None
) -> None:
    """Checks that no checkpoint after the chosen one was committed.

    Args:
        job: The job's prefix.
        chosen: The checkpoint to go on from.
        committed: The newest one that was committed, as far as anything tells.
        damaged: What is wrong with checkpoints.
        unknown: A later one that has not failed as far as known, if nothing tells what was committed.
    """
    problem = None
    if committed > chosen:
        problem = f"the sinks have committed checkpoint {committed}"
    elif later := [damaged[i] for i in sorted(damaged) if i > chosen]:
        problem = f"a later one may have been committed: {'; '.join(later)}"
    elif unknown is not None:
        raise CheckpointError(
            f"the newest intact checkpoint of {job.url} is {chosen}, but there was a checkpoint {unknown}, and nothing "
            "there tells whether its rows were committed, which would then be committed again. Use --program to ask "
            f"the sinks; or remove from the tables what was committed after checkpoint {chosen}, and use --force."
        )
    if problem is not None:
        raise CheckpointError(
            f"the newest intact checkpoint of {job.url} is {chosen}, but {problem}. Continuing from {chosen} would "
            f"commit the later rows again: first remove from the tables what was committed after checkpoint {chosen}, "
            "then use --force."
        )


def _nothing(job: StorageLocation, problem: str, damaged: Mapping[int, str]) -> str:
    details = "".join(f" {damaged[i]}." for i in sorted(damaged))
    return (
        f"{job.url} cannot be recovered: {problem}.{details} Restore a savepoint with 'flinkpy savepoint restore', or "
        "run the job with start_empty."
    )


def _rebuilt(
    chosen: int,
    found: Mapping[int, tuple[CheckpointMetadata, str]],
    completed: Collection[int],
    before: Head | None,
    token: int,
) -> Head:
    older = tuple(i for i in sorted(found) if i < chosen)
    if before is not None:
        retained = tuple(i for i in older if i in before.retained)
        unclaimed = tuple(i for i in (*older, chosen) if i in before.unclaimed)
        ends = tuple(end for end in before.partitions if end.checkpoint_id in (*retained, chosen))
    else:
        # One of which nobody knows that it was completed may be from a run that died: others have gone on without it.
        ends = _ends({i: found[i][0] for i in (*older, chosen) if i in completed})
        retained = tuple(i for i in older if i in {end.checkpoint_id for end in ends})
        # Someone may want to keep any of these.
        unclaimed = tuple(i for i in older if i not in retained)
    return Head(
        fencing_token=token,
        checkpoint_id=chosen,
        path=f"chk-{chosen}/{METADATA_NAME}",
        metadata_sha256=found[chosen][1],
        retained=(*retained, chosen),
        partitions=ends,
        unclaimed=unclaimed,
    )


def _ends(checkpoints: Mapping[int, CheckpointMetadata]) -> tuple[PartitionEnd, ...]:
    """Returns the newest checkpoint of each partition. Ordinals are provisional, because only a run knows them."""
    newest = {metadata.end_of: i for i, metadata in sorted(checkpoints.items()) if metadata.end_of is not None}
    return tuple(
        PartitionEnd(partition, ordinal, newest[partition], checkpoints[newest[partition]].parent_id)
        for ordinal, partition in enumerate(sorted(newest))
    )
