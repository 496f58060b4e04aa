"""A Flink job as Dagster sees it: one pipelined region under one job id."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.execution import without_spark
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, MissingUidWarning

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
    from dagster_flinkpy.runtime.job import JobAttempt

__all__ = ["JOB_TAG", "Environment", "FlinkJob", "Program", "dagster_name", "flink_jobs"]

JOB_TAG = "flink/job"
"""Run tag: the job id a run works on."""

Program = Callable[[], StreamExecutionEnvironment]
"""A function that builds a program."""

Environment = StreamExecutionEnvironment | Program
"""A program, or what builds it. It is built when the code location loads, so it must not read data or touch Spark."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class FlinkJob:
    """One pipelined region."""

    job_id: str
    """Its state is kept under ``{checkpoint storage}/{job id}/``."""
    graph: JobGraph
    checkpointing: CheckpointConfig
    """What the program asks for with ``env.enable_checkpointing`` and ``env.get_checkpoint_config``."""
    latency_tracking_interval: timedelta
    """What it asks for with ``env.get_config().set_latency_tracking_interval``."""
    program: str
    """Name of the program; segments between its jobs are kept under ``{checkpoint storage}/{program}/exchange/``."""

    partition_retention: PartitionRetention = field(default_factory=PartitionRetention)
    """Which end states of time partitions are kept."""

    @property
    def dagster_name(self) -> str:
        """The job id as part of Dagster's names."""
        return dagster_name(self.job_id)

    def attempt(
        self, storage: CheckpointStorageResource, spark: SparkResource, *, owner: str, **options: Any
    ) -> JobAttempt:
        """One execution attempt, not yet entered.

        Args:
            storage: Where checkpoints are.
            spark: What runs them.
            owner: Who this is, for messages to those it fences.
            options: Further arguments of ``JobAttempt``.
        """
        from dagster_flinkpy.checkpoint.config import CheckpointConfig as CheckpointPolicy
        from dagster_flinkpy.runtime.job import JobAttempt, JobConfig

        location = storage.location()
        config = JobConfig(
            self.job_id,
            location,
            spark.settings(),
            CheckpointPolicy.of_program(self.checkpointing, num_retained=storage.num_retained),
            latency_tracking_interval=self.latency_tracking_interval,
            partition_retention=self.partition_retention,
            exchanges=location.child(self.program).child("exchange"),
        )
        return JobAttempt(self.graph, config, owner=owner, **options)


def dagster_name(job_id: str) -> str:
    """A job id in the letters Dagster allows for names of ops, jobs and sensors."""
    return re.sub(r"\W", "_", job_id, flags=re.ASCII)


def flink_jobs(env: Environment, name: str) -> list[FlinkJob]:
    """The jobs of a program, one per region: ``{name}``; of several, ``{name}.{uid of the first source}`` each.

    A job comes behind those whose segments it reads.

    Raises:
        ConfigurationError: The name cannot be a folder and an asset key.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"job name {name!r}: use letters, digits, '_', '.' and '-'")
    if not isinstance(env, StreamExecutionEnvironment):
        with without_spark():
            env = env()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingUidWarning)  # the error names the same operators
        graph = env.get_job_graph()
    graph.require_uids()
    regions = graph.regions()
    latency = timedelta(milliseconds=env.get_config().get_latency_tracking_interval())
    return [
        FlinkJob(
            name if len(regions) == 1 else f"{name}.{region.vertices[0].uid}",
            region,
            env.get_checkpoint_config(),
            latency,
            name,
        )
        for region in regions
    ]
