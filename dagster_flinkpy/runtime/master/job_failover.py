"""Keeps the execution graph of a run up to date, and restarts what fails in it (Flink: ``DefaultScheduler``).

Three kinds of restart:

- A region restarts alone: it runs the same epoch again, from the state of its last acknowledgement, with the same
  splits. Its checkpoint stays pending, so other regions keep what they have acknowledged. Nothing of the failed
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
from typing import TypeVar

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason, DeclineCheckpoint, Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import (
    FencedError,
    FlinkPyError,
    JobCancelledError,
    NamedSegmentLostError,
    SegmentLostError,
    message_of,
)
from dagster_flinkpy.runtime.master.execution_graph import ExecutionGraph
from dagster_flinkpy.runtime.master.failover import ExecutionFailureHandler, FailureHandlingResult, RegionFailure
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.regions.region_state import RegionState

__all__ = ["AttemptFailure", "JobFailover", "declined", "diagnosed"]

_log = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)


def diagnosed(error: E, latest: CheckpointMetadata | None) -> E | NamedSegmentLostError:
    """Returns an error that says whether a restart from the latest checkpoint can help, if a segment is gone."""
    if latest is None or not isinstance(error, SegmentLostError) or isinstance(error, NamedSegmentLostError):
        return error
    lost = f"{EXCHANGE_FOLDER}/{error.edge}/{error.key}"
    if not any(lost in operator.segments() for operator in latest.operators):
        return error
    named = NamedSegmentLostError(
        f"{lost} is gone, and checkpoint {latest.checkpoint_id} names it, because barriers are unaligned and its "
        "records were not read before the barrier. No restart from this checkpoint can succeed. Put the object back, "
        "from a backup or an older version of it. Otherwise restore a checkpoint or savepoint that does not name it, "
        "with restore_from (flinkpy savepoint describe --json shows what one names), or start from empty state, with "
        "start_empty",
        edge=error.edge,
        key=error.key,
    )
    named.__cause__ = error
    return named


@dataclass(frozen=True)
class AttemptFailure:
    """Why an attempt ends."""

    error: BaseException
    """The first error."""
    since: int
    """The first checkpoint that cannot complete because of it; 0 stands for all."""


class JobFailover:
    """The failures and restarts of all attempts of a run."""

    def __init__(
        self,
        regions: Sequence[JobGraph],
        edges: Mapping[str, tuple[int, int]],
        config: JobConfig,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self.graph = ExecutionGraph([region.vertices for region in regions], now)
        self._handler = ExecutionFailureHandler(edges, config.failover, config.job_id)
        self._now, self._progress = now, progress
        self._due: dict[frozenset[int], int] = {}
        """When the delay of regions that restart together is over, in milliseconds since 1970."""
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

    def completed(self, checkpoint_id: int) -> None:
        """Notes that a checkpoint is complete and committed."""
        self._handler.succeeded(checkpoint_id)

    # --- regions -----------------------------------------------------------------------------------------------------

    def region_failed(
        self,
        region: RegionState,
        ended: RegionEnded,
        error: FlinkPyError,
        regions: Sequence[RegionState],
        collecting: Collection[int],
    ) -> Mapping[int, int]:
        """Decides about the failure of a region, and cancels all that run again with it.

        Returns:
            The first epoch that each region runs again, at :meth:`next_restart`. If there is none, :meth:`job_failed`
            says what to do.
        """
        self.graph.fail(region.number, error, ended.task)
        found = self._handler.handle(error, self._failure(region, ended, error, regions), self._now())
        epochs = found.plan or {}
        if why := self._unavailable(epochs, regions, collecting):
            self._progress(f"regions {_numbers(epochs)} cannot restart without the others: {why}")
            epochs, found = {}, replace(found, plan={})
        if not epochs:
            self._decided = found
            return {}
        self._restart_later([regions[number] for number in epochs], found.at_ms)
        what = "the region runs the epoch"
        if len(epochs) > 1:
            what = f"regions {_numbers(epochs)} run all epochs from checkpoint {min(epochs.values())} on"
        _log.warning("%s; %s again: %s", _what(error), what, found.reason)
        return epochs

    def _failure(
        self, region: RegionState, ended: RegionEnded, error: FlinkPyError, regions: Sequence[RegionState]
    ) -> RegionFailure:
        begun = {uid: number for each in regions for uid, number in each.begun.items()}
        lost = region.written_in(error) if isinstance(error, SegmentLostError) else {}
        return RegionFailure(region.number, ended.checkpoint_id, begun, lost)

    def _unavailable(
        self, epochs: Mapping[int, int], regions: Sequence[RegionState], collecting: Collection[int]
    ) -> str:
        """Returns why regions cannot run again from these epochs, or "" if they can."""
        for region in regions if len(epochs) > 1 else ():
            since = [epochs[each.number] for each in (region, *region.before) if each.number in epochs]
            if since and (overtaken := region.overtaken_from(min(since))):
                return f"checkpoint {overtaken[0]} names what they would write again"
        for number, epoch in sorted(epochs.items()):
            if (error := regions[number].unwritten_before(epoch)) is not None:
                return f"the state from before checkpoint {epoch} is not in the store: {message_of(error)}"
            if released := [n for n in regions[number].acknowledged_from(epoch) if n not in collecting]:
                return (
                    f"all have acknowledged checkpoint {released[0]}, so region {number} no longer has the state from "
                    "before it"
                )
        return ""

    def _restart_later(self, regions: Collection[RegionState], at_ms: int) -> None:
        together = frozenset(region.number for region in regions)
        for other in [each for each in self._due if each & together]:
            together, at_ms = together | other, max(at_ms, self._due.pop(other))
        self._due[together] = at_ms
        for region in regions:
            self.graph.cancel(region.number)
        self.graph.await_restart(region.number for region in regions)
        for region in regions:
            if not region.executing:
                self.graph.ended(region.number)

    @property
    def restarting(self) -> bool:
        """Whether regions wait for their restart."""
        return bool(self._due)

    def next_restart(self) -> int | None:
        """Returns the time of the next restart of regions, in milliseconds since 1970, or None."""
        return min((at_ms for regions, at_ms in self._due.items() if self._canceled(regions)), default=None)

    def restart_due(self, now_ms: int) -> list[int]:
        """Restarts the regions whose delay is over, and returns them in their order."""
        due = [regions for regions, at_ms in self._due.items() if at_ms <= now_ms and self._canceled(regions)]
        for regions in due:
            del self._due[regions]
            self.graph.restart(regions)
        return sorted(region for regions in due for region in regions)

    def _canceled(self, regions: Collection[int]) -> bool:
        return not any(self.graph.canceling(region) for region in regions)

    # --- the job -----------------------------------------------------------------------------------------------------

    def job_failed(self, error: BaseException, *, canceled: bool = False) -> None:
        """Decides about an error that ends the attempt. Call it once."""
        self._due.clear()
        if canceled or isinstance(error, JobCancelledError):
            self.graph.cancel_job()
            return
        recorded = self._decided is not None and self._decided.error is error
        if self._decided is None or not recorded:
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
            self.graph.fail_job(error, recorded=recorded)
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
        """Notes how the run has ended."""
        graph = self.graph
        if error is None and finished:
            for region in range(len(graph.regions)):
                graph.schedule(region)  # tasks that were restored as finished finish at once, as in Flink
                graph.deploy(region)
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


def declined(region: RegionState, checkpoint_id: int, task: Subtask | None, error: FlinkPyError) -> DeclineCheckpoint:
    """Returns the message that a checkpoint failed in a region; ``task`` is None if the driver raised the error."""
    where, planner = task or region.planner.tasks[0], region.planner
    cause = {"type": type(error).__name__, "message": message_of(error)}
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    job_id, token = planner.config.job_id, planner.fencing_token
    return DeclineCheckpoint(job_id, checkpoint_id, token, where.uid, where.subtask, reason, cause)


def _numbers(regions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(regions)))


def _what(error: BaseException) -> str:
    said = message_of(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said != type(error).__name__ else said
