"""Asks jobs that run on for checkpoints: one at a time, whatever the number of ticks meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta

from dagster_flinkpy.checkpoint.requests import DEFAULT_TIMEOUT, JobRequests, Order, RequestKind
from dagster_flinkpy.common.clock import current_millis, to_millis
from dagster_flinkpy.errors import JobNotRunningError, RequestFailedError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["CheckpointRequests"]

_VERSION = 1


class CheckpointRequests:
    """The open requests of a sensor, by job. It remembers them in its cursor.

    Args:
        cursor: What :meth:`__str__` returned at the last tick, or None. Other text is ignored.
        asker: Who asks, in words for people.
    """

    def __init__(self, cursor: str | None, asker: str) -> None:
        self._asker, self._open = asker, dict[str, str]()
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            known = json.loads(cursor or "{}")
            if known["version"] == _VERSION:
                self._open = {str(job): str(request_id) for job, request_id in known["requests"].items()}

    def __str__(self) -> str:
        return json.dumps({"version": _VERSION, "requests": self._open})

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
        if (asked := self._open.get(job_id)) is not None:
            answer, age_ms = requests.answer(asked), current_millis() - int(asked.partition("-")[0])
            if (answer is None or not answer.final) and age_ms < to_millis(DEFAULT_TIMEOUT):
                return f"Job {job_id}: run {run_id} was asked for a checkpoint {age_ms // 1000} s ago."
            try:
                requests.wait(asked, timedelta(0))
            except RequestFailedError as error:
                said = f" It could not complete the one before: {error}"
            del self._open[job_id]
        try:
            self._open[job_id] = requests.submit(Order(RequestKind.CHECKPOINT))
        except JobNotRunningError:
            return f"Job {job_id}: run {run_id} has not yet begun to work on it.{said}"
        return f"Job {job_id}: run {run_id} is asked for a checkpoint.{said}"
