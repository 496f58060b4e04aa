"""The slots of an attempt, and the regions whose tasks live in them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.exchange.places import address_towards
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.pipelined_region import PipelinedRegion
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
    """

    def __init__(
        self,
        start: StartSlot,
        host: str,
        options: ExchangeOptions,
        progress: Callable[[str], object],
        *,
        same_machine: bool,
    ) -> None:
        self._pool, self._progress, self._same_machine = (
            SlotPool(start, host, options, progress),
            progress,
            same_machine,
        )
        self._regions: dict[int, PipelinedRegion] = {}

    def deploy(self, job: EpochJob, session: JobSession) -> None:
        """Deploys the tasks of a region, see :meth:`PipelinedRegion.deploy`.

        Args:
            job: The region and its first epochs.
            session: The session of the region, whose interruption ends the deployment.
        """
        with self._used(job, session) as region:
            region.deploy(job)

    def run(self, job: EpochJob, session: JobSession) -> Sequence[WireRow]:
        """Reads the epochs of a region, see :meth:`PipelinedRegion.run`.

        Args:
            job: The region and its epochs.
            session: The session of the region, whose interruption ends the epochs.
        """
        with self._used(job, session) as region:
            return region.run(job)

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
        self._session = JobSession(shared)
        self._session.begin(f"flinkpy-{job_id}-slot-{descriptor.name}-{descriptor.id}", self._what)

    def run(self) -> None:
        from pyspark.errors import PySparkException

        from dagster_flinkpy.spark.sessions import server_log

        with self._session.open() as spark:
            try:
                spark.range(0, 1, 1, 1).mapInArrow(partial(run_slot, self._descriptor), "slot string").toArrow()
            except PySparkException as error:
                raise translated(error, self._what, server_log(spark)) from error

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
