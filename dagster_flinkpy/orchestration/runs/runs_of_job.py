"""Finds the runs of a Dagster instance that work, or worked, on a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

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

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import NOT_FINISHED_STATUSES, RUN_KEY_TAG
from dagster_flinkpy.orchestration.flink_job import JOB_TAG

__all__ = [
    "CHECKPOINT_TAG",
    "RESTART_TAG",
    "SAVEPOINT_TAG",
    "active_runs",
    "cut_short",
    "goes_on",
    "next_run_key",
    "operation_of",
    "recent_runs",
    "refuse_other_location",
    "runs_at_work",
    "runs_on",
    "works_on",
]

CHECKPOINT_TAG = "flink/checkpoint"
"""Run tag: the id of the checkpoint that a run is to complete."""
SAVEPOINT_TAG = "flink/savepoint_of"
"""Run tag: the id of the checkpoint that a run is to keep as a savepoint."""
RESTART_TAG = "flink/restart_of"
"""Run tag: the id of the failed run that a run replaces."""
_PLANNED = 50
_OPERATIONS = ("savepoint", "stop", "restore", "rescale", "reset", "switch", "rollback")
"""Jobs of `build_flink_jobs` that are attempts of the job but run no epoch of it."""

_in_snapshot: dict[str, frozenset[str]] = {}
"""The Flink jobs whose steps a job snapshot has, by id of the snapshot. An id is the digest of its
snapshot, so it stands for the same in every instance, and threads that look at once find the same."""
_checked_in_plan: dict[str, frozenset[str]] = {}
"""The Flink jobs of whose steps an execution plan selects only checks, by id of the plan's snapshot."""


def works_on(instance: DagsterInstance, run: DagsterRun, job_id: str, asset_keys: Collection[AssetKey]) -> bool:
    """Returns whether a run has the job's tag or step, or materializes one of its assets."""
    if run.tags.get(JOB_TAG) == job_id or set(asset_keys) & (run.asset_selection or set()):
        return True
    # A run of a whole asset job, such as one that a schedule starts, has neither: look at the job's definition.
    if run.asset_selection or run.asset_check_selection or run.job_snapshot_id is None:
        return False
    return job_id in _jobs_in(instance, run.job_snapshot_id) - _only_checked_in(instance, run)


def _jobs_in(instance: DagsterInstance, snapshot_id: str) -> frozenset[str]:
    if snapshot_id not in _in_snapshot:
        if not instance.has_job_snapshot(snapshot_id):
            return frozenset()
        steps = instance.get_job_snapshot(snapshot_id).node_defs_snapshot.op_def_snaps
        _in_snapshot[snapshot_id] = frozenset(step.tags[JOB_TAG] for step in steps if JOB_TAG in step.tags)
    return _in_snapshot[snapshot_id]


def _only_checked_in(instance: DagsterInstance, run: DagsterRun) -> frozenset[str]:
    """Returns the Flink jobs of whose steps a run selects only checks."""
    plan = run.execution_plan_snapshot_id
    if plan is None:
        return frozenset()
    if plan not in _checked_in_plan:
        checked = set[str]()
        for step in instance.get_execution_plan_snapshot(plan).steps:
            of = [output.properties for output in step.outputs if output.properties and output.properties.is_asset]
            if of and not any(properties.asset_key for properties in of):
                checked.add((step.tags or {}).get(JOB_TAG, ""))
        _checked_in_plan[plan] = frozenset(checked)
    return _checked_in_plan[plan]


def active_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey], *, besides: str | None = None
) -> list[DagsterRun]:
    """Returns the runs of a job that are queued or alive.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets.
        besides: Id of a run to leave out, such as the one that asks.
    """
    return [
        run
        for run in instance.get_runs(RunsFilter(statuses=NOT_FINISHED_STATUSES))
        if run.run_id != besides and works_on(instance, run, job_id, asset_keys)
    ]


def recent_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Sequence[AssetKey], *, most: int = 200
) -> list[RunRecord]:
    """Returns runs of a job in any state, the newest first. The job's newest run is always among them.

    Args:
        instance: Where runs are recorded.
        job_id: The job.
        asset_keys: Its assets, which run together.
        most: Maximum number of runs with the tag of the job. Of the other runs, which a person or a schedule started,
            the newest are included, and those that a tagged run replaces.
    """
    tagged = instance.get_run_records(RunsFilter(tags={JOB_TAG: job_id}), limit=most)
    # When a run is created, the logs of the assets that it will materialize get an entry.
    planned = EventRecordsFilter(DagsterEventType.ASSET_MATERIALIZATION_PLANNED, asset_keys[0])
    ids = {record.run_id for record in instance.event_log_storage.get_event_records(planned, limit=_PLANNED)}
    ids |= {record.asset_entry.last_run_id or "" for record in instance.get_asset_records(asset_keys)}
    ids |= {record.dagster_run.tags.get(RESTART_TAG, "") for record in tagged}
    ids -= {"", *(record.dagster_run.run_id for record in tagged)}
    others = instance.get_run_records(RunsFilter(run_ids=list(ids))) if ids else []
    return sorted([*tagged, *others], key=lambda record: record.storage_id, reverse=True)


