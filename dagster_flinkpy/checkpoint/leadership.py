"""How an execution attempt becomes the leader of a job: it takes ``leader``, then writes its token to ``HEAD``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster_flinkpy.checkpoint.head import HEAD_KEY, Head, read_head
from dagster_flinkpy.checkpoint.traces import find_traces, head_lost
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, PreconditionFailedError
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore, put_if

__all__ = ["Lead", "take_lead"]


@dataclass(frozen=True)
class Lead:
    """What an attempt knows once it leads."""

    leader: lease.Leader
    former: lease.LeaderRecord | None
    """The previous leader of the job, or None."""
    head: Head
    head_etag: str
    """The ETag of ``HEAD`` as the attempt wrote it."""
    left_behind: str = ""
    """The remaining objects of a job whose ``HEAD`` was lost, in words; otherwise empty."""
    used_ids: int = 0
    """The greatest checkpoint id that these objects name."""


@dataclass(frozen=True)
class _Found:
    head: Head
    etag: str | None
    left_behind: str = ""
    used_ids: int = 0


def take_lead(
    store: ObjectStore,
    owner: str,
    now_ms: int,
    ttl: timedelta,
    *,
    start_over: bool,
    led_by: str = "",
    after: lease.Leader | None = None,
    take_over: bool = True,
) -> Lead:
    """Takes the ``leader`` object with a greater token, and writes the token to ``HEAD``.

    Args:
        store: The object store, rooted at the job's prefix.
        owner: Names the execution attempt.
        now_ms: The time, in milliseconds since 1970.
        ttl: How long the lease of the attempt lasts.
        start_over: Whether the attempt may lead even if ``HEAD`` was lost or is damaged.
        led_by: Id of the run that the attempt belongs to.
        after: The former attempt of the same run, which must still lead. Default: whoever leads is fenced.
        take_over: Whether an attempt of another run is fenced whose lease holds.

    Raises:
        CheckpointError: The job was disposed of; nothing is changed.
        LeaseHeldError: There is such an attempt, and it is not to be fenced; nothing is changed.
        HeadLostError: ``HEAD`` was lost; nothing is changed.
        CorruptMetadataError: ``HEAD`` or ``leader`` is damaged; nothing is changed.
        FencedError: A newer attempt took over in the meantime.
    """
    found = _find_head(store, start_over)
    above = found.head.fencing_token
    leader = lease.acquire(store, owner, ttl, now_ms, above=above, led_by=led_by, after=after, take_over=take_over)
    former = leader.former
    while True:
        if found.head.fencing_token >= leader.token:
            lease.check(store, leader)
            # The attempt still leads: the leader object was deleted just now, so the token must be above HEAD's.
            leader = lease.acquire(store, owner, ttl, now_ms, above=found.head.fencing_token, led_by=led_by)
        head = replace(found.head, fencing_token=leader.token)
        try:
            etag = put_if(store, HEAD_KEY, head.to_bytes(), found.etag)
        except PreconditionFailedError:
            # An older attempt completed a checkpoint just now, or a newer one took over.
            found = _find_head(store, start_over)
            continue
        return Lead(leader, former, head, etag, found.left_behind, found.used_ids)


def _find_head(store: ObjectStore, start_over: bool) -> _Found:
    """Reads ``HEAD``, or writes the one of a new job. If there are other objects without ``HEAD``, it was lost."""
    while True:
        head, etag = Head(0, lost=True), None
        try:
            if (found := read_head(store)) is not None:
                head, etag = found
        except CorruptMetadataError:
            if not start_over:
                raise
            etag = store.get(HEAD_KEY)[1]
        if head.disposed:
            raise CheckpointError(
                f"the job in {store.url} was disposed of, and some of its files are still there because forks need "
                "them. Choose another name for the job, or dispose of the forks, which 'flinkpy job forks' lists"
            )
        if not head.lost:
            return _Found(head, etag)
        traces = find_traces(store)
        if etag is None and not traces.found:
            with suppress(PreconditionFailedError):
                put_if(store, HEAD_KEY, Head(0, new=True).to_bytes(), None)
            continue
        if etag is None and store.head(HEAD_KEY) is not None:
            continue  # the first attempt of the job began just now
        if not start_over:
            raise head_lost(store, traces, "is missing" if etag is None else "was lost")
        token = max(head.fencing_token, traces.token)
        return _Found(replace(head, fencing_token=token), etag, str(traces), traces.checkpoint_id)
