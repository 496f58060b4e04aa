"""Runs a job without time partitions: one epoch after the other, each with its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.runs.job_runs import first_try
from dagster_flinkpy.orchestration.runs.region_run import RegionRun
from dagster_flinkpy.orchestration.runs.report import checkpoint_line
from dagster_flinkpy.orchestration.runs.worker_logs import to_run

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.master.reports import CompletedEpoch

__all__ = ["run_epochs"]


def run_epochs(
    run: RegionRun, config: FlinkRunConfig, job: FlinkJob, storage: CheckpointStorageResource, spark: SparkResource
) -> tuple[CompletedEpoch | None, int]:
    """Runs epochs until the config is satisfied, the input has ended, or the job is stopped.

    Args:
        run: The step.
        config: Config of the run.
        job: The job.
        storage: Storage of its checkpoints.
        spark: The Spark that runs its epochs.

    Raises:
        InputAfterEndError: The job is finished, but more input has arrived.

    Returns:
        The last completed epoch, or None if there was no input left; and the fencing token of the attempt.
    """
    context = run.context
    attempt = job.attempt(
        storage,
        spark,
        owner=run.owner,
        led_by=context.run.run_id,
        parallelism=config.parallelism,
        restore_from=config.restore_from,
        claim_mode=config.claim_mode,
        start_empty=config.start_empty,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        run_id=first_try(context.instance, context.run),  # so that a retried run restores only once
        on_progress=context.log.info,
        on_log=to_run(context.log),
    )
    epoch = None
    with attempt:
        attempt.refuse_input_after_end()
        if not attempt.finished:
            barriers = 1 if config.periodic else config.barriers or job.checkpointing.barriers_per_job
            for epoch in attempt.run_epochs(config.epochs or None, barriers=barriers, periodic=config.periodic):
                context.log.info(checkpoint_line(job, epoch))
    if epoch is None:
        context.log.warning(
            f"Job {job.job_id} was stopped with a savepoint. Restore a savepoint to continue it."
            if attempt.stopped
            else f"The input of job {job.job_id} has ended; there is no checkpoint left to take."
        )
    return epoch, attempt.token
