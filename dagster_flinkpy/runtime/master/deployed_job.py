"""A job as an execution attempt runs it. A restart of the whole job, and a rescale, make another one."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.regions.job_regions import JobRegions
from dagster_flinkpy.runtime.master.requests.request_desk import RequestDesk
from dagster_flinkpy.runtime.master.requests.savepoints import JobSavepoints
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots

__all__ = ["DeployedJob"]


@dataclass(frozen=True)
class DeployedJob:
    """What belongs to one fencing token and one parallelism."""

    attempt: Attempt
    slots: JobSlots
    regions: JobRegions
    contents: CheckpointContents
    coordinator: CheckpointCoordinator
    failover: JobFailover
    """The same for all deployments of a run, apart from the subtasks."""
    transactions: Transactions
    savepoints: JobSavepoints
    desk: RequestDesk
    master: JobMaster

    def read_partition(self, partition: TimePartition) -> None:
        """Lets the next epoch read all of a time partition.

        Raises:
            ConfigurationError: A source or sink does not know partitions.
        """
        self.desk.requests.partitioned = True
        self.transactions.committers.check_partitioned()
        for planner in self.regions.planners:
            planner.read_partition(partition)
        self.contents.partition = partition

    def end_partition(self) -> None:
        """A checkpoint that reads no partition, such as the one that stops the job, must not replace its rows."""
        for planner in self.regions.planners:
            planner.partition = None
        self.contents.partition = None
