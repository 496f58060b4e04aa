"""A job's operators as assets. A checkpoint materializes all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    MaterializeResult,
    PartitionsDefinition,
    multi_asset,
)

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.partitioned_assets import partitioned_assets
from dagster_flinkpy.orchestration.partitions import check_partitions, partitioned_spec
from dagster_flinkpy.orchestration.report import checkpoint_line, data_version, operator_metadata
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs

__all__ = ["flink_assets"]


def flink_assets(
    env: Environment,
    *,
    name: str,
    partitions_def: PartitionsDefinition | None = None,
    partition_retention: PartitionRetention | None = None,
    backfill_policy: BackfillPolicy | None = None,
    group_name: str | None = None,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetsDefinition]:
    """One asset per operator; one multi-asset, so one step, per pipelined region.

    An operator cannot run without the rest of its region. A run restores the last completed checkpoint, reads input up
    to the next barrier, completes the checkpoint and commits the sinks; only then are the assets materialized, with
    the checkpoint's numbers as metadata and ``{checkpoint id}-{digest}`` as data version.

    With ``partitions_def`` an epoch reads one partition of time. A run of partition p starts from the end state of
    p-1, on which each asset depends, and keeps its own for p+1. Running a partition again, alone or in a backfill,
    replaces what the sinks have committed to it, and makes the partitions after it stale. Runs of one job take turns.

    Args:
        env: The program, or a function that builds it. It is called when the code location loads.
        name: Of the job: first part of the asset keys, and the job id under which state is kept. A program of several
            regions has a job ``{name}.{uid of the first source}`` for each.
        partitions_def: Time windows, such as ``DailyPartitionsDefinition``. Each source must be a `PartitionedSource`,
            as `ParquetSource` with a ``partition_format`` is.
        partition_retention: Which partitions' end states are kept. Default: all.
        backfill_policy: One run for a range of partitions or one for each. Default: ``single_run``, which starts once.
        group_name: Asset group.
        translator: Makes the asset specs.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid, such as a stateful operator without a uid.
        ConfigurationError: The partitions are no time windows, or a source cannot be read by partition.
    """
    jobs = flink_jobs(env, name)
    specs = operator_specs(jobs, name=name, translator=translator or FlinkTranslator(), group_name=group_name)
    keys = (spark_resource_key, checkpoint_storage_resource_key)
    assets = []
    for job, each in zip(jobs, specs, strict=True):
        windows = check_partitions(job, partitions_def)
        if windows is None:
            assets.append(_region_assets(job, each, *keys))
        else:
            partitioned = {uid: partitioned_spec(spec, windows) for uid, spec in each.items()}
            job = replace(job, partition_retention=partition_retention or PartitionRetention())
            policy = backfill_policy or BackfillPolicy.single_run()
            assets.append(partitioned_assets(job, partitioned, windows, policy, *keys))
    return assets


def _region_assets(job: FlinkJob, specs: dict[str, AssetSpec], spark_key: str, storage_key: str) -> AssetsDefinition:
    @multi_asset(
        name=job.dagster_name,
        specs=list(specs.values()),
        can_subset=False,
        required_resource_keys={spark_key, storage_key},
        op_tags={JOB_TAG: job.job_id},
    )
    def region(context: AssetExecutionContext, config: FlinkRunConfig) -> Iterator[MaterializeResult[Any]]:
        with flink_failures():
            results = _run(context, config, job, specs, spark_key, storage_key)
        yield from results

    return region


def _run(
    context: AssetExecutionContext,
    config: FlinkRunConfig,
    job: FlinkJob,
    specs: dict[str, AssetSpec],
    spark_key: str,
    storage_key: str,
) -> Sequence[MaterializeResult[Any]]:
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
        context.log.warning(f"The input of job {job.job_id} has ended; there is no checkpoint left to take.")
        return []
    version = data_version(epoch)
    return [
        MaterializeResult(
            asset_key=spec.key,
            metadata=operator_metadata(epoch, epoch.operator(uid), attempt.token),
            data_version=version,
        )
        for uid, spec in specs.items()
    ]
