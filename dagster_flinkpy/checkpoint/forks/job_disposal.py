"""Deletes whole jobs, gives up what they have claimed of the files of other jobs, and knows which files a job needs."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.claims import CLAIMS_FOLDER, StoredClaim, claims_of, named_by_others, shrink_claim
from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import list_savepoints
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import find_traces, head_of_job
from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptMetadataError,
    FencedError,
    JobNotFoundError,
    ObjectNotFoundError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LEADER_KEY, LeaseHeldError, if_killed
from dagster_flinkpy.storage.object_store import ObjectStore
from dagster_flinkpy.storage.origins import ORIGINS_FOLDER, origins_of

__all__ = [
    "check_job",
    "claims_elsewhere",
    "dispose_job",
    "finish_disposal",
    "mark_disposed",
    "needed_files",
    "split_origin",
    "tidy_claims",
]

_TRIES = 5


def split_origin(path: str) -> tuple[str, str]:
    """Splits the path of an origin into the job that owns its files, and what their names there begin with.

    Args:
        path: The path of a job, or of a savepoint in the folder of a job.
    """
    job, _, folder = path.partition("/")
    return job, f"{folder}/" if folder else ""


def check_job(call: str, job: object) -> None:
    """Raises `ConfigurationError` unless a job is given as a location."""
    check_argument(call, job, StorageLocation, "the folder of a job as a StorageLocation(...)")


def dispose_job(job: StorageLocation, *, owner: str = "dispose_job", now_ms: int | None = None) -> None:
    """Deletes a job with all its checkpoints, such as a fork that is not needed any more.

    Files that forks of it name stay until these give them up. The call can be repeated after a crash.

    Args:
        job: The job's prefix.
        owner: Names the caller, for messages of other runs.
        now_ms: The time, in milliseconds since 1970. Default: now.

    Raises:
        ConfigurationError: The job is no location.
        JobNotFoundError: There is no such job.
        CheckpointError: A run may be active, or there are savepoints in the job's folder.
        CorruptMetadataError: ``HEAD`` is damaged.
    """
    check_job("dispose_job()", job)
    store, now_ms = job.open(), current_millis() if now_ms is None else now_ms
    found = read_head(store)
    if found is None and not find_traces(store).found:
        raise JobNotFoundError(f"there is no job in {job.url}")
    if found is None or not found[0].disposed:
        if savepoints := list_savepoints(store):
            raise CheckpointError(
                f"{job.url} contains savepoints: {', '.join(name for _, name in savepoints)}. Delete them first, with "
                "'flinkpy savepoint dispose', or move them away"
            )
        leader = CompletedCheckpointStore(store).leader()
        if leader is not None and leader.alive(now_ms):
            raise CheckpointError(
                f"{leader.owner!r} may still be running {job.url}. Stop or cancel it first; {if_killed(job.url)}."
            )
        if not _fence_and_mark(store, owner, now_ms):
            raise CheckpointError(f"another run took over {job.url} just now, so it was not disposed of")
    finish_disposal(store)


def _fence_and_mark(store: ObjectStore, owner: str, now_ms: int, *, only_new: bool = False) -> bool:
    """Fences all attempts of a job and marks it as disposed. From then on, none of its checkpoints is kept.

    Args:
        store: The store, rooted at the job's prefix.
        owner: Names the caller.
        now_ms: The time, in milliseconds since 1970.
        only_new: Whether to do it only if the job has never completed a checkpoint, and nobody works on it.

    Returns:
        Whether it was done.
    """
    checkpoints = CompletedCheckpointStore(store)
    try:
        attempt = checkpoints.begin_attempt(owner, now_ms, timedelta(0), start_over=True, take_over=not only_new)
    except LeaseHeldError:
        return False
    if only_new and not attempt.head.new:
        checkpoints.end_attempt(attempt)
        return False
    return mark_disposed(store, attempt)


def mark_disposed(store: ObjectStore, attempt: Attempt) -> bool:
    """Marks a job as disposed for the attempt that leads it. Returns False if the attempt was fenced.

    Args:
        store: The store, rooted at the job's prefix.
        attempt: The attempt.
    """
    try:
        CompletedCheckpointStore(store).replace_head(attempt, Head(attempt.token, disposed=True))
    except FencedError:
        return False
    return True


def finish_disposal(job: ObjectStore) -> None:
    """Deletes what is left of a job that was marked as disposed, except files that its forks name.

    Does nothing if the job was not disposed of.

    Args:
        job: The store, rooted at the job's prefix.
    """
    elsewhere = claims_elsewhere(job)
    found = read_head(job)
    if found is None or not found[0].disposed:
        return
    # They were listed while HEAD was there, so they are not of a new job of this name.
    for owner, claims in elsewhere.items():
        for claim in claims:
            job.beside(owner).delete(claim.key)
    others = named_by_others(job)
    named = set().union(*others.values())
    last = (HEAD_KEY, LEADER_KEY)
    kept = (CLAIMS_FOLDER, ORIGINS_FOLDER)
    keys = [info.key for info in job.list()]
    job.delete_many(key for key in keys if key not in named and key not in last and not key.startswith(kept))
    if not others:
        job.delete_many(key for key in keys if key.startswith(ORIGINS_FOLDER))
        for key in reversed(last):
            job.delete(key)
    for owner in elsewhere:
        finish_disposal(job.beside(owner))


def claims_elsewhere(job: ObjectStore) -> dict[str, list[StoredClaim]]:
    """Returns the claims of a job on files of others, by the ids of those jobs.

    Args:
        job: The store, rooted at the job's prefix.
    """
    name = job.url.rpartition("/")[2]
    owners = dict.fromkeys(split_origin(path)[0] for path in origins_of(job))
    return {owner: claims_of(job.beside(owner), name) for owner in owners}


def tidy_claims(job: ObjectStore, before: datetime) -> None:
    """Gives up claims of a job that it does not need any more, and those on it that nobody will ever need.

    Args:
        job: The store, rooted at the job's prefix.
        before: A fork that was begun before this time and is not finished has failed.

    Raises:
        CorruptMetadataError: Something cannot be read, so it is unknown what it needs.
    """
    _shrink_claims(job)
    for claim in claims_of(job):
        if claim.written < before:
            _end_if_dead(job, claim)


def _shrink_claims(job: ObjectStore) -> None:
    # First the claims are listed, then HEAD is read: whatever HEAD needs was claimed by one of these, or by later ones.
    elsewhere = claims_elsewhere(job)
    found = read_head(job)
    if not elsewhere or found is None or found[0].new or found[0].disposed:
        return
    needed = needed_files(job)[1]
    prefixes: dict[str, list[str]] = defaultdict(list)
    for path in origins_of(job):
        owner, prefix = split_origin(path)
        prefixes[owner].append(prefix)
    for owner, claims in elsewhere.items():
        names = {prefix + path for prefix in prefixes[owner] for path in needed}
        for claim in claims:
            shrink_claim(job.beside(owner), claim.key, names)
        finish_disposal(job.beside(owner))


def _end_if_dead(job: ObjectStore, claim: StoredClaim) -> None:
    """Gives up a claim of a fork that does not exist, or never will."""
    fork = job.beside(claim.fork)
    found = read_head(fork)
    if found is None:
        dead = not find_traces(fork).found  # otherwise its HEAD was lost, and may be recovered
    elif found[0].new:
        dead = _fence_and_mark(fork, f"a sweep of {job.url}", current_millis(), only_new=True)
        finish_disposal(fork)
    elif found[0].disposed:
        finish_disposal(fork)
        dead = True
    else:
        dead = job.url.rpartition("/")[2] not in claims_elsewhere(fork)
    if dead:
        job.delete(claim.key)


def needed_files(store: ObjectStore) -> tuple[set[int], set[str]]:
    """Returns the kept checkpoints of a job, and all files that they, its native savepoints and its forks name.

    Args:
        store: The object store, rooted at the job's prefix.

    Raises:
        ConfigurationError: There is no job.
        HeadLostError: ``HEAD`` was lost.
        CorruptMetadataError: Something cannot be read, so it is unknown what it needs.
    """
    checkpoints = CompletedCheckpointStore(store)
    for attempt in range(_TRIES):
        kept = _kept(store)
        named: set[str] = set()
        try:
            for checkpoint_id in kept:
                named |= checkpoints.load(checkpoint_id).files()
        except ObjectNotFoundError as error:
            # A running job may have subsumed it just now; then HEAD says so.
            if attempt + 1 == _TRIES or checkpoint_id in _kept(store):
                raise CorruptMetadataError(
                    f"{error}; HEAD retains this checkpoint, so nothing is swept until it is restored to the store or "
                    "HEAD no longer retains it"
                ) from error
            continue
        break
    # These are listed after HEAD was read: what is written now is of a checkpoint that HEAD kept.
    return set(kept), named.union(*named_by_others(store).values())


def _kept(store: ObjectStore) -> tuple[int, ...]:
    head = head_of_job(store)
    if head is None:
        raise ConfigurationError(f"{store.url} has no {HEAD_KEY}, so nothing was swept: give the folder of a job")
    return head.kept
