"""Floor 7: a job's operators as Dagster assets, its checkpoints as materializations."""

from importlib import import_module
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.orchestration.assets import build_flink_asset_specs, flink_assets
from dagster_flinkpy.orchestration.checks import build_flink_asset_checks
from dagster_flinkpy.orchestration.jobs import build_flink_jobs
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet, FlinkMetadataSet
from dagster_flinkpy.orchestration.resources import (
    CheckpointStorageResource,
    SparkResource,
    TwoPhaseCommitSinkResource,
)
from dagster_flinkpy.orchestration.restart_sensor import build_restart_sensor
from dagster_flinkpy.orchestration.run_config import (
    DisposeConfig,
    FlinkRunConfig,
    RescaleConfig,
    ResetConfig,
    RestoreConfig,
    SavepointConfig,
    StopConfig,
    SweepConfig,
)
from dagster_flinkpy.orchestration.sensors import build_checkpoint_sensor
from dagster_flinkpy.orchestration.status_sensors import build_job_status_sensors
from dagster_flinkpy.orchestration.translator import FlinkOperatorData, FlinkTranslator
from dagster_flinkpy.orchestration.upkeep_sensors import build_retention_sensor, build_savepoint_sensor

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.restart_strategies import (
        ExponentialDelayRestart,
        FailureRateRestart,
        FixedDelayRestart,
        NoRestart,
        restart_strategy_of,
    )

__all__ = [
    "CheckpointStorageResource",
    "DisposeConfig",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "FlinkCheckpointMetadataSet",
    "FlinkMetadataSet",
    "FlinkOperatorData",
    "FlinkRunConfig",
    "FlinkTranslator",
    "NoRestart",
    "PartitionRetention",
    "RescaleConfig",
    "ResetConfig",
    "RestoreConfig",
    "SavepointConfig",
    "SparkResource",
    "StopConfig",
    "SweepConfig",
    "TwoPhaseCommitSinkResource",
    "build_checkpoint_sensor",
    "build_flink_asset_checks",
    "build_flink_asset_specs",
    "build_flink_jobs",
    "build_job_status_sensors",
    "build_restart_sensor",
    "build_retention_sensor",
    "build_savepoint_sensor",
    "flink_assets",
    "restart_strategy_of",
]


def __getattr__(name: str) -> object:
    """The restart strategies, imported when their name is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dagster_flinkpy.runtime.restart_strategies"), name)
