"""Requests to the running attempt of a job, through the job's store.

A request is the object ``requests/{id}/request``, and its answer is beside it. Both are created with If-None-Match:

- An attempt takes a request by creating the answer, with the state ``accepted`` and its fencing token. It carries the
  request out, and then replaces the answer. So a request is carried out at most once: a later attempt that finds it
  accepted by an older one answers that the outcome is unknown. If the job restarts inside a run, the next attempt of
  the run puts its own token into the answer, and carries the request out.
- An asker withdraws a request by creating the answer itself.

Whoever is done with both deletes the request first. So an answer may be without its request, but a request that was
answered is never there without its answer.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from dagster_flinkpy.common.clock import current_millis, datetime_of_millis, to_millis
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    ConfigurationError,
    JobNotRunningError,
    JobRestartedError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    RequestTimeoutError,
    StorageError,
    UnknownRequestError,
)
from dagster_flinkpy.json_records import Count, Json, JsonRecord, Millis, load_object
from dagster_flinkpy.storage import StorageLocation, lease
from dagster_flinkpy.storage.object_store import put_if

__all__ = [
    "DEFAULT_TIMEOUT",
    "MAX_REQUESTS",
    "REQUESTS_FOLDER",
    "Answer",
    "AnswerState",
    "JobRequests",
    "Order",
    "Request",
    "RequestKind",
    "answer_key",
    "id_of",
    "name_of",
    "outcome_unknown",
    "request_key",
]

REQUESTS_FOLDER = "requests/"
"""The folder of requests and answers, below the job's prefix."""
MAX_REQUESTS = 1000
"""How many requests to a job there may be at once (Flink: ``CheckpointRequestDecider`` queues as many)."""
DEFAULT_TIMEOUT = timedelta(minutes=10)
"""How long a request is valid, unless the asker says otherwise."""
_VERSION = 1
_LOOK_SECONDS = 1.0
"""Time between two looks at an answer."""
_GRACE_MS = 10_000
"""How long an asker waits for the next attempt if the one at work has ended."""
_KEY = re.compile(r"requests/(\d{13}-[0-9a-f]{12})/(request|answer)")


class RequestKind(str, Enum):
    """What a running job can be asked for."""

    CHECKPOINT = "checkpoint"
    """The next checkpoint, without waiting for the checkpoint interval."""
    SAVEPOINT = "savepoint"
    """The next checkpoint, also as a savepoint. The job runs on."""
    STOP = "stop"
    """A last checkpoint, also as a savepoint, and the end of the job."""
    CANCEL = "cancel"
    """The end of the run, without a checkpoint."""
    RESCALE = "rescale"
    """Another parallelism. The job continues from a checkpoint, in the same run."""


@dataclass(frozen=True)
class Order(JsonRecord):
    """What a job is asked to do."""

    kind: RequestKind
    target: str | None = None
    """SAVEPOINT and STOP: the folder to write to, as a URL. Default: the job's prefix."""
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    """SAVEPOINT and STOP: whether the savepoint is self-contained or refers to files of the job's checkpoints."""
    drain: bool = False
    """STOP: whether to end event time first, so that all timers and windows fire. Default: False."""
    parallelism: Count | None = None
    """RESCALE: the subtasks of each operator that sets no parallelism itself."""

    def __post_init__(self) -> None:
        """Checks that the arguments fit the kind.

        Raises:
            ConfigurationError: They do not.
        """
        if (self.parallelism is None) is (self.kind is RequestKind.RESCALE):
            raise ConfigurationError(f"a request to {self.kind.value} a job has a parallelism only if it is a rescale")
        if self.parallelism is not None and self.parallelism < 1:
            raise ConfigurationError(f"parallelism must be at least 1, not {self.parallelism}")
        if self.drain and self.kind is not RequestKind.STOP:
            raise ConfigurationError(f"only a job that stops is drained, not one that is asked for: {self.kind.value}")
        if self.target is not None and self.kind not in (RequestKind.SAVEPOINT, RequestKind.STOP):
            raise ConfigurationError(f"a request of kind {self.kind.value!r} writes no savepoint, so it has no target")
        if self.target is not None:
            StorageLocation(self.target)  # raises if it is no place


