"""A program that runs on a thread of this process, and what its client asks of it: ``env.execute_async()``.

Requests go through the store, as those of anybody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common.completable_future import CompletableFuture
from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.errors import ConfigurationError, JobCancelledError, JobNotRunningError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["BackgroundJob"]


class BackgroundJob:
    """Runs a job on a thread, and asks it for something.

    Args:
        execute: Runs the job. It calls its argument with the job's prefix when the attempt leads the job.
        ephemeral: Whether the job's prefix is deleted when the job ends.
    """

    def __init__(
        self, execute: Callable[[Callable[[StorageLocation], None]], JobExecutionResult], *, ephemeral: bool
    ) -> None:
        self._ephemeral = ephemeral
        self._job: StorageLocation | None = None
        self._cancelling = False
        self._began = threading.Event()
        """Set when the attempt leads the job, or has ended before."""
        self.result = CompletableFuture.of("flinkpy-job", self._run, execute)
        """The result of the job."""

    def _run(self, execute: Callable[[Callable[[StorageLocation], None]], JobExecutionResult]) -> JobExecutionResult:
        try:
            return execute(self._on_began)
        finally:
            self._began.set()

    def _on_began(self, job: StorageLocation) -> None:
        self._job = job
        self._began.set()

    def status(self) -> JobStatus:
        """Returns the current status."""
        if not self.result.done():
            if self._cancelling:
                return JobStatus.CANCELLING
            return JobStatus.CREATED if self._job is None else JobStatus.RUNNING
        error = self.result.exception()
        if error is None:
            return JobStatus.FINISHED
        return JobStatus.CANCELED if isinstance(error, JobCancelledError) else JobStatus.FAILED

    def cancel(self) -> None:
        """Cancels the job, and waits until it has ended.

        Raises:
            RequestFailedError: The job has ended before.
        """
        asker = self._asker()
        self._cancelling = True
        asker.ask(Order(RequestKind.CANCEL))
        self.result.exception()

    def savepoint(self, directory: str | None) -> str:
        """Takes a savepoint, and returns its URL.

        Raises:
            ConfigurationError: The savepoint would be deleted when the job ends.
            RequestFailedError: The job cannot take one, or has ended.
        """
        return self._url(Order(RequestKind.SAVEPOINT, target=self._target(directory)))

    def stop(self, directory: str | None, *, drain: bool) -> str:
        """Stops the job with a savepoint, waits until it has ended, and returns the URL.

        Raises:
            ConfigurationError: The savepoint would be deleted when the job ends.
            RequestFailedError: The job cannot be stopped, or has ended.
        """
        url = self._url(Order(RequestKind.STOP, target=self._target(directory), drain=drain))
        self.result.exception()
        return url

    def _target(self, directory: str | None) -> str | None:
        if directory is not None:
            return StorageLocation(directory).url
        if self._ephemeral:
            raise ConfigurationError(
                "the savepoint needs a folder: without a checkpoint directory, everything of the job is deleted when "
                "it ends. Give the call a folder, or the program env.get_checkpoint_config()."
                "set_checkpoint_storage_dir(...)"
            )
        return None

    def _url(self, order: Order) -> str:
        savepoint = self._asker().ask(order).savepoint
        assert savepoint is not None
        return savepoint

    def _asker(self) -> JobRequests:
        self._began.wait()
        if self._job is None or self.result.done():
            raise JobNotRunningError(f"the job has ended: it is {self.status().name}")
        return JobRequests(self._job, "env.execute_async()")
