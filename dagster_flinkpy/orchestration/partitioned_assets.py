"""Operators of a time-partitioned job as assets. A partition is an epoch; its end state is kept for the next one."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    MaterializeResult,
    TimeWindowPartitionsDefinition,
    multi_asset,
)

from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.orchestration.backfill_runs import goes_on_with_backfill
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, FlinkJob
from dagster_flinkpy.orchestration.partition_events import materialize_partitions, record_completed
from dagster_flinkpy.orchestration.partitions import (
    PartitionStart,
    outdated,
    partition_start,
    renumbered,
    time_partition,
)
from dagster_flinkpy.orchestration.region_run import RegionRun
from dagster_flinkpy.orchestration.report import checkpoint_line
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.run_turns import await_turn

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.reports import CompletedEpoch

__all__ = ["partitioned_assets"]


def partitioned_assets(
    job: FlinkJob,
    specs: dict[str, AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    backfill_policy: BackfillPolicy,
    pool: str | None,
    spark_key: str,
    storage_key: str,
) -> AssetsDefinition:
    """The assets of a job whose epochs are partitions of time.

    Args:
        job: The job.
        specs: Its assets, by uid, in topological order.
        partitions_def: Its partitions.
        backfill_policy: One run for a range of them or one for each.
        pool: Concurrency pool of the step.
        spark_key: Key of the `SparkResource`.
        storage_key: Key of the `CheckpointStorageResource`.
    """

    @multi_asset(
        name=job.dagster_name,
        specs=list(specs.values()),
        partitions_def=partitions_def,
        backfill_policy=backfill_policy,
        can_subset=True,
        required_resource_keys={spark_key, storage_key},
        op_tags={JOB_TAG: job.job_id},
        pool=pool,
    )
    def region(context: AssetExecutionContext, config: FlinkRunConfig) -> Iterator[MaterializeResult[Any]]:
        run = RegionRun.begin(context, job, specs)
        with flink_failures():
            completed, token = _run(run, config, job, partitions_def, pool, spark_key, storage_key)
        yield from materialize_partitions(run, completed, token)

    return region


def _run(
    run: RegionRun,
    config: FlinkRunConfig,
    job: FlinkJob,
    partitions_def: TimeWindowPartitionsDefinition,
    pool: str | None,
    spark_key: str,
    storage_key: str,
) -> tuple[dict[str, "CompletedEpoch"], int]:
    """The epochs by partition, in order of time, and the attempt's token."""
    context, specs = run.context, run.specs
    partitions = sorted((time_partition(partitions_def, k) for k in context.partition_keys), key=lambda p: p.ordinal)
    storage = getattr(context.resources, storage_key)
    instance, assets, log = context.instance, list(specs.values()), context.log.info
    store = storage.location().child(job.job_id).open()
    goes_on = goes_on_with_backfill(
        instance, context.run, job, assets, partitions_def, partitions[0], store, pool=pool, log=log
    )
    await_turn(instance, job, assets, context.run, store, log)
    restore_from, start_empty, claim_mode = config.restore_from, config.start_empty, config.claim_mode
    if goes_on or (restore_from is None and not start_empty):  # the config says where a backfill starts, as a whole
        start = _start(job, specs, partitions_def, storage, partitions[0])
        context.log.info(start.reason)
        restore_from, start_empty = start.restore_from, start.checkpoint_id is None
        claim_mode = RecoveryClaimMode.CLAIM  # an end state stays the job's, and under its retention
    attempt = job.attempt(
        storage,
        getattr(context.resources, spark_key),
        owner=f"Dagster run {context.run.run_id}, try {context.retry_number + 1}",
        parallelism=config.parallelism,
        restore_from=restore_from,
        claim_mode=claim_mode,
        start_empty=start_empty,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        on_progress=context.log.info,
    )
    completed: dict[str, CompletedEpoch] = {}
    try:
        with attempt:
            attempt.renumber_partitions(lambda ends: renumbered(ends, partitions_def, job_id=job.job_id))
            for number, partition in enumerate(partitions, 1):
                context.log.info(f"partition {partition.key} ({number} of {len(partitions)})")
                epoch = completed[partition.key] = attempt.run_epoch(partition=partition)
                context.log.info(checkpoint_line(job, epoch))
            stale = outdated(attempt.partition_ends)
    except BaseException:
        # What is complete is complete: its rows are committed, and the next run can start from it.
        if completed:
            record_completed(run, completed, attempt.token)
        raise
    if stale:
        context.log.warning(
            f"Partitions {stale[0].partition} to {stale[-1].partition} hold what followed from the state before this "
            "run: run them again, in order."
        )
    return completed, attempt.token


def _start(
    job: FlinkJob,
    specs: Mapping[str, AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    storage: CheckpointStorageResource,
    first: TimePartition,
) -> PartitionStart:
    found = read_head(storage.location().child(job.job_id).open())
    keys = partitions_def.get_partition_keys()
    selection = " or ".join(f'key:"{spec.key.to_user_string()}"' for spec in specs.values())
    kept = renumbered(found[0].partitions if found else (), partitions_def, job_id=job.job_id)
    return partition_start(kept, first, keys.__getitem__, assets=selection)
