"""Finds the files that a job's checkpoints, its native savepoints and its forks need."""

from __future__ import annotations

from dagster_flinkpy.checkpoint.claims import named_by_others
from dagster_flinkpy.checkpoint.head import HEAD_KEY
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import head_of_job
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError, ObjectNotFoundError
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["needed_files"]

_TRIES = 5


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
