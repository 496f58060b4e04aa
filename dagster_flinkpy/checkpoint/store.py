"""The completed checkpoints of one job, and the protocol that keeps concurrent runs of it safe.

A job's first object is ``HEAD``. An execution attempt takes the ``leader`` object with a greater token, then writes
that token to ``HEAD``, by compare-and-swap. From then on no older attempt can replace ``HEAD``, so none can complete a
checkpoint. Ids come from the object ``counter``, also by compare-and-swap, so no two attempts ever use the same id.

Completing a checkpoint takes two writes: ``chk-n/_metadata``, which must not exist, and ``HEAD``, which must be as this
attempt last wrote it. The leader object is not checked before them, so a fenced attempt can write a ``_metadata`` under
its own id, but not HEAD. Such an orphan is never restored. A crash between the two writes leaves one, too.

If the outcome of such a write is unclear, it is read back. A ``StorageError`` that is still raised means that the
outcome is unknown; a ``FencedError`` or ``CheckpointError`` means that the write did not happen.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from threading import Lock

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.claims import named_by_others
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.counter import COUNTER_KEY, CheckpointIdCounter, read_counter
from dagster_flinkpy.checkpoint.head import HEAD_KEY, CheckpointEntry, EntryStatus, Head, read_head
from dagster_flinkpy.checkpoint.leadership import take_lead
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, REPEATS, CheckpointMetadata, fetch_metadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.checkpoint.partitions import (
    PartitionEnd,
    PartitionRetention,
    is_end,
    repeated_end,
    repeated_entry,
)
from dagster_flinkpy.checkpoint.traces import (
    CHECKPOINT_FOLDER,
    SHARED_FOLDER,
    STATISTICS_KEY,
)
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptMetadataError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RestoreError,
)
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative, put_if

__all__ = ["CompletedCheckpointStore"]

_THREADS = 8
_ADVICE = (
    "'flinkpy checkpoints list' shows which ones exist. 'flinkpy checkpoints recover' makes the newest intact one the "
    "latest again, if no later rows were committed; or restore another one or a savepoint, with restore_from"
)
_WRITTEN_BY = re.compile(
    rf"shared/(\d+)-\d+-[0-9a-f]{{64}}\.parquet|{EXCHANGE_FOLDER}/.+/(\d+)-\d+/[^/]+\.arrow", re.DOTALL
)


class CompletedCheckpointStore:
    """The checkpoints under one job's prefix (Flink: ``CompletedCheckpointStore``).

    Args:
        store: The object store, rooted at ``{checkpoint dir}/{job id}``.
        num_retained: How many completed checkpoints ``HEAD`` keeps. It does not matter for reading. Default: 1.

    Raises:
        ConfigurationError: ``num_retained`` is below 1.
    """

    def __init__(self, store: ObjectStore, num_retained: int = 1) -> None:
        if num_retained < 1:
            raise ConfigurationError(f"num_retained checkpoints must be at least 1, not {num_retained}")
        self.store = store
        self._num_retained = num_retained
        self._lease_lock = Lock()

    # --- reading; needs no attempt ------------------------------------------------------------------------------------

    def latest(self) -> CheckpointMetadata | None:
        """Returns the latest completed checkpoint, or None before the first.

        Raises:
            CorruptMetadataError: ``HEAD`` or the ``_metadata`` that it names is missing or damaged.
        """
        found = read_head(self.store)
        while found is not None:
            try:
                return self._latest(found[0])
            except CorruptMetadataError:
                now = read_head(self.store)
                if now is not None and now[1] == found[1]:
                    raise
                found = now  # it was subsumed, or the job disposed of, between the two requests
        return None

    def retained(self) -> tuple[int, ...]:
        """Returns the ids of the retained checkpoints, the latest last."""
        found = read_head(self.store)
        return found[0].retained if found else ()

    def load(self, which: int | str) -> CheckpointMetadata:
        """Reads a checkpoint by its id, or by the path of its ``_metadata`` relative to the job's prefix.

        Raises:
            ObjectNotFoundError: There is no such checkpoint.
            CorruptMetadataError: It cannot be read.
            PathEscapesPrefixError: The path leads outside the prefix.
        """
        key = _key(which) if isinstance(which, int) else check_relative(which)
        return CheckpointMetadata.from_bytes(fetch_metadata(self.store, key), f"{self.store.url}/{key}")

    def list_checkpoints(self) -> list[CheckpointEntry]:
        """Returns all checkpoints that have a ``_metadata``, by id. Reads only ``HEAD`` and one listing."""
        found = read_head(self.store)
        head = found[0] if found else Head(fencing_token=0)
        retained, entries = set(head.retained), []
        for info in self.store.list("chk-"):
            match = CHECKPOINT_FOLDER.match(info.key)
            if not match or info.key[match.end() :] != METADATA_NAME:
                continue
            checkpoint_id = int(match[1])
            if checkpoint_id == head.checkpoint_id:
                status = EntryStatus.LATEST
            elif checkpoint_id in head.unclaimed:
                status = EntryStatus.UNCLAIMED
            else:
                status = EntryStatus.RETAINED if checkpoint_id in retained else EntryStatus.ORPHAN
            entries.append(CheckpointEntry(checkpoint_id, info.key, info.size, info.last_modified, status))
        return sorted(entries, key=lambda entry: entry.checkpoint_id)

    def leader(self) -> lease.LeaderRecord | None:
        """Returns the current or last leader of the job, or None if there never was one.

        Raises:
            CorruptMetadataError: ``leader`` is damaged.
        """
        return lease.read(self.store)

    def statistics(self) -> CheckpointStatistics:
        """Returns the statistics of all checkpoints, as last saved."""
        return self._statistics()[0]

    # --- one attempt at a time ----------------------------------------------------------------------------------------

    def begin_attempt(
        self,
        owner: str,
        now_ms: int,
        ttl: timedelta = timedelta(minutes=5),
        *,
        start_over: bool = False,
        led_by: str = "",
        after: Attempt | None = None,
        take_over: bool = True,
    ) -> Attempt:
        """Takes over from any other attempt, and finds out where to continue.

        Args:
            owner: Names this execution attempt, such as by a Dagster run id and try.
            now_ms: The time, in milliseconds since 1970.
            ttl: How long the lease lasts; see :meth:`renew`.
            start_over: Whether the attempt was told to start from a savepoint or from empty state. If so, it begins
                even if ``HEAD`` or the latest checkpoint is lost or damaged, and ``left_behind`` describes what
                remains. Tokens and ids are greater than all that the remaining objects name.
            led_by: Id of the run that the attempt belongs to, such as a Dagster run id.
            after: The former attempt of the same run, which must still lead. Default: whoever leads is fenced.
            take_over: Whether an attempt of another run is fenced whose lease holds.

        Raises:
            LeaseHeldError: There is such an attempt, and it is not to be fenced; nothing is changed.
            HeadLostError: ``HEAD`` is missing, but the job has run before; nothing is changed.
            CorruptMetadataError: ``leader``, ``counter``, ``HEAD`` or the latest ``_metadata`` is damaged or missing;
                the message names it.
            FencedError: Another attempt took over in the meantime.
        """
        former = None if after is None else after.leader
        how = {"start_over": start_over, "take_over": take_over}
        beginning = take_lead(self.store, owner, now_ms, ttl, led_by=led_by, after=former, **how)
        leader, head = beginning.leader, beginning.head
        left_behind, latest = beginning.left_behind, None
        try:
            latest = self._latest(head)
        except CorruptMetadataError as error:
            lease.check(self.store, leader)  # a newer attempt may have subsumed it in the meantime
            if not start_over:
                lease.release(self.store, leader)  # whoever mends it need not wait for the lease to expire
                raise
            left_behind = str(error)
            head = head.without_latest()  # HEAD itself does not change until the attempt completes a checkpoint
        counter = read_counter(self.store)
        folders = [CHECKPOINT_FOLDER.fullmatch(folder) for folder in self.store.list_folders("chk-")]
        used = [int(match[1]) for match in folders if match]
        last, committed = counter[0].last if counter else 0, leader.record.committed
        attempt = Attempt(
            leader,
            latest,
            max([beginning.head.checkpoint_id or 0, beginning.used_ids, last, committed or 0, *used]) + 1,
            head,
            beginning.head_etag,
            former=beginning.former,
            committed=committed,
            left_behind=left_behind,
            counter_etag=counter[1] if counter else None,
        )
        if latest is not None:
            attempt.registry.register_all(latest.checkpoint_id, latest.files())
        return attempt

    def take_leadership(self, owner: str, now_ms: int) -> lease.LeaderRecord | None:
        """Fences the attempt that leads the job, and gives the leadership up at once. Reads no checkpoint.

        Args:
            owner: Names the caller, for messages of the fenced run.
            now_ms: The time, in milliseconds since 1970.

        Returns:
            The previous leader, or None if there never was one.
        """
        beginning = take_lead(self.store, owner, now_ms, timedelta(minutes=5), start_over=True)
        lease.release(self.store, beginning.leader)
        return beginning.former

    def end_attempt(self, attempt: Attempt) -> bool:
        """Releases the leadership, and returns whether the attempt had it. Does nothing if it was fenced."""
        with self._lease_lock:
            return lease.release(self.store, attempt.leader, attempt.committed)

    def end_run(self, attempt: Attempt, now_ms: int) -> None:
        """Releases the leadership at the end of a run.

        If somebody has taken the job's folder away while the run led it, ``HEAD`` is left as lost: the next run would
        take the job for a new one, and commit its rows again.
        """
        led = attempt.leader.record.alive(now_ms)  # otherwise, the job may have been disposed of
        if not self.end_attempt(attempt) and led and lease.read(self.store) is None:
            with suppress(PreconditionFailedError):
                put_if(self.store, HEAD_KEY, Head(attempt.token, lost=True).to_bytes(), None)

    def renew(self, attempt: Attempt, ttl: timedelta, now_ms: int) -> None:
        """Renews the lease if less than half of it is left, or more than all of it: then the clock was set back.

        Raises:
            FencedError: Another attempt took over; the message says which.
        """
        with self._lease_lock:
            if not ttl / 2 <= timedelta(milliseconds=attempt.leader.record.expires_at - now_ms) <= ttl:
                attempt.leader = lease.renew(self.store, attempt.leader, ttl, now_ms)

    def assign_checkpoint_id(self, attempt: Attempt) -> int:
        """Takes the next id, which no other attempt can get (Flink: ``CheckpointIDCounter.getAndIncrement``).

        Asks the store only if no id is reserved.

        Raises:
            CorruptMetadataError: ``counter`` is damaged.
            StorageError: It is unknown whether an id was taken.
        """
        self.reserve_checkpoint_ids(attempt)
        reserved, attempt.reserved_ids = attempt.reserved_ids[0], attempt.reserved_ids[1:]
        return reserved

    def reserve_checkpoint_ids(self, attempt: Attempt, number: int = 1) -> None:
        """Takes the ids for the next checkpoints in advance, as far as they are not reserved.

        They are lost if the attempt ends.

        Args:
            attempt: The attempt.
            number: How many are to be reserved in all. Default: 1.

        Raises:
            CorruptMetadataError: ``counter`` is damaged.
            StorageError: It is unknown whether an id was taken.
        """
        while len(attempt.reserved_ids) < number:
            taken = attempt.next_checkpoint_id
            record = CheckpointIdCounter(taken, attempt.token, attempt.leader.record.nonce)
            try:
                etag = put_if(self.store, COUNTER_KEY, record.to_bytes(), attempt.counter_etag)
            except PreconditionFailedError:  # another attempt took one
                found = read_counter(self.store)
                attempt.counter_etag = found[1] if found else None
                if found is not None:  # what is reserved stays so: an epoch may be under way
                    attempt.next_checkpoint_id = max(attempt.next_checkpoint_id, found[0].last + 1)
                continue
            attempt.counter_etag, attempt.next_checkpoint_id = etag, taken + 1
            attempt.reserved_ids = (*attempt.reserved_ids, taken)

    def load_statistics(self, attempt: Attempt) -> CheckpointStatistics:
        """Returns :meth:`statistics` for an attempt that continues and saves them."""
        statistics, attempt.statistics_etag = self._statistics()
        return statistics

    def save_statistics(self, attempt: Attempt, statistics: CheckpointStatistics) -> None:
        """Saves statistics for later attempts, unless another attempt has saved some.

        Raises:
            StorageError: They may not have been written.
        """
        data = json.dumps({**statistics.to_json(), "nonce": attempt.leader.record.nonce}).encode()
        try:
            attempt.statistics_etag = put_if(self.store, STATISTICS_KEY, data, attempt.statistics_etag)
        except PreconditionFailedError:
            with suppress(FencedError):  # else a request has written some that nobody answered: the next replace them
                self.check_leader(attempt)
                attempt.statistics_etag = self._statistics()[1]

    def check_leader(self, attempt: Attempt) -> None:
        """Checks that no other attempt took over; called right before sinks commit.

        Raises:
            FencedError: Another attempt took over; the message names it.
        """
        lease.check(self.store, attempt.leader)

    def write_metadata(self, attempt: Attempt, metadata: CheckpointMetadata) -> None:
        """Writes ``chk-n/_metadata``, which does not complete the checkpoint yet.

        Raises:
            FencedError: A newer attempt has written this checkpoint; the message says which.
            CheckpointError: The metadata is of another attempt, cannot be written as JSON, or names a file of an older
                attempt that no retained checkpoint names; or an older attempt has used its id.
            StorageError: The outcome is unknown.
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
            self._register(attempt, attempt.head.kept)  # it starts from one that is not the latest
        attempt.unfinished.add(metadata.checkpoint_id)
        attempt.registry.register_all(metadata.checkpoint_id, files - placeholders, placeholders)
        try:
            put_if(self.store, key, data, None)
        except PreconditionFailedError as error:
            self.check_leader(attempt)
            raise CheckpointError(
                f"{self.store.url}/{key} already exists, although only this attempt may use its id; objects of the job "
                "may have been deleted. Run the job again: the next attempt takes another id."
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
        """Makes a written checkpoint the latest. This is the moment at which it is complete.

        Args:
            attempt: The attempt that completes it.
            metadata: The metadata of the checkpoint.
            partition: The entry for the partition whose end state it is. Default: that of the partition whose end state
                it repeats, such as at another parallelism, because the next partition starts from it; or none.
            partition_retention: Which end states are kept. Default: all.
            started_from: The checkpoint that the attempt started from. If it is an end state, it is kept as long as the
                attempt runs, so that another try can start from it.

        Raises:
            FencedError: A newer attempt took over; the message says which.
            CheckpointError: The checkpoint was not written, or is not newer than the latest one.
            StorageError: The outcome is unknown.
        """
        checkpoint_id, previous = metadata.checkpoint_id, attempt.head
        if checkpoint_id not in attempt.written:
            raise CheckpointError(f"checkpoint {checkpoint_id} cannot complete before its metadata is written")
        if checkpoint_id <= (previous.checkpoint_id or 0):
            raise CheckpointError(f"checkpoint {checkpoint_id} is not newer than the latest, {previous.checkpoint_id}")
        ends = {end.partition: end for end in previous.partitions}
        if partition is None and REPEATS in metadata.properties:
            partition = repeated_entry(previous.partitions, metadata, self.load)
        if partition is not None:
            ends[partition.partition] = partition
        # The next partition starts from the newest end state, which after a rescale is not the latest checkpoint.
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
        self.replace_head(attempt, head)
        attempt.released |= {*previous.retained} - {*head.retained}
        attempt.latest = metadata
        attempt.unfinished = {i for i in attempt.unfinished if i > checkpoint_id}
        del attempt.written[checkpoint_id]

    def check_repeats_end(self, attempt: Attempt, metadata: CheckpointMetadata) -> None:
        """Checks that partitions would start from a checkpoint or savepoint if it were the latest one of the job.

        Raises:
            RestoreError: It is not the end state of a partition, but the job has partitions.
        """
        ends, latest = attempt.head.partitions, attempt.latest
        has_partitions = ends and (latest is None or is_end(ends, latest, self.load))
        if has_partitions and repeated_end(ends, metadata, self.load) is None:
            raise RestoreError(
                f"{metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_id!r} is not the end state of a "
                f"partition that {self.store.url} keeps, and its partitions start from these: the next one would not "
                "start from it. Set restore_from in the config of the run whose first partition is to start from it"
            )

    def replace_head(self, attempt: Attempt, head: Head) -> None:
        """Replaces ``HEAD`` if it is as this attempt last wrote it.

        Raises:
            FencedError: A newer attempt took over, or someone else replaced or deleted it.
            StorageError: The outcome is unknown.
        """
        try:
            attempt.head_etag = put_if(self.store, HEAD_KEY, head.to_bytes(), attempt.head_etag)
        except PreconditionFailedError as error:
            self.check_leader(attempt)
            raise FencedError(
                f"execution attempt {attempt.leader.owner!r} (token {attempt.token}) lost {self.store.url}/{HEAD_KEY}: "
                "it was deleted, or replaced by someone who does not hold the leader object"
            ) from error
        attempt.head = head

    # --- deleting -----------------------------------------------------------------------------------------------------

    def subsume(self, attempt: Attempt, checkpoint_ids: Sequence[int]) -> None:
        """Deletes checkpoints that are no longer retained, and the state files that only they name.

        A native savepoint may be written, and the job forked, at any time, so both are listed after HEAD has dropped
        the checkpoints: see :mod:`~dagster_flinkpy.checkpoint.claims`.

        Must be called between Spark jobs, because a task of a running job may write a file with the same content, and
        so the same name, again.

        Raises:
            FencedError: A newer attempt took over; nothing is deleted.
            CorruptMetadataError: A retained checkpoint, a native savepoint or a claim cannot be read, so the files
                that it needs are unknown.
        """
        self.check_leader(attempt)
        gone = sorted({*checkpoint_ids, *attempt.released} - {*attempt.head.kept})
        attempt.released.clear()
        if older := attempt.registry.unknown(gone):
            self._register(attempt, [kept for kept in attempt.head.kept if kept > older[0]])
            # Without the metadata its files are unknown, so they become orphans.
            with suppress(ObjectNotFoundError, CorruptMetadataError):
                self._register(attempt, older)
        if unused := attempt.registry.unregister_unused({*attempt.head.kept, *attempt.written, *attempt.unfinished}):
            _delete(self.store, unused - self._named_by_others(attempt))
        # The metadata is deleted last, so that the files can still be found after a crash.
        self.store.delete_many(info.key for checkpoint_id in gone for info in self.store.list(f"chk-{checkpoint_id}/"))

    def discard(self, attempt: Attempt, files: Iterable[str]) -> None:
        """Deletes state files of aborted checkpoints that no checkpoint, native savepoint or fork names.

        Must be called between Spark jobs, for the same reason as :meth:`subsume`.

        Raises:
            FencedError: A newer attempt took over; nothing is deleted.
            CorruptMetadataError: A retained checkpoint, a native savepoint or a claim cannot be read, so the files
                that it needs are unknown.
        """
        self.check_leader(attempt)
        candidates = {path for path in files if path not in attempt.registry}
        if any(_written_by(path) != attempt.token for path in candidates):
            self._register(attempt, attempt.head.kept)
        if unused := {path for path in candidates if path not in attempt.registry}:
            _delete(self.store, unused - self._named_by_others(attempt))

    def unnamed(self, attempt: Attempt, paths: Collection[str]) -> set[str]:
        """Returns which of some paths no kept checkpoint, native savepoint or fork names.

        Raises:
            CorruptMetadataError: One of them cannot be read, so the files that it needs are unknown.
            ObjectNotFoundError: A kept checkpoint is gone.
        """
        self._register(attempt, attempt.head.kept)
        return {path for path in paths if path not in attempt.registry} - self._named_by_others(attempt)

    def delete_checkpoints(self, attempt: Attempt) -> None:
        """Deletes all completed checkpoints that the job owns. Ids and tokens keep growing.

        Raises:
            FencedError: A newer attempt took over; nothing is deleted.
        """
        gone = _claimed(attempt.head)
        self.replace_head(attempt, Head(attempt.token, unclaimed=attempt.head.unclaimed))
        attempt.latest = None
        attempt.unfinished.clear()  # there is no next one
        self.subsume(attempt, gone)

    def dispose(self, attempt: Attempt, checkpoint_id: int) -> None:
        """Deletes a checkpoint that the job does not own, and the state files that only it names.

        Raises:
            CheckpointError: The job owns the checkpoint, or there is no such checkpoint.
            FencedError: A newer attempt took over; nothing is deleted.
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
                f"{self.store.url}/chk-{checkpoint_id} is not an unclaimed checkpoint; the unclaimed checkpoints are: "
                f"{unclaimed}"
            )
        unclaimed_still = tuple(i for i in head.unclaimed if i != checkpoint_id)
        self.replace_head(attempt, replace(head, unclaimed=unclaimed_still))
        self.subsume(attempt, [checkpoint_id])

    # --- shared -------------------------------------------------------------------------------------------------------

    def _register(self, attempt: Attempt, checkpoint_ids: Iterable[int]) -> None:
        """Registers the files of checkpoints that were completed before this attempt."""
        unknown = attempt.registry.unknown(checkpoint_ids)
        with ThreadPoolExecutor(max_workers=_THREADS) as threads:
            for checkpoint_id, metadata in zip(unknown, threads.map(self.load, unknown), strict=True):
                attempt.registry.register_all(checkpoint_id, metadata.files())

    def _named_by_others(self, attempt: Attempt) -> set[str]:
        """Returns the files that native savepoints and forks name."""
        attempt.others = named_by_others(self.store, attempt.others)
        return set().union(*attempt.others.values())

    def _latest(self, head: Head) -> CheckpointMetadata | None:
        if head.path is None:
            return None
        name = f"{self.store.url}/{head.path}"
        try:
            data = fetch_metadata(self.store, head.path)
        except ObjectNotFoundError as error:
            raise CorruptMetadataError(
                f"{name} is missing, but HEAD says it is the latest checkpoint. {_ADVICE}"
            ) from error
        if hashlib.sha256(data).hexdigest() != head.metadata_sha256:
            raise CorruptMetadataError(f"{name} is damaged: its checksum differs from the one in HEAD. {_ADVICE}")
        metadata = CheckpointMetadata.from_bytes(data, name)
        if metadata.checkpoint_id != head.checkpoint_id:
            raise CorruptMetadataError(
                f"{name} is checkpoint {metadata.checkpoint_id}, but HEAD names {head.checkpoint_id}. {_ADVICE}"
            )
        return metadata

    def _statistics(self) -> tuple[CheckpointStatistics, str | None]:
        try:
            data, etag = self.store.get(STATISTICS_KEY)
        except ObjectNotFoundError:
            return CheckpointStatistics(), None
        try:
            return CheckpointStatistics.from_json(json.loads(data)), etag
        except (ValueError, RecursionError):  # nothing depends on the statistics
            return CheckpointStatistics(), etag


def _claimed(head: Head) -> tuple[int, ...]:
    return tuple(i for i in head.retained if i not in head.unclaimed)


def _delete(store: ObjectStore, files: Iterable[str]) -> None:
    # Handles come from metadata, so only shared state files and segments are deleted, whatever the metadata names.
    store.delete_many(sorted(path for path in files if path.startswith((SHARED_FOLDER, f"{EXCHANGE_FOLDER}/"))))


def _written_by(path: str) -> int | None:
    """Returns the token of the attempt that wrote a state file, if its name has one."""
    match = _WRITTEN_BY.fullmatch(path)
    return None if match is None else int(match[1] or match[2])


def _key(checkpoint_id: int) -> str:
    return f"chk-{checkpoint_id}/{METADATA_NAME}"
