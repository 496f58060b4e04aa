"""Finds the old runs of a job, whose logs and events Dagster keeps until somebody deletes the run."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
)

from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs.runs_of_job import CHECKPOINT_TAG, SAVEPOINT_TAG

__all__ = ["old_runs"]

_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def old_runs(
    instance: DagsterInstance, job_id: str, asset_keys: Iterable[AssetKey], *, keep: int, checkpoint_id: int
) -> list[str]:
    """Returns the ids of runs that can be deleted: they have ended, and neither people nor sensors look at them.

    A run with the newest materialization or observation of an asset, or with the newest materialization of a partition,
    is none of them, whatever its age; nor is an attempt at the next checkpoint, or at a savepoint of the last one.

    Args:
        instance: Where runs are recorded.
        job_id: The job. Runs have its tag if a sensor or a job of the library has started them.
        asset_keys: Its assets.
        keep: How many of the newest runs that have ended are kept.
        checkpoint_id: The job's last completed checkpoint.
    """
    ended = instance.get_runs(RunsFilter(tags={JOB_TAG: job_id}, statuses=_ENDED))[keep:]
    current = {run_id for key in asset_keys for run_id in _runs_of_newest(instance, key)} if ended else set()
    return [run.run_id for run in ended if run.run_id not in current and not _is_counted(run, checkpoint_id)]


def _runs_of_newest(instance: DagsterInstance, key: AssetKey) -> Iterable[str]:
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        yield from (record.run_id for record in fetch(key, limit=1).records)
    of_partitions = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, DagsterEventType.ASSET_MATERIALIZATION
    )
    if of_partitions:
        newest = AssetRecordsFilter(key, storage_ids=list(of_partitions.values()))
        yield from (record.run_id for record in instance.fetch_materializations(newest, len(of_partitions)).records)


def _is_counted(run: DagsterRun, checkpoint_id: int) -> bool:
    return any(int(run.tags.get(tag, -1)) >= checkpoint_id for tag in (CHECKPOINT_TAG, SAVEPOINT_TAG))
