"""Asks the run that works on a job to do something, because another attempt beside it would end it."""

from __future__ import annotations

from dagster import Failure, MetadataValue, OpExecutionContext

from dagster_flinkpy.checkpoint.requests import DEFAULT_TIMEOUT, Answer, JobRequests, Order
from dagster_flinkpy.errors import FlinkPyError, JobNotRunningError
from dagster_flinkpy.orchestration.job_assets import JobAssets
from dagster_flinkpy.orchestration.runs.runs_of_job import active_runs
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LeaderRecord

__all__ = ["ask_running_job", "refuse_beside_others"]


def ask_running_job(
    context: OpExecutionContext, assets: JobAssets, storage: StorageLocation, order: Order
) -> Answer | None:
    """Asks the attempt that is at work on a job, whoever has started it, and waits for the answer.

    Args:
        context: Context of the run that asks. If that run is terminated, the request is withdrawn.
        assets: The assets of the job.
        storage: Where checkpoints are kept.
        order: What to ask for.

    Returns:
        The answer; None if no attempt is at work, so that the run that asks may be one.

    Raises:
        Failure: Another run is queued or starts, so it cannot be asked yet.
        RequestFailedError: The job refused the request, or could not carry it out; see `JobRequests.wait`.
    """
    job = assets.job
    requests = JobRequests(storage.child(job.job_id), f"Dagster run {context.run.run_id} ({context.job_name})")
    leader = requests.running()
    if leader is not None and not _has_ended(context, leader):
        context.log.info(f"Asks {leader.owner}, which works on job {job.job_id}, for a {order.kind.value}")
        # What it is doing may take as long as the checkpoint timeout.
        timeout = DEFAULT_TIMEOUT + job.checkpointing.timeout
        try:
            request_id = requests.submit(order, timeout)
            try:
                return requests.wait(request_id, timeout)
            except FlinkPyError:
                raise
            except BaseException:
                requests.withdraw(request_id)
                raise
        except JobNotRunningError as error:
            context.log.info(f"It has ended meanwhile: {error}")
    refuse_beside_others(context, assets)
    return None


def refuse_beside_others(context: OpExecutionContext, assets: JobAssets) -> None:
    """Checks that no other run of the instance works on a job.

    Raises:
        Failure: One does. A new attempt would fence it, and so end it.
    """
    job_id = assets.job.job_id
    others = active_runs(context.instance, job_id, assets.keys, besides=context.run.run_id)
    if others:
        raise Failure(
            f"Run {others[0].run_id} ({others[0].status.value}) is working on job {job_id}. Wait until it ends, or "
            "cancel it, then try again.",
            {"run": MetadataValue.dagster_run(others[0].run_id)},
        )


def _has_ended(context: OpExecutionContext, leader: LeaderRecord) -> bool:
    """Returns whether a leader is a run that has ended without releasing its lease, such as one that was killed."""
    if leader.led_by == context.run.run_id:
        return True  # an earlier try
    run = context.instance.get_run_by_id(leader.led_by) if leader.led_by else None
    return run is not None and run.is_finished
