"""Runs of a Dagster instance that work, or worked, on a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    EventRecordsFilter,
    RunRecord,
    RunsFilter,
)
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.flink_job import JOB_TAG

__all__ = ["RESTART_TAG", "active_runs", "recent_runs", "refuse_other_location", "runs_at_work", "works_on"]

RESTART_TAG = "flink/restart_of"
"""Run tag: the failed run that a run replaces."""
_PLANNED = 50

_in_snapshot: dict[str, frozenset[str]] = {}
"""By the id of a job snapshot, which never changes: the jobs whose steps it has."""


def works_on(instance: DagsterInstance, run: DagsterRun, job_id: str, asset_keys: Collection[AssetKey]) -> bool:
    """Whether a run is tagged with the job, materializes one of its assets, or is of a job that has its step."""
    if run.tags.get(JOB_TAG) == job_id or set(asset_keys) & (run.asset_selection or set()):
        return True
    # A run of a whole asset job, such as a schedule starts, has neither: the job's definition tells.
    if run.asset_selection or run.asset_check_selection or run.job_snapshot_id is None:
        return False
    return job_id in _jobs_in(instance, run.job_snapshot_id)


def _jobs_in(instance: DagsterInstance, snapshot_id: str) -> frozenset[str]:
    if snapshot_id not in _in_snapshot:
        if not instance.has_job_snapshot(snapshot_id):
            return frozenset()
        steps = instance.get_job_snapshot(snapshot_id).node_defs_snapshot.op_def_snaps
        _in_snapshot[snapshot_id] = frozenset(step.tags[JOB_TAG] for step in steps if JOB_TAG in step.tags)
    return _in_snapshot[snapshot_id]


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
        if run.run_id != besides and works_on(instance, run, job_id, asset_keys)
    ]


def recent_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Sequence[AssetKey], *, most: int = 200
) -> list[RunRecord]:
    """Runs of a job in any state, the newest first. Whatever else runs in the instance, the newest is among them.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets, which run together.
        most: How many are looked at of those that are tagged with the job. Of the others, which somebody or a schedule
            has started, there are the newest, and those that a tagged one replaces.
    """
    tagged = instance.get_run_records(RunsFilter(tags={JOB_TAG: job_id}), limit=most)
    # A run that is to materialize assets says so in their logs when it is created.
    planned = EventRecordsFilter(DagsterEventType.ASSET_MATERIALIZATION_PLANNED, asset_keys[0])
    ids = {record.run_id for record in instance.event_log_storage.get_event_records(planned, limit=_PLANNED)}
    ids |= {record.asset_entry.last_run_id or "" for record in instance.get_asset_records(asset_keys)}
    ids |= {record.dagster_run.tags.get(RESTART_TAG, "") for record in tagged}
    ids -= {"", *(record.dagster_run.run_id for record in tagged)}
    others = instance.get_run_records(RunsFilter(run_ids=list(ids))) if ids else []
    return sorted([*tagged, *others], key=lambda record: record.storage_id, reverse=True)


def runs_at_work(instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey]) -> list[RunRecord]:
    """Runs of a job that have started and not ended."""
    at_work = RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
    records = instance.get_run_records(at_work)
    return [record for record in records if works_on(instance, record.dagster_run, job_id, asset_keys)]


def refuse_other_location(
    instance: DagsterInstance, run: DagsterRun, job_id: str, asset_keys: Collection[AssetKey]
) -> None:
    """Refuses a run beside one of another code location, which would go on from the checkpoints of this one.

    Args:
        instance: Where runs are recorded.
        run: The one that asks; one that was not launched from a code location is not refused.
        job_id: The job.
        asset_keys: Its assets.

    Raises:
        ConfigurationError: There is such a run.
    """
    mine = _location(run)
    if mine is None:
        return
    for record in runs_at_work(instance, job_id, asset_keys):
        theirs = _location(record.dagster_run)
        if theirs not in (None, mine):
            raise ConfigurationError(
                f"job {job_id!r} is in two code locations: run {record.dagster_run.run_id} of {theirs!r} is at work on "
                f"it, and this run is of {mine!r}. They share one state. Give one of them another name, "
                "flink_assets(name=...), or another checkpoint storage; if the job has moved, let that run end first."
            )


def _location(run: DagsterRun) -> str | None:
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.code_location_origin.location_name
