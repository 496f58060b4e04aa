"""A Flink job in Dagster: a program under a job id."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.operator_specs import OperatorSpec, SourceSpec
from dagster_flinkpy.datastream.program.event_time import warn_of_stalls
from dagster_flinkpy.datastream.program.execution import without_spark
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, MissingUidWarning
from dagster_flinkpy.runtime.master.failover import FailoverConfig

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["JOB_TAG", "Environment", "FlinkJob", "Program", "dagster_name", "flink_job", "job_of"]

JOB_TAG = "flink/job"
"""Run tag: the id of the job that a run works on."""

Program = Callable[[], StreamExecutionEnvironment]
"""A function that builds a program."""

Environment = StreamExecutionEnvironment | Program
"""A program, or a function that builds it.

The function is called when the code location loads, so it must not read data or use Spark.
"""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class FlinkJob:
    """One program."""

    job_id: str
    """The job's state is kept under ``{checkpoint storage}/{job id}/``."""
    graph: JobGraph
    """The whole program, with its blocking edges cut."""
    checkpointing: CheckpointConfig
    """Set by the program with ``env.enable_checkpointing`` and ``env.get_checkpoint_config``."""
    config: ExecutionConfig
    """Its other settings, set with ``env.get_config()``."""
    failover: FailoverConfig
    """What its options for restarts say."""
    partition_retention: PartitionRetention = field(default_factory=PartitionRetention)
    """Which end states of time partitions are kept. Default: all."""
    fork_of: str | None = None
    """Id of production's job, which the first run of a branch's job forks. Default: it is not a branch's."""

    @property
    def dagster_name(self) -> str:
        """The job id in the characters that Dagster allows in names."""
        return dagster_name(self.job_id)

    def attempt(
        self, storage: CheckpointStorageResource, spark: SparkResource, *, owner: str, **options: Any
    ) -> JobAttempt:
        """Creates an execution attempt; enter it to start.

        Args:
            storage: Where checkpoints are kept.
            spark: The Spark that runs the epochs.
            owner: Names this attempt in messages to the attempts that it fences.
            options: Further arguments of ``JobAttempt``. By default it waits for another run that works on the job.

        Raises:
            RestoreError: The job would start from empty state, but former jobs that are now parts of it have state.
        """
        from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
        from dagster_flinkpy.checkpoint.former_jobs import refuse_former_jobs
        from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig

        location = storage.location()
        told = options.get("start_over")
        if told is None:
            told = options.get("start_empty") or options.get("restore_from") is not None
        if not told and (former := self._former_ids()):
            refuse_former_jobs(location, self.job_id, self.graph, former)
        options.setdefault("take_over", False)
        config = JobConfig(
            self.job_id,
            location,
            spark.settings(),
            CoordinatorConfig.of_program(self.checkpointing, num_retained=storage.num_retained),
            latency_tracking_interval=timedelta(milliseconds=self.config.get_latency_tracking_interval()),
            require_all_slots=self.config.is_require_all_slots(),
            exchange=self.config.exchange,
            failover=self.failover,
            metric_reporters=spark.reporters() or self.config.metric_reporters,
            partition_retention=self.partition_retention,
        )
        return JobAttempt(self.graph, config, owner=owner, **options)

    def _former_ids(self) -> list[str]:
        """The ids of the jobs that its regions and parts formerly were: ``{program}.{uid of the first source}``."""
        pieces = [*self.graph.regions(), *self.graph.parts()]
        first = list(dict.fromkeys(piece.vertices[0].uid for piece in pieces))
        if len(first) == 1:
            return []
        names = [self.job_id, *(self.job_id.removesuffix(f".{uid}") for uid in first if f".{uid}" in self.job_id)]
        return [f"{name}.{uid}" for name in dict.fromkeys(names) for uid in first]


def job_of(program: Environment | FlinkJob, name: str) -> FlinkJob:
    """Returns the job of a program, which may be one already.

    Raises:
        ConfigurationError: The name cannot be used for a folder and an asset key.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    return program if isinstance(program, FlinkJob) else flink_job(program, name, in_dagster=False)


def _continuous(graph: JobGraph) -> JobGraph:
    """Returns the program with sources that continue from run to run."""
    specs: dict[str, OperatorSpec] = {}
    for v in graph.vertices:
        if isinstance(v.spec, SourceSpec):
            specs[v.uid] = replace(v.spec, source=v.spec.source.continuous())
    return graph.with_specs(specs)


def dagster_name(job_id: str) -> str:
    """Writes a job id in the characters that Dagster allows in names of ops, jobs and sensors."""
    return re.sub(r"\W", "_", job_id, flags=re.ASCII)


def flink_job(env: Environment, name: str, *, in_dagster: bool = True) -> FlinkJob:
    """Returns the job of a program, with all of its regions.

    Args:
        env: The program.
        name: Id of the job.
        in_dagster: Whether to warn of settings that have no effect in Dagster. Commands are told what they would set.

    Raises:
        ConfigurationError: The name cannot be used for a folder and an asset key.
        JobGraphError: The program is not valid, or a stateful operator has no uid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"job name {name!r}: use letters, digits, '_', '.' and '-'")
    if callable(env):
        with without_spark():
            env = env()
    check_argument(f"job {name!r}", env, StreamExecutionEnvironment, "an environment, or a function that returns one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingUidWarning)  # the error names the same operators
        graph = env.get_job_graph()
    graph.require_uids()
    if in_dagster:
        env.warn_of_script_settings()
    graph.regions()  # checks that blocking edges separate the program
    warn_of_stalls(_continuous(graph), stacklevel=3)
    # The program may change them for its next job.
    checkpointing, config = copy(env.get_checkpoint_config()), copy(env.get_config())
    failover = FailoverConfig.of_scheduled_run(config.failover_options)
    return FlinkJob(name, _continuous(graph.split()), checkpointing, config, failover)