@dataclass(frozen=True)
class _Asked(JsonRecord):
    owner: str
    expires_at: Millis


@dataclass(frozen=True)
class Request:
    """A request as it is stored."""

    request_id: str
    order: Order
    owner: str
    """Who asks, in a form that people understand."""
    expires_at: int
    """From when on no attempt may take it, in milliseconds since 1970."""

    def to_bytes(self) -> bytes:
        """Encodes the request."""
        fields = {"request_id": self.request_id, "owner": self.owner, "expires_at": self.expires_at}
        return json.dumps({"version": _VERSION, **fields, **self.order.to_json()}).encode()

    @staticmethod
    def from_bytes(data: bytes, request_id: str) -> Request:
        """Decodes a request.

        Raises:
            UnknownRequestError: It is not a request, or one of another release.
        """
        try:
            raw = _load(data)
            asked = _Asked.from_json(raw)
            return Request(request_id, Order.from_json(raw), asked.owner, asked.expires_at)
        except (ValueError, PathEscapesPrefixError) as error:
            raise UnknownRequestError(
                f"request {request_id} cannot be carried out: {error}. Ask with the release that the job runs with"
            ) from error


class AnswerState(str, Enum):
    """How far a request is."""

    ACCEPTED = "accepted"
    """An attempt has taken it, and is carrying it out."""
    DONE = "done"
    FAILED = "failed"
    """It was refused, or could not be carried out."""
    WITHDRAWN = "withdrawn"
    """The asker has withdrawn it; no attempt carries it out."""


@dataclass(frozen=True)
class Answer(JsonRecord):
    """What became of a request."""

    request_id: str
    state: AnswerState
    attempt: Count = 0
    """The fencing token of the attempt that answers; 0 if the asker has withdrawn the request."""
    checkpoint_id: Count | None = None
    """The checkpoint that was taken. It is complete, and the sinks have committed it. If a stop has FAILED, the job has
    stopped with it nevertheless, but its savepoint could not be written."""
    savepoint: str | None = None
    """The URL of the savepoint that was written."""
    error: str = ""
    """FAILED: the class of the error."""
    message: str = ""
    """FAILED: what is wrong, and what to do."""
    nonce: str = ""
    """Random, so that no two writers write the same answer."""

    @property
    def final(self) -> bool:
        """Whether the answer does not change any more."""
        return self.state is not AnswerState.ACCEPTED

    def to_json(self) -> dict[str, Json]:
        return {"version": _VERSION, **super().to_json()}

    @staticmethod
    def from_bytes(data: bytes, request_id: str) -> Answer:
        """Decodes an answer.

        Raises:
            UnknownRequestError: It is not an answer, or one of another release.
        """
        try:
            return Answer.from_json({**_load(data), "request_id": request_id})
        except ValueError as error:
            raise UnknownRequestError(f"the answer to request {request_id} cannot be read: {error}") from error


def _load(data: bytes) -> dict[str, Json]:
    raw = load_object(data)
    if (version := raw.get("version")) != _VERSION:
        raise ValueError(f"it has version {version!r:.40}, and this release knows version {_VERSION}")
    return raw


def name_of(request: Request) -> str:
    """Returns the last part of the name of the savepoint that is written for a request."""
    return request.request_id.rpartition("-")[2]


def request_key(request_id: str) -> str:
    """Returns the key of a request, relative to the job's prefix."""
    return f"{REQUESTS_FOLDER}{request_id}/request"


def answer_key(request_id: str) -> str:
    """Returns the key of an answer, relative to the job's prefix."""
    return f"{REQUESTS_FOLDER}{request_id}/answer"


