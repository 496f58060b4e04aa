"""A job's operators as assets. A checkpoint materializes all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    MaterializeResult,
    PartitionsDefinition,
    multi_asset,
)
from dagster._core.definitions.events import CoercibleToAssetKey

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, FlinkJob, Program, flink_jobs
from dagster_flinkpy.orchestration.partitioned_assets import partitioned_assets
from dagster_flinkpy.orchestration.partitions import check_partitions, partitioned_specs
from dagster_flinkpy.orchestration.region_run import RegionRun
from dagster_flinkpy.orchestration.report import checkpoint_line, data_version, operator_metadata
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.reports import CompletedEpoch

__all__ = ["build_flink_asset_specs", "flink_assets"]


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
    deps: Mapping[str, Sequence[CoercibleToAssetKey]] | None = ...,
    pool: str | None = ...,
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
    deps: Mapping[str, Sequence[CoercibleToAssetKey]] | None = ...,
    pool: str | None = ...,
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
    deps: Mapping[str, Sequence[CoercibleToAssetKey]] | None = None,
    pool: str | None = None,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetsDefinition] | Callable[[Program], list[AssetsDefinition]]:
    """One asset per operator; one multi-asset, so one step, per pipelined region.

    State and barriers are of the region, so a selection of some of its assets runs all of it, and materializes all of
    it; the log of the run says so. A run restores the last completed checkpoint, reads input up to the next barrier,
    completes the checkpoint and commits the sinks; only then are the assets materialized, with the checkpoint's numbers
    as metadata and ``{checkpoint id}-{digest}`` as data version.

    With ``partitions_def`` an epoch reads one partition of time. A run of partition p starts from the end state of
    p-1, on which the sources depend, and keeps its own for p+1. Running a partition again, alone or in a backfill,
    replaces what the sinks have committed to it, and makes the partitions after it stale. Runs of one job take turns.

    Without ``env`` it is a decorator of the function that builds the program, which becomes the assets::

        @flink_assets(name="flights")
        def flights() -> StreamExecutionEnvironment: ...

    Args:
        env: The program, or a function that builds it. It is called when the code location loads.
        name: Of the job: first part of the asset keys, and the job id under which state is kept. A program of several
            regions has a job ``{name}.{uid of the first source}`` for each.
        partitions_def: Time windows, such as ``DailyPartitionsDefinition``. Each source must be a `PartitionedSource`,
            as `ParquetSource` with a ``partition_format`` is.
        partition_retention: Which partitions' end states are kept. Default: all.
        backfill_policy: One run for a range of partitions or one for each. Default: ``single_run``, which starts once.
        group_name: Asset group.
        owners: Of each asset: mail addresses, and teams as ``team:name``.
        tags: Of each asset.
        deps: Assets that a source reads, by its uid.
        pool: Concurrency pool of the steps; with limit 1 runs of the job wait in Dagster's queue for each other.
        translator: Makes the asset specs.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid, such as a stateful operator without a uid.
        ConfigurationError: The partitions are no time windows, a source cannot be read by partition, or ``deps`` names
            what is no source.
    """
    if env is None:

        def decorate(program: Program) -> list[AssetsDefinition]:
            return flink_assets(
                program,
                name=name,
                partitions_def=partitions_def,
                partition_retention=partition_retention,
                backfill_policy=backfill_policy,
                group_name=group_name,
                owners=owners,
                tags=tags,
                deps=deps,
                pool=pool,
                translator=translator,
                spark_resource_key=spark_resource_key,
                checkpoint_storage_resource_key=checkpoint_storage_resource_key,
            )

        return decorate
    jobs = flink_jobs(env, name)
    specs = operator_specs(
        jobs,
        name=name,
        translator=translator or FlinkTranslator(),
        group_name=group_name,
        owners=owners,
        tags=tags,
        deps=deps,
    )
    keys = (spark_resource_key, checkpoint_storage_resource_key)
    assets = []
    for job, each in zip(jobs, specs, strict=True):
        windows = check_partitions(job, partitions_def)
        if windows is None:
            assets.append(_region_assets(job, each, pool, *keys))
        else:
            partitioned = partitioned_specs(job, each, windows)
            job = replace(job, partition_retention=partition_retention or PartitionRetention())
            policy = backfill_policy or BackfillPolicy.single_run()
            assets.append(partitioned_assets(job, partitioned, windows, policy, pool, *keys))
    return assets


def build_flink_asset_specs(
    env: Environment,
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = None,
    group_name: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    deps: Mapping[str, Sequence[CoercibleToAssetKey]] | None = None,
    translator: FlinkTranslator | None = None,
) -> list[AssetSpec]:
    """The assets of a program without what runs them: for one that something else runs, and for custom multi-assets.

    Args:
        env: As given to `flink_assets`, and so are the rest.
        name: Of the job.
        partitions_def: Time windows; each source depends on its own partition before.
        group_name: Asset group.
        owners: Of each asset.
        tags: Of each asset.
        deps: Assets that a source reads, by its uid.
        translator: Makes the asset specs.

    Raises:
        JobGraphError: The program is not valid.
        ConfigurationError: As of `flink_assets`.
    """
    jobs = flink_jobs(env, name)
    specs = operator_specs(
        jobs,
        name=name,
        translator=translator or FlinkTranslator(),
        group_name=group_name,
        owners=owners,
        tags=tags,
        deps=deps,
    )
    built: list[AssetSpec] = []
    for job, each in zip(jobs, specs, strict=True):
        windows = check_partitions(job, partitions_def)
        built += (each if windows is None else partitioned_specs(job, each, windows)).values()
    return built


def _region_assets(
    job: FlinkJob, specs: dict[str, AssetSpec], pool: str | None, spark_key: str, storage_key: str
) -> AssetsDefinition:
    @multi_asset(
        name=job.dagster_name,
        specs=list(specs.values()),
        can_subset=True,
        required_resource_keys={spark_key, storage_key},
        op_tags={JOB_TAG: job.job_id},
        pool=pool,
    )
    def region(context: AssetExecutionContext, config: FlinkRunConfig) -> Iterator[MaterializeResult[Any]]:
        run = RegionRun.begin(context, job, specs)
        with flink_failures():
            epoch, token = _run(context, config, job, spark_key, storage_key)
        if epoch is not None:
            version = data_version(epoch)
            for uid, spec in specs.items():
                yield from run.materialize(spec, version, operator_metadata(epoch, epoch.operator(uid), token))

    return region


def _run(
    context: AssetExecutionContext,
    config: FlinkRunConfig,
    job: FlinkJob,
    spark_key: str,
    storage_key: str,
) -> tuple["CompletedEpoch | None", int]:
    """The last epoch, None if the input had ended, and the attempt's token."""
    attempt = job.attempt(
        getattr(context.resources, storage_key),
        getattr(context.resources, spark_key),
        owner=f"Dagster run {context.run.run_id}, try {context.retry_number + 1}",
        parallelism=config.parallelism,
        restore_from=config.restore_from,
        claim_mode=config.claim_mode,
        start_empty=config.start_empty,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        run_id=context.run.root_run_id or context.run.run_id,  # a run that is retried restores once
        on_progress=context.log.info,
    )
    epoch, taken = None, 0
    with attempt:
        while not attempt.finished and (config.epochs == 0 or taken < config.epochs):
            barriers = config.barriers or job.checkpointing.barriers_per_job
            if config.epochs:
                barriers = min(barriers, config.epochs - taken)
            if config.periodic:
                epoch, taken = attempt.run_periodic_epoch(), taken + 1
            else:
                epoch, taken = attempt.run_epoch(barriers), taken + barriers
            context.log.info(checkpoint_line(job, epoch))
    if epoch is None:
        context.log.warning(
            f"Job {job.job_id} was stopped with a savepoint: it goes on when one is restored."
            if attempt.stopped
            else f"The input of job {job.job_id} has ended; there is no checkpoint left to take."
        )
    return epoch, attempt.token
