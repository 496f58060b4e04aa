"""Asks jobs that run on for checkpoints: one at a time, whatever the number of ticks meanwhile."""

from __future__ import annotations

from datetime import timedelta

from dagster_flinkpy.checkpoint.requests import DEFAULT_TIMEOUT, JobRequests, Order, RequestKind
from dagster_flinkpy.common.clock import current_millis, to_millis
from dagster_flinkpy.errors import JobNotRunningError, RequestFailedError
from dagster_flinkpy.orchestration.sensors.targets import JobCursor
from dagster_flinkpy.storage import StorageLocation

__all__ = ["CheckpointRequests"]


class CheckpointRequests(JobCursor):
    """The open requests of a sensor, by job.

    Args:
        cursor: The cursor of the sensor.
        asker: Who asks, in words for people.
    """

    def __init__(self, cursor: str | None, asker: str) -> None:
        super().__init__(cursor, "requests")
        self._asker = asker

    def ask(self, job: StorageLocation, job_id: str, run_id: str) -> str:
        """Asks a job for a checkpoint, unless it has not yet answered the last time.

        Args:
            job: The job's prefix.
            job_id: The job.
            run_id: The run that works on it.

        Returns:
            What was done, in words for people.
        """
        requests, said = JobRequests(job, self._asker), ""
        if (asked := self.get(job_id)) is not None:
            answer, age_ms = requests.answer(asked), current_millis() - int(asked.partition("-")[0])
            if (answer is None or not answer.final) and age_ms < to_millis(DEFAULT_TIMEOUT):
                return f"Job {job_id}: run {run_id} was asked for a checkpoint {age_ms // 1000} s ago."
            try:
                requests.wait(asked, timedelta(0))
            except RequestFailedError as error:
                said = f" It could not complete the one before: {error}"
            del self[job_id]
        try:
            self[job_id] = requests.submit(Order(RequestKind.CHECKPOINT))
        except JobNotRunningError:
            return f"Job {job_id}: run {run_id} has not yet begun to work on it.{said}"
        return f"Job {job_id}: run {run_id} is asked for a checkpoint.{said}"
