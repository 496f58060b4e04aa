"""The ``leader`` object: which execution attempt owns a job, fenced by a token that only grows.

The token alone gives safety, so no clock has to be right. The lease shows people and programs whether the owner is
still active: an attempt that is not told to take over waits until it has ended.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster_flinkpy.common.clock import datetime_of_millis, to_millis
from dagster_flinkpy.errors import (
    CorruptMetadataError,
    FencedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnreachableError,
)
from dagster_flinkpy.json_records import Count, Id, JsonRecord, Millis
from dagster_flinkpy.storage.location import StorageLocation, on_worker
from dagster_flinkpy.storage.object_store import ObjectStore, put_if

__all__ = [
    "LEADER_KEY",
    "Leader",
    "LeaderRecord",
    "LeaseHeldError",
    "acquire",
    "check",
    "check_shared",
    "expire",
    "if_killed",
    "read",
    "release",
    "renew",
]

LEADER_KEY = "leader"


@dataclass(frozen=True)
class LeaderRecord(JsonRecord):
    """What the ``leader`` object says."""

    token: Id
    """Fencing token; greater than that of every attempt before, and never used twice."""
    owner: str
    """The execution attempt, in words a person can search for (such as a Dagster run id)."""
    expires_at: Millis
    """When the lease ends, in milliseconds since 1970; 0 if it was released."""
    acquired_at: Millis
    """When the attempt took the leadership, in milliseconds since 1970."""
    nonce: str = ""
    """Random, to distinguish attempts with the same name that began in the same millisecond."""
    committed: Count | None = None
    """The checkpoint up to which all sinks have committed, as the last owner recorded it at its end."""
    led_by: str = ""
    """Id of the run of the attempt, such as a Dagster run id, for other runs to look up. Empty if unknown."""
    host: str = ""
    """The name of the machine or container of the attempt. Empty if an older release has written the record."""
    pid: Count = 0
    """The id of its process, as the host knows it."""

    def alive(self, now_ms: int) -> bool:
        """Returns whether the lease still holds.

        Args:
            now_ms: Milliseconds since 1970.
        """
        return now_ms < self.expires_at

    def __str__(self) -> str:
        """Returns who that is, since when, for people."""
        since = datetime_of_millis(self.acquired_at).isoformat(timespec="seconds")
        return f"{self.owner!r} (host {self.host or 'unknown'}, process {self.pid or 'unknown'}, since {since})"


class LeaseHeldError(Exception):
    """Another attempt leads, its lease holds, and nobody said that it is to be taken over."""

    def __init__(self, leader: LeaderRecord) -> None:
        super().__init__(str(leader))
        self.leader = leader


@dataclass(frozen=True)
class Leader:
    """Proof of leadership, held by the attempt that acquired it."""

    record: LeaderRecord
    etag: str
    """The ETag of the ``leader`` object as this attempt last wrote it."""
    former: LeaderRecord | None = None
    """The previous leader, or None."""

    @property
    def token(self) -> int:
        """The fencing token."""
        return self.record.token

    @property
    def owner(self) -> str:
        """The execution attempt."""
        return self.record.owner


def read(store: ObjectStore) -> LeaderRecord | None:
    """Returns the current leader of the job whose prefix ``store`` is rooted at, or None if there never was one.

    Raises:
        CorruptMetadataError: The object is not a leader record.
    """
    found = _read(store)
    return found[0] if found else None


def acquire(
    store: ObjectStore,
    owner: str,
    ttl: timedelta,
    now_ms: int,
    *,
    above: int,
    led_by: str,
    after: Leader | None = None,
    take_over: bool = True,
) -> Leader:
    """Takes the leadership, with the next token, from the attempt that has it.

    The former leader then fails at its next ``check``. If another attempt wins the race, this call tries again
    with a greater token, so the last caller wins.

    Args:
        store: The object store, rooted at the job's prefix.
        owner: Names this execution attempt.
        ttl: How long the lease lasts.
        now_ms: Milliseconds since 1970.
        above: The token is also greater than this one, because the object may have been lost.
        led_by: Id of the run that the attempt belongs to.
        after: The former attempt of the same run, which must still lead. Default: whoever leads is fenced.
        take_over: Whether an attempt of another run is fenced whose lease holds.

    Raises:
        LeaseHeldError: There is such an attempt, and it is not to be fenced. Nothing is changed.
        CorruptMetadataError: The object is not a leader record; it is not overwritten.
        FencedError: Another owner leads than that of ``after``.
    """
    while True:
        found = _read(store)
        if after is not None and (found is None or found[0].owner != after.owner):
            check(store, after)
        waits = not take_over and after is None
        if waits and found is not None and found[0].alive(now_ms) and (not led_by or found[0].led_by != led_by):
            raise LeaseHeldError(found[0])
        record = LeaderRecord(
            token=max(above, found[0].token if found else 0) + 1,
            owner=owner,
            expires_at=now_ms + to_millis(ttl),
            acquired_at=now_ms,
            nonce=secrets.token_hex(8),
            committed=found[0].committed if found else None,
            led_by=led_by,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        try:
            leader = _write(store, record, found[1] if found else None)
            return replace(leader, former=found[0] if found else None)
        except PreconditionFailedError:
            continue


def renew(store: ObjectStore, leader: Leader, ttl: timedelta, now_ms: int) -> Leader:
    """Extends the lease.

    Raises:
        FencedError: Another attempt took over; the message says which.
    """
    return _rewrite(store, leader, replace(leader.record, expires_at=now_ms + to_millis(ttl)))


def release(store: ObjectStore, leader: Leader, committed: int | None = None) -> bool:
    """Ends the lease. The record stays, so that tokens keep growing. Does nothing if the owner was fenced.

    Args:
        store: The object store, rooted at the job's prefix.
        leader: The attempt that ends.
        committed: The checkpoint up to which all sinks have committed, or None to keep the recorded one.

    Returns:
        Whether the owner had the lease.
    """
    if committed is None:
        committed = leader.record.committed
    try:
        _rewrite(store, leader, replace(leader.record, expires_at=0, committed=committed))
    except (FencedError, CorruptMetadataError):
        return False
    return True


def expire(store: ObjectStore, silent: LeaderRecord) -> None:
    """Ends the lease of an attempt that has not renewed it although it had to. Does nothing if it just did.

    Args:
        store: The object store, rooted at the job's prefix.
        silent: What the attempt wrote last. By the clock of this machine its lease may hold for hours: that of its own
            machine may have been ahead.
    """
    found = _read(store)
    if found is not None and found[0] == silent:
        with suppress(PreconditionFailedError):
            _write(store, replace(silent, expires_at=0), found[1])


def check(store: ObjectStore, leader: Leader) -> Leader:
    """Checks that no other attempt took over. Call it right before a commit.

    Returns:
        What the ``leader`` object has now.

    Raises:
        FencedError: Another attempt took over; the message says which, with its token and the time.
    """
    found = _read(store)
    if found is None:
        raise FencedError(f"{_who(leader.record)} lost {store.url}/{LEADER_KEY}: the object was deleted")
    now, etag = found
    if (now.token, now.owner, now.nonce) != (leader.token, leader.owner, leader.record.nonce):
        when = datetime_of_millis(now.acquired_at).isoformat(timespec="milliseconds")
        raise FencedError(f"{_who(leader.record)} was fenced by {_who(now)} at {when} ({store.url}/{LEADER_KEY})")
    return Leader(now, etag)


def if_killed(url: str) -> str:
    """Returns, for messages, what to do if the owner of the job at a URL was killed, and its lease has not ended."""
    return (
        "if it was killed, try again when its lease has expired, in 15 seconds at most, or run "
        f"'flinkpy leader release --force {url}'"
    )


def _read(store: ObjectStore) -> tuple[LeaderRecord, str] | None:
    try:
        data, etag = store.get(LEADER_KEY)
    except ObjectNotFoundError:
        return None
    try:
        return LeaderRecord.from_text(data), etag
    except ValueError as error:
        raise CorruptMetadataError(
            f"{store.url}/{LEADER_KEY} is not a leader record: {error}. Without it an old run cannot be fenced: "
            "make sure that no run of this job is alive, then delete the object."
        ) from error


def _rewrite(store: ObjectStore, leader: Leader, record: LeaderRecord) -> Leader:
    """Replaces the record of an attempt. It may have been written before by a request that nobody answered."""
    etag = leader.etag
    while True:
        try:
            return _write(store, record, etag)
        except PreconditionFailedError:
            now = check(store, leader)
            if now.record.expires_at == 0 < record.expires_at:  # a renewal that comes too late
                raise FencedError(f"{_who(leader.record)} has given up {store.url}/{LEADER_KEY}") from None
            etag = now.etag


def _write(store: ObjectStore, record: LeaderRecord, etag: str | None) -> Leader:
    return Leader(record, put_if(store, LEADER_KEY, record.to_bytes(), etag))


def _who(record: LeaderRecord) -> str:
    return f"execution attempt {record.owner!r} (token {record.token})"


def check_shared(location: StorageLocation) -> None:
    """Makes sure that a worker has a way to the store, and does not write into a local directory of its own.

    Raises:
        StoreUnreachableError: It has no network to the store, or another directory under this path.
    """
    if not on_worker():
        return
    if location.local_path is None:
        location.open().check_way()
        return
    if location.open().head(LEADER_KEY) is not None:
        return
    raise StoreUnreachableError(
        f"the worker on {socket.gethostname()} does not see {location.url} of the driver at "
        f"{str(location.local_path)!r}: give path_on_workers if the directory is mounted at another path there, or "
        "else a store that both reach, such as S3. `flinkpy doctor --spark ... --storage ...` tries it"
    )
