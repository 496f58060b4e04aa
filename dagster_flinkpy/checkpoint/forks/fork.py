"""Forks: new jobs whose first checkpoint names files of another job. Only metadata is written."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.claims import Claim, StoredClaim, claims_of, read_claim, write_claim
from dagster_flinkpy.checkpoint.counter import COUNTER_KEY
from dagster_flinkpy.checkpoint.forks.job_disposal import (
    check_job,
    claims_elsewhere,
    finish_disposal,
    mark_disposed,
    split_origin,
)
from dagster_flinkpy.checkpoint.head import HEAD_KEY, read_head
from dagster_flinkpy.checkpoint.metadata import (
    ANCESTORS,
    END_OF,
    METADATA_NAME,
    REPEATS,
    STOPPED,
    CheckpointKind,
    CheckpointMetadata,
)
from dagster_flinkpy.checkpoint.offline import refuse_beside_run, without_committables
from dagster_flinkpy.checkpoint.partitions import is_end, repeated_end
from dagster_flinkpy.checkpoint.savepoints.dispose import DISPOSAL_KEY
from dagster_flinkpy.checkpoint.savepoints.savepoint import as_savepoint, files_location, load_savepoint
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import savepoint_location
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import head_of_job
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptMetadataError,
    CorruptStateError,
    FlinkPyError,
    ObjectNotFoundError,
    StorageError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation, lease
from dagster_flinkpy.storage.origins import ORIGINS_FOLDER, add_origins, origins_of

__all__ = ["Fork", "check_fork", "fork_job", "list_forks"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Fork:
    """A job that was forked from another one."""

    job_id: str
    checkpoint_id: int | None
    """Its latest checkpoint; None if it has none, such as because the fork was not finished."""
    forked_at: datetime | None
    """When it was forked; None if it no longer needs files of the other job."""
    files: int
    """How many files of the other job it still needs."""
    finished: bool
    """Whether it was forked. If not, somebody is just doing it, or has failed; a sweep deletes what that has left."""


@dataclass(frozen=True)
class _Source:
    """What a job is forked from."""

    metadata: CheckpointMetadata
    origin: str
    """The path that its files are relative to, below the parent of the job's prefix."""
    name: str
    """The checkpoint or savepoint, in the folder of the job."""
    is_kept: Callable[[], bool]
    """Returns whether its job still keeps it."""
    end_of: str | None
    """The partition whose end state it is."""


class _SubsumedError(CheckpointError):
    """The checkpoint was subsumed while the job was forked."""


def fork_job(
    job: StorageLocation, name: str, *, at: str | None = None, owner: str = "fork_job", now_ms: int | None = None
) -> int:
    """Creates a job that continues from a checkpoint or savepoint of another one. A run of that one may be active.

    The state is not copied: the first checkpoint of the fork names the same files, and neither job deletes what the
    other one names. From then on, the jobs are independent. The fork must write to other tables and topics: its runs
    refuse to start otherwise. Its program should have the same uids.

    A fork that fails or dies on its way leaves nothing that prevents another try, and is no job.

    Args:
        job: The prefix of the job.
        name: The id of the fork. Its prefix is beside that of the job.
        at: ``chk-7``, or the name, path or URL of a savepoint in the folder of the job. Default: the latest checkpoint.
        owner: Names the caller, for messages of other runs.
        now_ms: The time, in milliseconds since 1970. Default: now.

    Returns:
        The id of the first checkpoint of the fork.

    Raises:
        ConfigurationError: The name cannot be used, or the savepoint is not in the folder of the job.
        CheckpointError: The job does not keep such a checkpoint, there is a job of this name already, or the job is run
            by partitions, and it is not the end state of one.
        RestoreError: There is no such savepoint.
        CorruptStateError: The savepoint has not all of its files.
        HeadLostError: ``HEAD`` of one of the jobs was lost.
        StorageError: The outcome is unknown; look with ``list_forks``.
    """
    check_job("fork_job()", job)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"a fork cannot be named {name!r}: use letters, digits, '_', '.' and '-'")
    if name == job.name:
        raise ConfigurationError(f"a fork needs another name than its job, {name!r}")
    now_ms = current_millis() if now_ms is None else now_ms
    _refuse_existing(job.parent.child(name), now_ms)
    while True:
        source = _source(job, at)
        try:
            return _fork(job, name, source, owner, now_ms)
        except _SubsumedError:
            if at is not None:
                raise


