"""Takes regions back to the epochs that they run again, alone or together; see :mod:`.job_failover`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.stimuli import TasksRestarted
from dagster_flinkpy.errors import FlinkPyError, SegmentLostError
from dagster_flinkpy.runtime.master.failover import RegionFailure
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.region_execution import RegionExecution
from dagster_flinkpy.runtime.master.region_runner import RegionEnded

__all__ = ["RegionRestarts"]


class RegionRestarts:
    """Takes regions back to the epoch from which they run again.

    Args:
        regions: The regions of the job.
        coordinator: Tells which checkpoints lack acknowledgements.
        failover: Decides what restarts, and when.
        now: Tells milliseconds since 1970.
    """

    def __init__(
        self,
        regions: Sequence[RegionExecution],
        coordinator: CheckpointCoordinator,
        failover: JobFailover,
        now: Callable[[], int],
    ) -> None:
        self._regions, self._coordinator, self._failover, self._now = tuple(regions), coordinator, failover, now

    def on_failed(
        self, region: RegionExecution, ended: RegionEnded, error: FlinkPyError
    ) -> list[TasksRestarted] | None:
        """Takes back the region that has failed, and others if necessary.

        Args:
            region: The region.
            ended: The outcome of its Spark job.
            error: The root cause.

        Returns:
            What to tell the coordinator; None if these regions do not restart without the others.
        """
        at_work = {each.lane.number for each in self._regions if each.at_work and each is not region}
        epochs = self._failover.region_failed(
            self._failure(region, ended, error), error, ended.task, at_work=at_work, unavailable=self._unavailable
        )
        if not epochs:
            return None
        region.at_work = False
        told: list[TasksRestarted] = []
        for index, epoch in sorted(epochs.items()):
            each = self._regions[index]
            if withdrawn := each.acknowledged_from(epoch):
                told.append(TasksRestarted(self._now(), tuple(withdrawn), tuple(each.planner.tasks)))
            each.rewind(epoch, rewritten=any(before.lane.number in epochs for before in each.before))
        return told

    def _failure(self, region: RegionExecution, ended: RegionEnded, error: FlinkPyError) -> RegionFailure:
        begun = {each.lane.number: each.begun for each in self._regions}
        lost: dict[str, tuple[int, ...]] = {}
        if isinstance(error, SegmentLostError):
            sources = region.planner.edge_sources
            known = [ended.task.uid] if ended.task is not None and ended.task.uid in sources else sources
            lost = dict.fromkeys(known, ended.checkpoint_ids)
        return RegionFailure(region.lane.number, ended.checkpoint_ids[0], begun, lost)

    def _unavailable(self, epochs: Mapping[int, int]) -> str:
        """Returns why regions cannot run again from these epochs, or "" if they can."""
        collecting = self._coordinator.collecting
        if len(epochs) > 1 and self._regions[0].planner.config.checkpointing.unaligned:
            return "checkpoints are unaligned, so they may name what is lost"
        for index, epoch in sorted(epochs.items()):
            released = [n for n in self._regions[index].acknowledged_from(epoch) if n not in collecting]
            if released:
                return (
                    f"all have acknowledged checkpoint {released[0]}, so region {index} no longer has the state from "
                    "before it"
                )
        return ""
