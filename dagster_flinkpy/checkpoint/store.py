"""The completed checkpoints of one job, and the protocol that makes several runs of it safe.

An execution attempt first takes the ``leader`` object with a greater token, then stamps that token on ``HEAD``, by
compare-and-swap. From then on no older attempt can replace ``HEAD``, so none can complete a checkpoint. Ids come from
the object ``counter``, by compare-and-swap, too, so no two attempts ever have the same one.

Completing a checkpoint takes two writes: ``chk-n/_metadata``, which must not exist, and ``HEAD``, which must be as this
attempt last wrote it. There is no look at the leader object before them: an attempt that was fenced can write a
``_metadata``, under an id that is nobody else's, but not HEAD. A crash between the two leaves such an orphan, too. It
is never restored.

All these writes are resolved by reading back where their outcome is not clear. A ``StorageError`` that is raised all
the same means that the outcome is unknown; a ``FencedError`` or ``CheckpointError``, that the write did not happen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.checkpoint.partitions import PartitionEnd, PartitionRetention
from dagster_flinkpy.checkpoint.shared_state_registry import SharedStateRegistry
from dagster_flinkpy.checkpoint.statistics import CheckpointStatistics
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptMetadataError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.conditional import put_if
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative

__all__ = ["Attempt", "CheckpointEntry", "CompletedCheckpointStore", "EntryStatus"]

SHARED_FOLDER = "shared/"
"""Where the state files of a job are, below its prefix."""
SAVEPOINT_PREFIX = "savepoint-"
"""How the folders of savepoints begin that are below the job's prefix."""
NATIVE_SUFFIX = "-native/"
"""How the folders of those savepoints end that refer to the job's own files."""
COUNTER_KEY = "counter"
STATISTICS_KEY = "statistics"
_THREADS = 8
_FOLDER = re.compile(r"chk-(\d+)/")
_WRITTEN_BY = re.compile(r"shared/(\d+)-\d+-[0-9a-f]{64}\.parquet")


@dataclass
class Attempt:
    """An execution attempt that leads the job; made by :meth:`CompletedCheckpointStore.begin_attempt`."""

    leader: lease.Leader
    latest: CheckpointMetadata | None
    """The latest completed checkpoint."""
    next_checkpoint_id: int
    """Greater than every id that was used before, as far as is known."""
    head: Head
    head_etag: str
    """Of ``HEAD`` as this attempt last wrote it."""
    former: lease.LeaderRecord | None = None
    """Who led the job before; None: nobody."""
    committed: int | None = None
    """The checkpoint up to which all sinks have committed, as far as is known; kept when the attempt ends."""
    counter_etag: str | None = None
    """Of ``counter`` as this attempt last saw it; None: it is not there."""
    statistics_etag: str | None = None
    """Of ``statistics`` as this attempt last saw it; None: it is not there."""
    written: dict[int, str] = field(default_factory=dict)
    """Checksums of the ``_metadata`` that this attempt wrote and has not completed, by id."""
    released: set[int] = field(default_factory=set)
    """Checkpoints that ``HEAD`` no longer retains and that are still to be deleted."""
    registry: SharedStateRegistry = field(default_factory=SharedStateRegistry)
    """Which state files its checkpoints name."""
    savepoints: dict[str, set[str]] = field(default_factory=dict)
    """By the ``_metadata`` of each native savepoint: the state files that it names. They never change."""

    @property
    def token(self) -> int:
        """The fencing token."""
        return self.leader.token

    def start_after(self, checkpoint_id: int) -> None:
        """Leave the ids up to this one alone: that of a savepoint which the attempt starts from."""
        self.next_checkpoint_id = max(self.next_checkpoint_id, checkpoint_id + 1)

    def claim(self, checkpoint_id: int) -> None:
        """Make a checkpoint the job's own, to be deleted when it is subsumed."""
        head = self.head
        unclaimed = tuple(i for i in head.unclaimed if i != checkpoint_id)
        self.head = replace(head, unclaimed=unclaimed, retained=tuple(sorted({*head.retained, checkpoint_id})))

    def leave_unclaimed(self, checkpoint_id: int) -> None:
        """Keep a retained checkpoint when it is subsumed, too; holds from the next completed checkpoint on."""
        if checkpoint_id not in self.head.unclaimed:
            self.head = replace(self.head, unclaimed=(*self.head.unclaimed, checkpoint_id))


