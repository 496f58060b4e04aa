"""Runs of one backfill, where each reads a part of its partitions: their order, and what they start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dagster import (
    AssetSpec,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RetryRequested,
    RunsFilter,
    TimeWindowPartitionsDefinition,
)
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, BACKFILL_ID_TAG, PARTITION_NAME_TAG

from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_runs import works_on
from dagster_flinkpy.orchestration.partitions import time_partition

__all__ = ["goes_on_with_backfill"]

_POLL_SECONDS = 2.0
_NO_LIMIT = 1_000_000


def goes_on_with_backfill(
    instance: DagsterInstance,
    run: DagsterRun,
    job: FlinkJob,
    assets: Sequence[AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    first: TimePartition,
    *,
    pool: str | None,
    log: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether a run of the same backfill has made the state that this one starts from; to be called in the step.

    Waits for runs of the backfill over earlier partitions. Dagster starts runs of sources one after the other, because
    a source depends on its own partition before. Those of a selection without sources it starts at once.

    Args:
        instance: Where runs are recorded.
        run: This one.
        job: Of the step.
        assets: Of the job.
        partitions_def: Its partitions.
        first: The first partition of this run.
        pool: Concurrency pool of the step. With one the step is tried again instead of waiting, so that it does not
            hold the slot which the run before needs.
        log: Told what is waited for.
        sleep: Waits for some seconds.

    Raises:
        RestoreError: The run of the backfill over the partition before has failed.
        RetryRequested: An earlier one is at work, and there is a pool.
    """
    backfill, keys = run.tags.get(BACKFILL_ID_TAG), [spec.key for spec in assets]
    if backfill is None:
        return False
    waited_for = None
    while True:
        others = instance.get_runs(RunsFilter(tags={BACKFILL_ID_TAG: backfill}))
        ours = [other for other in others if other.run_id != run.run_id and works_on(instance, other, job.job_id, keys)]
        last = {other.run_id: time_partition(partitions_def, _last_partition(other)) for other in ours}
        earlier = [other for other in ours if last[other.run_id].ordinal < first.ordinal]
        ahead = next((other for other in earlier if not other.is_finished), None)
        if ahead is None:
            break
        if waited_for != ahead.run_id:
            waited_for = ahead.run_id
            log(f"waiting for run {waited_for} of the same backfill, which comes first: {last[waited_for].key}")
        if pool is not None:
            raise RetryRequested(max_retries=_NO_LIMIT, seconds_to_wait=_POLL_SECONDS)
        sleep(_POLL_SECONDS)
    before = [other for other in earlier if last[other.run_id].ordinal == first.ordinal - 1]
    if any(other.status == DagsterRunStatus.SUCCESS for other in before):
        return True
    if before:
        lost = before[0].run_id
        raise RestoreError(
            f"partition {first.key} comes after {last[lost].key}, which run {lost} of this backfill has not completed: "
            "run both again, in order"
        )
    return False


def _last_partition(run: DagsterRun) -> str:
    return run.tags.get(PARTITION_NAME_TAG) or run.tags[ASSET_PARTITION_RANGE_END_TAG]