def check_fork(fork: StorageLocation, job: StorageLocation) -> None:
    """Checks that a job, if there is one, was forked from another one, so that it may be used up or disposed of.

    Args:
        fork: The prefix of the fork.
        job: The prefix of the other job.

    Raises:
        ConfigurationError: It was not.
    """
    store = fork.open()
    found = read_head(store)
    if found is None or found[0].new or found[0].disposed:
        return
    if fork.url == job.url or job.name not in {split_origin(path)[0] for path in origins_of(store)}:
        raise ConfigurationError(
            f"{fork.name!r} is no fork of job {job.name!r}, but a job of its own, in {fork.url}. Choose another name"
        )


def list_forks(job: StorageLocation) -> list[Fork]:
    """Lists the forks of a job that still exist, by name.

    Args:
        job: The prefix of the job.

    Raises:
        ConfigurationError: It is no location.
    """
    check_job("list_forks()", job)
    store = job.open()
    begun: dict[str, list[Claim]] = {}
    for stored in claims_of(store):
        if (found := read_claim(store, stored.key)) is not None:
            begun.setdefault(stored.fork, []).append(found[0])
    for folder in job.parent.open().list_folders():
        name = folder.rstrip("/")
        if name not in begun and job.name in {split_origin(path)[0] for path in origins_of(store.beside(name))}:
            begun[name] = []
    return [_described(store.beside(name), name, claims) for name, claims in sorted(begun.items())]


def _described(fork: ObjectStore, name: str, claims: list[Claim]) -> Fork:
    found = read_head(fork)
    files = {path for claim in claims for path in claim.files}
    since = max((datetime_of_millis(claim.created_at) for claim in claims), default=None)
    finished = found is not None and not found[0].new and not found[0].disposed
    latest = None if found is None else found[0].checkpoint_id
    return Fork(name, latest, since and since.astimezone(timezone.utc), len(files), finished)


def _refuse_existing(fork: StorageLocation, now_ms: int) -> None:
    found = read_head(fork.open())
    if found is not None and not found[0].new and not found[0].disposed:  # what became of a disposed one is told later
        raise CheckpointError(
            f"there is a job {fork.name!r} already, in {fork.url}. Choose another name, or dispose of it with "
            "'flinkpy job dispose'"
        )
    refuse_beside_run(fork, now_ms)


def _source(job: StorageLocation, at: str | None) -> _Source:
    checkpoints = CompletedCheckpointStore(job.open())
    number = None if at is None else re.fullmatch(r"chk-(\d+)", at.removeprefix(f"{job.url}/").rstrip("/"))
    if at is not None and number is None:
        return _savepoint(job, at)
    head = head_of_job(checkpoints.store)
    kept = () if head is None else head.kept
    checkpoint_id = int(number[1]) if number else None if head is None else head.checkpoint_id
    if head is None or checkpoint_id not in kept:
        names = ", ".join(f"chk-{each}" for each in sorted({*kept})) or "none"
        raise CheckpointError(f"{job.url} cannot be forked at {at or 'its latest checkpoint'}: it keeps {names}")
    try:
        metadata = checkpoints.load(checkpoint_id)
    except ObjectNotFoundError as error:
        if head_of_job(checkpoints.store) == head:
            raise _missing(checkpoints, error) from error
        return _source(job, at)  # it was subsumed just now

    def is_kept() -> bool:
        now = read_head(checkpoints.store)
        return now is not None and checkpoint_id in now[0].kept

    return _Source(metadata, job.name, f"chk-{checkpoint_id}", is_kept, _end_of(checkpoints, metadata))