class EntryStatus(str, Enum):
    """What ``HEAD`` says of a checkpoint."""

    LATEST = "latest"
    RETAINED = "retained"
    ORPHAN = "orphan"
    """It was never completed, or is subsumed."""
    UNCLAIMED = "unclaimed"
    """The job was restored from it and does not own it; it is kept until somebody disposes of it."""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint as a listing shows it."""

    checkpoint_id: int
    path: str
    """Of its ``_metadata``, relative to the job's prefix."""
    size: int
    """Bytes of its ``_metadata``."""
    last_modified: datetime
    status: EntryStatus


class CompletedCheckpointStore:
    """The checkpoints under one job's prefix (Flink: ``CompletedCheckpointStore``).

    Args:
        store: rooted at ``{checkpoint dir}/{job id}``.
        num_retained: how many completed checkpoints ``HEAD`` keeps.

    Raises:
        ConfigurationError: ``num_retained`` is below 1.
    """

    def __init__(self, store: ObjectStore, num_retained: int = 1) -> None:
        if num_retained < 1:
            raise ConfigurationError(f"num_retained checkpoints must be at least 1, not {num_retained}")
        self.store = store
        self._num_retained = num_retained

    # --- reading; needs no attempt ------------------------------------------------------------------------------------

    def latest(self) -> CheckpointMetadata | None:
        """The latest completed checkpoint; None before the first.

        Raises:
            CorruptMetadataError: ``HEAD`` or the ``_metadata`` that it names is missing or damaged.
        """
        found = read_head(self.store)
        while found is not None:
            try:
                return self._latest(found[0])
            except CorruptMetadataError:
                now = read_head(self.store)
                if now is None or now[1] == found[1]:
                    raise
                found = now  # it was subsumed between the two requests
        return None

    def retained(self) -> tuple[int, ...]:
        """Ids of the completed checkpoints that are kept, the latest last."""
        found = read_head(self.store)
        return found[0].retained if found else ()

    def load(self, which: int | str) -> CheckpointMetadata:
        """Read a checkpoint by its id, or by the path of its ``_metadata`` relative to the job's prefix.

        Raises:
            ObjectNotFoundError: there is none.
            CorruptMetadataError: it cannot be read.
            PathEscapesPrefixError: the path leads out of the prefix.
        """
        key = _key(which) if isinstance(which, int) else check_relative(which)
        data = fetch_metadata(self.store, key)
        return CheckpointMetadata.from_bytes(data, f"{self.store.url}/{key}")

    def list_checkpoints(self) -> list[CheckpointEntry]:
        """All checkpoints that have a ``_metadata``, by id. Reads ``HEAD`` and one listing only."""
        found = read_head(self.store)
        head = found[0] if found else Head(fencing_token=0)
        entries = []
        for info in self.store.list("chk-"):
            match = _FOLDER.match(info.key)
            if not match or info.key[match.end() :] != METADATA_NAME:
                continue
            checkpoint_id = int(match[1])
            if checkpoint_id == head.checkpoint_id:
                status = EntryStatus.LATEST
            elif checkpoint_id in head.unclaimed:
                status = EntryStatus.UNCLAIMED
            else:
                status = EntryStatus.RETAINED if checkpoint_id in head.retained else EntryStatus.ORPHAN
            entries.append(CheckpointEntry(checkpoint_id, info.key, info.size, info.last_modified, status))
        return sorted(entries, key=lambda entry: entry.checkpoint_id)

    def leader(self) -> lease.LeaderRecord | None:
        """Who leads the job, or did last; None: nobody ever.

        Raises:
            CorruptMetadataError: ``leader`` is damaged.
        """
        return lease.read(self.store)

    def native_savepoints(self, known: Mapping[str, set[str]] | None = None) -> dict[str, set[str]]:
        """The state files that native savepoints name, by the path of their ``_metadata``.

        Args:
            known: what this returned before; it is not read again.

        Raises:
            CorruptMetadataError: one cannot be read, so nobody knows what it needs.
        """
        savepoints: dict[str, set[str]] = {}
        for folder in self.store.list_folders(SAVEPOINT_PREFIX):
            path = folder + METADATA_NAME
            if folder.endswith(NATIVE_SUFFIX):
                try:
                    savepoints[path] = (known or {}).get(path) or self.load(path).files()
                except ObjectNotFoundError:
                    continue  # it was disposed of just now
                except CorruptMetadataError as error:
                    raise CorruptMetadataError(
                        f"{error}; it is a native savepoint, and no state file is deleted before it can be read or its "
                        "folder is gone"
                    ) from error
        return savepoints

    def statistics(self) -> CheckpointStatistics:
        """Of all checkpoints so far, as an attempt last wrote them down."""
        return self._statistics()[0]

    # --- one attempt at a time ----------------------------------------------------------------------------------------

    def begin_attempt(self, owner: str, now_ms: int, ttl: timedelta = timedelta(minutes=5)) -> Attempt:
        """Take over from whoever runs the job, and find out where to go on.

        Args:
            owner: names this execution attempt, such as a Dagster run id and try.
            now_ms: milliseconds since 1970.
            ttl: how long the attempt promises to live; see :meth:`renew`.

        Raises:
            CorruptMetadataError: ``leader``, ``counter``, ``HEAD`` or the latest ``_metadata`` is damaged or missing;
                names it.
            FencedError: yet another attempt took over meanwhile.
        """
        leader = lease.acquire(self.store, owner, ttl, now_ms)
        former = leader.former
        while True:
            found = read_head(self.store)
            head, etag = found if found else (Head(fencing_token=0), None)
            if head.fencing_token >= leader.token:
                lease.check(self.store, leader)
                # Still the leader: the leader object was deleted and counts from 1 again, so let it catch up.
                leader = lease.acquire(self.store, owner, ttl, now_ms)
                continue
            head = replace(head, fencing_token=leader.token)
            try:
                etag = put_if(self.store, HEAD_KEY, head.to_bytes(), etag)
            except PreconditionFailedError:
                continue  # an older attempt completed a checkpoint just now, or a newer one took over
            break
        try:
            latest = self._latest(head)
        except CorruptMetadataError:
            lease.check(self.store, leader)  # a newer attempt may have subsumed it meanwhile
            raise
        last, counter_etag = self._counter()
        used = [int(match[1]) for folder in self.store.list_folders("chk-") if (match := _FOLDER.fullmatch(folder))]
        attempt = Attempt(
            leader,
            latest,
            max([head.checkpoint_id or 0, last, *used]) + 1,
            head,
            etag,
            former=former,
            committed=leader.record.committed,
            counter_etag=counter_etag,
        )
        if latest is not None:
            attempt.registry.register_all(latest.checkpoint_id, latest.files())
        return attempt

    def end_attempt(self, attempt: Attempt) -> None:
        """Say that the attempt is over, so that nobody takes it for alive. Being fenced already is fine."""
        lease.release(self.store, attempt.leader, attempt.committed)

    def renew(self, attempt: Attempt, ttl: timedelta, now_ms: int) -> None:
        """Promise to live longer, if less than half of what was promised is left.

        Raises:
            FencedError: another attempt took over; says which.
        """
        if attempt.leader.record.expires_at - now_ms < ttl // timedelta(milliseconds=2):
            attempt.leader = lease.renew(self.store, attempt.leader, ttl, now_ms)

    def assign_checkpoint_id(self, attempt: Attempt) -> int:
        """Take the next id, which no other attempt can get (Flink: ``CheckpointIDCounter.getAndIncrement``).

        Raises:
            CorruptMetadataError: ``counter`` is damaged.
            StorageError: whether an id was taken is unknown.
        """
        while True:
            taken = attempt.next_checkpoint_id
            record = {"last": taken, "token": attempt.token, "nonce": attempt.leader.record.nonce}
            try:
                etag = put_if(self.store, COUNTER_KEY, json.dumps(record).encode(), attempt.counter_etag)
            except PreconditionFailedError:  # another attempt took one
                last, attempt.counter_etag = self._counter()
                attempt.start_after(last)
                continue
            attempt.counter_etag, attempt.next_checkpoint_id = etag, taken + 1
            return taken

    def load_statistics(self, attempt: Attempt) -> CheckpointStatistics:
        """As :meth:`statistics`, to go on with them and :meth:`save_statistics`."""
        statistics, attempt.statistics_etag = self._statistics()
        return statistics

    def save_statistics(self, attempt: Attempt, statistics: CheckpointStatistics) -> None:
        """Write statistics down for the attempts to come, unless another attempt did meanwhile.

        Raises:
            StorageError: they may not be written.
        """
        data = {**statistics.to_json(), "nonce": attempt.leader.record.nonce}
        with suppress(PreconditionFailedError):
            attempt.statistics_etag = put_if(
                self.store, STATISTICS_KEY, json.dumps(data).encode(), attempt.statistics_etag
            )

    def check_leader(self, attempt: Attempt) -> None:
        """Make sure that no other attempt took over. For use right before sinks commit.

        Raises:
            FencedError: one did; says which.
        """
        lease.check(self.store, attempt.leader)

    def write_metadata(self, attempt: Attempt, metadata: CheckpointMetadata) -> None:
        """Write ``chk-n/_metadata``; the checkpoint is not complete by that.

        Raises:
            FencedError: a newer attempt has written this checkpoint; says which.
            CheckpointError: the metadata is not of this attempt or cannot be written as JSON, names a file of an older
                attempt that no retained checkpoint names, or its id was used by an older attempt.
            StorageError: the outcome is unknown.
        """
        if metadata.fencing_token != attempt.token:
            raise CheckpointError(
                f"checkpoint {metadata.checkpoint_id} has fencing token {metadata.fencing_token}, but the attempt has "
                f"{attempt.token}"
            )
        data = metadata.to_bytes()
        key = _key(metadata.checkpoint_id)
        files = metadata.files()
        placeholders = {path for path in files if _written_by(path) not in (None, attempt.token)}
        if any(path not in attempt.registry for path in placeholders):
            self._register(attempt, attempt.head.kept)  # it goes on from one that is not the latest
        attempt.registry.register_all(metadata.checkpoint_id, files - placeholders, placeholders)
        try:
            put_if(self.store, key, data, None)
        except PreconditionFailedError as error:
            self.check_leader(attempt)
            raise CheckpointError(
                f"{self.store.url}/{key} exists already, though the id is this attempt's alone: were objects of the "
                "job deleted? Run it again; the next attempt takes another id."
            ) from error
        attempt.written[metadata.checkpoint_id] = hashlib.sha256(data).hexdigest()

    def complete(
        self,
        attempt: Attempt,
        metadata: CheckpointMetadata,
        *,
        partition: PartitionEnd | None = None,
        partition_retention: PartitionRetention | None = None,
        started_from: int | None = None,
    ) -> None:
        """Make a written checkpoint the latest. This is the moment at which it is complete.

        Args:
            attempt: this one.
            metadata: of the checkpoint.
            partition: the partition whose end state it is, where the job has partitions.
            partition_retention: which end states are kept; default: all.
            started_from: the checkpoint that the attempt started from. If it is an end state it is kept as long as the
                attempt runs, so that another try can start from it.

        Raises:
            FencedError: a newer attempt took over; says which.
            CheckpointError: it was not written, or is not newer than the latest.
            StorageError: the outcome is unknown.
        """
        checkpoint_id, previous = metadata.checkpoint_id, attempt.head
        if checkpoint_id not in attempt.written:
            raise CheckpointError(f"checkpoint {checkpoint_id} cannot complete before its metadata is written")
        if checkpoint_id <= (previous.checkpoint_id or 0):
            raise CheckpointError(f"checkpoint {checkpoint_id} is not newer than the latest, {previous.checkpoint_id}")
        ends = {end.partition: end for end in previous.partitions}
        if partition is not None:
            ends[partition.partition] = partition
        # The next partition starts from the newest. That is not the latest checkpoint where a job was rescaled since.
        newest = max((end.checkpoint_id for end in ends.values()), default=None)
        kept = (partition_retention or PartitionRetention()).kept(ends.values(), newest, started_from)
        recent = (*_claimed(previous), checkpoint_id)[-self._num_retained :]
        head = Head(
            fencing_token=attempt.token,
            checkpoint_id=checkpoint_id,
            path=_key(checkpoint_id),
            metadata_sha256=attempt.written[checkpoint_id],
            retained=tuple(sorted({*recent, *(end.checkpoint_id for end in kept)})),
            partitions=kept,
            unclaimed=previous.unclaimed,
        )
        self._replace_head(attempt, head)
        attempt.released |= {*previous.retained} - {*head.retained}
        attempt.latest = metadata
        del attempt.written[checkpoint_id]

    # --- deleting -----------------------------------------------------------------------------------------------------

    def subsume(self, attempt: Attempt, checkpoint_ids: Sequence[int]) -> None:
        """Delete checkpoints that are no longer retained, and the state files that only they name.

        Anybody may write a native savepoint at any time, so these are looked for here, after HEAD has dropped the
        checkpoints: see :func:`~dagster_flinkpy.checkpoint.savepoint.write_savepoint`.

        A task of a running Spark job may write the content, and so the name, of a file once more: call it between
        Spark jobs.

        Raises:
            FencedError: a newer attempt took over; nothing is deleted.
            CorruptMetadataError: a retained checkpoint or a native savepoint cannot be read, so nobody knows what it
                needs.
        """
        self.check_leader(attempt)
        gone = sorted({*checkpoint_ids, *attempt.released} - {*attempt.head.kept})
        attempt.released.clear()
        if older := attempt.registry.unknown(gone):
            self._register(attempt, [kept for kept in attempt.head.kept if kept > older[0]])
            # Without its metadata nobody knows which files were its own: they are orphans.
            with suppress(ObjectNotFoundError, CorruptMetadataError):
                self._register(attempt, older)
        if unused := attempt.registry.unregister_unused({*attempt.head.kept, *attempt.written}):
            _delete(self.store, unused - self._named_by_savepoints(attempt))
        # The metadata goes last, so that after a crash the files can still be found.
        self.store.delete_many(info.key for checkpoint_id in gone for info in self.store.list(f"chk-{checkpoint_id}/"))

    def discard(self, attempt: Attempt, files: Iterable[str]) -> None:
        """Delete state files of aborted checkpoints, those aside that another checkpoint or a native savepoint names.

        Call it between Spark jobs, for the reason that :meth:`subsume` gives.

        Raises:
            FencedError: a newer attempt took over; nothing is deleted.
            CorruptMetadataError: a retained checkpoint or a native savepoint cannot be read, so nobody knows what it
                needs.
        """
        self.check_leader(attempt)
        candidates = {path for path in files if path not in attempt.registry}
        if any(_written_by(path) != attempt.token for path in candidates):
            self._register(attempt, attempt.head.kept)
        if unused := {path for path in candidates if path not in attempt.registry}:
            _delete(self.store, unused - self._named_by_savepoints(attempt))

    def delete_checkpoints(self, attempt: Attempt) -> None:
        """Delete all completed checkpoints, those aside that the job does not own. Ids and tokens go on growing.

        Raises:
            FencedError: a newer attempt took over; nothing is deleted.
        """
        gone = _claimed(attempt.head)
        self._replace_head(attempt, Head(attempt.token, unclaimed=attempt.head.unclaimed))
        attempt.latest = None
        self.subsume(attempt, gone)

    def dispose(self, attempt: Attempt, checkpoint_id: int) -> None:
        """Delete a checkpoint that the job does not own, and the state files that only it names.

        Raises:
            CheckpointError: it is the job's own, or there is none.
            FencedError: a newer attempt took over; nothing is deleted.
        """
        head = attempt.head
        if checkpoint_id in head.retained:
            raise CheckpointError(
                f"{self.store.url}/chk-{checkpoint_id} is retained by its job, which deletes it when later checkpoints "
                "subsume it"
            )
        if checkpoint_id not in head.unclaimed:
            unclaimed = ", ".join(f"chk-{i}" for i in head.unclaimed) or "none"
            raise CheckpointError(
                f"{self.store.url}/chk-{checkpoint_id} is not a checkpoint that was left unclaimed; there is "
                f"{unclaimed}"
            )
        unclaimed_still = tuple(i for i in head.unclaimed if i != checkpoint_id)
        self._replace_head(attempt, replace(head, unclaimed=unclaimed_still))
        self.subsume(attempt, [checkpoint_id])

    # --- shared -------------------------------------------------------------------------------------------------------

    def _register(self, attempt: Attempt, checkpoint_ids: Iterable[int]) -> None:
        """Takes note of what checkpoints name that were completed before this attempt."""
        unknown = attempt.registry.unknown(checkpoint_ids)
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            for checkpoint_id, metadata in zip(unknown, threads.map(self.load, unknown), strict=True):
                attempt.registry.register_all(checkpoint_id, metadata.files())

    def _named_by_savepoints(self, attempt: Attempt) -> set[str]:
        """The state files that native savepoints name."""
        attempt.savepoints = self.native_savepoints(attempt.savepoints)
        return set().union(*attempt.savepoints.values())

    def _latest(self, head: Head) -> CheckpointMetadata | None:
        if head.path is None:
            return None
        name = f"{self.store.url}/{head.path}"
        try:
            data = fetch_metadata(self.store, head.path)
        except ObjectNotFoundError as error:
            raise CorruptMetadataError(f"{name} is missing, but HEAD says it is the latest checkpoint") from error
        if hashlib.sha256(data).hexdigest() != head.metadata_sha256:
            raise CorruptMetadataError(f"{name} is damaged: it does not have the checksum that HEAD names")
        metadata = CheckpointMetadata.from_bytes(data, name)
        if metadata.checkpoint_id != head.checkpoint_id:
            raise CorruptMetadataError(
                f"{name} is checkpoint {metadata.checkpoint_id}, but HEAD says {head.checkpoint_id}"
            )
        return metadata

    def _replace_head(self, attempt: Attempt, head: Head) -> None:
        try:
            attempt.head_etag = put_if(self.store, HEAD_KEY, head.to_bytes(), attempt.head_etag)
        except PreconditionFailedError as error:
            self.check_leader(attempt)
            raise FencedError(
                f"execution attempt {attempt.leader.owner!r} (token {attempt.token}) lost {self.store.url}/{HEAD_KEY}: "
                "it was replaced by someone who does not hold the leader object"
            ) from error
        attempt.head = head

    def _counter(self) -> tuple[int, str | None]:
        """The last id that was taken, and the ETag of ``counter``."""
        try:
            data, etag = self.store.get(COUNTER_KEY)
        except ObjectNotFoundError:
            return 0, None
        try:
            return int(json.loads(data)["last"]), etag
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptMetadataError(
                f"{self.store.url}/{COUNTER_KEY} does not say which checkpoint id was taken last ({error!r}). Delete "
                "it while no run of the job is alive; ids then go on after the checkpoints that there are."
            ) from error

    def _statistics(self) -> tuple[CheckpointStatistics, str | None]:
        try:
            data, etag = self.store.get(STATISTICS_KEY)
        except ObjectNotFoundError:
            return CheckpointStatistics(), None
        try:
            return CheckpointStatistics.from_json(json.loads(data)), etag
        except (ValueError, RecursionError):
            return CheckpointStatistics(), etag


def _claimed(head: Head) -> tuple[int, ...]:
    return tuple(i for i in head.retained if i not in head.unclaimed)


def _delete(store: ObjectStore, files: Iterable[str]) -> None:
    # Handles come from metadata: what is not a shared state file is not for us to delete, whatever they say.
    store.delete_many(sorted(path for path in files if path.startswith(SHARED_FOLDER)))


def _written_by(path: str) -> int | None:
    """The token of the attempt that wrote a state file, where its name says so."""
    match = _WRITTEN_BY.fullmatch(path)
    return None if match is None else int(match[1])


def _key(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}/{METADATA_NAME}"
