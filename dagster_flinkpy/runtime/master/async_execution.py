"""A program that runs on a thread of this process, and what its client asks of it: ``env.execute_async()``.

Requests go through the store, as those of anybody else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dagster_flinkpy.checkpoint.requests import Answer, JobRequests, Order, RequestKind
from dagster_flinkpy.common.completable_future import CompletableFuture
from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.errors import ConfigurationError, JobCancelledError, JobNotRunningError, message_of
from dagster_flinkpy.storage import StorageLocation

__all__ = ["BackgroundJob"]

_log = logging.getLogger(__name__)


class BackgroundJob:
    """Runs a job on a thread, and asks it for something.

    Args:
        execute: Runs the job. It calls :meth:`began` of its argument when the attempt leads the job, and
            :meth:`wait_until_answered` when the attempt has ended, before it deletes anything.
        ephemeral: Whether the job's prefix is deleted when the job ends.
    """

    def __init__(self, execute: Callable[[BackgroundJob], JobExecutionResult], *, ephemeral: bool) -> None:
        self._ephemeral = ephemeral
        self._job: StorageLocation | None = None
        self._status: Callable[[], JobStatus] | None = None
        self._cancelling = False
        self._began = threading.Event()
        """Set when the attempt leads the job, or has ended before."""
        self._asking = 0
        self._ended = False
        """Whether nobody may ask any more."""
        self._answered = threading.Condition()
        self.result = CompletableFuture.of("flinkpy-job", self._run, execute)
        """The result of the job."""

    def _run(self, execute: Callable[[BackgroundJob], JobExecutionResult]) -> JobExecutionResult:
        try:
            return execute(self)
        except Exception as error:
            if not isinstance(error, JobCancelledError):
                # The program may ask for the result much later, or never.
                _log.error("the job has failed: %s: %s", type(error).__name__, message_of(error))
            raise
        finally:
            self.wait_until_answered()
            self._began.set()

    def began(self, job: StorageLocation, status: Callable[[], JobStatus]) -> None:
        """The attempt leads the job."""
        self._job, self._status = job, status
        self._began.set()

    def wait_until_answered(self) -> None:
        """Waits until all who asked have read the answers, which are in the job's prefix."""
        with self._answered:
            self._answered.wait_for(lambda: self._asking == 0)
            self._ended = True

    def status(self) -> JobStatus:
        """Returns the current status."""
        if not self.result.done():
            if self._cancelling:
                return JobStatus.CANCELLING
            if self._status is None:
                return JobStatus.CREATED
            now = self._status()
            # It is only over, or suspended, when its result is there.
            return now if now in (JobStatus.RESTARTING, JobStatus.FAILING) else JobStatus.RUNNING
        if (error := self.result.exception()) is None:
            return JobStatus.FINISHED
        return JobStatus.CANCELED if isinstance(error, JobCancelledError) else JobStatus.FAILED

    def cancel(self) -> None:
        """Cancels the job, and waits until it has ended.

        Raises:
            RequestFailedError: The job has ended before.
        """
        self._ask(Order(RequestKind.CANCEL))
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
        savepoint = self._ask(order).savepoint
        assert savepoint is not None
        return savepoint

    def _ask(self, order: Order) -> Answer:
        self._began.wait()
        with self._answered:
            ended = self._ended
            self._asking += not ended
        if ended or self._job is None:
            self.result.exception()
            raise JobNotRunningError(f"the job has ended: it is {self.status().name}")
        self._cancelling = self._cancelling or order.kind is RequestKind.CANCEL
        try:
            return JobRequests(self._job, "env.execute_async()").ask(order)
        finally:
            with self._answered:
                self._asking -= 1
                self._answered.notify_all()
