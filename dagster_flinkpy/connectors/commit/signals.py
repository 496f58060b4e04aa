"""What a committer says about requests that it could not commit."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_flinkpy.datastream.connectors.base import CommitRequest
from dagster_flinkpy.errors import CommittableLostError, SinkCommitError, StorageError

__all__ = ["signal_failure"]


def signal_failure(
    requests: Sequence[CommitRequest], error: Exception, *, retried: tuple[type[Exception], ...] = ()
) -> None:
    """Signals why requests are not committed: they are lost, nobody knows or can help now, or trying again may help.

    Args:
        requests: The requests.
        error: Why. It is raised if it is none of these.
        retried: What the client of the target raises if trying again may help. A `StorageError` always may.
    """
    for request in requests:
        if isinstance(error, CommittableLostError):
            request.signal_failed_with_known_reason(error)
        elif isinstance(error, SinkCommitError):
            request.signal_failed_with_unknown_reason(error)
        elif isinstance(error, (StorageError, *retried)):
            request.retry_later(error)
        elif isinstance(error, (KeyError, TypeError, ValueError)):  # of a committable, or of the target's metadata
            request.signal_failed_with_unknown_reason(error)
        else:
            raise error
