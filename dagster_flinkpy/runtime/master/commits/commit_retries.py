"""Commits the requests of a sink, and tries again what it could not commit (Flink: ``CommitterOperator``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitRequestState, Committer
from dagster_flinkpy.errors import CommittableLostError, SinkCommitError

__all__ = ["MAX_RETRIES", "commit_requests"]

_log = logging.getLogger(__name__)

MAX_RETRIES = 10
"""How often a committable is tried again (Flink: ``sink.committer.retries``)."""

_FAILED = (CommitRequestState.FAILED_WITH_KNOWN_REASON, CommitRequestState.FAILED_WITH_UNKNOWN_REASON)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds. Each pause is twice as long as the one before."""


_sleep = time.sleep


def commit_requests(
    committer: Committer, requests: Iterable[CommitRequest], sink: str, *, replaced: tuple[int, int] | None = None
) -> int:
    """Commits requests, one checkpoint after the other. A checkpoint that fails stops those after it.

    Args:
        committer: The committer of the sink.
        requests: The requests, in any order.
        sink: The uid of the sink, for messages.
        replaced: Between which checkpoints are those whose rows are replaced. Default: none are.

    Returns:
        How many had already been committed.

    Raises:
        CommittableLostError: A request can never be committed. All others of its checkpoint are committed.
        SinkCommitError: A request is not committed, or it is unknown whether it is.
    """
    already, ordered = 0, sorted(requests, key=attrgetter("checkpoint_id", "subtask"))
    for _, group in groupby(ordered, key=lambda request: request.checkpoint_id):
        of_checkpoint = list(group)
        _commit(committer, of_checkpoint, sink, replaced)
        already += sum(request.state is CommitRequestState.ALREADY_COMMITTED for request in of_checkpoint)
        # What a later attempt can mend is reported before what is lost for good.
        for state in (
            CommitRequestState.RETRY,
            CommitRequestState.FAILED_WITH_UNKNOWN_REASON,
            CommitRequestState.FAILED_WITH_KNOWN_REASON,
        ):
            for request in of_checkpoint:
                if request.state is state:
                    raise _error(sink, request) from request.error
    return already


def _commit(committer: Committer, requests: list[CommitRequest], sink: str, replaced: tuple[int, int] | None) -> None:
    pending = requests
    while pending:
        for request in pending:
            request.state, request.error = CommitRequestState.RECEIVED, None
        if replaced is None or any(request.state in _FAILED for request in requests):
            committer.commit(pending)  # what is lost replaces nothing
        else:
            committer.replace_epochs(pending[0].checkpoint_id, pending, *replaced)
        pending = [r for r in pending if r.state is CommitRequestState.RETRY and r.number_of_retries < MAX_RETRIES]
        if pending:
            first = pending[0]
            pause = min(_FIRST_PAUSE * 2**first.number_of_retries, _LONGEST_PAUSE)
            _log.warning(
                "sink %r cannot commit its output of checkpoint %d now (try %d of %d); it tries again in %g s: %s",
                *(sink, first.checkpoint_id, first.number_of_retries + 1, MAX_RETRIES + 1, pause, first.error),
            )
            _sleep(pause)
        for request in pending:
            request.number_of_retries += 1


def _error(sink: str, request: CommitRequest) -> SinkCommitError:
    lost = request.state is CommitRequestState.FAILED_WITH_KNOWN_REASON
    if isinstance(request.error, CommittableLostError if lost else SinkCommitError):
        return request.error
    kind = CommittableLostError if lost else SinkCommitError
    where = f"sink {sink!r} cannot commit its output of checkpoint {request.checkpoint_id} (subtask {request.subtask})"
    tries = f" after {request.number_of_retries + 1} tries" if request.state is CommitRequestState.RETRY else ""
    why = "" if request.error is None else f": {str(request.error).rstrip('.') or type(request.error).__name__}"
    advice = (
        f". Restore a savepoint or an older checkpoint to write the rows again, or 'chk-{request.checkpoint_id}' to "
        "continue without them."
        if lost
        else ". The checkpoint keeps it; run again."
    )
    return kind(f"{where}{tries}{why}{advice}")
