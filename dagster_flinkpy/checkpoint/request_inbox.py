"""How the attempt at work takes requests from the job's store, and answers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from dagster_flinkpy.checkpoint.requests import (
    REQUESTS_FOLDER,
    Answer,
    AnswerState,
    Request,
    answer_key,
    id_of,
    outcome_unknown,
    request_key,
)
from dagster_flinkpy.common.clock import epoch_millis, to_millis
from dagster_flinkpy.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RequestOutcomeUnknownError,
    RequestTimeoutError,
    StorageError,
    UnknownRequestError,
    message_of,
)
from dagster_flinkpy.storage.object_store import ObjectStore, put_if

__all__ = ["RequestInbox"]

_MAX_BYTES = 65_536
_KEPT_MS = to_millis(timedelta(days=1))
"""How long answers are kept that nobody has fetched."""


class RequestInbox:
    """The requests to one execution attempt. It is used by one thread at a time.

    Args:
        store: The object store, rooted at the job's prefix.
        token: The fencing token of the attempt.
        nonce: Distinguishes the attempt from others with the same token, whose ``leader`` object was deleted.
        check_leader: Raises a FencedError if a newer attempt took over.
        now: Returns the time, in milliseconds since 1970.
    """

    def __init__(
        self, store: ObjectStore, token: int, nonce: str, check_leader: Callable[[], object], now: Callable[[], int]
    ) -> None:
        self._store, self._token, self._nonce = store, token, nonce
        self._check_leader, self._now = check_leader, now
        self._known: set[str] = set()
        """Requests that this attempt has taken, or need not look at again."""
        self._taken: dict[str, str] = {}
        """The ETags of the answers to requests that are being carried out."""
        self._ready: list[Request] = []
        """Requests that were taken and not returned yet."""
        self._unsent: dict[str, Answer] = {}
        """Answers that have not been written yet."""

    def poll(self) -> list[Request]:
        """Takes the requests that have come, the oldest first. Needs one listing if there are none.

        Raises:
            FencedError: A newer attempt took over; nothing is taken or answered.
            StorageError: The store failed. Requests that were taken are returned by the next call.
        """
        self.flush()
        requests: dict[str, int] = {}
        answered: dict[str, int] = {}
        for info in self._store.list(REQUESTS_FOLDER):
            if (found := id_of(info.key)) is not None:
                request_id, is_request = found
                if is_request:
                    requests[request_id] = info.size
                else:
                    answered[request_id] = epoch_millis(info.last_modified)
        self._known &= {*requests, *self._taken}
        new = sorted(requests.keys() - self._known)
        # The age of an answer, not of its id: the clock of the asker may be wrong.
        old = sorted(each for each in answered.keys() - self._taken.keys() if answered[each] < self._now() - _KEPT_MS)
        if not new and not old and not self._ready:
            return []
        self._check_leader()
        for request_id in new:
            mine = self._settle(request_id) if request_id in answered else self._accept(request_id)
            if mine is not None:
                self._read(request_id, mine, requests[request_id])
            self._known.add(request_id)
        for request_id in old:
            self._store.delete(request_key(request_id))
            self._store.delete(answer_key(request_id))
        ready, self._ready = self._ready, []
        return ready

    def take_over(self, former: RequestInbox) -> None:
        """Continues with what an earlier attempt of the same run has taken and not answered; see :meth:`has_taken`.

        Args:
            former: The inbox of that attempt, which is no longer used.

        Raises:
            FencedError: A newer attempt took over.
        """
        self._check_leader()
        for request_id, etag in former._taken.items():
            accepted = Answer(request_id, AnswerState.ACCEPTED, self._token, nonce=self._nonce)
            try:
                self._taken[request_id] = put_if(self._store, answer_key(request_id), accepted.to_bytes(), etag)
            except StorageError:
                continue  # the asker no longer waits; or the next poll finds out what was written
            self._known.add(request_id)
            if (answer := former._unsent.get(request_id)) is not None:
                self._unsent[request_id] = replace(answer, attempt=self._token, nonce=self._nonce)
        self._ready += [request for request in former._ready if request.request_id in self._taken]

    def has_taken(self, request_id: str) -> bool:
        """Returns whether this attempt has taken a request, and not written the answer."""
        return request_id in self._taken

    def _accept(self, request_id: str) -> str | None:
        """Takes a request. Returns the ETag of the answer, or None if another attempt or the asker was faster."""
        accepted = Answer(request_id, AnswerState.ACCEPTED, self._token, nonce=self._nonce)
        try:
            return put_if(self._store, answer_key(request_id), accepted.to_bytes(), None)
        except PreconditionFailedError:
            return None

    def _settle(self, request_id: str) -> str | None:
        """Answers a request that a dead attempt has taken. Returns the ETag if it was this attempt, in vain."""
        try:
            data, etag = self._store.get(answer_key(request_id))
            answer = Answer.from_bytes(data, request_id)
        except (ObjectNotFoundError, UnknownRequestError):
            return None
        if answer.final or answer.attempt > self._token:
            return None
        if (answer.attempt, answer.nonce) == (self._token, self._nonce):
            return etag
        unknown = RequestOutcomeUnknownError(outcome_unknown(answer.attempt))
        self._write(self._failed(request_id, unknown), etag)
        return None

    def _read(self, request_id: str, etag: str, size: int) -> None:
        """Reads a request that was taken, and finds out whether it is to be carried out."""
        try:
            if size > _MAX_BYTES:
                raise UnknownRequestError(f"request {request_id} has {size:,} bytes; at most {_MAX_BYTES:,} are read")
            try:
                data = self._store.get(request_key(request_id))[0]
            except AccessDeniedError as error:  # another look would not help, and others would wait for it
                raise UnknownRequestError(f"request {request_id} cannot be carried out: {error}") from error
            request = Request.from_bytes(data, request_id)
            if request.expires_at <= (now := self._now()):
                raise RequestTimeoutError(
                    f"the request expired {now - request.expires_at} ms before the run looked at it, and was not "
                    "carried out. Ask again; if that happens again, compare the clocks of the two machines"
                )
        except ObjectNotFoundError:
            self._store.delete(answer_key(request_id))  # the asker withdrew it, and deleted its own answer
        except (UnknownRequestError, RequestTimeoutError) as error:
            self._write(self._failed(request_id, error), etag)
        else:
            self._taken[request_id] = etag
            self._ready.append(request)

    def done(self, request_id: str, checkpoint_id: int | None = None, savepoint: str | None = None) -> None:
        """Answers that a request was carried out.

        Args:
            request_id: The request.
            checkpoint_id: The completed and committed checkpoint that was taken for it, or None.
            savepoint: The URL of the savepoint that was written for it, or None.
        """
        answer = Answer(request_id, AnswerState.DONE, self._token, checkpoint_id, savepoint, nonce=self._nonce)
        self._answer(answer)

    def failed(self, request_id: str, error: BaseException, stopped_with: int | None = None) -> None:
        """Answers that a request was refused, or could not be carried out.

        Args:
            request_id: The request.
            error: Why not.
            stopped_with: The checkpoint with which the job has stopped all the same, without a savepoint.
        """
        self._answer(replace(self._failed(request_id, error), checkpoint_id=stopped_with))

    def _failed(self, request_id: str, error: BaseException) -> Answer:
        name, message = type(error).__name__, message_of(error)
        return Answer(request_id, AnswerState.FAILED, self._token, error=name, message=message, nonce=self._nonce)

    def _answer(self, answer: Answer) -> None:
        self._unsent.setdefault(answer.request_id, answer)
        self.flush()

    def flush(self) -> None:
        """Writes the answers that could not be written so far. If the store fails again, the next call tries again.

        Raises:
            FencedError: A newer attempt took over, and answers these requests.
        """
        if not self._unsent:
            return
        try:
            self._check_leader()
            for request_id, answer in list(self._unsent.items()):
                self._write(answer, self._taken[request_id])
                del self._unsent[request_id], self._taken[request_id]
        except StorageError:
            return

    def _write(self, answer: Answer, etag: str) -> None:
        try:
            put_if(self._store, answer_key(answer.request_id), answer.to_bytes(), etag)
        except (PreconditionFailedError, ObjectNotFoundError):
            return  # the asker no longer waits, or a newer attempt has answered
