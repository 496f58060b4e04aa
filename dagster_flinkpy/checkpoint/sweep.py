"""Deletes what failed epochs and dead attempts have left under a job's prefix, and nothing that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice

from dagster_flinkpy.checkpoint.head import HEAD_KEY, read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.store import SAVEPOINT_PREFIX, SHARED_FOLDER, CompletedCheckpointStore, EntryStatus
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError, ObjectNotFoundError
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore

__all__ = ["DEFAULT_GRACE", "SweepResult", "old_savepoints", "sweep"]

DEFAULT_GRACE = timedelta(days=1)
"""How long orphans are left, unless told otherwise."""
_BATCH = 1000
_TRIES = 5


@dataclass(frozen=True)
class SweepResult:
    """What was deleted, or with ``dry_run`` would have been."""

    files: int = 0
    bytes: int = 0
    checkpoints: tuple[int, ...] = ()
    """Ids of those among it that were never completed, or are subsumed."""


def sweep(
    store: ObjectStore,
    grace: timedelta = DEFAULT_GRACE,
    *,
    now: datetime | None = None,
    dry_run: bool = False,
    on_deleted: Callable[[int], None] = lambda files: None,
) -> SweepResult:
    """Delete the orphans of a job: files below its prefix that no retained checkpoint and no savepoint names.

    Anybody may call it at any time, also while the job runs: what an epoch writes is younger than the grace time until
    a checkpoint names it. Segments of blocking exchanges are left alone. Objects are listed page by page and deleted in
    batches; only the names in the retained checkpoints are held in memory.

    Args:
        store: rooted at the job's prefix.
        grace: how old an orphan has to be; longer than the longest epoch takes. Default: 1 day.
        now: the time, with time zone. Default: that of this machine.
        dry_run: delete nothing, only count.
        on_deleted: is called with how many more files have been deleted, or counted.

    Raises:
        ConfigurationError: ``grace`` is negative, or there is no job: without ``HEAD`` nobody knows what is needed.
        CorruptMetadataError: a retained checkpoint or a savepoint cannot be read, so nobody knows what it needs;
            nothing is deleted.
        StorageError: the store failed; calling again goes on.
    """
    if grace < timedelta(0):
        raise ConfigurationError(f"the grace time of a sweep cannot be negative: {grace}")
    before = (now or datetime.now(timezone.utc)) - grace
    kept, named = _needed(store)
    orphans = _Orphans(store, before, dry_run, on_deleted)
    folders = {f"chk-{checkpoint_id}/" for checkpoint_id in kept}
    stale = (
        entry.checkpoint_id
        for entry in CompletedCheckpointStore(store).list_checkpoints()
        if entry.status is EntryStatus.ORPHAN and entry.last_modified < before
    )
    checkpoints = tuple(sorted(set(stale) - kept))
    # The files before the metadata: after a crash it still tells that they were orphans of a checkpoint.
    orphans.delete(info for info in store.list(SHARED_FOLDER) if info.key not in named)
    orphans.delete(info for info in store.list("chk-") if f"{info.key.partition('/')[0]}/" not in folders)
    for folder in store.list_folders(SAVEPOINT_PREFIX):
        # Savepoints get their metadata last; one without was not finished, or its files were claimed.
        if store.head(folder + METADATA_NAME) is None:
            orphans.delete(info for info in store.list(folder) if info.key not in named)
    return SweepResult(orphans.files, orphans.bytes, checkpoints)


def old_savepoints(store: ObjectStore, age: timedelta, *, keep: int = 1, now: datetime | None = None) -> list[str]:
    """The folders of a job's savepoints that are older than this, the oldest first.

    Args:
        store: rooted at the job's prefix; savepoints elsewhere are not looked at.
        age: since the savepoint was whole.
        keep: so many are left out, the newest, however old. Default: 1.
        now: the time, with time zone. Default: that of this machine.
    """
    before = (now or datetime.now(timezone.utc)) - age
    found = []
    for folder in store.list_folders(SAVEPOINT_PREFIX):
        info = store.head(folder + METADATA_NAME)
        if info is not None:
            found.append((info.last_modified, folder))
    in_order = sorted(found)
    old = in_order[: max(len(in_order) - keep, 0)]
    return [folder.rstrip("/") for written, folder in old if written < before]


class _Orphans:
    """Deletes, in batches, what is old enough."""

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


def _kept(store: ObjectStore) -> tuple[int, ...]:
    found = read_head(store)
    if found is None:
        raise ConfigurationError(f"{store.url} has no {HEAD_KEY}: give the folder of a job; nothing is swept")
    return found[0].kept


def _needed(store: ObjectStore) -> tuple[set[int], set[str]]:
    """The checkpoints that are kept, and all state files that they and the native savepoints name."""
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
                    f"{error}; HEAD retains this checkpoint, so nothing is swept before it is back or another one is "
                    "the latest"
                ) from error
            continue
        break
    # After HEAD: one that is written now is of a checkpoint that HEAD kept then.
    return set(kept), named.union(*checkpoints.native_savepoints().values())
