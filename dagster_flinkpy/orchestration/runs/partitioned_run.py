"""Runs time partitions: one epoch for each partition, whose end state is kept for the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetSpec, TimeWindowPartitionsDefinition

from dagster_flinkpy.checkpoint.partitions import PartitionEnd, is_end
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, RestoreError
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.runs.backfill_runs import continues_backfill, let_run_before_go_first
from dagster_flinkpy.orchestration.runs.exclusive_run import await_exclusive_run
from dagster_flinkpy.orchestration.runs.job_run import JobRun, to_run
from dagster_flinkpy.orchestration.runs.partition_events import record_completed, record_partitions
from dagster_flinkpy.orchestration.runs.partition_start import (
    outdated,
    partition_start,
    refuse_other_window,
    renumbered,
    time_partitions,
)
from dagster_flinkpy.orchestration.runs.report import checkpoint_line
from dagster_flinkpy.orchestration.runs.termination import interrupts_passed_to
from dagster_flinkpy.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.attempt import Attempt
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["run_partitions"]


def run_partitions(
    run: JobRun,
    config: FlinkRunConfig,
    job: FlinkJob,
    storage: CheckpointStorageResource,
    spark: SparkResource,
    *,
    partitions_def: TimeWindowPartitionsDefinition,
    pool: str | None,
    checked: Sequence[AssetKey],
) -> tuple[dict[str, CompletedEpoch], int, list[PartitionEnd]]:
    """Runs the partitions of the step in order of time.

    If a partition fails, or the run is terminated, the ones completed before are recorded before the error is raised,
    and so is the check of the partitions that they made outdated.

    Args:
        run: The step.
        config: Config of the run.
        job: The job.
        storage: Storage of its checkpoints.
        spark: The Spark that runs its epochs.
        partitions_def: The partitions of the job.
        pool: Concurrency pool of the step.
        checked: Assets with the check `PARTITIONS_UP_TO_DATE`.

    Returns:
        The epochs by partition, in order of time; the fencing token of the attempt; and the end states that are now out
        of date.

    Raises:
        Failure: The run has failed.
    """
    context = run.context
    partitions = sorted(time_partitions(partitions_def, context.partition_keys), key=lambda p: p.ordinal)
    attempt = _attempt(run, config, job, storage, spark, partitions_def, partitions[0], pool)
    completed: dict[str, CompletedEpoch] = {}
    try:
        with attempt:
            attempt.renumber_partitions(lambda ends: renumbered(ends, partitions_def, job_id=job.job_id))
            with interrupts_passed_to(attempt.terminate):
                for number, partition in enumerate(partitions, 1):
                    run.say(f"Partition {partition.key} ({number} of {len(partitions)})")
                    epoch = completed[partition.key] = attempt.run_epoch(partition=partition)
                    run.say(checkpoint_line(job, epoch))
            stale = outdated(attempt.partition_ends)
    except BaseException as error:
        # Completed partitions stay completed: their rows are committed, and the next run can start from them.
        if completed:
            record_completed(run, completed, attempt.token)
            record_partitions(context, checked, outdated(attempt.partition_ends))
        if isinstance(error, FlinkPyError):
            raise as_failure(error, execution=attempt.execution) from error
        raise
    if stale:
        context.log.warning(
            f"Partitions {stale[0].partition} to {stale[-1].partition} were computed before an earlier one was run "
            "again. Run them again, in order."
        )
    return completed, attempt.token, stale


def _attempt(
    run: JobRun,
    config: FlinkRunConfig,
    job: FlinkJob,
    storage: CheckpointStorageResource,
    spark: SparkResource,
    partitions_def: TimeWindowPartitionsDefinition,
    first: TimePartition,
    pool: str | None,
) -> JobAttempt:
    """Waits until no other run works on the job, and returns an attempt that starts where the first partition does."""
    context, specs = run.context, run.specs
    instance, assets, log = context.instance, list(specs.values()), run.say
    store = storage.location().child(job.job_id).open()
    continues = continues_backfill(instance, context.run, job, assets, partitions_def, first, store, pool=pool, log=log)
    take_over = config.take_over and not continues  # in a backfill, the config is for its first run
    from_before = continues or (config.restore_from is None and not config.start_empty)
    if not take_over:
        if from_before:
            let_run_before_go_first(instance, context.run, job, assets, partitions_def, first, store, log)
        await_exclusive_run(instance, job, assets, context.run, store, log)
    options: dict[str, Any] = {
        "restore_from": config.restore_from,
        "claim_mode": config.claim_mode,
        "start_empty": config.start_empty,
    }
    if from_before:
        options = {
            "choose_start": lambda attempt: _start(job, specs, partitions_def, first, attempt, store, log),
            "claim_mode": RecoveryClaimMode.CLAIM,  # the job keeps its end state, which its retention may delete
            "start_over": False,  # nobody asked for it
        }
    return job.attempt(
        storage,
        spark,
        owner=run.owner,
        led_by=context.run.run_id,
        take_over=take_over,
        parallelism=config.parallelism,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        on_progress=log,
        on_log=to_run(context.log),
        **options,
    )


def _start(
    job: FlinkJob,
    specs: Mapping[str, AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    first: TimePartition,
    attempt: Attempt,
    store: ObjectStore,
    log: Callable[[str], None],
) -> str | None:
    """Returns the checkpoint that a run starts from, or None for empty state, as its attempt finds the job."""
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    keys = partitions_def.get_partition_keys()
    selection = " or ".join(f'key:"{spec.key.to_user_string()}"' for spec in specs.values())
    kept = renumbered(attempt.head.partitions, partitions_def, job_id=job.job_id)
    latest, checkpoints = attempt.latest, CompletedCheckpointStore(store)
    if latest is not None and latest.stopped:
        raise RestoreError(
            f"job {job.job_id!r} was stopped with a savepoint, at checkpoint {latest.checkpoint_id}: partition "
            f"{first.key} would go on from before that. Restore a savepoint with {job.dagster_name}_restore, go back "
            f"to a checkpoint with {job.dagster_name}_reset, or set restore_from in the config of this run."
        )
    if latest is not None and not is_end(attempt.head.partitions, latest, checkpoints.load):
        raise ConfigurationError(
            f"job {job.job_id!r} has been run without partitions, up to checkpoint {latest.checkpoint_id}, and "
            f"partition {first.key} would read again what those runs have read, and write its rows once more. Give the "
            "job another name, flink_assets(name=...), and other tables; or clear its tables, and set start_empty in "
            "the config of this run, or restore_from to start from a state."
        )
    start = partition_start(kept, first, keys.__getitem__, assets=selection, folder=store.url)
    if start.checkpoint_id is not None and start.after is not None:
        refuse_other_window(checkpoints.load(start.checkpoint_id), start.after, partitions_def)
    log(start.reason)
    return start.restore_from
