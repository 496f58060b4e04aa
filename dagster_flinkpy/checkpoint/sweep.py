"""Deletes files that failed epochs and dead attempts have left below a job's prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice

from dagster_flinkpy.checkpoint.forks.job_disposal import finish_disposal, needed_files, tidy_claims
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.checkpoint.requests import REQUESTS_FOLDER
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import list_savepoints
from dagster_flinkpy.checkpoint.traces import CHECKPOINT_FOLDER, SAVEPOINT_PREFIX, SHARED_FOLDER, head_of_job
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore

__all__ = ["DEFAULT_GRACE", "SweepResult", "old_savepoints", "sweep"]

DEFAULT_GRACE = timedelta(days=1)
"""The default age from which orphans are deleted."""
_BATCH = 1000
_WRITTEN_BY = re.compile(
    rf"{SHARED_FOLDER}(\d{{1,18}})-(\d{{1,18}})-|{EXCHANGE_FOLDER}/.+/(\d{{10}})(?:-(\d{{10}}))?[./]", re.DOTALL
)
"""The attempt and the checkpoint in the name of a state file or a segment. Rows of DataFrames have no checkpoint."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep deleted, or would have deleted without ``dry_run``."""

    files: int = 0
    bytes: int = 0


def sweep(
    store: ObjectStore,
    grace: timedelta = DEFAULT_GRACE,
    *,
    now: datetime | None = None,
    dry_run: bool = False,
    on_deleted: Callable[[int], None] = lambda files: None,
) -> SweepResult:
    """Deletes the orphans of a job: files below its prefix that no retained checkpoint, savepoint or fork names.

    It also ends the disposal of forks that were never finished, and gives up the files of other jobs that the job no
    longer needs as a fork of theirs; see :func:`~dagster_flinkpy.checkpoint.forks.job_disposal.tidy_claims`.

    Requests whose asker has not fetched the answer are deleted, too.

    It may be called at any time, even while the job runs: what the attempt at work has copied from a savepoint, or has
    written since the latest checkpoint, is left. Savepoints that are being written must be younger than the grace time.
    Objects are listed page by page and deleted in batches; only the names in the retained checkpoints are held in
    memory.

    Args:
        store: The object store, rooted at the job's prefix.
        grace: The age at which an orphan is deleted; must be longer than it takes to write a savepoint. Default: 1 day.
        now: The current time, with time zone. Default: the time of this machine.
        dry_run: Whether only to count, and delete nothing. Default: False.
        on_deleted: Called with the number of further files that were deleted, or counted.

    Raises:
        ConfigurationError: ``grace`` is negative, or there is no job.
        HeadLostError: ``HEAD`` was lost, so it is unknown what is needed; nothing is deleted.
        CorruptMetadataError: A retained checkpoint or a savepoint cannot be read, so it is unknown what it needs;
            nothing is deleted.
        StorageError: The store failed. Another call continues the sweep.
    """
    if grace < timedelta(0):
        raise ConfigurationError(f"the grace time of a sweep cannot be negative: {grace}")
    before = (now or datetime.now(timezone.utc)) - grace
    if not dry_run:
        tidy_claims(store, before)
    pending = _pending(store)  # before HEAD is read again: what completes now is still pending here, or kept there
    kept, named = needed_files(store)
    orphans = _Orphans(store, before, dry_run, on_deleted)
    folders = {f"chk-{checkpoint_id}/" for checkpoint_id in kept}
    # Files are deleted before the metadata, which still shows after a crash that they were orphans of a checkpoint.
    orphans.delete(info for info in store.list(SHARED_FOLDER) if info.key not in named and not pending(info.key))
    exchanged = (info for info in store.list(f"{EXCHANGE_FOLDER}/") if info.key not in named)
    orphans.delete(info for info in exchanged if not pending(info.key))
    chk = (info for info in store.list("chk-") if f"{info.key.partition('/')[0]}/" not in folders)
    orphans.delete(info for info in chk if not pending(info.key))
    for folder in store.list_folders(SAVEPOINT_PREFIX):
        # A savepoint gets its metadata last. One without metadata was not finished, or its files were claimed.
        if store.head(folder + METADATA_NAME) is None:
            orphans.delete(info for info in store.list(folder) if info.key not in named)
    # Requests go before their answers, because a request without an answer may be carried out.
    orphans.delete(info for info in store.list(REQUESTS_FOLDER) if not info.key.endswith("/answer"))
    orphans.delete(info for info in store.list(REQUESTS_FOLDER) if info.key.endswith("/answer"))
    if not dry_run:
        finish_disposal(store)
    return SweepResult(orphans.files, orphans.bytes)


def _pending(store: ObjectStore) -> Callable[[str], bool]:
    """Returns which files the attempt at work may yet name, and which checkpoints it may yet complete, by path.

    Its next checkpoint may take over what one that has failed since the latest one would have named.
    """
    leader, head = lease.read(store), head_of_job(store)
    if leader is None or head is None or not leader.alive(current_millis()):
        return lambda key: False
    token, latest = leader.token, head.checkpoint_id or 0

    def pending(key: str) -> bool:
        if found := CHECKPOINT_FOLDER.match(key):
            return int(found[1]) > latest
        found = _WRITTEN_BY.match(key)
        if found is None or int(found[1] or found[3]) != token:
            return False
        # The checkpoint 0 stands for copies of a savepoint, and for state that was migrated.
        return not 0 < int(found[2] or found[4] or 0) <= latest

    return pending


def old_savepoints(store: ObjectStore, age: timedelta, *, keep: int = 1, now: datetime | None = None) -> list[str]:
    """Returns the folders of a job's savepoints above a certain age, the oldest first.

    Args:
        store: The object store, rooted at the job's prefix; savepoints elsewhere are ignored.
        age: The minimum age, counted from the completion of the savepoint.
        keep: How many of the newest savepoints are left out, however old they are. Default: 1.
        now: The current time, with time zone. Default: the time of this machine.

    Raises:
        HeadLostError: ``HEAD`` was lost, so the job may have to continue from any of them.
        CorruptMetadataError: ``HEAD`` is damaged.
    """
    head_of_job(store)  # raises if it was lost
    before = (now or datetime.now(timezone.utc)) - age
    found = list_savepoints(store)
    old = found[: max(len(found) - keep, 0)]
    return [name for written, name in old if written < before]


class _Orphans:
    """Deletes orphans that are old enough, in batches."""

    def __init__(self, store: ObjectStore, before: datetime, dry_run: bool, on_deleted: Callable[[int], None]) -> None:
        self._store, self._before, self._dry_run, self._on_deleted = store, before, dry_run, on_deleted
        self.files = self.bytes = 0

    def delete(self, candidates: Iterable[ObjectInfo]) -> None:
        old = (info for info in candidates if info.last_modified < self._before)
        for batch in _batches(old):
            if not self._dry_run:
                self._store.delete_many([info.key for info in batch])
            self.files += len(batch)
            self.bytes += sum(info.size for info in batch)
            self._on_deleted(len(batch))


def _batches(infos: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while batch := list(islice(infos, _BATCH)):
        yield batch
