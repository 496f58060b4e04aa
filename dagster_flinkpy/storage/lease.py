"""The ``leader`` object: which execution attempt owns a job, fenced by a token that only grows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone

from dagster_flinkpy.errors import CorruptMetadataError, FencedError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["LEADER_KEY", "Leader", "LeaderRecord", "acquire", "check", "read", "release"]

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


@dataclass(frozen=True)
class Leader:
    """Proof of leadership, held by the attempt that acquired it."""

    record: LeaderRecord
    etag: str
    """Of the ``leader`` object as this attempt last wrote it."""

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
        token = found[0].token + 1 if found else 1
        record = LeaderRecord(token=token, owner=owner, expires_at=now_ms + _ms(ttl), acquired_at=now_ms)
        try:
            return _write(store, record, found[1] if found else None)
        except PreconditionFailedError:
            continue


def release(store: ObjectStore, leader: Leader) -> None:
    """Say that the owner is gone. The record stays, so that tokens go on growing; being fenced already is fine."""
    try:
        _write(store, replace(leader.record, expires_at=0), leader.etag)
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
    if (now.token, now.owner) != (leader.token, leader.owner):
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
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptMetadataError(
            f"{store.url}/{LEADER_KEY} is not a leader record ({error!r}). Without it an old run cannot be fenced: "
            "make sure that no run of this job is alive, then delete the object."
        ) from error
    return record, etag


def _write(store: ObjectStore, record: LeaderRecord, etag: str | None) -> Leader:
    data = json.dumps(asdict(record)).encode()
    return Leader(record, store.put(LEADER_KEY, data, if_none_match=etag is None, if_match=etag))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _who(record: LeaderRecord) -> str:
    return f"execution attempt {record.owner!r} (token {record.token})"