def _savepoint(job: StorageLocation, at: str) -> _Source:
    location = savepoint_location(at, job)
    if location.parent.url != job.url:
        raise ConfigurationError(
            f"savepoint {location.url} is not in the folder of the job, {job.url}. A fork only names files of the job: "
            "start a new job with restore_from, which copies the savepoint"
        )
    folder = location.open()
    metadata = load_savepoint(folder)

    def is_kept() -> bool:
        return folder.head(METADATA_NAME) is not None and folder.head(DISPOSAL_KEY) is None

    files = files_location(metadata, location)
    origin = job.name if files.url == job.url else f"{job.name}/{location.name}"
    if origin != job.name and (gone := sorted(metadata.files() - {info.key for info in folder.list()})):
        raise CorruptStateError(
            f"{location.url}/{gone[0]} is missing, but the savepoint names it: it was copied in part, or its files "
            f"were deleted. Of its {len(metadata.files())} files, it has not {len(gone)}"
        )
    end_of = _end_of(CompletedCheckpointStore(job.open()), metadata)
    return _Source(metadata, origin, location.name, is_kept, end_of)


def _end_of(checkpoints: CompletedCheckpointStore, metadata: CheckpointMetadata) -> str | None:
    """Returns the partition whose end state a job is forked from; None if the job has no partitions.

    Raises:
        CheckpointError: The job has partitions, and it is the end state of none.
    """
    found = read_head(checkpoints.store)
    if metadata.end_of is not None or found is None or not found[0].partitions:
        return metadata.end_of
    ends = found[0].partitions
    try:
        latest = checkpoints.latest()
        if latest is None or not is_end(ends, latest, checkpoints.load):
            return None
        end = repeated_end(ends, metadata, checkpoints.load)  # earlier releases do not say so in the metadata
    except ObjectNotFoundError as error:
        if (now := read_head(checkpoints.store)) is not None and now[0] == found[0]:
            raise _missing(checkpoints, error) from error
        return _end_of(checkpoints, metadata)  # one was subsumed just now
    if end is not None:
        return end.partition
    raise CheckpointError(
        f"{metadata.kind.value} {metadata.checkpoint_id} is not the end state of a partition, and "
        f"{checkpoints.store.url} is run by partitions: those of a fork could not start from it. Fork the job at one, "
        "such as its latest checkpoint; or start a new job with restore_from in the config of the run whose first "
        "partition is to start from it"
    )


def _missing(checkpoints: CompletedCheckpointStore, error: ObjectNotFoundError) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"the metadata of a checkpoint that HEAD of {checkpoints.store.url} keeps is missing: {error}. "
        "'flinkpy checkpoints list' shows which ones there are"
    )


def _fork(job: StorageLocation, name: str, source: _Source, owner: str, now_ms: int) -> int:
    store, nonce = job.open(), secrets.token_hex(8)
    forks = CompletedCheckpointStore(job.parent.child(name).open())
    attempt: Attempt | None = None
    # From here on, a sweep of the job finds what a dead fork has left.
    begun = write_claim(store, f"{nonce}-begun", Claim(name, source.metadata.checkpoint_id, now_ms, ()))
    try:
        # Nobody has to wait for a fork that has died: its lease ends at once, and its token fences it.
        attempt = forks.begin_attempt(owner, now_ms, timedelta(0))
        if not attempt.head.new:
            raise CheckpointError(f"there is a job {name!r} already: somebody has created it just now")
        checkpoint_id = _complete(store, name, source, forks, attempt, nonce, now_ms)
    except FlinkPyError as error:
        # If HEAD may have been replaced, the fork may exist, and needs its claims.
        if not (isinstance(error, StorageError) and attempt is not None and attempt.written):
            with suppress(StorageError):  # a sweep deletes what remains
                _undo(forks.store, attempt, nonce, owner)
                store.delete(begun)
                finish_disposal(store)  # which may have waited for this
        raise
    finally:
        if attempt is not None:
            forks.end_attempt(attempt)
        store.delete(begun)
    return checkpoint_id