def runs_at_work(instance: DagsterInstance, job_id: str, asset_keys: Collection[AssetKey]) -> list[RunRecord]:
    """Returns the runs of a job that have started and have not ended."""
    at_work = RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
    records = instance.get_run_records(at_work)
    return [record for record in records if works_on(instance, record.dagster_run, job_id, asset_keys)]


def operation_of(run: DagsterRun, step: str) -> str | None:
    """Returns which job of `build_flink_jobs` a run is of that runs no epoch, such as ``savepoint``; or None.

    Args:
        run: The run.
        step: Name of the job's step.
    """
    return next((verb for verb in _OPERATIONS if run.job_name == f"{step}_{verb}"), None)


def next_run_key(instance: DagsterInstance, tries: RunsFilter, prefix: str) -> str:
    """Returns the run key of the next try, with a number that no try has: Dagster would start no run in silence.

    Args:
        instance: Where runs are recorded.
        tries: Selects the tries before, of which some may have been deleted.
        prefix: What the key begins with.
    """
    runs = instance.get_runs(tries)
    keys, number = {run.tags.get(RUN_KEY_TAG) for run in runs}, 1 + len(runs)
    while f"{prefix}{number}" in keys:
        number += 1
    return f"{prefix}{number}"


def goes_on(run: DagsterRun, step: str) -> bool:
    """Returns whether the config of a run says that it takes checkpoints until it is told otherwise.

    Args:
        run: The run.
        step: Name of the job's step.
    """
    config: Any = run.run_config
    for part in ("ops", step, "config"):
        config = config.get(part) or {}
    return bool(config.get("epochs") == 0)


def runs_on(run: DagsterRun, step: str) -> bool:
    """Returns whether a run is at work that takes checkpoints until it is told otherwise.

    Args:
        run: The run.
        step: Name of the job's step.
    """
    return run.status == DagsterRunStatus.STARTED and goes_on(run, step)


def cut_short(instance: DagsterInstance, run: DagsterRun, step: str) -> bool:
    """Returns whether Dagster ended a run at its time limit, ``dagster/max_runtime``, before a step had succeeded.

    Args:
        instance: Where the run is recorded.
        run: The run, which has failed.
        step: Name of the job's step.
    """
    kinds = {DagsterEventType.RUN_CANCELING, DagsterEventType.STEP_SUCCESS}
    for record in instance.get_records_for_run(run.run_id, of_type=kinds).records:  # as they were stored
        event = record.event_log_entry.get_dagster_event()
        if event.event_type == DagsterEventType.STEP_SUCCESS and event.step_key == step:
            return False
        # Nothing but its text tells this end from a failure: see Dagster's `check_run_timeout`.
        if event.event_type == DagsterEventType.RUN_CANCELING and "exceeding maximum runtime" in (event.message or ""):
            return True
    return False


def refuse_other_location(
    instance: DagsterInstance, run: DagsterRun, job_id: str, asset_keys: Collection[AssetKey]
) -> None:
    """Refuses a run while a run of another code location works on a job of this name: both would use its checkpoints.

    Args:
        instance: Where runs are recorded.
        run: The run that asks. It is not refused if it was not launched from a code location.
        job_id: The job.
        asset_keys: Its assets.

    Raises:
        ConfigurationError: A run of another code location works on the job.
    """
    mine = _location(run)
    if mine is None:
        return
    for record in runs_at_work(instance, job_id, asset_keys):
        theirs = _location(record.dagster_run)
        if theirs not in (None, mine):
            raise ConfigurationError(
                f"job {job_id!r} is in two code locations: run {record.dagster_run.run_id} of {theirs!r} is working "
                f"on it, and this run is of {mine!r}. Both would use the same state. Give one of them another name, "
                "flink_assets(name=...), or another checkpoint storage. If the job has moved, let that run end first."
            )


def _location(run: DagsterRun) -> str | None:
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.code_location_origin.location_name
