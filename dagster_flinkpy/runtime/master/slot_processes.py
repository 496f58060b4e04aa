"""The slots of an attempt, and the regions whose tasks live in them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.exchange.places import address_towards
from dagster_flinkpy.runtime.failure import error_from_json
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.pipelined_region import PipelinedRegion, places_of, resources_of
from dagster_flinkpy.runtime.master.region_job import translated
from dagster_flinkpy.runtime.master.slot_pool import SlotPool, SlotProcess, StartSlot
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor, TaskExecutor, run_slot
from dagster_flinkpy.spark.sessions import SparkSettings

__all__ = ["PipelinedExchange", "host_of_driver", "start_here", "start_on_spark"]


class PipelinedExchange:
    """Runs epochs of regions in slots.

    Args:
        start: Runs a slot.
        host: The address of this machine that the slots reach.
        options: How long to wait for slots that are missing, and for those that do not answer.
        progress: Takes one-line progress messages.
        same_machine: Whether slots and driver are on one machine, so that the driver can see how many records tasks
            have read.
        check_leader: Raises an error if another attempt has taken over. Called before lost slots are replaced.
    """

    def __init__(
        self,
        start: StartSlot,
        host: str,
        options: ExchangeOptions,
        progress: Callable[[str], object],
        *,
        same_machine: bool,
        check_leader: Callable[[], object],
    ) -> None:
        self._pool, self._progress, self._same_machine = (
            SlotPool(start, host, options, progress, check_leader),
            progress,
            same_machine,
        )
        self._regions: dict[int, PipelinedRegion] = {}

    def deploy(self, job: EpochJob, session: JobSession, regions: Sequence[JobGraph]) -> None:
        """Asks for the slots of all regions, deploys the tasks of one, and gives back slots that are too many.

        See :meth:`PipelinedRegion.deploy`.

        Args:
            job: The region and its first epochs.
            session: The session of the region, whose interruption ends the deployment.
            regions: All regions of the job.
        """
        needed: dict[str, tuple[SlotSharingGroup, ...]] = {}
        for number, graph in enumerate(regions):
            needed |= resources_of(graph, places_of(graph, number))
        with self._used(job, session) as region:
            region.request(needed)
            region.deploy(job)
        self._pool.release(self._pool.names - needed.keys())

    def run(self, job: EpochJob, session: JobSession, open_epoch: OpenEpoch | None = None) -> Sequence[WireRow]:
        """Reads the epochs of a region, see :meth:`PipelinedRegion.run`.

        Args:
            job: The region and its epochs.
            session: The session of the region, whose interruption ends the epochs.
            open_epoch: Gives out the input of its only epoch, if that comes in parts. Default: the epochs have it all.
        """
        with self._used(job, session) as region:
            return region.run(job, open_epoch)

    @contextmanager
    def _used(self, job: EpochJob, session: JobSession) -> Iterator[PipelinedRegion]:
        region = self._regions.get(job.region)
        if region is None:
            region = self._regions[job.region] = PipelinedRegion(
                self._pool, self._progress, same_machine=self._same_machine
            )
        region.resume()
        with session.interruptible(region.interrupt):
            yield region

    def give_back(self, region: int) -> None:
        """Gives back the slots of a region.

        Args:
            region: The number of the region. Nobody else uses it meanwhile.
        """
        self._regions[region].give_back()

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells all functions that are a `CheckpointListener` how a checkpoint has ended.

        Args:
            news: The method that they have for it.
            checkpoint_id: The checkpoint.
        """
        for region in list(self._regions.values()):
            region.notify(news, checkpoint_id)

    def finish(self, seconds: float) -> list[WireRow]:
        """Closes the functions of all tasks at the end of the job, and returns what they have sent to the driver.

        Args:
            seconds: How long the functions of a region may take.

        Raises:
            SlotLostError: They took longer, or a process has ended.
        """
        return [row for region in self._regions.values() for row in region.finish(seconds)]

    def close(self) -> None:
        """Cancels the tasks that are left, and ends the slots."""
        for region in self._regions.values():
            region.cancel()
        self._pool.close()


def start_on_spark(job_id: str, shared: SharedSession) -> StartSlot:
    """Returns what runs a slot as a long task of Spark, in a Spark job of its own.

    Args:
        job_id: The job, for messages.
        shared: The session of the attempt.
    """
    return lambda descriptor: _SparkSlot(descriptor, job_id, shared)


class _SparkSlot:
    """A slot that is a task of Spark."""

    def __init__(self, descriptor: SlotDescriptor, job_id: str, shared: SharedSession) -> None:
        self._descriptor, self._what = descriptor, f"slot {descriptor.name} of job {job_id!r}"
        self._session = JobSession(shared, announced=False)  # `JobExchange` announces all slots
        self._session.begin(f"flinkpy-{job_id}-slot-{descriptor.name}-{descriptor.id}", self._what)

    def run(self) -> None:
        from dagster_flinkpy.runtime.master.stage_profiles import group_profile
        from dagster_flinkpy.spark.sessions import server_log

        with self._session.open() as spark:
            # Not before, because other slots may start: PySpark cannot be imported by two threads at once.
            from pyspark.errors import PySparkException

            try:
                profile = group_profile(spark, self._descriptor.resources)
                slot = partial(run_slot, self._descriptor)
                ended = spark.range(0, 1, 1, 1).mapInArrow(slot, "error string", profile=profile).toArrow()
            except PySparkException as error:
                raise translated(error, self._what, server_log(spark)) from error
            for why in filter(None, ended.column("error").to_pylist()):
                raise error_from_json(why)

    def kill(self) -> None:
        self._session.interrupt()  # Spark kills the process of a task that does not end by itself


def start_here(descriptor: SlotDescriptor) -> SlotProcess:
    """Returns what runs a slot on a thread of this process."""
    return _Thread(descriptor)


class _Thread:
    def __init__(self, descriptor: SlotDescriptor) -> None:
        executor = TaskExecutor(descriptor)
        self.run, self.kill = executor.run, executor.end


def host_of_driver(settings: SparkSettings) -> str:
    """Returns the address of this machine that the executors of Spark reach.

    Args:
        settings: Which Spark runs the job.
    """
    if settings.on_this_machine:
        return "127.0.0.1"
    cluster = urlsplit(settings.remote if settings.remote is not None else settings.master)
    if cluster.hostname is None:  # such as "yarn"
        return socket.gethostbyname(socket.gethostname())
    return address_towards(cluster.hostname, cluster.port or 1)
