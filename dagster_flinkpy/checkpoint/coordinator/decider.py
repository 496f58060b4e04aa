"""Decides which request for a checkpoint is carried out, queued or dropped (Flink: ``CheckpointRequestDecider``)."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested
from dagster_flinkpy.checkpoint.metadata import CheckpointKind

__all__ = ["MAX_QUEUED_REQUESTS", "CheckpointRequestDecider", "Dropped"]

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True)
class Dropped:
    """A request that will not be carried out."""

    request: TriggerRequested
    reason: CheckpointFailureReason
    message: str
    retry_ms: int | None = None
    """When a periodic request is due again; None unless the minimum pause is the reason."""


class CheckpointRequestDecider:
    """A queue in order of priority: savepoints, forced requests, requests of people, then the oldest.

    Args:
        max_concurrent: How many checkpoints may be pending at once.
        min_pause_ms: Milliseconds from the last completion to the next periodic checkpoint.
    """

    def __init__(self, max_concurrent: int, min_pause_ms: int) -> None:
        self._max_concurrent = max_concurrent
        self._min_pause_ms = min_pause_ms
        self._queue: list[TriggerRequested] = []

    @property
    def queued(self) -> int:
        """Returns how many requests are waiting."""
        return len(self._queue)

    def submit(self, request: TriggerRequested) -> list[Dropped]:
        """Queues a request, and returns the requests that had to be dropped.

        At most one periodic request is queued: a second one would ask for the same checkpoint.
        """
        if request.periodic and any(queued.periodic for queued in self._queue):
            return [_no_room(request, "a periodic checkpoint is already queued")]
        insort(self._queue, request, key=_priority)
        if len(self._queue) <= MAX_QUEUED_REQUESTS:
            return []
        # Requests of people stay. A periodic request makes room; if there is none, the new request is dropped.
        last = self._queue[-1] if self._queue[-1].periodic else request
        self._queue.remove(last)
        return [_no_room(last, f"{MAX_QUEUED_REQUESTS} requests are queued")]

    def choose(
        self, now_ms: int, *, pending: int, triggering: bool, last_completion_ms: int | None
    ) -> TriggerRequested | Dropped | None:
        """Takes the next request from the queue, to be carried out or dropped.

        Args:
            now_ms: The time, in milliseconds since 1970.
            pending: How many checkpoints are pending.
            triggering: Whether a request was chosen whose checkpoint is not pending yet.
            last_completion_ms: When a checkpoint of this attempt was last completed, or None.

        Returns:
            The request to carry out, the dropped request, or None if all requests have to wait.
        """
        if triggering or not self._queue:
            return None
        first = self._queue[0]
        if first.forced:
            return self._queue.pop(0)
        if pending >= self._max_concurrent:
            return None
        self._queue.pop(0)
        if first.periodic and last_completion_ms is not None and now_ms < last_completion_ms + self._min_pause_ms:
            return Dropped(
                first,
                CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
                f"the last checkpoint completed {now_ms - last_completion_ms} ms ago, and min_pause is "
                f"{self._min_pause_ms} ms",
                last_completion_ms + self._min_pause_ms,
            )
        return first

    def abort_all(self) -> list[TriggerRequested]:
        """Empties the queue and returns what was in it."""
        aborted, self._queue = self._queue, []
        return aborted


def _priority(request: TriggerRequested) -> tuple[bool, bool, bool, int]:
    return request.kind is not CheckpointKind.SAVEPOINT, not request.forced, request.periodic, request.now_ms


def _no_room(request: TriggerRequested, message: str) -> Dropped:
    return Dropped(request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS, message)
