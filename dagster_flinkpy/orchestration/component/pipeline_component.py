"""A pipeline as a Dagster component: ``type: dagster_flinkpy.FlinkPipelineComponent`` in a ``defs.yaml``."""

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    Component,
    ComponentLoadContext,
    ComponentTypeSpec,
    Definitions,
    FreshnessPolicy,
    JobDefinition,
    Model,
    ResolutionContext,
    Resolvable,
    Resolver,
    RetryPolicy,
    SensorDefinition,
    TimeWindowPartitionsDefinition,
    scaffold_with,
)
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import ConfigDict, Field

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.component.attributes import (
    ChecksModel,
    Duration,
    FreshnessModel,
    PartitionRetentionModel,
    PartitionsModel,
    RetryModel,
    SensorsModel,
    resolve_freshness_policy,
    resolve_partition_retention,
    resolve_partitions,
    resolve_retry_policy,
    switched,
)
from dagster_flinkpy.orchestration.component.scaffolder import FlinkPipelineScaffolder
from dagster_flinkpy.orchestration.dagster_internals import MAX_RUNTIME_SECONDS_TAG, UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.definitions.assets import flink_assets
from dagster_flinkpy.orchestration.definitions.checks import FlinkAssetChecks
from dagster_flinkpy.orchestration.definitions.jobs import build_flink_jobs
from dagster_flinkpy.orchestration.definitions.shown_operators import Show
from dagster_flinkpy.orchestration.definitions.translator import FlinkOperatorData, FlinkTranslator
from dagster_flinkpy.orchestration.flink_job import Environment, Program
from dagster_flinkpy.orchestration.program import find_program
from dagster_flinkpy.orchestration.run_config import SavepointConfig, SweepConfig
from dagster_flinkpy.orchestration.sensors.checkpoint_sensor import build_checkpoint_sensor
from dagster_flinkpy.orchestration.sensors.restart_sensor import build_restart_sensor
from dagster_flinkpy.orchestration.sensors.status_sensors import build_job_status_sensors
from dagster_flinkpy.orchestration.sensors.supervising_sensor import build_supervising_sensor
from dagster_flinkpy.orchestration.sensors.upkeep_sensors import build_retention_sensor, build_savepoint_sensor

__all__ = ["FlinkPipelineComponent"]


