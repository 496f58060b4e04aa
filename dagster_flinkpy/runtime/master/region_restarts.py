"""Takes regions back to the epochs that they run again, alone or together; see :mod:`.job_failover`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.checkpoint.stimuli import TasksRestarted
from dagster_flinkpy.errors import FlinkPyError, NamedSegmentLostError, SegmentLostError
from dagster_flinkpy.runtime.master.failover import RegionFailure
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.region_execution import RegionExecution
from dagster_flinkpy.runtime.master.region_runner import RegionEnded

__all__ = ["RegionRestarts", "diagnosed"]


E = TypeVar("E", bound=BaseException)


def diagnosed(error: E, latest: CheckpointMetadata | None) -> E | NamedSegmentLostError:
    """Returns an error that says whether a restart can help, if a segment is gone.

    Args:
        error: The error.
        latest: The checkpoint to which a restart would go back; None for empty state.
    """
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
        begun = {uid: number for each in self._regions for uid, number in each.begun.items()}
        lost = region.written_in(error) if isinstance(error, SegmentLostError) else {}
        return RegionFailure(region.lane.number, ended.checkpoint_ids[0], begun, lost)

    def _unavailable(self, epochs: Mapping[int, int]) -> str:
        """Returns why regions cannot run again from these epochs, or "" if they can."""
        collecting = self._coordinator.collecting
        for region in self._regions if len(epochs) > 1 else ():
            since = [epochs[each.lane.number] for each in (region, *region.before) if each.lane.number in epochs]
            if since and (overtaken := region.overtaken_from(min(since))):
                return f"checkpoint {overtaken[0]} names what they would write again"
        for index, epoch in sorted(epochs.items()):
            released = [n for n in self._regions[index].acknowledged_from(epoch) if n not in collecting]
            if released:
                return (
                    f"all have acknowledged checkpoint {released[0]}, so region {index} no longer has the state from "
                    "before it"
                )
        return ""
