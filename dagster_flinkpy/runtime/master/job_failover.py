"""Keeps the execution graph of a run up to date, and restarts what fails in it (Flink: ``DefaultScheduler``).

Two kinds of restart:

- A region restarts alone: it runs the same epochs again, from the state of its last acknowledgement, with the same
  splits. Their checkpoints stay pending, so other regions keep what they have acknowledged. Nothing of the failed
  execution can get into a checkpoint: only a Spark job that has succeeded is acknowledged, its state files are named
  by content, and its sinks have staged other files. What the failed one has staged is aborted when nothing is
  running, at the latest when the attempt ends.
- The job restarts as a whole: a new execution attempt starts from the last completed checkpoint, with a greater
  fencing token, as a new run would. Pending checkpoints are aborted.

As the checkpoints of a region that restarts alone stay pending, the coordinator is not told that the job is RESTARTING.
(Flink aborts them, and all regions take the next one together.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy

from dagster_flinkpy.checkpoint.messages import Subtask
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import FencedError, FlinkPyError, JobCancelledError
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.failover import (
    ExecutionFailureHandler,
    FailureHandlingResult,
    RegionFailure,
    RegionTopology,
)
from dagster_flinkpy.runtime.master.job_config import JobConfig

__all__ = ["JobFailover"]


class JobFailover:
    """The failures and restarts of all attempts of a run.

    Args:
        regions: The pipelined regions.
        edges: The producer and the consumer of each blocking edge, by the edge's uid.
        config: The job, and what to do after a failure.
        now: Tells milliseconds since 1970.
        progress: Takes one-line progress messages.
    """

    def __init__(
        self,
        regions: Sequence[JobGraph],
        edges: Mapping[str, tuple[int, int]],
        config: JobConfig,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self.graph = ExecutionGraph([region.vertices for region in regions], now)
        self._handler = ExecutionFailureHandler(RegionTopology(len(regions), edges), config.failover, config.job_id)
        self._now, self._progress = now, progress
        self._due: dict[int, int] = {}
        """When each waiting region restarts, in milliseconds since 1970."""
        self._decided: FailureHandlingResult | None = None
        """The decision about the last failure, unless its region restarts alone."""

    def deployed(self, regions: Sequence[JobGraph]) -> JobFailover:
        """Returns this, or a copy with new subtasks if the job was rescaled."""
        now = [[(v.uid, v.parallelism) for v in region.vertices] for region in regions]
        if now == [[(v.uid, v.parallelism) for v in region] for region in self.graph.regions]:
            return self
        changed = copy(self)
        changed.graph = ExecutionGraph([region.vertices for region in regions], self._now)
        changed.graph.restarts, changed.graph.failures = self.graph.restarts, self.graph.failures
        return changed

    # --- a region ----------------------------------------------------------------------------------------------------

    def deploy(self, region: int) -> None:
        """Notes that the next epoch of a region is being planned."""
        self.graph.schedule(region)
        self.graph.deploy(region)

    def acknowledged(self, region: int) -> None:
        """Notes that the Spark job of a region has succeeded."""
        self._handler.succeeded()

    def region_failed(
        self,
        region: int,
        epoch: int,
        begun: Mapping[int, int],
        error: BaseException,
        task: Subtask | None,
        lost: Mapping[str, Sequence[int]] | None = None,
    ) -> bool:
        """Decides about the failure of a region.

        Args:
            region: The region.
            epoch: The first checkpoint of its Spark job.
            begun: The last epoch whose input each region has begun to read.
            error: The root cause.
            task: The subtask that raised it; None if the driver raised it.
            lost: The epochs whose segments are gone, by the uid of their blocking edge. Default: none.

        Returns:
            Whether the region restarts alone, at :meth:`next_restart`. If not, :meth:`job_failed` says what to do.
        """
        self.graph.fail(region, error, task)
        found = self._handler.handle(error, RegionFailure(region, epoch, begun, lost or {}), self._now())
        if found.plan is None or found.plan.epochs.keys() != {region}:
            self._decided = found
            return False
        self._due[region] = found.at_ms
        self.graph.await_restart([region])
        self._progress(f"{_what(error)}; the region runs the epoch again: {found.reason}")
        return True

    @property
    def restarting(self) -> bool:
        """Whether a region waits for its restart."""
        return bool(self._due)

    def next_restart(self) -> int | None:
        """Returns the time of the next restart of a region, in milliseconds since 1970, or None."""
        return min(self._due.values(), default=None)

    def restart_due(self) -> list[int]:
        """Restarts the regions whose delay is over, and returns them."""
        due = [region for region, at_ms in self._due.items() if at_ms <= self._now()]
        for region in due:
            del self._due[region]
            self.graph.restart([region])
        return due

    # --- the job -----------------------------------------------------------------------------------------------------

    def job_failed(self, error: BaseException, *, canceled: bool = False) -> None:
        """Decides about an error that ends the attempt. Call it once.

        Args:
            error: The error.
            canceled: Whether somebody has ended the run. Default: False.
        """
        self._due.clear()
        if canceled or isinstance(error, JobCancelledError):
            self.graph.cancel_job()
            return
        if self._decided is None or self._decided.error is not error:
            self._decided = self._handler.handle(error, None, self._now())
        if self._decided.plan is not None:
            self.graph.await_restart(range(len(self.graph.regions)))
            for region in range(len(self.graph.regions)):
                self.graph.cancel(region)
            self._progress(f"{_what(error)}; the job goes back to its last checkpoint: {self._decided.reason}")
        elif isinstance(error, FencedError):
            self.graph.suspend()
        else:
            self.graph.fail_job(error)
            if isinstance(error, FlinkPyError) and self._decided.gave_up:
                error.suppressed_by = self._decided.reason

    def restart_all_at(self, error: BaseException) -> int | None:
        """Returns when the job restarts as a whole after an error, in milliseconds since 1970; None if it does not."""
        decided = self._decided
        return decided.at_ms if decided is not None and decided.error is error and decided.plan is not None else None

    def restart_all(self) -> None:
        """Gives all subtasks new executions. No Spark job of the former ones runs any more."""
        regions = range(len(self.graph.regions))
        for region in regions:
            self.graph.ended(region)
        self.graph.restart(regions)

    def close(self, error: BaseException | None, *, finished: bool) -> None:
        """Notes how the run has ended.

        Args:
            error: The error that ended it, or None.
            finished: Whether the job has finished, too.
        """
        graph = self.graph
        if error is None and finished:
            for region in range(len(graph.regions)):
                self.deploy(region)  # tasks that were restored as finished are deployed and finish at once, as in Flink
                graph.switch_to_running(region)
                graph.finish(region)
        elif error is not None and (isinstance(error, JobCancelledError) or not isinstance(error, Exception)):
            graph.cancel_job()
        elif error is not None and not isinstance(error, FencedError):
            graph.fail_job(error)
        for region in range(len(graph.regions)):
            graph.ended(region)
        if not graph.status.is_terminal_state() or graph.status is JobStatus.SUSPENDED:
            graph.suspend()


def _what(error: BaseException) -> str:
    return str(error.args[0] if error.args else error).partition("\n")[0]
