"""What runs a slot: a long task of Spark, or a thread of this process."""

from __future__ import annotations

import socket
from functools import partial
from urllib.parse import urlsplit

from dagster_flinkpy.runtime.exchange.places import address_towards
from dagster_flinkpy.runtime.failure import error_from_json
from dagster_flinkpy.runtime.master.deployments.region_job import translated
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.slots.slot_pool import StartSlot
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor, TaskExecutor, run_slot
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.versions import map_in_arrow

__all__ = ["host_of_driver", "start_here", "start_on_spark"]


def start_on_spark(job_id: str, shared: SharedSession) -> StartSlot:
    """Returns what runs a slot as a long task of Spark, in a Spark job of its own."""
    return lambda descriptor: _SparkSlot(descriptor, job_id, shared)


class _SparkSlot:
    """A slot that is a task of Spark."""

    def __init__(self, descriptor: SlotDescriptor, job_id: str, shared: SharedSession) -> None:
        self._descriptor, self._what = descriptor, f"slot {descriptor.name} of job {job_id!r}"
        self._session = JobSession(shared, announced=False)  # `JobExchange` announces all slots
        self._session.begin(f"flinkpy-{job_id}-slot-{descriptor.name}-{descriptor.id}", self._what)

    def run(self) -> None:
        from dagster_flinkpy.runtime.master.slots.stage_profiles import group_profile
        from dagster_flinkpy.spark.sessions import server_log

        with self._session.open() as spark:
            # Not before, because other slots may start: PySpark cannot be imported by two threads at once.
            from pyspark.errors import PySparkException

            try:
                profile = group_profile(spark, self._descriptor.resources)
                slot = partial(run_slot, self._descriptor)
                ended = map_in_arrow(spark.range(0, 1, 1, 1), slot, "error string", profile).collect()
            except PySparkException as error:
                raise translated(error, self._what, server_log(spark)) from error
            for row in ended:
                if row["error"]:
                    raise error_from_json(row["error"])

    def end(self) -> None:
        self._session.interrupt()  # Spark kills the process of a task that does not end by itself


start_here: StartSlot = TaskExecutor
"""Returns what runs a slot on a thread of this process."""


def host_of_driver(settings: SparkSettings) -> str:
    """Returns the address of this machine that the executors of Spark reach."""
    if settings.on_this_machine:
        return "127.0.0.1"
    url = settings.remote if settings.remote is not None else settings.master
    # A standalone cluster may have several masters; that of Kubernetes is a URL in a URL.
    cluster = urlsplit(url.partition(",")[0].replace("k8s://http", "http"))
    if cluster.hostname is None:  # such as "yarn"
        return socket.gethostbyname(socket.gethostname())
    return address_towards(cluster.hostname, cluster.port or 1)
