"""The states of a job (PyFlink: ``pyflink.common.job_status``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["JobStatus"]


class JobStatus(Enum):
    """The states of a job.

    Flink's ``INITIALIZING`` and ``RECONCILING`` are missing: there is no dispatcher, and no task outlives its master.
    """

    CREATED = 0
    """No task has been scheduled yet."""
    RUNNING = 1
    """Some tasks are scheduled or running; others may wait or be finished."""
    FAILING = 2
    """The job has failed for good, and its tasks are being canceled."""
    FAILED = 3
    """The job has failed for good."""
    CANCELLING = 4
    """The job was canceled, and its tasks are being canceled."""
    CANCELED = 5
    """The job was canceled."""
    FINISHED = 6
    """All tasks have finished: the input has ended, or the job was stopped with a savepoint."""
    RESTARTING = 7
    """Some tasks have failed and wait for their restart."""
    SUSPENDED = 8
    """The attempt is over, but the job is not: its run has ended, or a newer attempt has taken over."""

    def is_terminal_state(self) -> bool:
        """Returns whether the current attempt does nothing more for the job."""
        return self is JobStatus.SUSPENDED or self.is_globally_terminal_state()

    def is_globally_terminal_state(self) -> bool:
        """Returns whether the job has ended."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)
