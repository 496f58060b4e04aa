"""The leadership of an attempt beside its work: waits for that of another run, and renews its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import FencedError, StorageError
from dagster_flinkpy.storage import StorageLocation, lease
from dagster_flinkpy.storage.lease import LeaderRecord, LeaseHeldError

__all__ = ["LeaseKeeper", "await_leadership"]

_LOOK_SECONDS = 1.0
_REPEAT_SECONDS = 60.0
_SILENT_SECONDS = 300.0
"""Whoever lives renews a lease earlier than that. So no clock of another machine makes a run wait for longer."""

T = TypeVar("T")


def await_leadership(
    take: Callable[[], T], job: StorageLocation, now: Callable[[], int], progress: Callable[[str], object]
) -> T:
    """Takes the leadership as soon as no other run has it. Whoever dies loses it in a few seconds.

    Only what ends the run ends the wait: ``dagster/max_runtime``, a termination, Ctrl-C.

    Returns:
        What ``take`` returned.
    """
    said, said_at = "", 0.0
    seen: LeaderRecord | None = None
    seen_at = 0.0
    while True:
        try:
            return take()
        except LeaseHeldError as held:
            leader: LeaderRecord | None = held.leader
        while leader is not None and leader.alive(now()):
            if str(leader) != said or time.monotonic() - said_at >= _REPEAT_SECONDS:
                said, said_at = str(leader), time.monotonic()
                progress(
                    f"waiting for the end of {said}, which is working on the job. If it has died, this takes a few "
                    "seconds, and five minutes at most. To end it and go on at once, set take_over in the config of "
                    f"the run, or run 'flinkpy leader release --force {job.url}'"
                )
            if leader != seen:
                seen, seen_at = leader, time.monotonic()
            time.sleep(_LOOK_SECONDS)
            with suppress(StorageError):
                if time.monotonic() - seen_at >= _SILENT_SECONDS:
                    lease.expire(job.open(), leader)
                leader = lease.read(job.open())


class LeaseKeeper:
    """Renews the lease of an attempt on a thread of its own, whatever the attempt is doing, so that it can be short.

    If it fails, the attempt itself renews it, or finds out that it is fenced.
    """

    def __init__(self, lease: timedelta, now: Callable[[], int]) -> None:
        self.lease = lease
        """How long the leadership lasts without another renewal."""
        self._now = now
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, store: CompletedCheckpointStore, attempt: Attempt) -> None:
        """Renews the lease of an attempt, and no longer that of the one before, until it is closed."""
        self.close()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(store, attempt, self._closed), name="flinkpy-lease", daemon=True
        )
        self._thread.start()

    def _run(self, store: CompletedCheckpointStore, attempt: Attempt, closed: threading.Event) -> None:
        while not closed.wait(self.lease.total_seconds() / 6):
            try:
                with suppress(StorageError):
                    store.renew(attempt, self.lease, self._now())
            except FencedError:
                return

    def close(self) -> None:
        """Ends the thread, after a renewal that is under way."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(self.lease.total_seconds())