def _program(context: ResolutionContext, path: str) -> Environment:
    """Imports the program at ``package.module:name``, or ``.module:name`` next to the ``defs.yaml``."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ConfigurationError(
            f"env is {path!r}: write 'package.module:function', or '.module:function' next to this file"
        )
    if module.startswith("."):
        folder = ComponentLoadContext.from_resolution_context(context)
        module = f"{folder.defs_relative_module_name(folder.path)}{module}"
    return find_program(importlib.import_module(module), name)


def _asset_keys(context: ResolutionContext, deps: Mapping[str, Sequence[str]]) -> dict[str, list[AssetKey]]:
    resolved = context.resolve_value(deps)
    return {uid: [AssetKey.from_user_string(key) for key in keys] for uid, keys in resolved.items()}


@scaffold_with(FlinkPipelineScaffolder)
class FlinkPipelineComponent(Component, Resolvable, Model):
    """A streaming program: its operators or tables as assets, with the sensors, jobs and checks that are switched on.

    It uses a `SparkResource` and a `CheckpointStorageResource` of the project.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = Field(description="Name of the job: first part of the asset keys, and the folder of its state.")
    env: Annotated[
        Environment,
        Resolver(
            _program,
            model_field_type=str,
            description="The program, or the function that builds it: 'package.module:name', or '.module:name' next "
            "to the defs.yaml.",
            examples=[".pipeline:pipeline"],
        ),
    ]
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of that function.")
    checkpoint_interval: Duration | None = Field(
        default=None, description="Time between checkpoints, such as '10 s'. Default: set by the program."
    )
    group_name: str | None = Field(default=None, description="Asset group.")
    owners: Sequence[str] = Field(default=(), description="Owners of each asset.")
    tags: Mapping[str, str] = Field(default_factory=dict, description="Tags of each asset.")
    freshness_policy: Annotated[
        FreshnessPolicy | None,
        Resolver(
            resolve_freshness_policy,
            model_field_type=FreshnessModel.model() | str,
            description="How old the last materialization of each asset may be: 'fail_window', or a template.",
        ),
    ] = None
    automation_condition: Annotated[
        AutomationCondition[AssetKey] | None,
        Resolver.default(
            model_field_type=str,
            description="When Dagster runs the job by itself.",
            examples=["{{ dg.AutomationCondition.eager() }}"],
        ),
    ] = None
    retry_policy: Annotated[
        RetryPolicy | None,
        Resolver(
            resolve_retry_policy,
            model_field_type=RetryModel,
            description="How often Dagster runs a failed step again.",
        ),
    ] = None
    deps: Annotated[
        Mapping[str, Sequence[AssetKey]],
        Resolver(
            _asset_keys,
            model_field_type=dict[str, list[str]],
            description="Assets that a source reads, by the source's uid.",
            examples=[{"flights": ["raw/flights"]}],
        ),
    ] = Field(default_factory=dict)
    pool: str | None = Field(default=None, description="Concurrency pool of the steps.")
    show: Show = Field(
        default="operators",
        description="'operators': each operator with a uid is an asset. 'tables': each source and each sink is one.",
    )
    fork_in_branches: bool = Field(
        default=False,
        description="Whether a branch deployment forks the job's state at its first run, as a job of its own.",
    )
    translation: Annotated[
        TranslationFn[FlinkOperatorData] | None,
        TranslationFnResolver[FlinkOperatorData](lambda data: {"data": data, "uid": data.vertex.uid}),
    ] = Field(default=None, description="Changes to the assets, as for any component; may use `uid` and `data`.")
    partitions_def: Annotated[
        TimeWindowPartitionsDefinition | None,
        Resolver(
            resolve_partitions,
            model_field_type=PartitionsModel,
            description="Time windows; an epoch reads one of them.",
        ),
    ] = None
    partition_retention: Annotated[
        PartitionRetention | None,
        Resolver(
            resolve_partition_retention,
            model_field_type=PartitionRetentionModel,
            description="Which partitions' end states are kept. Default: all.",
        ),
    ] = None
    max_partitions_per_run: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of partitions per run of a backfill. Default: one run for all partitions.",
    )
    sensors: SensorsModel = Field(default_factory=SensorsModel, description="The sensors to build. Default: none.")
    jobs: bool = Field(default=True, description="Whether to build jobs for savepoints, restores and the like.")
    checks: Annotated[
        ChecksModel | None, switched(ChecksModel, "Asset checks of the last checkpoint. Default: none.")
    ] = None
    spark_resource_key: str = Field(default="spark", description="Key of the SparkResource.")
    checkpoint_storage_resource_key: str = Field(
        default="checkpoint_storage", description="Key of the CheckpointStorageResource."
    )

    @classmethod
    def get_spec(cls) -> ComponentTypeSpec:
        return ComponentTypeSpec(tags=["flink", "spark"], produces=["asset", "asset_check", "job", "sensor"])

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        """Returns the asset spec of an operator. Override it for what ``translation`` cannot express."""
        spec = FlinkTranslator().get_asset_spec(data)
        return spec if self.translation is None else self.translation(spec, data)

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the assets, and what the attributes switch on."""
        translator, spark = _ComponentTranslator(self), self.spark_resource_key
        storage = self.checkpoint_storage_resource_key
        program: Program = functools.cache(self._build)
        if not isinstance(self.env, StreamExecutionEnvironment):
            functools.update_wrapper(program, self.env)  # so that the user's docstring and code are found
        at_once = self.max_partitions_per_run
        assets = flink_assets(
            program,
            name=self.name,
            partitions_def=self.partitions_def,
            partition_retention=self.partition_retention,
            backfill_policy=BackfillPolicy.multi_run(at_once) if at_once else None,
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
            freshness_policy=self.freshness_policy,
            automation_condition=self.automation_condition,
            retry_policy=self.retry_policy,
            deps=self.deps,
            pool=self.pool,
            show=self.show,
            fork_in_branches=self.fork_in_branches,
            checks=None if self.checks is None else FlinkAssetChecks(**dict(self.checks)),
            translator=translator,
            spark_resource_key=spark,
            checkpoint_storage_resource_key=storage,
        )
        jobs: list[JobDefinition | UnresolvedAssetJobDefinition] = []
        if self.jobs:
            jobs = build_flink_jobs(
                program,
                name=self.name,
                show=self.show,
                fork_in_branches=self.fork_in_branches,
                translator=translator,
                spark_resource_key=spark,
                checkpoint_storage_resource_key=storage,
            )
        return Definitions(assets=assets, jobs=jobs, sensors=self._sensors(assets, jobs))

    def _build(self) -> StreamExecutionEnvironment:
        if isinstance(self.env, StreamExecutionEnvironment):
            if self.arguments:
                raise ConfigurationError("arguments are for a function, but env names a program that is already built")
            env = self.env
        else:
            env = self.env(**self.arguments)
        if self.checkpoint_interval is not None:
            env.enable_checkpointing(to_millis(self.checkpoint_interval))
        return env

    def _sensors(
        self, assets: list[AssetsDefinition], jobs: list[JobDefinition | UnresolvedAssetJobDefinition]
    ) -> list[SensorDefinition]:
        on, storage, built = self.sensors, self.checkpoint_storage_resource_key, list[SensorDefinition]()
        if on.checkpoint:
            built.append(
                build_checkpoint_sensor(
                    assets,
                    min_pause=on.checkpoint.min_pause,
                    checkpoint_storage_resource_key=storage,
                    **on.checkpoint.ticks(),
                )
            )
        if on.job_status:
            if not on.checkpoint:
                raise ConfigurationError("sensors.job_status switches sensors.checkpoint, which is off: turn it on")
            built += build_job_status_sensors(assets, built[0], **on.job_status.ticks())
        if on.restart:
            built.append(build_restart_sensor(assets, strategy=on.restart.strategy, **on.restart.ticks()))
        if on.supervising:
            if on.restart:
                raise ConfigurationError("sensors.supervising restarts the job, too: turn sensors.restart off")
            limit = on.supervising.max_runtime
            built.append(
                build_supervising_sensor(
                    assets,
                    tags=None if limit is None else {MAX_RUNTIME_SECONDS_TAG: str(limit.total_seconds())},
                    strategy=on.supervising.strategy,
                    checkpoint_storage_resource_key=storage,
                    **on.supervising.ticks(),
                )
            )
        if (on.savepoint or on.retention) and not self.jobs:
            raise ConfigurationError("sensors.savepoint and sensors.retention start jobs: set jobs: true")
        if on.savepoint:
            built.append(
                build_savepoint_sensor(
                    assets,
                    jobs,
                    interval=on.savepoint.interval,
                    config=SavepointConfig(target=on.savepoint.target, format_type=on.savepoint.format_type),
                    checkpoint_storage_resource_key=storage,
                    **on.savepoint.ticks(),
                )
            )
        if on.retention:
            sweep = SweepConfig(
                grace_hours=on.retention.grace_hours,
                savepoint_days=on.retention.savepoint_days,
                keep_savepoints=on.retention.keep_savepoints,
                keep_runs=on.retention.keep_runs,
            )
            built.append(
                build_retention_sensor(
                    assets, jobs, interval=on.retention.interval, config=sweep, **on.retention.ticks()
                )
            )
        return built


class _ComponentTranslator(FlinkTranslator):
    def __init__(self, component: FlinkPipelineComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        return self._component.get_asset_spec(data)
