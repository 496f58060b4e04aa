"""Runs the epochs that callers ask for, and does what must wait until nothing runs.

The job is restarted as a whole after a failure that no region can mend alone (Flink:
``DefaultScheduler.restartTasksWithDelay`` after a global failure). Here it gets another deployment with a greater
fencing token, like a new run. So what the failed one left hanging can no longer complete a checkpoint, and nothing
needs to be known about it. Between two epochs, the job is stopped or rescaled if somebody has asked for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.checkpoint.requests import Request, RequestKind, name_of
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    ConfigurationError,
    FlinkPyError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    RestoreError,
    SavepointOutcomeUnknownError,
)
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.deployments.job_exchange import JobExchange
from dagster_flinkpy.runtime.master.epoch_request import Completion, EpochKind, EpochRequest
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_reporter import JobReporter
from dagster_flinkpy.runtime.master.requests.savepoints import SavepointCopy

__all__ = ["AttemptRuns"]


class AttemptRuns(ABC):
    """An execution attempt as callers use it while it lives."""

    _deployed: DeployedJob
    """The current deployment."""
    _exchange: JobExchange
    _reporter: JobReporter

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.restored: CheckpointMetadata | None = None
        """The checkpoint or savepoint that the attempt started from; None if it started empty."""
        self.finished = False
        """Whether all input has ended and is in the last checkpoint, or the job was stopped with a savepoint."""
        self.stopped_with: str | None = None
        """The URL of the savepoint with which the job was stopped on request; None otherwise."""
        self.collected: Mapping[str, list[pa.Array]] = {}
        """The records that the last epoch sent to the driver, as columns, by uid of the collect operator."""
        self._stopping = False
        """Whether the next checkpoint is the last one."""
        self._epochs_read = 0
        """How many epochs of the last request are complete."""

    @abstractmethod
    def _restart(self) -> None:
        """Makes another deployment, with a greater token."""

    @abstractmethod
    def _rescale(self, parallelism: int) -> None:
        """Makes another deployment, at another parallelism. If that fails, nothing has changed."""

    @property
    def _parent(self) -> CheckpointMetadata | None:
        return self._deployed.contents.parent

    # --- epochs ------------------------------------------------------------------------------------------------------

    def run_epoch(self, *, partition: TimePartition | None = None) -> CompletedEpoch:
        """Reads up to the next barrier, and returns when the checkpoint is complete and the sinks have committed.

        Args:
            partition: The time partition to read completely, instead of the next input. State continues from the last
                checkpoint. Sinks replace what they committed to this partition earlier. The checkpoint is kept as the
                end state of the partition, and the input does not end with it. Default: reads the next input.

        Raises:
            ConfigurationError: A source cannot be read, or a sink cannot be written, by partition.
            UserFunctionError: A user function raised. The checkpoint was declined; nothing of the epoch is visible.
            CheckpointError: The checkpoint was not completed, or a request to stop had come before.
            FencedError: A newer attempt took over.
            SourceReadError: Input cannot be read.
            InputAfterEndError: Input has come for a source that has ended.
        """
        if partition is not None:
            self._deployed.read_partition(partition)
        try:
            return self._checkpoint(EpochRequest())
        finally:
            self._deployed.end_partition()

    def run_epochs(
        self, limit: int | None = None, *, periodic: bool = False, continuous: bool = False, goes_on: bool = False
    ) -> Iterator[CompletedEpoch]:
        """Reads epoch after epoch, and yields each one when its checkpoint is complete and the sinks have committed.

        Spark runs the next epoch while a checkpoint is written, completed and committed. If the caller ends the
        iteration early, the running epoch still completes.

        Args:
            limit: The number of epochs; there are fewer if the input ends. Default: None, until the input ends or an
                epoch has nothing to read.
            periodic: Whether to wait before each epoch until its checkpoint is due. The program sets the interval and
                the minimum pause between checkpoints. The first checkpoint is due after a random delay between pause
                and interval (Flink: ``CheckpointCoordinator.getRandomInitDelay``). The iteration ends with the input,
                or at the limit. Default: False.
            continuous: Whether to go on until the input has ended, the limit, or a request to stop or cancel the job
                (:mod:`dagster_flinkpy.checkpoint.requests`). If the program has a checkpoint interval, this is
                ``periodic``. Otherwise an epoch begins when there is input, for which sources are asked again after
                their ``discovery_interval``. Default: False.
            goes_on: Whether the caller goes on with ``continuous`` afterwards. Then tasks that live read on while
                checkpoints are taken, at the interval of the program. Default: False.

        Yields:
            The epochs in order.

        Raises:
            ConfigurationError: ``periodic`` is set, but the program has no interval.
            Exception: Whatever :meth:`run_epoch` raises.
        """
        interval = self.config.checkpointing.interval
        if periodic and interval is None:
            raise ConfigurationError(
                f"job {self.config.job_id!r} has no checkpoint interval: call env.enable_checkpointing(milliseconds)"
            )
        waits = continuous and interval is None
        periodic |= continuous and not waits
        yield from self._run(EpochRequest(limit=limit, periodic=periodic, continuous=waits, goes_on=goes_on))

    def commit_restored(self) -> CompletedEpoch:
        """Completes a checkpoint of the restored state without reading input, so that later attempts start from it.

        Raises:
            RestoreError: Nothing was restored; or partitions would not start from it, because it is not the end state
                of one.
        """
        if self.restored is None:
            raise RestoreError(
                f"job {self.config.job_id!r} has no checkpoint to restore, and no savepoint is given; run it first"
            )
        self._deployed.savepoints.store.check_repeats_end(self._deployed.attempt, self.restored)
        return self._checkpoint(EpochRequest(EpochKind.REPEAT))

    def _checkpoint(self, request: EpochRequest) -> CompletedEpoch:
        """Runs all epochs of a request, and returns the last one."""
        epochs = deque(self._run(request), maxlen=1)
        if not epochs:
            raise CheckpointError(f"job {self.config.job_id!r} was stopped before the epoch began: somebody had asked")
        return epochs[0]

    def _run(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, and stops or rescales the job between them if somebody asks for it."""
        self._exchange.one_epoch = request.limit == 1
        while True:
            yield from self._complete(request)
            if request.limit is not None:
                request = replace(request, limit=max(request.limit - self._epochs_read, 0))
            if (asked := self._deployed.master.state.requests.take_ending()) is None:
                return
            stops = asked.order.kind is RequestKind.STOP
            yield from self._stop_as_asked(asked) if stops else self._rescale_as_asked(asked)
            if stops or self.finished or request.limit == 0:
                return

    def _complete(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, restarting the job if needed; yields each when its checkpoint is complete and committed."""
        deployed, self._epochs_read = self._deployed, 0
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
        self.collected = completion.collected
        return self._reporter.hand_out(completion)

    def _restarted(self, error: Exception) -> DeployedJob:
        """Returns another deployment, after the delay of the restart strategy. Raises what ends the job instead."""
        failed, leads = self._deployed, True
        with suppress(CheckpointTimeoutError):
            failed.desk.restart(error)
        while (at_ms := failed.failover.restart_all_at(error)) is not None:
            failed.master.pause(at_ms, listens=leads)
            leads = False
            try:
                self._restart()
                self._deployed.desk.take_over(failed.desk)
                return self._deployed
            except Exception as again:
                error = again
                failed.failover.job_failed(error)
        raise error

    # --- while nothing runs ------------------------------------------------------------------------------------------

    def stop_with_savepoint(
        self,
        target: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        *,
        drain: bool = False,
    ) -> str:
        """Completes a last checkpoint, commits it and writes it as a savepoint; the job is then finished.

        Later attempts do nothing until one restores this savepoint, or another one, with ``restore_from``.

        Args:
            target: The folder to write to. Default: the job's own prefix, where a native savepoint must be.
            format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.
            drain: Whether to end event time first, so that all timers and windows fire. A job that is restored from
                the savepoint is then finished, too, even if its sources have more to read.

        Returns:
            The URL of the savepoint.

        Raises:
            ConfigurationError: The target must not be used; or a job that is run by partitions is to be drained.
            CheckpointError: There is no completed checkpoint yet, and ``drain`` is False.
        """
        self._deployed.savepoints.check(target, format_type)
        if drain and self._deployed.attempt.head.partitions:
            raise ConfigurationError(
                f"job {self.config.job_id!r} is run by partitions, and cannot be drained: the rows of windows and "
                "timers that fire would belong to no partition, so none that runs later would replace them. Stop it "
                "without drain; to have these rows, run the next partition"
            )
        if not self.finished and self._parent is None and not drain:
            raise CheckpointError(f"job {self.config.job_id!r} has no completed checkpoint to stop with")
        deque(self._stop(drain), maxlen=0)
        return self.savepoint(target, format_type)

    def savepoint(
        self, target: str | None = None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> str:
        """Writes a savepoint of the last completed checkpoint.

        Args:
            target: The folder to write to. Default: the job's own prefix, where a native savepoint must be.
            format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.

        Returns:
            The URL of the savepoint.

        Raises:
            ConfigurationError: The target must not be used.
            CheckpointError: There is no completed checkpoint yet.
            FencedError: A newer attempt took over and has subsumed the checkpoint.
            CheckpointTimeoutError: It takes longer than a checkpoint may take. There is no savepoint.
            SavepointOutcomeUnknownError: Nobody knows whether there is one.
        """
        return self._savepoint(target, format_type)

    def _savepoint(self, target: str | None, format_type: SavepointFormatType, name: str = "") -> str:
        deployed = self._deployed
        if deployed.master.error is None:
            deployed.master.settle()
        if (latest := deployed.attempt.latest) is None:
            raise CheckpointError(
                f"job {self.config.job_id!r} has no completed checkpoint to make a savepoint of: run it first"
            )
        return SavepointCopy(deployed.savepoints, latest, target, format_type, name).run()

    def _stop(self, drain: bool) -> Iterator[CompletedEpoch]:
        """Completes a last checkpoint, unless the job has ended; then the job is finished."""
        latest = self._deployed.attempt.latest
        if self.finished and (latest is None or not drain or latest.end_of_input):
            return
        kind = EpochKind.DRAIN if drain else EpochKind.READ if self._parent is None else EpochKind.REPEAT
        self._stopping = True
        yield from self._complete(EpochRequest(kind, stop=True))
        self.finished = True

    def _stop_as_asked(self, asked: Request) -> Iterator[CompletedEpoch]:
        yield from self._stop(asked.order.drain)
        desk, number = self._deployed.desk, _id_of(self._parent)
        try:
            self.stopped_with = self._savepoint(asked.order.target, asked.order.format_type, name_of(asked))
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
            self._deployed.desk.failed(asked, error)
            return
        if self._parent is not None:  # a checkpoint records the parallelism
            yield from self._complete(EpochRequest(EpochKind.REPEAT))
        self._deployed.desk.done(asked, _id_of(self._parent))


def _id_of(checkpoint: CheckpointMetadata | None) -> int | None:
    return None if checkpoint is None else checkpoint.checkpoint_id
