"""Carries barriers across blocking edges: when regions acknowledge checkpoints, and what is in flight to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dagster_flinkpy.checkpoint.stimuli import CoordinatorSnapshotted
from dagster_flinkpy.runtime.master.acknowledged import Acknowledged
from dagster_flinkpy.runtime.master.epoch_outputs import EpochOutputs
from dagster_flinkpy.runtime.master.epoch_sequence import EpochSequence
from dagster_flinkpy.runtime.master.region_execution import EpochBatch, RegionExecution
from dagster_flinkpy.runtime.master.region_runner import RegionEnded

__all__ = ["EdgeBarriers"]


class EdgeBarriers:
    """The barriers at the blocking edges of a job.

    Args:
        regions: The regions of the job, each behind those whose output it reads.
        epochs: How far the current request has come.
        outputs: Keeps what becomes visible with the checkpoints.
    """

    def __init__(self, regions: Sequence[RegionExecution], epochs: EpochSequence, outputs: EpochOutputs) -> None:
        self._regions, self._epochs, self._outputs = tuple(regions), epochs, outputs

    def overtake(self, *, failed: bool) -> Iterator[tuple[RegionExecution, Acknowledged]]:
        """Yields what regions acknowledge without having read all before the barrier.

        The last checkpoint of a request waits for Spark jobs that others pass: what these have done would be lost with
        the run, and done again by the next.

        Args:
            failed: Whether the attempt has failed, so that no checkpoint waits.
        """

        def passes(batch: EpochBatch) -> bool:
            return failed or batch is not self._epochs.batch or self._epochs.is_followed(batch)

        for region in self._regions:
            for each in region.overtake(passes):
                self._outputs.add(region.lane, [each.checkpoint_id], *([] if each.job is None else [each.job.results]))
                yield region, each

    def aligned(self, region: RegionExecution, ended: RegionEnded) -> list[Acknowledged]:
        """Returns what all tasks of a region have acknowledged with a Spark job that checkpoints have waited for."""
        found = region.on_acknowledged(ended)
        jobs = [each.job.results for each in found if each.job is not None]
        self._outputs.add(region.lane, ended.checkpoint_ids, *jobs, ended.results)
        return found

    def settle(self, now_ms: int) -> Iterator[CoordinatorSnapshotted]:
        """Yields what is in flight to regions that have waited for a barrier."""
        for region in self._regions:
            for checkpoint_id, uid, in_flight in region.settle():
                yield CoordinatorSnapshotted(now_ms, checkpoint_id, uid, in_flight)
