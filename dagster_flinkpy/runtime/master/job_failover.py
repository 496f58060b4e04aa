"""Keeps the execution graph of a run up to date, and restarts what fails in it (Flink: ``DefaultScheduler``).

Three kinds of restart:

- A region restarts alone: it runs the same epochs again, from the state of its last acknowledgement, with the same
  splits. Their checkpoints stay pending, so other regions keep what they have acknowledged. Nothing of the failed
  execution can get into a checkpoint: only a Spark job that has succeeded is acknowledged, its state files are named
  by content, and its sinks have staged other files. What the failed one has staged is aborted when nothing is
  running, at the latest when the attempt ends.
- Some regions restart together, because a segment between them is gone: its producer goes back to its state before the
  epoch of the segment, and so do the regions that have begun to read that epoch. What they have acknowledged since is
  withdrawn from the pending checkpoints.
- The job restarts as a whole: a new execution attempt starts from the last completed checkpoint, with a greater
  fencing token, as a new run would. Pending checkpoints are aborted.

As the checkpoints of a region that restarts alone stay pending, the coordinator is not told that the job is RESTARTING.
(Flink aborts them, and all regions take the next one together.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.messages import Subtask
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import FencedError, FlinkPyError, JobCancelledError, message_of
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.failover import (
    ExecutionFailureHandler,
    FailureHandlingResult,
    RegionFailure,
    RegionTopology,
    RestartPlan,
)
from dagster_flinkpy.runtime.master.job_config import JobConfig

__all__ = ["JobFailover"]

_log = logging.getLogger(__name__)


@dataclass
class _Restart:
    """Regions that restart together."""

    regions: frozenset[int]
    at_ms: int
    """When the delay is over, in milliseconds since 1970."""
    busy: set[int]
    """Those whose Spark jobs have not ended yet."""


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
        self._due: list[_Restart] = []
        self._decided: FailureHandlingResult | None = None
        """The decision about the last failure, unless only some regions restart."""

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

    def completed(self, checkpoint_id: int) -> None:
        """Notes that a checkpoint is complete and committed."""
        self._handler.succeeded(checkpoint_id)

    def region_failed(
        self,
        failure: RegionFailure,
        error: BaseException,
        task: Subtask | None,
        *,
        at_work: Collection[int] = (),
        unavailable: Callable[[Mapping[int, int]], str] = lambda epochs: "",
    ) -> Mapping[int, int]:
        """Decides about the failure of a region.

        Args:
            failure: The region, and what is known about the epochs of all regions.
            error: The root cause.
            task: The subtask that raised it; None if the driver raised it.
            at_work: The regions whose lanes are at work; :meth:`stopped` tells when one of them is not any more.
            unavailable: Returns why regions cannot run again from these epochs, or "" if they can.

        Returns:
            The first epoch that each region runs again, at :meth:`next_restart`. If there is none, :meth:`job_failed`
            says what to do.
        """
        self.graph.fail(failure.region, error, task)
        found = self._handler.handle(error, failure, self._now())
        plan = found.plan
        if plan is not None and not plan.everything and (why := unavailable(plan.epochs)):
            self._progress(f"regions {_numbers(plan.epochs)} cannot restart without the others: {why}")
            found = replace(found, plan=RestartPlan({}))
        if found.plan is None or found.plan.everything:
            self._decided = found
            return {}
        self._restart_later(found.plan.epochs, found.at_ms, at_work)
        regions = "the region runs the epoch"
        if len(found.plan.epochs) > 1:
            since = min(found.plan.epochs.values())
            regions = f"regions {_numbers(found.plan.epochs)} run all epochs from checkpoint {since} on"
        _log.warning("%s; %s again: %s", _what(error), regions, found.reason)
        return found.plan.epochs

    def _restart_later(self, regions: Collection[int], at_ms: int, at_work: Collection[int]) -> None:
        due = _Restart(frozenset(regions), at_ms, {*regions} & {*at_work})
        for other in [each for each in self._due if each.regions & due.regions]:
            self._due.remove(other)
            due = _Restart(due.regions | other.regions, max(due.at_ms, other.at_ms), due.busy | other.busy)
        self._due.append(due)
        for region in regions:
            self.graph.cancel(region)
        self.graph.await_restart(regions)

    def stopped(self, region: int) -> None:
        """Notes that the lane of a region that is to restart is not at work any more."""
        self.graph.ended(region)
        for restart in self._due:
            restart.busy.discard(region)

    @property
    def restarting(self) -> bool:
        """Whether regions wait for their restart."""
        return bool(self._due)

    def next_restart(self) -> int | None:
        """Returns the time of the next restart of regions, in milliseconds since 1970, or None."""
        return min((restart.at_ms for restart in self._due if not restart.busy), default=None)

    def restart_due(self) -> list[int]:
        """Restarts the regions whose delay is over, and returns them in their order."""
        now = self._now()
        due = [restart for restart in self._due if restart.at_ms <= now and not restart.busy]
        for restart in due:
            self._due.remove(restart)
            for region in restart.regions:
                self.graph.ended(region)
            self.graph.restart(restart.regions)
        return sorted(region for restart in due for region in restart.regions)

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
            reason = self._decided.reason
            _log.warning("%s; the job goes back to its last checkpoint: %s", _what(error), reason)
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


def _numbers(regions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(regions)))


def _what(error: BaseException) -> str:
    said = message_of(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said != type(error).__name__ else said
