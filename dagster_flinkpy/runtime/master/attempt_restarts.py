"""Starts another execution attempt in the same run after a failure that no region can mend alone.

Flink: ``DefaultScheduler.restartTasksWithDelay`` after a global failure. Here the new attempt has a greater fencing
token, like that of a new run. So what the failed one left hanging can no longer complete a checkpoint, and nothing
needs to be known about it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import CheckpointTimeoutError
from dagster_flinkpy.runtime.master.checkpoint_contents import CheckpointContents
from dagster_flinkpy.runtime.master.committers import Committers
from dagster_flinkpy.runtime.master.epoch_request import Completion, EpochRequest
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.metric_reporters import MetricReporters
from dagster_flinkpy.runtime.master.reports import CompletedEpoch, completed_epoch
from dagster_flinkpy.runtime.master.request_desk import RequestDesk
from dagster_flinkpy.runtime.master.starting_point import Restore
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import StorageLocation

__all__ = ["AttemptRestarts"]


class AttemptRestarts(ABC):
    """The part of a `JobAttempt` that begins anew. All attributes belong to it."""

    finished: bool
    collected: Mapping[str, list[pa.Array]]
    _attempt: Attempt
    _committers: Committers
    _coordinator: CheckpointCoordinator
    _desk: RequestDesk
    _contents: CheckpointContents
    _failover: JobFailover
    _location: StorageLocation
    _master: JobMaster
    _reporters: MetricReporters
    _restore: Restore
    _start_over: bool
    _store: CompletedCheckpointStore
    _tokens: set[int]
    """The fencing tokens of all attempts of the run."""
    _epochs_read = 0
    """How many epochs of the last request are complete."""
    _counted = (0, 0)
    """The restarts of the run that are in the statistics: all, and those of the whole job."""
    _watchdog: Watchdog

    @abstractmethod
    def _take_over(self, after: Attempt | None = None) -> Attempt:
        """Takes the leadership with a greater token.

        Args:
            after: The former attempt of the run, which must still lead. Default: whoever leads is fenced.
        """

    @abstractmethod
    def _begin(self) -> None:
        """Recovers what the last checkpoint has not committed, restores it, and creates a new master."""

    @abstractmethod
    def _read_partition(self, partition: TimePartition) -> None:
        """Lets the next epoch read a time partition."""

    def _run_with_restarts(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        partition = self._contents.partition
        self._master.settle()  # what an earlier request has left under way does not count
        self._epochs_read = 0
        remaining = request
        while True:
            try:
                for completion in self._master.run(remaining):
                    yield self._reported(completion)
                return
            except Exception as error:
                if self._failover.restart_all_at(error) is None:
                    raise
                failed = error
            former, token = self._master, self._attempt.token
            self._restart_all(failed)
            latest = self._attempt.latest
            ours = latest is not None and latest.fencing_token == token
            if latest is not None and ours and (missed := former.recovered(latest)) is not None:
                yield self._reported(missed)
            taken = self._epochs_read
            # A run of a finished job that asks for an epoch gets one, which reads nothing.
            enough = request.limit is not None and taken >= request.limit
            if enough or (self.finished and (taken or request.limit is None)):
                return
            if partition is not None:
                self._desk.partitioned = True
                self._read_partition(partition)
            if request.limit is not None:
                remaining = replace(request, limit=request.limit - taken)

    def _restart_all(self, error: Exception) -> None:
        """Begins another attempt after the delay of the restart strategy.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled.
            Exception: The strategy allows no restart.
        """
        desk, leads = self._desk, True
        with suppress(CheckpointTimeoutError):
            desk.restart(error)
        while (at_ms := self._failover.restart_all_at(error)) is not None:
            self._desk.pause(at_ms, listens=leads)
            leads = False
            try:
                self._start_over = self._start_over and not self._has_completed
                attempt = self._watchdog.run("restarting the job", self._take_over, self._attempt)
                self._save_statistics()
                self._attempt = attempt
                if self._has_completed:
                    self._restore.continue_run()
                self._failover.restart_all()
                self._begin()
                self._desk.take_over(desk)
                return
            except Exception as again:
                error = again
                self._failover.job_failed(error)
        raise error

    @property
    def _has_completed(self) -> bool:
        """Whether the run has completed a checkpoint."""
        latest = self._attempt.latest
        return latest is not None and latest.fencing_token in self._tokens

    def _count_restarts(self) -> None:
        now = (self._failover.graph.restarts, len(self._tokens) - 1)
        (restarts, full), self._counted = self._counted, now
        self._coordinator.statistics.record_restarts(now[0] - restarts, now[1] - full)

    def _save_statistics(self) -> None:
        self._count_restarts()
        save: Callable[..., object] = self._store.save_statistics
        self._watchdog.run("writing the statistics", save, self._attempt, self._coordinator.statistics)

    def _reported(self, completion: Completion) -> CompletedEpoch:
        self.collected = completion.collected
        self._epochs_read += completion.epochs
        self._count_restarts()
        sinks, statistics = set(self._committers.uids), self._coordinator.statistics
        self._reporters.report(completion.metadata, statistics)
        return completed_epoch(completion.metadata, self._location.url, completion.duration_ms, sinks, statistics)
