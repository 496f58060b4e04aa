"""Builds the assets of a job, with their checks. A checkpoint materializes all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, overload

from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    FreshnessPolicy,
    MaterializeResult,
    PartitionsDefinition,
    RetryPolicy,
    TimeWindowPartitionsDefinition,
    multi_asset,
)

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.branches import fork_at_first_run, job_of_deployment
from dagster_flinkpy.orchestration.dagster_internals import CoercibleToAssetDep, run_of
from dagster_flinkpy.orchestration.definitions.checks import FlinkAssetChecks, job_checks
from dagster_flinkpy.orchestration.definitions.operator_attributes import OperatorAttributes
from dagster_flinkpy.orchestration.definitions.partitions import check_partitions, partitioned
from dagster_flinkpy.orchestration.definitions.shown_operators import Show
from dagster_flinkpy.orchestration.definitions.translator import FlinkTranslator, job_assets
from dagster_flinkpy.orchestration.definitions.user_code import place_of_program, program_docstring
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, Program, flink_job
from dagster_flinkpy.orchestration.job_assets import JobAssets, of_job
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource, resource_of
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.runs.open_lineage import told_to_open_lineage
from dagster_flinkpy.orchestration.runs.partition_events import (
    PARTITIONS_UP_TO_DATE,
    materialize_partitions,
    partition_results,
    stored_outdated,
)
from dagster_flinkpy.orchestration.runs.partitioned_run import run_partitions
from dagster_flinkpy.orchestration.runs.termination import ended_with_run
from dagster_flinkpy.orchestration.runs.unpartitioned_run import run_epochs

__all__ = ["build_flink_asset_specs", "flink_assets"]

StepEvent: TypeAlias = MaterializeResult[Any] | AssetCheckResult
StepEvents: TypeAlias = Callable[
    [JobAssets, AssetExecutionContext, FlinkRunConfig, CheckpointStorageResource, SparkResource], Iterator[StepEvent]
]


@overload
def flink_assets(
    env: Environment,
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = ...,
    partition_retention: PartitionRetention | None = ...,
    backfill_policy: BackfillPolicy | None = ...,
    group_name: str | None = ...,
    owners: Sequence[str] = ...,
    tags: Mapping[str, str] | None = ...,
    freshness_policy: FreshnessPolicy | None = ...,
    automation_condition: AutomationCondition[AssetKey] | None = ...,
    operators: Mapping[str, OperatorAttributes] | None = ...,
    retry_policy: RetryPolicy | None = ...,
    deps: Mapping[str, Sequence[CoercibleToAssetDep]] | None = ...,
    pool: str | None = ...,
    show: Show = ...,
    fork_in_branches: bool = ...,
    checks: FlinkAssetChecks | None = ...,
    translator: FlinkTranslator | None = ...,
    spark_resource_key: str = ...,
    checkpoint_storage_resource_key: str = ...,
) -> list[AssetsDefinition]: ...


@overload
def flink_assets(
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = ...,
    partition_retention: PartitionRetention | None = ...,
    backfill_policy: BackfillPolicy | None = ...,
    group_name: str | None = ...,
    owners: Sequence[str] = ...,
    tags: Mapping[str, str] | None = ...,
    freshness_policy: FreshnessPolicy | None = ...,
    automation_condition: AutomationCondition[AssetKey] | None = ...,
    operators: Mapping[str, OperatorAttributes] | None = ...,
    retry_policy: RetryPolicy | None = ...,
    deps: Mapping[str, Sequence[CoercibleToAssetDep]] | None = ...,
    pool: str | None = ...,
    show: Show = ...,
    fork_in_branches: bool = ...,
    checks: FlinkAssetChecks | None = ...,
    translator: FlinkTranslator | None = ...,
    spark_resource_key: str = ...,
    checkpoint_storage_resource_key: str = ...,
) -> Callable[[Program], list[AssetsDefinition]]: ...


def flink_assets(
    env: Environment | None = None,
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = None,
    partition_retention: PartitionRetention | None = None,
    backfill_policy: BackfillPolicy | None = None,
    group_name: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    freshness_policy: FreshnessPolicy | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    operators: Mapping[str, OperatorAttributes] | None = None,
    retry_policy: RetryPolicy | None = None,
    deps: Mapping[str, Sequence[CoercibleToAssetDep]] | None = None,
    pool: str | None = None,
    show: Show = "operators",
    fork_in_branches: bool = False,
    checks: FlinkAssetChecks | None = None,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetsDefinition] | Callable[[Program], list[AssetsDefinition]]:
    """Builds the assets of a program: one multi-asset, so one step, with its asset checks in it.

    By default each operator with a uid is an asset. With ``show="tables"`` only sources and sinks are. The numbers of a
    hidden operator are in the metadata of the assets behind it, and dependencies go through it.

    State and barriers belong to the job. If only some of its assets are selected, the step still runs and
    materializes all of them, and the run's log says so. A run restores the last completed checkpoint, reads input up to
    the next barrier, completes the checkpoint and commits the sinks. Only then are the assets materialized, with the
    checkpoint's numbers as metadata and ``{checkpoint id}-{digest}`` as data version.

    With ``partitions_def``, an epoch reads one time partition. A run of partition p starts from the end state of p-1,
    on which the sources depend, and keeps its own end state for p+1. Running a partition again, alone or in a backfill,
    replaces what the sinks have committed to it and makes the later partitions stale; the check
    ``partitions_up_to_date`` of the last operators names them. Only one run works on a job at a time.

    Args:
        env: The program, or a function that builds it. The function is called when the code location loads. Without
            it, this is a decorator for such a function.
        name: Name of the job: the first part of the asset keys, and the job id under which state is kept.
        partitions_def: Time windows, such as ``DailyPartitionsDefinition``. Each source must be a `PartitionedSource`,
            such as a `ParquetSource` with a ``partition_format``.
        partition_retention: Which partitions' end states are kept. Default: all.
        backfill_policy: One run for a range of partitions, or one run for each. Default: ``single_run``.
        group_name: Asset group.
        owners: Owners of each asset: mail addresses, or teams as ``team:name``.
        tags: Tags of each asset.
        freshness_policy: How old the last materialization of each asset may be.
        automation_condition: When Dagster runs the job by itself.
        operators: Attributes of single assets, by the operator's uid: what takes the place of these, and metadata.
        retry_policy: How often Dagster runs a failed step again. It does not if that cannot help.
        deps: Assets that a source reads, by the source's uid: keys, or what Dagster's own ``deps`` take.
        pool: Concurrency pool of the steps. With limit 1, runs of the job wait for each other in Dagster's queue.
        show: ``"operators"``: each operator with a uid is an asset. ``"tables"``: each source and each sink is one.
        fork_in_branches: Whether the job is one of its own in a branch deployment (see `current_branch`):
            ``{name}_{branch}``. Its first run forks the state of this job, which goes on, and later runs continue from
            their own. A run is refused if a sink would write where production does. Default: False.
        checks: Asset checks of the last completed checkpoint, and their limits. Default: none, except
            ``partitions_up_to_date``.
        translator: Creates the asset specs. Default: a `FlinkTranslator`.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid; for example, a stateful operator has no uid.
        ConfigurationError: The partitions are not time windows, a source cannot be read by partition, ``deps`` names an
            operator that is not a source, ``operators`` one that is no asset, or ``show`` is neither of its values.

    Examples:
        A word count that takes a checkpoint with each run:

        .. code-block:: python

            from dagster import Definitions
            from dagster_flinkpy.common import Types
            from dagster_flinkpy.connectors import ParquetSink
            from dagster_flinkpy.datastream import StreamExecutionEnvironment
            from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, flink_assets

            @flink_assets(name="words")
            def words() -> StreamExecutionEnvironment:
                env = StreamExecutionEnvironment.get_execution_environment()
                pair = Types.TUPLE([Types.STRING(), Types.LONG()])
                pairs = env.from_collection([("to", 1), ("be", 1), ("to", 1)], pair).uid("pairs")
                counts = pairs.key_by(lambda pair: pair[0], Types.STRING()).sum(1).uid("counts")
                counts.sink_to(ParquetSink("/tmp/words/table")).uid("table")
                return env

            defs = Definitions(
                assets=words,
                resources={
                    "spark": SparkResource(),
                    "checkpoint_storage": CheckpointStorageResource(url="/tmp/words/checkpoints"),
                },
            )
    """

    def build(program: Environment) -> list[AssetsDefinition]:
        job, prefix = job_of_deployment(program, name, fork_in_branches=fork_in_branches)
        made = job_assets(
            job,
            name=prefix,
            show=show,
            translator=translator,
            attributes=OperatorAttributes(
                group_name,
                owners,
                tags or {},
                freshness_policy=freshness_policy,
                automation_condition=automation_condition,
            ),
            operators=operators,
            deps=deps,
        )
        check_argument("checks", checks, (FlinkAssetChecks, type(None)), "FlinkAssetChecks(...)")
        step = _Step(program, retry_policy, pool, spark_resource_key, checkpoint_storage_resource_key)
        windows = check_partitions(made.job, partitions_def)
        if windows is None:
            return [_job_assets(made, checks, step)]
        job = replace(made.job, partition_retention=partition_retention or PartitionRetention())
        made = partitioned(replace(made, job=job), windows)
        policy = backfill_policy or BackfillPolicy.single_run()
        return [_partitioned_assets(made, checks, windows, policy, step)]

    return build if env is None else build(env)


def build_flink_asset_specs(
    env: Environment,
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = None,
    group_name: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    freshness_policy: FreshnessPolicy | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    operators: Mapping[str, OperatorAttributes] | None = None,
    deps: Mapping[str, Sequence[CoercibleToAssetDep]] | None = None,
    show: Show = "operators",
    translator: FlinkTranslator | None = None,
) -> list[AssetSpec]:
    """Builds the asset specs of a program without a step that runs it, for use in multi-assets of your own.

    Args:
        env: The program, or a function that builds it.
        name: Name of the job.
        partitions_def: Time windows; each source depends on its own previous partition.
        group_name: Asset group.
        owners: Owners of each asset.
        tags: Tags of each asset.
        freshness_policy: As for `flink_assets`, like the next two.
        automation_condition: When Dagster runs the job by itself.
        operators: Attributes of single assets, by the operator's uid.
        deps: Assets that a source reads, by the source's uid: keys, or what Dagster's own ``deps`` take.
        show: Which operators are assets, as for `flink_assets`.
        translator: Creates the asset specs.

    Raises:
        JobGraphError: The program is not valid.
        ConfigurationError: As for `flink_assets`.
    """
    made = job_assets(
        flink_job(env, name),
        name=name,
        show=show,
        translator=translator,
        attributes=OperatorAttributes(
            group_name,
            owners,
            tags or {},
            freshness_policy=freshness_policy,
            automation_condition=automation_condition,
        ),
        operators=operators,
        deps=deps,
    )
    windows = check_partitions(made.job, partitions_def)
    return list((made if windows is None else partitioned(made, windows)).specs.values())


@dataclass(frozen=True)
class _Step:
    """The step of a job."""

    program: Environment
    retry_policy: RetryPolicy | None
    pool: str | None
    spark_key: str
    storage_key: str

    def multi_asset(
        self, assets: JobAssets, check_specs: Sequence[AssetCheckSpec], events: StepEvents, **partitions: Any
    ) -> AssetsDefinition:
        """Builds the assets of a job.

        Args:
            assets: The assets.
            check_specs: Their checks.
            events: What the step does: given the assets as they are defined when it runs, its context, its config,
                checkpoint storage and Spark, yields its results.
            partitions: Further arguments, for a job with partitions.
        """
        job = assets.job

        def step(context: AssetExecutionContext, config: FlinkRunConfig) -> Iterator[StepEvent]:
            with flink_failures(context.log):
                if run_of(context) is None:
                    raise ConfigurationError(
                        f"the assets of job {job.job_id!r} need a run, and cannot be called directly. In a test, run "
                        "them with dagster.materialize(assets, resources={...}), which takes run_config, too"
                    )
                storage = resource_of(context.resources, self.storage_key, CheckpointStorageResource)
                spark = resource_of(context.resources, self.spark_key, SparkResource)
                here = assets.as_defined(context.assets_def)
            return events(here, context, config, storage, spark)

        del step.__annotations__["return"]  # Dagster takes this one from generator functions only
        if (place := place_of_program(self.program, job.graph)) is not None:
            # Dagster's `with_source_code_references` then links to the program. No frame of it is in a traceback.
            step.__code__ = step.__code__.replace(co_filename=place[0], co_firstlineno=place[1])
        build = multi_asset(
            name=job.dagster_name,
            description=program_docstring(self.program),
            specs=list(assets.specs.values()),
            check_specs=check_specs,
            can_subset=True,
            required_resource_keys={self.spark_key, self.storage_key},
            op_tags={JOB_TAG: job.job_id},
            pool=self.pool,
            retry_policy=self.retry_policy,
            **partitions,
        )
        return of_job(build(step), job)


def _job_assets(made: JobAssets, checks: FlinkAssetChecks | None, step: _Step) -> AssetsDefinition:
    """Builds the assets of a job without partitions. A run takes one checkpoint after the other."""

    def events(
        assets: JobAssets,
        context: AssetExecutionContext,
        config: FlinkRunConfig,
        storage: CheckpointStorageResource,
        spark: SparkResource,
    ) -> Iterator[StepEvent]:
        if context.selected_asset_keys:  # else only checks are to run
            run = JobRun.begin(context, assets)
            with ended_with_run(context), told_to_open_lineage(run), flink_failures(context.log):
                fork_at_first_run(assets.job, storage.location(), config, owner=run.owner, log=context.log.info)
                epochs = run_epochs(run, config, assets.job, storage, spark)
            yield from epochs.results()
        yield from job_checks(assets, checks).run(context, storage)

    return step.multi_asset(made, job_checks(made, checks).specs, events)


def _partitioned_assets(
    made: JobAssets,
    checks: FlinkAssetChecks | None,
    partitions_def: TimeWindowPartitionsDefinition,
    backfill_policy: BackfillPolicy,
    step: _Step,
) -> AssetsDefinition:
    """Builds the assets of a job whose epochs are time partitions. A run reads one partition after the other."""
    job = made.job
    last = [vertex.uid for vertex in job.graph.vertices if not job.graph.outputs(vertex.uid)]
    shown = list(dict.fromkeys(map(made.shown_by, last)))
    up_to_date = [
        AssetCheckSpec(
            PARTITIONS_UP_TO_DATE,
            asset=made.specs[uid].key,
            description="No partition was computed before an earlier one was run again.",
        )
        for uid in shown
    ]

    def events(
        assets: JobAssets,
        context: AssetExecutionContext,
        config: FlinkRunConfig,
        storage: CheckpointStorageResource,
        spark: SparkResource,
    ) -> Iterator[StepEvent]:
        checked = [assets.specs[uid].key for uid in shown]
        if context.selected_asset_keys:
            run = JobRun.begin(context, assets)
            with ended_with_run(context), told_to_open_lineage(run), flink_failures(context.log):
                fork_at_first_run(job, storage.location(), config, owner=run.owner, log=context.log.info)
                completed, token, stale = run_partitions(
                    run, config, job, storage, spark, partitions_def=partitions_def, pool=step.pool, checked=checked
                )
            yield from materialize_partitions(run, completed, token)
            yield from partition_results(context, checked, stale)
        elif chosen := [
            key for key in checked if AssetCheckKey(key, PARTITIONS_UP_TO_DATE) in context.selected_asset_check_keys
        ]:
            with flink_failures(context.log):
                stale = stored_outdated(job, storage, partitions_def)
            yield from partition_results(context, chosen, stale)
        yield from job_checks(assets, checks).run(context, storage)

    partitions = {"partitions_def": partitions_def, "backfill_policy": backfill_policy}
    return step.multi_asset(made, [*up_to_date, *job_checks(made, checks).specs], events, **partitions)
