"""Runs the epochs that callers ask for, and does what must wait until nothing runs.

The job is restarted as a whole after a failure that no region can mend alone (Flink:
``DefaultScheduler.restartTasksWithDelay`` after a global failure). Here it gets another deployment with a greater
fencing token, like a new run. So what the failed one left hanging can no longer complete a checkpoint, and nothing
needs to be known about it. Between two epochs, the job is stopped or rescaled if somebody has asked for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.requests import Request, RequestKind, name_of
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    FlinkPyError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    SavepointOutcomeUnknownError,
)
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.epoch_request import Completion, EpochKind, EpochRequest
from dagster_flinkpy.runtime.master.reports import CompletedEpoch
from dagster_flinkpy.runtime.master.savepoints import SavepointCopy

__all__ = ["AttemptRuns"]


class AttemptRuns:
    """The requests for epochs to a job.

    Args:
        job_id: Id of the job.
        deployed: Returns the current deployment.
        restart: Makes another deployment, with a greater token.
        rescale: Makes another deployment, at another parallelism. If that fails, nothing has changed.
        hand_out: Returns a completed checkpoint as callers know it.
    """

    def __init__(
        self,
        job_id: str,
        deployed: Callable[[], DeployedJob],
        restart: Callable[[], object],
        rescale: Callable[[int], object],
        hand_out: Callable[[Completion], CompletedEpoch],
    ) -> None:
        self._job_id, self._deployed = job_id, deployed
        self._restart, self._rescale, self._hand_out = restart, rescale, hand_out
        self.finished = False
        """Whether the last checkpoint contains all input and the input has ended, or the job was stopped."""
        self.stopping = False
        """Whether the next checkpoint is the last one."""
        self.stopped_with: str | None = None
        """The URL of the savepoint with which the job was stopped on request; None otherwise."""
        self._epochs_read = 0
        """How many epochs of the last request are complete."""

    @property
    def _parent(self) -> CheckpointMetadata | None:
        return self._deployed().contents.parent

    # --- epochs ------------------------------------------------------------------------------------------------------

    def run(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, and stops or rescales the job between them if somebody asks for it."""
        while True:
            yield from self._complete(request)
            if request.limit is not None:
                request = replace(request, limit=max(request.limit - self._epochs_read, 0))
            if (asked := self._deployed().master.state.requests.take_ending()) is None:
                return
            stops = asked.order.kind is RequestKind.STOP
            yield from self._stop_as_asked(asked) if stops else self._rescale_as_asked(asked)
            if stops or self.finished or request.limit == 0:
                return

    def _complete(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, restarting the job if needed; yields each when its checkpoint is complete and committed."""
        deployed, self._epochs_read = self._deployed(), 0
        deployed.master.report()
        if deployed.master.error is not None:
            raise CheckpointError("this attempt has failed; start another one") from deployed.master.error
        partition, remaining = deployed.contents.partition, request
        deployed.master.settle()  # what an earlier request has left under way does not count
        while True:
            try:
                for completion in deployed.master.run(remaining):
                    yield self._completed(completion)
                return
            except Exception as error:
                if deployed.failover.restart_all_at(error) is None:
                    raise
                failure = error
            failed, deployed = deployed, self._restarted(failure)
            latest, token = deployed.attempt.latest, failed.attempt.token
            ours = latest is not None and latest.fencing_token == token
            if latest is not None and ours and (missed := failed.master.recovered(latest)) is not None:
                yield self._completed(missed)
            # A run of a finished job that asks for an epoch gets one, which reads nothing.
            taken, limit = self._epochs_read, request.limit
            if (limit is not None and taken >= limit) or (self.finished and (taken or limit is None)):
                return
            if partition is not None:
                deployed.read_partition(partition)
            if limit is not None:
                remaining = replace(request, limit=limit - taken)

    def _completed(self, completion: Completion) -> CompletedEpoch:
        self._epochs_read += completion.epochs
        return self._hand_out(completion)

    def _restarted(self, error: Exception) -> DeployedJob:
        """Returns another deployment, after the delay of the restart strategy.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled.
            Exception: The strategy allows no restart.
        """
        failed, leads = self._deployed(), True
        with suppress(CheckpointTimeoutError):
            failed.desk.restart(error)
        while (at_ms := failed.failover.restart_all_at(error)) is not None:
            failed.master.pause(at_ms, listens=leads)
            leads = False
            try:
                self._restart()
                self._deployed().desk.take_over(failed.desk)
                return self._deployed()
            except Exception as again:
                error = again
                failed.failover.job_failed(error)
        raise error

    # --- while nothing runs ------------------------------------------------------------------------------------------

    def stop_with_savepoint(self, target: str | None, format_type: SavepointFormatType, *, drain: bool) -> str:
        """Stops the job; see :meth:`JobAttempt.stop_with_savepoint`."""
        self._deployed().savepoints.check(target, format_type)
        if not self.finished and self._parent is None and not drain:
            raise CheckpointError(f"job {self._job_id!r} has no completed checkpoint to stop with")
        deque(self._stop(drain), maxlen=0)
        return self.savepoint(target, format_type)

    def savepoint(self, target: str | None, format_type: SavepointFormatType, name: str = "") -> str:
        """Writes a savepoint of the last completed checkpoint; see :meth:`JobAttempt.savepoint`."""
        deployed = self._deployed()
        if deployed.master.error is None:
            deployed.master.settle()
        latest = deployed.attempt.latest
        if latest is None:
            raise CheckpointError(
                f"job {self._job_id!r} has no completed checkpoint to make a savepoint of: run it first"
            )
        return SavepointCopy(deployed.savepoints, latest, target, format_type, name).run()

    def _stop(self, drain: bool) -> Iterator[CompletedEpoch]:
        """Completes a last checkpoint, unless the job has ended; then the job is finished."""
        latest = self._deployed().attempt.latest
        if self.finished and (latest is None or not drain or latest.end_of_input):
            return
        kind = EpochKind.DRAIN if drain else EpochKind.READ if self._parent is None else EpochKind.REPEAT
        self.stopping = True
        yield from self._complete(EpochRequest(kind, stop=True))
        self.finished = True

    def _stop_as_asked(self, asked: Request) -> Iterator[CompletedEpoch]:
        yield from self._stop(asked.order.drain)
        desk, number = self._deployed().desk, _id_of(self._parent)
        try:
            self.stopped_with = self.savepoint(asked.order.target, asked.order.format_type, name_of(asked))
        except FlinkPyError as error:
            what = (
                f"the job has stopped with checkpoint {number}, but its savepoint is missing. When the reason is "
                f"removed, 'flinkpy savepoint trigger' writes it: {error}"
            )
            unknown = isinstance(error, SavepointOutcomeUnknownError)
            desk.failed(asked, (RequestOutcomeUnknownError if unknown else RequestFailedError)(what), number)
            raise
        desk.done(asked, number, self.stopped_with)

    def _rescale_as_asked(self, asked: Request) -> Iterator[CompletedEpoch]:
        assert asked.order.parallelism is not None
        try:
            self._rescale(asked.order.parallelism)
        except FlinkPyError as error:
            self._deployed().desk.failed(asked, error)
            return
        if self._parent is not None:  # a checkpoint records the parallelism
            yield from self._complete(EpochRequest(EpochKind.REPEAT))
        self._deployed().desk.done(asked, _id_of(self._parent))


def _id_of(checkpoint: CheckpointMetadata | None) -> int | None:
    return None if checkpoint is None else checkpoint.checkpoint_id
