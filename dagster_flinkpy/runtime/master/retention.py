"""Whether checkpoints are deleted when an attempt ends."""

from __future__ import annotations

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.errors import JobCancelledError

__all__ = ["discards_checkpoints"]


def discards_checkpoints(
    retention: ExternalizedCheckpointRetention, attempt: Attempt, error: BaseException | None, *, finished: bool
) -> bool:
    """Returns whether to delete all checkpoints now (Flink: ``CheckpointProperties``).

    If the run has ended, but not the job, they are kept.
    """
    latest = attempt.latest
    if latest is not None and attempt.committed != latest.checkpoint_id:
        return False  # it still has something to commit
    if latest is not None and latest.stopped:
        return False  # only this checkpoint records that the job is stopped
    if error is None:
        return retention.discards_on_finish and finished
    cancelled = not isinstance(error, Exception) or isinstance(error, JobCancelledError)
    return retention.discards_on_cancellation if cancelled else retention.discards_on_failure
