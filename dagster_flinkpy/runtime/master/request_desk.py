"""The requests that a running attempt has taken: which ones wait, and for what.

The master's thread calls it. Whatever waits for the store runs on lanes: one looks for requests and answers them,
another one copies savepoints, so that a long copy delays neither epochs nor other requests. When the attempt fails or
is to end, savepoints that are not there yet are given up.

Requests for a checkpoint or savepoint that wait together are served by one checkpoint: the next one whose epoch ends. A
stop, a rescale and a cancel end the iteration over epochs; the attempt carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import Order, Request, RequestKind, name_of, outcome_unknown
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import (
    CorruptStateError,
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
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox
from dagster_flinkpy.runtime.master.savepoints import SavepointCopy, SavepointWriter
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["LOOK_INTERVAL", "RequestDesk"]

LOOK_INTERVAL = timedelta(seconds=2)
"""Time between two looks for requests. Each look is one listing."""
_TRIES = 3
_ENDINGS = (RequestKind.STOP, RequestKind.RESCALE)
_WRITES = (RequestKind.SAVEPOINT, RequestKind.STOP)


@dataclass(frozen=True)
class _Taken:
    """The outcome of a look."""

    requests: tuple[tuple[Request, FlinkPyError | None], ...] = ()
    """Each with why its savepoint cannot be written, if that is known already."""
    problem: str = ""
    """Why the store could not be asked."""


@dataclass(frozen=True)
class _Written:
    """The outcome of writing a savepoint."""

    request: Request
    copy: SavepointCopy
    error: Exception | None
    tries: int
    """How many more tries there may be."""


class RequestDesk:
    """Serves requests to an execution attempt.

    Args:
        mailbox: Runs the lanes.
        store: The job's checkpoints.
        attempt: The attempt.
        watchdog: Runs what waits for the store.
        savepoints: Writes savepoints.
        lease: The lease of the attempt, which looking for requests renews.
        now: Tells milliseconds since 1970.
        progress: Takes one-line progress messages.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        store: CompletedCheckpointStore,
        attempt: Attempt,
        watchdog: Watchdog,
        savepoints: SavepointWriter,
        lease: timedelta,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self._mailbox, self._store, self._attempt = mailbox, store, attempt
        nonce, check_leader = attempt.leader.record.nonce, partial(store.check_leader, attempt)
        self._inbox = RequestInbox(store.store, attempt.token, nonce, check_leader, now)
        self._watchdog, self._savepoints, self._lease = watchdog, savepoints, lease
        self._now, self._progress = now, progress
        self.partitioned = False
        """Whether the run reads time partitions, between which it is not stopped or rescaled."""
        self._due_ms = now() + to_millis(LOOK_INTERVAL)
        self._looking = False
        self._open: dict[str, Request] = {}
        """All requests that were taken and not answered."""
        self._waiting: list[Request] = []
        """Requests that the next checkpoint serves."""
        self._bound: dict[int, list[Request]] = {}
        """Requests by the checkpoint that serves them once it is complete."""
        self._ending: Request | None = None
        self._begun: Request | None = None
        """The last request that the attempt has begun to carry out between two epochs."""
        self._latest: CheckpointMetadata | None = None
        """The last checkpoint that this attempt has completed."""
        self._completing = 0
        """The last checkpoint that HEAD may name."""
        self._copies: dict[str, SavepointCopy] = {}
        """The savepoints that are being written, by request."""
        self._given_up = False
        """Whether no savepoint is begun any more."""

    # --- what the master asks -----------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """When to look for requests, in milliseconds since 1970; None while it looks."""
        return None if self._looking else self._due_ms

    def pause(self, until_ms: int, *, listens: bool) -> None:
        """Waits until the job restarts. Nothing is running.

        Args:
            until_ms: The time, in milliseconds since 1970.
            listens: Whether to take requests meanwhile. Only the leader may.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled.
            BaseException: The run was terminated.
        """
        before = self._now()
        while (now := self._now()) < until_ms or self._mailbox.busy[Lane.REQUESTS]:
            before, until_ms = now, until_ms - max(before - now, 0)  # a clock that is set back prolongs nothing
            if (told := self._mailbox.termination) is not None:
                raise told
            timers = [until_ms]
            if listens and self._now() < until_ms:
                self.look()
                timers += [] if self.due_ms is None else [self.due_ms]
            done = self._mailbox.take(min(timers) if self._now() < until_ms else None)
            if done is not None and (error := self.handle(done)) is not None:
                raise error

    @property
    def waiting(self) -> bool:
        """Whether a request needs a checkpoint."""
        return bool(self._waiting)

    @property
    def ending(self) -> bool:
        """Whether a request needs the current iteration over epochs to end."""
        return self._ending is not None

    @property
    def writing(self) -> bool:
        """Whether a savepoint is being written. Its checkpoint must not be deleted."""
        return bool(self._copies)

    @property
    def appearing(self) -> bool:
        """Whether a savepoint can no longer be given up, and is not known to be there yet."""
        return any(copy.appearing for copy in self._copies.values())

    def give_up(self) -> None:
        """Gives up the savepoints that are not there yet, because the attempt fails or is to end."""
        self._given_up = True
        for copy in self._copies.values():
            copy.give_up()

    def interrupt(self) -> None:
        """Does the same, and gives savepoints a moment for which it is too late."""
        self._given_up = True
        for copy in self._copies.values():
            copy.interrupt()

    def look(self) -> None:
        """Looks for requests, if it is time."""
        now = self._now()
        if self._looking or now < self._due_ms:
            return
        self._looking = True
        self._mailbox.submit(Lane.REQUESTS, self._look)
        if self._attempt.leader.record.expires_at - now < to_millis(self._lease / 2):
            # On the lane that also renews it when it takes a checkpoint id.
            self._mailbox.submit(Lane.TRIGGER, self._renew)

    def _look(self) -> _Taken:
        try:
            requests = self._watchdog.run("looking for requests", self._inbox.poll)
        except StorageError as error:
            return _Taken(problem=str(error))
        return _Taken(tuple((request, self._problem(request.order)) for request in requests))

    def _problem(self, order: Order) -> FlinkPyError | None:
        """Returns why a savepoint cannot be written."""
        try:
            if order.kind in _WRITES:
                self._savepoints.check(order.target, order.format_type)
        except FlinkPyError as error:
            return error
        return None

    def _renew(self) -> None:
        try:
            self._watchdog.run("renewing the lease", self._store.renew, self._attempt, self._lease, self._now())
        except StorageError as error:
            self._progress(f"cannot renew the lease: {error}")

    def handle(self, done: Done) -> BaseException | None:
        """Takes the outcome of a piece of work.

        Returns:
            Why the attempt must end: it was fenced or cancelled. None if it goes on.
        """
        if isinstance(done.result, _Written):
            self._on_written(done.result)
        elif done.lane == Lane.REQUESTS and (done.error is not None or isinstance(done.result, _Taken)):
            self._looking, self._due_ms = False, self._now() + to_millis(LOOK_INTERVAL)
            if done.error is not None:
                return done.error
            if done.result.problem:
                self._progress(f"cannot look for requests: {done.result.problem}")
            for request, problem in done.result.requests:
                if (cancelled := self._take(request, problem)) is not None:
                    return cancelled
        return None

    def _take(self, request: Request, problem: FlinkPyError | None) -> JobCancelledError | None:
        self._progress(f"{request.owner} asks for a {request.order.kind.value}")
        self._open[request.request_id] = request
        kind = request.order.kind
        try:
            if problem is not None:
                raise problem
            self._check(request.order)
        except FlinkPyError as error:
            self._fail(request, error)
            return None
        if kind is RequestKind.CANCEL:
            return _cancelled(request)
        if kind in _ENDINGS:
            self._ending = request
        else:
            self._waiting.append(request)
        return None

    def _check(self, order: Order) -> None:
        if order.kind in _ENDINGS and self._ending is not None:
            raise RequestFailedError(
                f"the job is about to {self._ending.order.kind.value}, as {self._ending.owner!r} has asked"
            )
        if order.kind in _ENDINGS and self.partitioned:
            raise RequestFailedError(
                f"the run reads time partitions and ends by itself. Wait until it has ended to {order.kind.value} the "
                "job, or cancel it"
            )

    # --- checkpoints and savepoints -----------------------------------------------------------------------------------

    def epoch_ended(self, checkpoint_id: int) -> None:
        """Lets a checkpoint serve the requests that wait; its state is that of now."""
        if self._waiting:
            self._bound[checkpoint_id] = self._waiting
            self._waiting = []

    def completing(self, checkpoint_id: int) -> None:
        """Notes that HEAD may name a checkpoint from now on, whether this attempt finds out or not."""
        self._completing = checkpoint_id

    def completed(self, metadata: CheckpointMetadata, checkpoint_ids: Sequence[int]) -> None:
        """Answers the requests that a checkpoint serves. It is complete, and the sinks have committed it.

        Args:
            metadata: The checkpoint.
            checkpoint_ids: Its id, and those of failed checkpoints in whose place it is.
        """
        self._latest = metadata
        for request in [request for number in checkpoint_ids for request in self._bound.pop(number, ())]:
            if request.order.kind is not RequestKind.SAVEPOINT:
                self._answer(request, partial(self._inbox.done, checkpoint_id=metadata.checkpoint_id))
            elif not self._given_up:
                self._copy(request, metadata, _TRIES)

    def serve_rest(self) -> bool:
        """Serves requests that came after the last epoch, with its checkpoint. Returns whether there were any."""
        if not self._waiting or self._latest is None:
            return False
        self.epoch_ended(self._latest.checkpoint_id)
        self.completed(self._latest, [self._latest.checkpoint_id])
        return True

    def _copy(self, request: Request, metadata: CheckpointMetadata, tries: int) -> None:
        order = request.order
        copy = SavepointCopy(self._savepoints, metadata, order.target, order.format_type, name_of(request))
        self._copies[request.request_id] = copy
        self._mailbox.submit(Lane.SAVEPOINT, partial(_write, request, copy, tries - 1))

    def _on_written(self, written: _Written) -> None:
        request, copy, error, latest = written.request, written.copy, written.error, self._latest
        if self._given_up or self._copies.get(request.request_id) is not copy:
            return  # the end of the attempt answers, or has answered
        del self._copies[request.request_id]
        if error is None:
            done = partial(
                self._inbox.done, checkpoint_id=copy.checkpoint.checkpoint_id, savepoint=copy.outcome.result()
            )
            self._answer(request, done)
        elif (
            isinstance(error, CorruptStateError)
            and latest is not None
            and latest.checkpoint_id != copy.checkpoint.checkpoint_id
            and not self._given_up
        ):  # a native savepoint needs a checkpoint that is still retained
            if written.tries:
                self._copy(request, latest, written.tries)
            else:
                why = "checkpoints are subsumed faster than a native savepoint is written"
                self._fail(request, RequestFailedError(why))
        else:
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        self._answer(request, partial(self._inbox.failed, error=_told(error)))

    def _answer(self, request: Request, answer: Callable[[str], object]) -> None:
        del self._open[request.request_id]
        step = partial(self._watchdog.run, "answering a request", answer, request.request_id)
        self._mailbox.submit(Lane.REQUESTS, step)

    def _end(self, request: Request, error: FlinkPyError) -> None:
        """Answers a request that is not carried out because the attempt fails or ends, unless it was, or may be."""
        copy = self._copies.pop(request.request_id, None)
        checkpoint_id = next((n for n, bound in self._bound.items() if request in bound), None)
        if request.order.kind is RequestKind.CHECKPOINT and checkpoint_id is not None:
            if checkpoint_id <= self._completing:
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

    # --- what the attempt does, while nothing runs --------------------------------------------------------------------

    def take_ending(self) -> Request | None:
        """Returns a request to stop or rescale the job, once; None if there is none."""
        self._begun, self._ending = self._ending, None
        return self._begun

    def done(self, request: Request, checkpoint_id: int | None, savepoint: str | None = None) -> None:
        """Answers that a request was carried out, unless it was not taken over from the attempt that took it."""
        if self._open.pop(request.request_id, None) is None:
            return
        self._watchdog.run("answering a request", self._inbox.done, request.request_id, checkpoint_id, savepoint)

    def failed(self, request: Request, error: Exception, stopped_with: int | None = None) -> None:
        """Answers that a request was refused, or could not be carried out, unless it was not taken over.

        Args:
            request: The request.
            error: Why not.
            stopped_with: The checkpoint with which the job has stopped all the same.
        """
        if self._open.pop(request.request_id, None) is None:
            return
        number, told = request.request_id, _told(error)
        self._watchdog.run("answering a request", self._inbox.failed, number, told, stopped_with)

    # --- restarts ----------------------------------------------------------------------------------------------------

    def restart(self, error: BaseException) -> None:
        """Answers those who wait for a checkpoint or a savepoint: the job restarts, as a whole.

        As in Flink, pending checkpoints fail (``CHECKPOINT_COORDINATOR_SUSPEND``), and a cancel takes effect at once. A
        stop, which fails in Flink, and a rescale wait for the restart.

        Args:
            error: Why it restarts.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled while it failed.
            FencedError: A newer attempt took over.
        """
        for request in list(self._open.values()):
            if request.order.kind is RequestKind.CANCEL:
                raise _cancelled(request) from error
            if request.order.kind not in _ENDINGS:
                reason = f"{type(error).__name__}: {message_of(error)}"
                kind = request.order.kind.value
                self._end(request, JobRestartedError(f"the job restarted before the {kind} was complete: {reason}"))
        self._waiting.clear()
        self._bound.clear()

    def take_over(self, former: RequestDesk) -> None:
        """Continues with the requests to an earlier attempt of the same run.

        Raises:
            FencedError: A newer attempt took over.
        """
        self._watchdog.run("taking over requests", self._inbox.take_over, former._inbox)
        for request in former._open.values():
            if not self._inbox.has_taken(request.request_id):
                continue
            self._open[request.request_id] = request
            if request is former._ending:
                self._ending = request
            elif request is former._begun:
                self._begun = request
            elif request.order.kind not in _ENDINGS:
                self._waiting.append(request)

    def close(self, error: BaseException | None) -> None:
        """Answers all requests that are left when the attempt ends.

        Args:
            error: Why it ends; None if nothing went wrong.

        Raises:
            FlinkPyError: They cannot be answered.
        """
        cancelled = isinstance(error, JobCancelledError)
        reason = "it ended" if error is None else f"{type(error).__name__}: {error}"
        for request in list(self._open.values()):
            if cancelled and request.order.kind is RequestKind.CANCEL:
                self.done(request, None)
            elif request is self._begun:  # a later run may find out that it was done
                self.failed(request, RequestOutcomeUnknownError(outcome_unknown(self._attempt.token)))
            else:
                self._end(request, JobNotRunningError(f"the run has not carried out the request, because {reason}"))
        self._watchdog.run("answering requests", self._inbox.flush)


def _cancelled(request: Request) -> JobCancelledError:
    return JobCancelledError(f"the job was cancelled on request of {request.owner!r}")


def _write(request: Request, copy: SavepointCopy, tries: int) -> _Written:
    try:
        copy.run()
    except Exception as error:  # the asker is to know; the job goes on
        return _Written(request, copy, error, tries)
    return _Written(request, copy, None, tries)


def _told(error: Exception) -> Exception:
    """Returns an error as an asker knows it."""
    return RequestOutcomeUnknownError(str(error)) if isinstance(error, SavepointOutcomeUnknownError) else error
