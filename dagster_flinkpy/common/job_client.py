"""The client of a job that runs in the background (``pyflink.common.job_client``)."""

from __future__ import annotations

from typing import Protocol

from dagster_flinkpy.common.completable_future import CompletableFuture
from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.job_status import JobStatus

__all__ = ["JobClient", "JobControl"]


class JobControl(Protocol):
    """What a client needs of a job; the methods wait."""

    result: CompletableFuture[JobExecutionResult]

    def status(self) -> JobStatus:
        """Returns the current status. Does not wait."""

    def cancel(self) -> None:
        """Cancels the job, and waits until it has ended."""

    def savepoint(self, directory: str | None) -> str:
        """Takes a savepoint, and returns its URL."""

    def stop(self, directory: str | None, *, drain: bool) -> str:
        """Stops the job with a savepoint, and returns its URL."""


class JobClient:
    """The client of a job that ``env.execute_async()`` has started. The job ends with this process at the latest.

    Args:
        job_id: Id of the job.
        control: Reaches the job.
    """

    def __init__(self, job_id: str, control: JobControl) -> None:
        self._job_id, self._control = job_id, control

    def get_job_id(self) -> str:
        """Returns the id of the job."""
        return self._job_id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """Returns the status of the job: any but SUSPENDED."""
        return CompletableFuture.of("flinkpy-status", self._control.status)

    def cancel(self) -> CompletableFuture[None]:
        """Cancels the job. Its checkpoints are treated as the program's retention says for a cancelled job."""
        return CompletableFuture.of("flinkpy-cancel", self._control.cancel)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Takes a savepoint of the running job.

        Args:
            savepoint_directory: The folder to write to. Default: the job's folder in the checkpoint directory.

        Returns:
            The URL of the savepoint. Its errors are those of a
            [request](../checkpoints.md#requests-to-a-running-job), or a ConfigurationError if the program has neither a
            checkpoint directory nor is given a folder.
        """
        return CompletableFuture.of("flinkpy-savepoint", self._control.savepoint, savepoint_directory)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Stops the job with a savepoint.

        Args:
            advance_to_end_of_event_time: Whether to fire all timers and windows first.
            savepoint_directory: See :meth:`trigger_savepoint`.

        Returns:
            The URL of the savepoint.
        """
        stop, drain = self._control.stop, advance_to_end_of_event_time
        return CompletableFuture.of("flinkpy-stop", stop, savepoint_directory, drain=drain)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """Returns the result of the job to come. If the job fails or is cancelled, ``result()`` raises its error."""
        return self._control.result
