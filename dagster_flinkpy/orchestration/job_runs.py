"""Runs of a Dagster instance that work, or worked, on a job."""

from __future__ import annotations

from collections.abc import Collection

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from dagster_flinkpy.orchestration.flink_job import JOB_TAG

__all__ = ["active_runs", "recent_runs", "runs_at_work", "works_on"]


def works_on(run: DagsterRun, job_id: str, asset_keys: Collection[AssetKey]) -> bool:
    """Whether a run is tagged with the job, or materializes one of its assets."""
    return run.tags.get(JOB_TAG) == job_id or bool(set(asset_keys) & (run.asset_selection or set()))


def active_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey], *, besides: str | None = None
) -> list[DagsterRun]:
    """Runs of a job that are queued or alive.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets.
        besides: Id of a run to leave out: the one that asks.
    """
    return [
        run
        for run in instance.get_runs(RunsFilter(statuses=NOT_FINISHED_STATUSES))
        if run.run_id != besides and works_on(run, job_id, asset_keys)
    ]


def recent_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey], *, among: int = 200
) -> list[RunRecord]:
    """Runs of a job in any state, the newest first.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets.
        among: How many of the instance's newest runs are looked at.
    """
    return [r for r in instance.get_run_records(limit=among) if works_on(r.dagster_run, job_id, asset_keys)]


def runs_at_work(instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey]) -> list[RunRecord]:
    """Runs of a job that have started and not ended."""
    at_work = RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
    return [r for r in instance.get_run_records(at_work) if works_on(r.dagster_run, job_id, asset_keys)]
