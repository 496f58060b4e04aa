"""Where a job runs, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.common.metric_options import MetricReporterOptions
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation

__all__ = ["JobConfig"]


@dataclass(frozen=True)
class JobConfig:
    """Where a job runs and where its state is."""

    job_id: str
    storage: StorageLocation
    """The checkpoint directory; everything of the job is under ``{storage}/{job_id}/``."""
    spark: SparkSettings = field(default_factory=SparkSettings)
    checkpointing: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    latency_tracking_interval: timedelta = timedelta(0)
    """Time between two latency markers of a source. Default: 0, which sends none."""
    require_all_slots: bool = False
    """Whether an attempt fails if Spark cannot run all subtasks at once. Default: they take turns."""
    exchange: ExchangeOptions = field(default_factory=ExchangeOptions)
    """How tasks exchange records."""
    metric_reporters: tuple[MetricReporterOptions, ...] = ()
    """Who gets the metrics while an attempt runs. Default: nobody."""
    partition_retention: PartitionRetention = field(default_factory=PartitionRetention)
    """Which end states of time partitions are kept. Default: all."""
    failover: FailoverConfig = field(default_factory=FailoverConfig)
    """What happens inside a run after a failure. Default: a failure ends the attempt."""
    in_process: bool = False
    """Whether tasks run in this process, one after the other, instead of on Spark."""
    cache_dir: str | None = None
    """The folder where executors keep copies of state files. Default: one in the machine's temporary directory."""
