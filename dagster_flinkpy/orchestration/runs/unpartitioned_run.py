"""Runs a job without time partitions: one epoch after the other, each with its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, JobCancelledError
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.run_tries import first_try
from dagster_flinkpy.orchestration.runs.asset_enumerator import assets_from
from dagster_flinkpy.orchestration.runs.epoch_events import EpochEvents
from dagster_flinkpy.orchestration.runs.job_run import JobRun, to_run
from dagster_flinkpy.orchestration.runs.termination import interrupts_passed_to

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["run_epochs"]


def run_epochs(
    run: JobRun, config: FlinkRunConfig, job: FlinkJob, storage: CheckpointStorageResource, spark: SparkResource
) -> EpochEvents:
    """Runs epochs until the config is satisfied, the input has ended, or the job is stopped.

    If the run fails or is terminated, the last checkpoint that it completed is materialized before the error is raised.
    If somebody has asked for the job to be cancelled, the run ends as canceled.

    Args:
        run: The step.
        config: Config of the run.
        job: The job.
        storage: Storage of its checkpoints.
        spark: The Spark that runs its epochs.

    Raises:
        Failure: The run has failed, somebody has asked for the job to be cancelled, or the job is finished but more
            input has arrived.

    Returns:
        The completed checkpoints. Their last one is to be materialized with `EpochEvents.results`.
    """
    context, events = run.context, EpochEvents(run, config.materialize_interval)
    run_id = first_try(context.instance, context.run)  # so that a retried run restores only once
    attempt = job.attempt(
        storage,
        spark,
        owner=run.owner,
        led_by=context.run.run_id,
        take_over=config.take_over,
        parallelism=config.parallelism,
        restore_from=config.restore_from,
        claim_mode=config.claim_mode,
        start_empty=config.start_empty,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        run_id=run_id,
        on_progress=run.say,
        on_log=to_run(context.log),
    )
    taken = 0
    try:
        with assets_from(context.instance), attempt:
            chosen = config.start_empty or config.restore_from is not None
            if not chosen:
                _refuse_end_of_partition(attempt)
            elif attempt.restored is not None and (partition := attempt.restored.end_of) is not None:
                context.log.warning(
                    f"{config.restore_from} is the end state of partition {partition!r}, in which sources have no "
                    f"positions: this run of job {job.job_id}, which has no partitions, reads their input from its "
                    "beginning, also what that state has counted."
                )
            events.begin(None if chosen else attempt.restored)
            attempt.refuse_input_after_end()
            if not attempt.finished:
                with interrupts_passed_to(attempt.terminate):
                    for epoch in _epochs(attempt, config):
                        taken += 1
                        events.completed(epoch, attempt.token, is_last=attempt.finished or taken == config.epochs)
    except BaseException as error:
        events.record_last()
        if isinstance(error, JobCancelledError):
            context.instance.report_run_canceling(context.run, str(error))  # so its failure ends it as canceled
        if isinstance(error, FlinkPyError):
            raise as_failure(error, execution=attempt.execution) from error
        raise
    events.execution = attempt.execution
    if attempt.stopped_with is not None:
        context.log.info(f"Job {job.job_id} was stopped on request, with savepoint {attempt.stopped_with}")
    elif not taken:
        context.log.warning(
            f"Job {job.job_id} was stopped with a savepoint. Restore a savepoint to continue it."
            if attempt.stopped
            else f"The input of job {job.job_id} has ended; there is no checkpoint left to take."
        )
    return events


def _refuse_end_of_partition(attempt: JobAttempt) -> None:
    """Refuses to go on from the end state of a partition, in which sources have no positions.

    Raises:
        ConfigurationError: The job had partitions when its last checkpoint was completed.
    """
    ends = {end.checkpoint_id: end.partition for end in attempt.partition_ends}
    last = None if attempt.restored is None else attempt.restored.checkpoint_id
    if last in ends:
        raise ConfigurationError(
            f"checkpoint {last} is the end state of partition {ends[last]!r}, and the job has no partitions now: this "
            "run would read again what its partitions have read, and count it twice. Give it its partitions_def back; "
            "or give it another name, flink_assets(name=...), and other tables; or clear its tables, and set "
            "start_empty in the config of one run."
        )


def _epochs(attempt: JobAttempt, config: FlinkRunConfig) -> Iterator[CompletedEpoch]:
    """Runs as many epochs as the config says; without a limit, until the input ends or the job is told to end."""
    yield from attempt.run_epochs(config.epochs or None, periodic=config.periodic, goes_on=not config.epochs)
    if not config.epochs and not attempt.finished:  # it has read what there was, and waits for more
        yield from attempt.run_epochs(continuous=True)
