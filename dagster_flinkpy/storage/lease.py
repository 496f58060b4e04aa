"""The ``leader`` object: which execution attempt owns a job, fenced by a token that only grows.

The token alone makes things safe. The lease is for people and programs that want to know whether the owner is still at
work: nobody waits for it, so no clock has to be right.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone

from dagster_flinkpy.errors import CorruptMetadataError, FencedError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.storage.conditional import put_if
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["LEADER_KEY", "Leader", "LeaderRecord", "acquire", "check", "read", "release", "renew"]

LEADER_KEY = "leader"


@dataclass(frozen=True)
class LeaderRecord:
    """What the ``leader`` object says."""

    token: int
    """Fencing token; greater than that of every attempt before, and never used twice."""
    owner: str
    """The execution attempt, in words a person can search for (such as a Dagster run id)."""
    expires_at: int
    """Milliseconds since 1970. A hint that the owner is gone; a takeover never waits for it. 0 when released."""
    acquired_at: int
    """Milliseconds since 1970."""
    nonce: str = ""
    """Random: tells two attempts apart that have the same name and began in the same millisecond."""
    committed: int | None = None
    """The checkpoint up to which all sinks have committed, as far as an owner has said so when it ended."""

    def alive(self, now_ms: int) -> bool:
        """Whether the owner promised to live this long.

        Args:
            now_ms: milliseconds since 1970.
        """
        return now_ms < self.expires_at


@dataclass(frozen=True)
class Leader:
    """Proof of leadership, held by the attempt that acquired it."""

    record: LeaderRecord
    etag: str
    """Of the ``leader`` object as this attempt last wrote it."""
    former: LeaderRecord | None = None
    """Who had it before; None: nobody."""

    @property
    def token(self) -> int:
        """The fencing token."""
        return self.record.token

    @property
    def owner(self) -> str:
        """The execution attempt."""
        return self.record.owner


def read(store: ObjectStore) -> LeaderRecord | None:
    """Return the current leader of the job whose prefix ``store`` is rooted at, or None if there never was one.

    Raises:
        CorruptMetadataError: the object is not a leader record.
    """
    found = _read(store)
    return found[0] if found else None


def acquire(store: ObjectStore, owner: str, ttl: timedelta, now_ms: int) -> Leader:
    """Take the leadership over from whoever has it, with the next token.

    Everything the former leader does after that fails at its next ``check``. Losing the race to another
    attempt means trying again with a token above its own, so the last to ask wins.

    Args:
        store: rooted at the job's prefix.
        owner: names this execution attempt.
        ttl: how long the record promises that the owner lives.
        now_ms: milliseconds since 1970.

    Raises:
        CorruptMetadataError: the object is not a leader record; it is not overwritten.
    """
    while True:
        found = _read(store)
        record = LeaderRecord(
            token=found[0].token + 1 if found else 1,
            owner=owner,
            expires_at=now_ms + _ms(ttl),
            acquired_at=now_ms,
            nonce=secrets.token_hex(8),
            committed=found[0].committed if found else None,
        )
        try:
            leader = _write(store, record, found[1] if found else None)
            return replace(leader, former=found[0] if found else None)
        except PreconditionFailedError:
            continue


def renew(store: ObjectStore, leader: Leader, ttl: timedelta, now_ms: int) -> Leader:
    """Promise to live longer.

    Raises:
        FencedError: another attempt took over; says which.
    """
    try:
        return _write(store, replace(leader.record, expires_at=now_ms + _ms(ttl)), leader.etag)
    except PreconditionFailedError as error:
        check(store, leader)
        raise FencedError(f"{_who(leader.record)} lost {store.url}/{LEADER_KEY}: somebody else wrote it") from error


def release(store: ObjectStore, leader: Leader, committed: int | None = None) -> None:
    """Say that the owner is gone. The record stays, so that tokens go on growing; being fenced already is fine.

    Args:
        store: rooted at the job's prefix.
        leader: the attempt that ends.
        committed: the checkpoint up to which all sinks have committed; None: as before.
    """
    if committed is None:
        committed = leader.record.committed
    try:
        _write(store, replace(leader.record, expires_at=0, committed=committed), leader.etag)
    except PreconditionFailedError:
        return


def check(store: ObjectStore, leader: Leader) -> None:
    """Make sure that no other attempt took over. For use right before a commit.

    Raises:
        FencedError: one did; says which, with its token and the time.
    """
    now = read(store)
    if now is None:
        raise FencedError(f"{_who(leader.record)} lost {store.url}/{LEADER_KEY}: the object was deleted")
    if (now.token, now.owner, now.nonce) != (leader.token, leader.owner, leader.record.nonce):
        when = datetime.fromtimestamp(now.acquired_at / 1000, timezone.utc).isoformat(timespec="milliseconds")
        raise FencedError(f"{_who(leader.record)} was fenced by {_who(now)} at {when} ({store.url}/{LEADER_KEY})")


def _read(store: ObjectStore) -> tuple[LeaderRecord, str] | None:
    try:
        data, etag = store.get(LEADER_KEY)
    except ObjectNotFoundError:
        return None
    try:
        raw = json.loads(data)
        record = LeaderRecord(
            token=int(raw["token"]),
            owner=str(raw["owner"]),
            expires_at=int(raw["expires_at"]),
            acquired_at=int(raw["acquired_at"]),
            nonce=str(raw.get("nonce", "")),
            committed=None if raw.get("committed") is None else int(raw["committed"]),
        )
    except (AttributeError, ValueError, TypeError, KeyError) as error:
        raise CorruptMetadataError(
            f"{store.url}/{LEADER_KEY} is not a leader record ({error!r}). Without it an old run cannot be fenced: "
            "make sure that no run of this job is alive, then delete the object."
        ) from error
    return record, etag


def _write(store: ObjectStore, record: LeaderRecord, etag: str | None) -> Leader:
    return Leader(record, put_if(store, LEADER_KEY, json.dumps(asdict(record)).encode(), etag))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _who(record: LeaderRecord) -> str:
    return f"execution attempt {record.owner!r} (token {record.token})"
