"""The requests that a running attempt has taken: which ones wait, and for what.

A part of :class:`~dagster_flinkpy.runtime.master.job_state.JobState`, which a rescale leaves as it is.

Requests for a checkpoint or savepoint that wait together are served by one checkpoint: the next one whose epoch ends. A
stop, a rescale and a cancel end the iteration over epochs; the attempt carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.requests import Order, Request, RequestKind
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import CorruptStateError, FlinkPyError, JobCancelledError, RequestFailedError
from dagster_flinkpy.runtime.master.job_messages import (
    AnswerRequest,
    RequestsTaken,
    SavepointWritten,
    Say,
    WriteSavepoint,
)

__all__ = ["ENDINGS", "LOOK_INTERVAL", "TakenRequests", "cancelled"]

LOOK_INTERVAL = timedelta(seconds=2)
"""Time between two looks for requests. Each look is one listing."""
ENDINGS = (RequestKind.STOP, RequestKind.RESCALE)
"""What is carried out when nothing runs."""
_TRIES = 3


class TakenRequests:
    """The requests of an execution attempt."""

    def __init__(self, now_ms: int) -> None:
        self.partitioned = False
        """Whether the run reads time partitions, between which it is not stopped or rescaled."""
        self.open: dict[str, Request] = {}
        """All requests that were taken and not answered."""
        self.ending: Request | None = None
        """A request that needs the current iteration over epochs to end."""
        self.begun: Request | None = None
        """The last request that the attempt has begun to carry out between two epochs."""
        self.waiting: list[Request] = []
        """Requests that the next checkpoint serves."""
        self.bound: dict[int, list[Request]] = {}
        """Requests by the checkpoint that serves them once it is complete."""
        self.latest: CheckpointMetadata | None = None
        """The last checkpoint that this attempt has completed."""
        self.completing = 0
        """The last checkpoint that HEAD may name, whether this attempt finds out or not."""
        self.writing: set[str] = set()
        """The requests whose savepoints are being written. Their checkpoints must not be deleted."""
        self.given_up = False
        """Whether no savepoint is begun any more, because the attempt fails or is to end."""
        self._look_ms = now_ms + to_millis(LOOK_INTERVAL)
        self._looking = False

    # --- requests come -----------------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """When to look for requests, in milliseconds since 1970; None while somebody looks."""
        return None if self._looking else self._look_ms

    def look(self, now_ms: int) -> bool:
        """Returns whether to look for requests now. If so, :meth:`looked` must follow."""
        due = not self._looking and now_ms >= self._look_ms
        self._looking |= due
        return due

    def looked(self, now_ms: int) -> None:
        """Notes that somebody has looked."""
        self._looking, self._look_ms = False, now_ms + to_millis(LOOK_INTERVAL)

    def take(self, taken: RequestsTaken) -> tuple[list[Instruction], JobCancelledError | None]:
        """Takes the requests that were found. Returns what to do, and why the attempt must end if it is cancelled."""
        self.looked(taken.now_ms)
        told, cancel = list[Instruction](), None
        if taken.problem:
            told.append(Say(f"cannot look for requests: {taken.problem}"))
        for request, problem in taken.requests:
            told.append(Say(f"{request.owner} asks for a {request.order.kind.value}"))
            self.open[request.request_id] = request
            if (refusal := problem or self._refusal(request.order)) is not None:
                told.append(self._answer(request, error=refusal))
            elif request.order.kind is RequestKind.CANCEL:
                cancel = cancel or cancelled(request)  # the others are told when the attempt ends
            elif request.order.kind in ENDINGS:
                self.ending = request
            else:
                self.waiting.append(request)
        return told, cancel

    def _refusal(self, order: Order) -> FlinkPyError | None:
        if order.kind in ENDINGS and self.ending is not None:
            what = f"the job is about to {self.ending.order.kind.value}, as {self.ending.owner!r} has asked"
            return RequestFailedError(what)
        if order.kind in ENDINGS and self.partitioned:
            return RequestFailedError(
                f"the run reads time partitions and ends by itself. Wait until it has ended to {order.kind.value} the "
                "job, or cancel it"
            )
        return None

    # --- checkpoints and savepoints ----------------------------------------------------------------------------------

    def epoch_ended(self, checkpoint_id: int) -> None:
        """Lets a checkpoint serve the requests that wait; its state is that of now."""
        if self.waiting:
            self.bound[checkpoint_id], self.waiting = self.waiting, []

    def completed(self, metadata: CheckpointMetadata, checkpoint_ids: Sequence[int]) -> list[Instruction]:
        """Answers the requests that a checkpoint serves. It is complete, and the sinks have committed it."""
        self.latest = metadata
        told: list[Instruction] = []
        for request in [request for number in checkpoint_ids for request in self.bound.pop(number, ())]:
            if request.order.kind is not RequestKind.SAVEPOINT:
                told.append(self._answer(request, metadata.checkpoint_id))
            elif not self.given_up:
                told.append(self._write(request, metadata, _TRIES))
        return told

    def serve_rest(self) -> list[Instruction]:
        """Serves requests that came after the last epoch, with its checkpoint."""
        if not self.waiting or self.latest is None:
            return []
        self.epoch_ended(self.latest.checkpoint_id)
        return self.completed(self.latest, [self.latest.checkpoint_id])

    def written(self, outcome: SavepointWritten) -> list[Instruction]:
        """Answers who has asked for a savepoint, or lets it be written again."""
        request, error, latest = outcome.request, outcome.error, self.latest
        if self.given_up or request.request_id not in self.writing:
            return []  # the end of the attempt answers, or has answered
        self.writing.remove(request.request_id)
        if error is None:
            return [self._answer(request, outcome.checkpoint_id, outcome.savepoint)]
        # A native savepoint needs a checkpoint that is still retained.
        subsumed = isinstance(error, CorruptStateError) and latest is not None
        if subsumed and latest is not None and latest.checkpoint_id != outcome.checkpoint_id:
            if outcome.tries:
                return [self._write(request, latest, outcome.tries)]
            error = RequestFailedError("checkpoints are subsumed faster than a native savepoint is written")
        return [self._answer(request, error=error)]

    def _write(self, request: Request, metadata: CheckpointMetadata, tries: int) -> WriteSavepoint:
        self.writing.add(request.request_id)
        return WriteSavepoint(request, metadata, tries - 1)

    def _answer(
        self,
        request: Request,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        error: Exception | None = None,
    ) -> AnswerRequest:
        del self.open[request.request_id]
        return AnswerRequest(request, checkpoint_id, savepoint, error)

    # --- while nothing runs ------------------------------------------------------------------------------------------

    def take_ending(self) -> Request | None:
        """Returns a request to stop or rescale the job, once; None if there is none."""
        self.begun, self.ending = self.ending, None
        return self.begun


def cancelled(request: Request) -> JobCancelledError:
    """Returns the error of a job that a request has cancelled."""
    return JobCancelledError(f"the job was cancelled on request of {request.owner!r}")
