"""An attempt that works on the job ``words``, as a test plays it. It answers requests through the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import REQUESTS_FOLDER, Order, Request, RequestKind
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.storage import StorageLocation
from tests.checkpoint.samples import metadata, source


class RunningJob:
    """An attempt of the job at work.

    Args:
        path: Where its checkpoints are.
        led_by: Id of its run.
    """

    def __init__(self, path: Path, led_by: str) -> None:
        self.location = StorageLocation(str(path / "checkpoints")).child("words")
        self.checkpoints = CompletedCheckpointStore(self.location.open())
        self.attempt = self.checkpoints.begin_attempt(
            "the run at work", current_millis(), timedelta(hours=1), led_by=led_by
        )
        self.orders: list[Order] = []
        self.error: Exception | None = None
        self.when_asked: Callable[[], object] = lambda: None
        self.take_checkpoint()

    def take_checkpoint(self) -> int:
        number = self.checkpoints.assign_checkpoint_id(self.attempt)
        self.latest = metadata(number, source(), source("count"), token=self.attempt.token)
        self.checkpoints.write_metadata(self.attempt, self.latest)
        self.checkpoints.complete(self.attempt, self.latest)
        return number

    def answer(self) -> None:
        """Carries out what it is asked for; called while the asker waits."""
        self.when_asked()
        store = self.checkpoints.store
        inbox = RequestInbox(store, self.attempt.token, "nonce", lambda: None, current_millis)
        for request in inbox.poll():
            self.orders.append(request.order)
            if self.error is not None:
                inbox.failed(request.request_id, self.error)
                continue
            number = self.take_checkpoint()
            inbox.done(request.request_id, checkpoint_id=number, savepoint=self._savepoint(request))

    def _savepoint(self, request: Request) -> str | None:
        if request.order.kind in (RequestKind.RESCALE, RequestKind.CHECKPOINT):
            return None
        target = StorageLocation(request.order.target) if request.order.target else self.location
        folder = write_savepoint(self.latest, self.checkpoints.store, target.open(), request.order.format_type)
        return f"{target.url}/{folder}"

    def stored_requests(self) -> list[str]:
        return [info.key for info in self.checkpoints.store.list(REQUESTS_FOLDER)]