def _complete(
    store: ObjectStore,
    name: str,
    source: _Source,
    forks: CompletedCheckpointStore,
    attempt: Attempt,
    nonce: str,
    now_ms: int,
) -> int:
    first, files = source.metadata.checkpoint_id, source.metadata.files()
    attempt.start_after(first)
    origins = _origins(store, source, files)
    metadata = _first_checkpoint(source, name, attempt, forks.assign_checkpoint_id(attempt), now_ms)
    add_origins(forks.store, origins)
    for number, (origin, paths) in enumerate(origins.items()):
        job, prefix = split_origin(origin)
        claimed = tuple(sorted(prefix + path for path in paths))
        write_claim(store.beside(job), f"{nonce}-{number}", Claim(name, first, now_ms, claimed))
    if not source.is_kept():
        raise _SubsumedError(
            f"{store.url}/{source.name} was deleted while the job was forked. Fork it at another checkpoint"
        )
    attempt.registry.register_all(first, files)
    forks.write_metadata(attempt, metadata)
    forks.complete(attempt, metadata)
    attempt.committed = metadata.checkpoint_id
    return metadata.checkpoint_id


def _first_checkpoint(
    source: _Source, name: str, attempt: Attempt, checkpoint_id: int, now_ms: int
) -> CheckpointMetadata:
    """Returns the metadata of the fork's first checkpoint. What the other job has to commit is not its own."""
    found = source.metadata
    ancestors = [list(each) for each in found.ancestors_of(name)]
    metadata = without_committables(replace(as_savepoint(found, ()), operators=found.operators))
    properties = {key: value for key, value in metadata.properties.items() if key != STOPPED}
    end_of = {} if source.end_of is None else {END_OF: source.end_of}
    return replace(
        metadata,
        job_id=name,
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        parent_id=None,
        timestamp_ms=now_ms,
        partition=None,  # it has read none
        fencing_token=attempt.token,
        properties={**properties, **end_of, ANCESTORS: ancestors, REPEATS: list(found.read_by)},
    )


def _origins(store: ObjectStore, source: _Source, files: set[str]) -> dict[str, set[str]]:
    """Returns which files are below which path. A job that is a fork itself has claimed those that are not its own."""
    left, origins = {*files}, dict[str, set[str]]()
    if source.origin == store.url.rpartition("/")[2]:
        claimed = {owner: _named_by(store.beside(owner), claims) for owner, claims in claims_elsewhere(store).items()}
        for origin in origins_of(store):
            owner, prefix = split_origin(origin)
            if there := {path for path in left if prefix + path in claimed[owner]}:
                origins[origin] = there
                left -= there
    # Even without files, the fork is one of this job, whose tables it must not touch.
    return {**origins, source.origin: left}


def _named_by(owner: ObjectStore, claims: list[StoredClaim]) -> set[str]:
    found = [read_claim(owner, claim.key) for claim in claims]
    return {path for each in found if each is not None for path in each[0].files}


def _undo(fork: ObjectStore, attempt: Attempt | None, nonce: str, owner: str) -> None:
    """Deletes what an attempt to fork has written, when it is certain that there will be no fork."""
    if attempt is None:  # it was fenced by a sweep before it led
        leader = None if fork.head(HEAD_KEY) is not None else lease.read(fork)
        if leader is not None and leader.owner == owner:
            fork.delete(lease.LEADER_KEY)
        return
    if not attempt.head.new:
        return  # it is another job
    if mark_disposed(fork, attempt):
        finish_disposal(fork)
        return
    for owning, claims in claims_elsewhere(fork).items():
        for claim in claims:
            if claim.key.rpartition("/")[2].startswith(nonce):
                fork.beside(owning).delete(claim.key)
    fork.delete_many(f"chk-{checkpoint_id}/{METADATA_NAME}" for checkpoint_id in attempt.written)
    if fork.head(HEAD_KEY) is None:  # a sweep has taken it for dead, and nobody has begun again
        fork.delete_many([COUNTER_KEY, *(info.key for info in fork.list("chk-"))])
        fork.delete_many([info.key for info in fork.list(ORIGINS_FOLDER)])
