"""Carries out what requests to a job need: looks for them, answers them, and copies savepoints.

The master's thread calls it. Whatever waits for the store runs on lanes: one looks for requests and answers them,
another one copies savepoints, so that a long copy delays neither epochs nor other requests. When the attempt fails or
is to end, savepoints that are not there yet are given up. Which request waits for what is in :mod:`.taken_requests`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import Order, Request, RequestKind, name_of, outcome_unknown
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import (
    FlinkPyError,
    JobCancelledError,
    JobNotRunningError,
    JobRestartedError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    SavepointOutcomeUnknownError,
    StorageError,
    message_of,
)
from dagster_flinkpy.runtime.master.job_messages import AnswerRequest, RequestsTaken, SavepointWritten, WriteSavepoint
from dagster_flinkpy.runtime.master.requests.savepoints import JobSavepoints, SavepointCopy
from dagster_flinkpy.runtime.master.requests.taken_requests import ENDINGS, TakenRequests, cancelled
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["RequestDesk"]

_WRITES = (RequestKind.SAVEPOINT, RequestKind.STOP)


class RequestDesk:
    """Serves requests to an execution attempt."""

    def __init__(
        self,
        store: CompletedCheckpointStore,
        attempt: Attempt,
        watchdog: Watchdog,
        savepoints: JobSavepoints,
        lease: timedelta,
        now: Callable[[], int],
        wall: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self.requests = TakenRequests(now())
        self._store, self._attempt = store, attempt
        nonce, check_leader = attempt.leader.record.nonce, partial(store.check_leader, attempt)
        self._inbox = RequestInbox(store.store, attempt.token, nonce, check_leader, wall)
        self._watchdog, self._savepoints, self._lease = watchdog, savepoints, lease
        self._now, self._wall, self._progress = now, wall, progress
        self._copies: dict[str, SavepointCopy] = {}
        """The savepoints that are being written, by request."""

    @property
    def appearing(self) -> bool:
        """Whether a savepoint can no longer be given up, and is not known to be there yet."""
        return any(copy.appearing for copy in self._copies.values())

    def give_up(self) -> None:
        """Gives up the savepoints that are not there yet, because the attempt fails or is to end."""
        self.requests.given_up = True
        for copy in self._copies.values():
            copy.give_up()

    def interrupt(self) -> None:
        """Does the same, and gives savepoints a moment for which it is too late."""
        self.requests.given_up = True
        for copy in self._copies.values():
            copy.interrupt()

    # --- what lanes do -----------------------------------------------------------------------------------------------

    def look(self) -> RequestsTaken:
        """Looks for requests."""
        try:
            requests = self._watchdog.run("looking for requests", self._inbox.poll)
        except StorageError as error:
            return RequestsTaken(self._now(), problem=str(error))
        return RequestsTaken(self._now(), tuple((request, self._problem(request.order)) for request in requests))

    def _problem(self, order: Order) -> FlinkPyError | None:
        """Returns why a savepoint cannot be written."""
        try:
            if order.kind in _WRITES:
                self._savepoints.check(order.target, order.format_type)
        except FlinkPyError as error:
            return error
        return None

    @property
    def lease_ends(self) -> bool:
        """Whether the lease is to be renewed with the next look."""
        return self._attempt.leader.record.expires_at - self._wall() < to_millis(self._lease / 2)

    def renew(self) -> None:
        """Renews the lease. It belongs on the lane that also renews it when it takes a checkpoint id."""
        try:
            self._watchdog.run("renewing the lease", self._store.renew, self._attempt, self._lease, self._wall())
        except StorageError as error:
            self._progress(f"cannot renew the lease: {error}")

    def answer(self, answer: AnswerRequest) -> Callable[[], object]:
        """Returns the work that answers a request."""
        number = answer.request.request_id
        self._copies.pop(number, None)
        if answer.error is not None:
            step = partial(self._inbox.failed, number, _told(answer.error))
        else:
            step = partial(self._inbox.done, number, answer.checkpoint_id, answer.savepoint)
        return partial(self._watchdog.run, "answering a request", step)

    def copy(self, write: WriteSavepoint) -> Callable[[], SavepointWritten]:
        """Returns the work that writes a savepoint."""
        request, order = write.request, write.request.order
        copy = SavepointCopy(self._savepoints, write.metadata, order.target, order.format_type, name_of(request))
        self._copies[request.request_id] = copy
        return partial(self._write, write, copy)

    def _write(self, write: WriteSavepoint, copy: SavepointCopy) -> SavepointWritten:
        number, url, failure = write.metadata.checkpoint_id, None, None
        try:
            url = copy.run()
        except Exception as error:  # the asker is to know; the job goes on
            failure = error
        return SavepointWritten(self._now(), write.request, number, url, failure, write.tries)

    # --- what the attempt does, while nothing runs --------------------------------------------------------------------

    def _end(self, request: Request, error: FlinkPyError) -> None:
        """Answers a request that is not carried out because the attempt fails or ends, unless it was, or may be."""
        copy, requests = self._copies.pop(request.request_id, None), self.requests
        requests.writing.discard(request.request_id)
        checkpoint_id = next((n for n, bound in requests.bound.items() if request in bound), None)
        if request.order.kind is RequestKind.CHECKPOINT and checkpoint_id is not None:
            if checkpoint_id <= requests.completing:
                error = RequestOutcomeUnknownError(
                    f"the attempt failed while checkpoint {checkpoint_id} was being completed, so the next one finds "
                    f"out whether it is complete, and commits it if it is: {error}"
                )
        elif copy is not None and not copy.give_up():
            if not copy.outcome.done():
                error = RequestOutcomeUnknownError(
                    "it is unknown whether there is a savepoint: it was about to appear when the attempt ended"
                )
            elif (failed := copy.outcome.exception()) is None:
                self.done(request, copy.checkpoint.checkpoint_id, copy.outcome.result())
                return
            else:
                error = failed if isinstance(failed, FlinkPyError) else RequestFailedError(str(failed))
        self.failed(request, error)

    def done(self, request: Request, checkpoint_id: int | None, savepoint: str | None = None) -> None:
        """Answers that a request was carried out, unless it was not taken over from the attempt that took it."""
        if self.requests.open.pop(request.request_id, None) is None:
            return
        self._watchdog.run("answering a request", self._inbox.done, request.request_id, checkpoint_id, savepoint)

    def failed(self, request: Request, error: Exception, stopped_with: int | None = None) -> None:
        """Answers that a request was refused, or could not be carried out, unless it was not taken over.

        Args:
            request: The request.
            error: Why not.
            stopped_with: The checkpoint with which the job has stopped all the same.
        """
        if self.requests.open.pop(request.request_id, None) is None:
            return
        number, told = request.request_id, _told(error)
        self._watchdog.run("answering a request", self._inbox.failed, number, told, stopped_with)

    # --- restarts ----------------------------------------------------------------------------------------------------

    def restart(self, error: BaseException) -> None:
        """Answers those who wait for a checkpoint or a savepoint: the job restarts, as a whole.

        As in Flink, pending checkpoints fail (``CHECKPOINT_COORDINATOR_SUSPEND``), and a cancel takes effect at once. A
        stop, which fails in Flink, and a rescale wait for the restart.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled while it failed.
            FencedError: A newer attempt took over.
        """
        for request in list(self.requests.open.values()):
            if request.order.kind is RequestKind.CANCEL:
                raise cancelled(request) from error
            if request.order.kind not in ENDINGS:
                reason = f"{type(error).__name__}: {message_of(error)}"
                kind = request.order.kind.value
                self._end(request, JobRestartedError(f"the job restarted before the {kind} was complete: {reason}"))
        self.requests.waiting.clear()
        self.requests.bound.clear()

    def take_over(self, former: RequestDesk) -> None:
        """Continues with the requests to an earlier attempt of the same run.

        Raises:
            FencedError: A newer attempt took over.
        """
        self._watchdog.run("taking over requests", self._inbox.take_over, former._inbox)
        ours, theirs = self.requests, former.requests
        for request in theirs.open.values():
            if not self._inbox.has_taken(request.request_id):
                continue
            ours.open[request.request_id] = request
            if request is theirs.ending:
                ours.ending = request
            elif request is theirs.begun:
                ours.begun = request
            elif request.order.kind not in ENDINGS:
                ours.waiting.append(request)

    def close(self, error: BaseException | None) -> None:
        """Answers all requests that are left when the attempt ends.

        Raises:
            FlinkPyError: They cannot be answered.
        """
        reason = "it ended" if error is None else f"{type(error).__name__}: {error}"
        for request in list(self.requests.open.values()):
            if isinstance(error, JobCancelledError) and request.order.kind is RequestKind.CANCEL:
                self.done(request, None)
            elif request is self.requests.begun:  # a later run may find out that it was done
                self.failed(request, RequestOutcomeUnknownError(outcome_unknown(self._attempt.token)))
            else:
                self._end(request, JobNotRunningError(f"the run has not carried out the request, because {reason}"))
        self._watchdog.run("answering requests", self._inbox.flush)


def _told(error: Exception) -> Exception:
    """Returns an error as an asker knows it."""
    return RequestOutcomeUnknownError(str(error)) if isinstance(error, SavepointOutcomeUnknownError) else error
