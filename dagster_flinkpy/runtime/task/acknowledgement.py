"""What an operator tells the driver of a snapshot."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.runtime.failure import error_to_json, outside_error
from dagster_flinkpy.state.keyed_snapshot_future import KeyedSnapshotFuture

__all__ = ["Acknowledgement"]


@dataclass(frozen=True)
class Acknowledgement:
    """The acknowledgement of a snapshot, or its decline, once its asynchronous part is done."""

    uid: str
    state: SubtaskState
    """The state, without the keyed one."""
    keyed: KeyedSnapshotFuture | None
    uploads: Sequence[Future[None]]
    """The uploads of the rest."""
    fields: dict[str, Any]
    """The other fields of the message."""
    started: int = field(default_factory=time.perf_counter_ns)

    @property
    def _futures(self) -> tuple[Future[Any], ...]:
        return (*self.uploads, *(() if self.keyed is None else self.keyed.waits_for))

    @property
    def left(self) -> list[Future[Any]]:
        """What it waits for. When that is done, there may be more."""
        return [each for each in self._futures if not each.done()]

    @property
    def error(self) -> BaseException | None:
        """Why the snapshot has failed, when nothing is left."""
        errors = (each.exception() for each in self._futures)
        return next((error for error in errors if error is not None), None)

    def wait(self) -> None:
        """Waits until nothing is left.

        Raises:
            StorageError: A file could not be written.
        """
        while left := self.left:
            left[0].result()
        if (error := self.error) is not None:
            raise error

    def to_json(self, error: BaseException | None = None) -> bytes:
        """Returns the message, when nothing is left."""
        state, fields = self.state, {"uid": self.uid, **self.fields}
        metrics = {**state.metrics, "async_us": (time.perf_counter_ns() - self.started) // 1_000}
        if self.keyed is not None and not self.keyed.has_failed:
            stored = self.keyed.settle()
            state, metrics = replace(state, keyed=stored.snapshot), {**stored.metrics, **metrics}
        if error is not None:
            ours = outside_error(error, f"subtask {state.index} of operator {self.uid!r}")
            fields["declined"] = error_to_json(ours, self.uid, state.index).decode()
        return json.dumps({**fields, "state": replace(state, metrics=metrics).to_json()}).encode()