def id_of(key: str) -> tuple[str, bool] | None:
    """Returns the id that a key belongs to, and whether the object is the request; None for another object."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], found[2] == "request")


class JobRequests:
    """Asks the running attempt of a job for something.

    Args:
        job: The job's prefix.
        owner: Who asks, in a form that people understand.
        now: Returns the time, in milliseconds since 1970.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        job: StorageLocation,
        owner: str,
        *,
        now: Callable[[], int] = current_millis,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = job.open()
        self._owner, self._now, self._sleep = owner, now, sleep
        self._last = 0

    def running(self) -> lease.LeaderRecord | None:
        """Returns the attempt that is at work, or None."""
        leader = lease.read(self._store)
        return leader if leader is not None and leader.alive(self._now()) else None

    def waiting(self) -> list[Request]:
        """Returns the requests that no attempt has taken, and that one may still take.

        Raises:
            UnknownRequestError: One is of another release.
        """
        found = [each for info in self._store.list(REQUESTS_FOLDER) if (each := id_of(info.key)) is not None]
        answered = {request_id for request_id, is_request in found if not is_request}
        waiting: list[Request] = []
        for request_id in sorted(request_id for request_id, is_request in found if is_request):
            if request_id not in answered:
                with suppress(ObjectNotFoundError):  # withdrawn just now
                    waiting.append(Request.from_bytes(self._store.get(request_key(request_id))[0], request_id))
        return [request for request in waiting if self._now() < request.expires_at]

    def submit(self, order: Order, timeout: timedelta = DEFAULT_TIMEOUT) -> str:
        """Asks for something, and does not wait for it.

        Args:
            order: What to ask for.
            timeout: How long an attempt may take it. Default: 10 minutes.

        Returns:
            The id of the request.

        Raises:
            JobNotRunningError: No attempt is at work.
            RequestFailedError: There are too many requests to this job.
        """
        if self.running() is None:
            raise self._not_running()
        there = sum(1 for info in self._store.list(REQUESTS_FOLDER) if info.key.endswith("/request"))
        if there >= MAX_REQUESTS:
            raise RequestFailedError(f"{there} requests to {self._store.url} have not been answered or fetched yet")
        self._last = now = max(self._now(), self._last + 1)  # requests are carried out in the order of their ids
        request_id = f"{now:013d}-{secrets.token_hex(6)}"
        request = Request(request_id, order, self._owner, now + to_millis(timeout))
        put_if(self._store, request_key(request_id), request.to_bytes(), None)
        return request_id

    def answer(self, request_id: str) -> Answer | None:
        """Returns the answer so far, or None if no attempt has taken the request yet. Does not wait.

        Raises:
            UnknownRequestError: The answer cannot be read.
        """
        try:
            return Answer.from_bytes(self._store.get(answer_key(request_id))[0], request_id)
        except ObjectNotFoundError:
            return None

    def withdraw(self, request_id: str) -> Answer | None:
        """Withdraws a request that no attempt has taken.

        Returns:
            None: no attempt carries it out. Otherwise the answer of the attempt that took it before.
        """
        withdrawn = Answer(request_id, AnswerState.WITHDRAWN, nonce=secrets.token_hex(8))
        try:
            put_if(self._store, answer_key(request_id), withdrawn.to_bytes(), None)
        except PreconditionFailedError:
            return self.answer(request_id)
        self._forget(request_id)
        return None

    def ask(self, order: Order, timeout: timedelta = DEFAULT_TIMEOUT) -> Answer:
        """Asks for something, and waits until it is done; see :meth:`submit` and :meth:`wait`."""
        return self.wait(self.submit(order, timeout), timeout)

    def wait(self, request_id: str, timeout: timedelta = DEFAULT_TIMEOUT) -> Answer:
        """Waits until a request is done, and deletes it with its answer.

        Args:
            request_id: The request.
            timeout: How long to wait. Default: 10 minutes.

        Raises:
            RequestFailedError: The job refused it, or could not carry it out. The message has the reason.
            UnknownRequestError: The job does not know such requests.
            JobNotRunningError: The attempt at work ended, and no other one began. The request is withdrawn.
            JobRestartedError: The job restarted before the checkpoint was complete.
            RequestTimeoutError: The time is over. The message says whether the request is withdrawn.
            RequestOutcomeUnknownError: An attempt took it, and ended without an answer.
        """
        deadline, gone_since = self._now() + to_millis(timeout), None
        while True:
            leader = self.running()
            answer = self.answer(request_id)  # after the lease: an attempt answers before it gives the lease up
            if answer is not None and answer.final:
                return self._end(answer)
            now = self._now()
            if leader is not None and (answer is None or leader.token == answer.attempt):
                gone_since = None
            elif gone_since is None:
                gone_since = now
            elif now >= gone_since + _GRACE_MS:
                if answer is None and (answer := self.withdraw(request_id)) is None:
                    raise self._not_running()
                return self._end(answer)
            if now >= deadline:
                if answer is None and (answer := self.withdraw(request_id)) is None:
                    raise RequestTimeoutError(
                        f"{self._store.url}: no run took the request within {timeout}, and it is withdrawn. "
                        f"{self._leader()} Between its checkpoints a run looks for requests; if it is dead, run "
                        f"'flinkpy leader release --force {self._store.url}'"
                    )
                if not answer.final:
                    raise RequestTimeoutError(
                        f"{self._store.url}: the run took request {request_id}, but has not carried it out within "
                        f"{timeout}. It may still do so. {self._leader()}"
                    )
                return self._end(answer)
            self._sleep(_LOOK_SECONDS)

    def _end(self, answer: Answer) -> Answer:
        self._forget(answer.request_id)
        match answer.state:
            case AnswerState.DONE:
                return answer
            case AnswerState.WITHDRAWN:
                raise RequestFailedError(f"request {answer.request_id} was withdrawn")
            case AnswerState.ACCEPTED:
                raise RequestOutcomeUnknownError(outcome_unknown(answer.attempt))
        raise _ERRORS.get(answer.error, RequestFailedError)(answer.message)

    def _forget(self, request_id: str) -> None:
        with suppress(StorageError):  # the next sweep deletes them
            self._store.delete(request_key(request_id))
            self._store.delete(answer_key(request_id))

    def _not_running(self) -> JobNotRunningError:
        return JobNotRunningError(
            f"{self._store.url}: no run of the job is at work, so nobody can carry out the request. {self._leader()} "
            "Start the job, or use the command without a running job ('flinkpy savepoint')"
        )

    def _leader(self) -> str:
        leader = lease.read(self._store)
        if leader is None:
            return (
                "No run has ever led the job. Is it the folder of one? 'flinkpy job list "
                f"{self._store.url.rpartition('/')[0]}' shows the jobs there."
            )
        if leader.expires_at == 0:
            return f"The last run, {leader.owner!r}, has ended."
        until = datetime_of_millis(leader.expires_at).isoformat(timespec="seconds")
        return f"The lease of {leader.owner!r} lasts until {until}."


_ERRORS: dict[str, Callable[[str], RequestFailedError]] = {
    error.__name__: error
    for error in (
        JobNotRunningError,
        JobRestartedError,
        RequestOutcomeUnknownError,
        RequestTimeoutError,
        UnknownRequestError,
    )
}


def outcome_unknown(attempt: int) -> str:
    """Returns the message for a request that an attempt has taken, but not answered.

    Args:
        attempt: The fencing token of the attempt.
    """
    return (
        f"attempt {attempt} took the request, and its lease ended before it answered, so nobody knows whether it was "
        "carried out. If its run was only slow, it may still do so; no other run does. 'flinkpy checkpoints list' "
        "shows the latest checkpoint and the savepoints. Ask again if it was not"
    )
