"""Runs Flink jobs in Dagster: operators are assets, checkpoints are materializations."""

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    restart_strategy_of,
)
from dagster_flinkpy.orchestration.automation import watermark_passed
from dagster_flinkpy.orchestration.branches import current_branch
from dagster_flinkpy.orchestration.definitions.assets import build_flink_asset_specs, flink_assets
from dagster_flinkpy.orchestration.definitions.checks import FlinkAssetChecks
from dagster_flinkpy.orchestration.definitions.jobs import build_flink_jobs
from dagster_flinkpy.orchestration.definitions.operator_attributes import OperatorAttributes
from dagster_flinkpy.orchestration.definitions.transactions import build_transaction_checks, build_transactions_job
from dagster_flinkpy.orchestration.definitions.translator import FlinkOperatorData, FlinkTranslator
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet, FlinkMetadataSet
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.run_config import (
    DisposeConfig,
    FlinkRunConfig,
    InspectConfig,
    RescaleConfig,
    ResetConfig,
    RestoreConfig,
    SavepointConfig,
    StopConfig,
    SweepConfig,
)
from dagster_flinkpy.orchestration.sensors.checkpoint_sensor import build_checkpoint_sensor
from dagster_flinkpy.orchestration.sensors.restart_sensor import build_restart_sensor
from dagster_flinkpy.orchestration.sensors.status_sensors import build_job_status_sensors
from dagster_flinkpy.orchestration.sensors.supervising_sensor import build_supervising_sensor
from dagster_flinkpy.orchestration.sensors.upkeep_sensors import build_retention_sensor, build_savepoint_sensor
from dagster_flinkpy.orchestration.sink_resources import (
    AssetTransaction,
    DeltaSinkResource,
    FileSinkResource,
    IcebergSinkResource,
    KafkaSinkResource,
    LingeringTransaction,
    PostgresSinkResource,
    TwoPhaseCommitSinkResource,
)
from dagster_flinkpy.orchestration.table_io_manager import FlinkTableIOManager

__all__ = [
    "AssetTransaction",
    "CheckpointStorageResource",
    "DeltaSinkResource",
    "DisposeConfig",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FileSinkResource",
    "FixedDelayRestart",
    "FlinkAssetChecks",
    "FlinkCheckpointMetadataSet",
    "FlinkMetadataSet",
    "FlinkOperatorData",
    "FlinkRunConfig",
    "FlinkTableIOManager",
    "FlinkTranslator",
    "IcebergSinkResource",
    "InspectConfig",
    "KafkaSinkResource",
    "LingeringTransaction",
    "NoRestart",
    "OperatorAttributes",
    "PartitionRetention",
    "PostgresSinkResource",
    "RescaleConfig",
    "ResetConfig",
    "RestoreConfig",
    "SavepointConfig",
    "SparkResource",
    "StopConfig",
    "SweepConfig",
    "TwoPhaseCommitSinkResource",
    "build_checkpoint_sensor",
    "build_flink_asset_specs",
    "build_flink_jobs",
    "build_job_status_sensors",
    "build_restart_sensor",
    "build_retention_sensor",
    "build_savepoint_sensor",
    "build_supervising_sensor",
    "build_transaction_checks",
    "build_transactions_job",
    "current_branch",
    "flink_assets",
    "restart_strategy_of",
    "watermark_passed",
]
