"""Which runs of this Dagster instance work on a job at the moment."""

from __future__ import annotations

from collections.abc import Collection

from dagster import AssetKey, DagsterInstance, DagsterRun, RunsFilter
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from dagster_flinkpy.orchestration.flink_job import JOB_TAG

__all__ = ["active_runs"]


def active_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey], *, besides: str | None = None
) -> list[DagsterRun]:
    """Runs that are queued or alive: those tagged with the job, and those that materialize one of its assets.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets.
        besides: Id of a run to leave out: the one that asks.
    """
    keys = set(asset_keys)
    return [
        run
        for run in instance.get_runs(RunsFilter(statuses=NOT_FINISHED_STATUSES))
        if run.run_id != besides and (run.tags.get(JOB_TAG) == job_id or keys & (run.asset_selection or set()))
    ]
