"""Runs that each read some partitions, such as those of one backfill: their order and their start state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dagster import (
    AssetKey,
    AssetSpec,
    DagsterInstance,
    DagsterRun,
    RetryRequested,
    RunRecord,
    RunsFilter,
    TimeWindowPartitionsDefinition,
)

from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    ROOT_BACKFILL_ID_TAG,
    ROOT_RUN_ID_TAG,
    StepEventStatus,
)
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.run_tries import FIRST_TRY_TAG
from dagster_flinkpy.orchestration.runs.exclusive_run import (
    POLL_SECONDS,
    SILENT_SECONDS,
    WaitLog,
    last_sign_of_life,
    leads,
    step_began,
    step_ended,
    utc,
)
from dagster_flinkpy.orchestration.runs.partition_start import time_partitions
from dagster_flinkpy.orchestration.runs.runs_of_job import active_runs, works_on
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["continues_backfill", "let_run_before_go_first"]

_QUEUED_SECONDS = 3600.0
"""How long a run waits for an earlier one to begin, which may itself wait for a queue slot that this run holds."""
_AGAIN_SECONDS = 10.0
"""After how long a step is tried again that lets another run go first."""
_NO_LIMIT = 1_000_000


def continues_backfill(
    instance: DagsterInstance,
    run: DagsterRun,
    job: FlinkJob,
    assets: Sequence[AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    first: TimePartition,
    store: ObjectStore,
    *,
    pool: str | None,
    log: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Returns whether a run comes after another one of its backfill, whose config is for the first. Call it in a step.

    What repeats a backfill, or a run of it, belongs to it, too: a person, Dagster or the restart sensor has started it.
    It waits for the backfill's runs over earlier partitions. If sources are selected, Dagster starts the runs one after
    the other, because a source depends on its own previous partition. Without sources it starts all of them at once.

    Args:
        instance: Where runs are recorded.
        run: This run.
        job: The job of the step.
        assets: The assets of the job.
        partitions_def: The partitions of the job.
        first: The first partition of this run.
        store: Store of the job; its ``leader`` object says whose lease is valid.
        pool: Concurrency pool of the step. If there is one, the step asks to be retried instead of waiting, so that it
            does not hold the slot that the earlier run needs.
        log: Writes one line to the run's log.
        sleep: Waits for a number of seconds.

    Raises:
        RestoreError: The backfill's run over the previous partition failed, or an earlier run is dead or does not
            begin.
        RetryRequested: An earlier run is active, and there is a pool.
    """
    backfill, keys = _backfill_of(instance, run), [spec.key for spec in assets]
    if backfill is None:
        return False
    wait_log = WaitLog(log)
    while True:
        records = _runs_of(instance, backfill)
        ended = {record.dagster_run.run_id: record.end_time or 0.0 for record in records}
        others = [record.dagster_run for record in records if record.dagster_run.run_id != run.run_id]
        ours = [other for other in others if works_on(instance, other, job.job_id, keys)]
        ends = time_partitions(partitions_def, [_range_of(other)[1] for other in ours])
        last = {other.run_id: end for other, end in zip(ours, ends, strict=True)}
        earlier = [other for other in ours if last[other.run_id].ordinal < first.ordinal]
        steps = {other.run_id: step_ended(instance, other.run_id, job.dagster_name) for other in earlier}
        open_runs = [other for other in earlier if not other.is_finished and steps[other.run_id] is None]
        if not open_runs:
            break
        ahead = max(open_runs, key=lambda other: last[other.run_id].ordinal)
        leader = lease.read(store)
        if not any(leads(leader, other.run_id) for other in open_runs):
            newest = max(last_sign_of_life(instance, o) if o in open_runs else ended[o.run_id] for o in earlier)
            order = f"{first.key} comes after {last[ahead.run_id].key}"
            _refuse_dead(instance, job, ahead, time.time() - newest, order)
        wait_log.say(
            f"Waiting for run {ahead.run_id} of the same backfill, which comes first: {last[ahead.run_id].key}"
        )
        if pool is not None:
            raise RetryRequested(max_retries=_NO_LIMIT, seconds_to_wait=POLL_SECONDS)
        sleep(POLL_SECONDS)
    before = [other for other in earlier if last[other.run_id].ordinal == first.ordinal - 1]
    if any(other.is_success or steps[other.run_id] == StepEventStatus.SUCCESS for other in before):
        return True
    if before and BACKFILL_ID_TAG not in run.tags and all(BACKFILL_ID_TAG in other.tags for other in before):
        return True  # what was missing may have been made by hand meanwhile
    if before:
        lost = before[0].run_id
        raise RestoreError(
            f"partition {first.key} comes after {last[lost].key}, which run {lost} of this backfill has not completed: "
            "run both again, in order"
        )
    if earlier:
        return True  # after a gap; its own config would leave out what is in it
    # One that was to read this partition, too, began with the config, and has ended amid its partitions.
    began = [_range_of(other)[0] for other in ours]
    # What the backfill was asked for tells of runs whose records were deleted.
    asked = _partitions_of(instance, backfill, keys)
    return any(each.ordinal < first.ordinal for each in time_partitions(partitions_def, [*began, *asked]))


def let_run_before_go_first(
    instance: DagsterInstance,
    run: DagsterRun,
    job: FlinkJob,
    assets: Sequence[AssetSpec],
    partitions_def: TimeWindowPartitionsDefinition,
    first: TimePartition,
    store: ObjectStore,
    log: Callable[[str], None],
) -> None:
    """Has the step tried again later, if an open run is still to make the end state that this run starts from.

    A schedule that catches up, or an automation condition, starts a run for each partition at once, in any order.
    Between two tries the other run does not wait for this one, as it would if this one waited in its step.

    Args:
        instance: Where runs are recorded.
        run: This run.
        job: The job of the step.
        assets: The assets of the job.
        partitions_def: The partitions of the job.
        first: The first partition of this run.
        store: Store of the job.
        log: Writes one line to the run's log.

    Raises:
        RetryRequested: A run over the partition before is queued or at work.
    """
    from dagster_flinkpy.checkpoint.traces import head_of_job

    keys, head = partitions_def.get_partition_keys(), head_of_job(store)
    before = keys[first.ordinal - 1] if first.ordinal else None
    if before is None or (head is not None and any(end.partition == before for end in head.partitions)):
        return
    leader, ordinals = lease.read(store), {key: ordinal for ordinal, key in enumerate(keys)}
    for other in active_runs(instance, job.job_id, [spec.key for spec in assets], besides=run.run_id):
        start, end = (ordinals.get(key, -1) for key in _range_of(other))
        if not 0 <= start < first.ordinal <= end + 1:
            continue
        if step_ended(instance, other.run_id, job.dagster_name):
            continue  # other assets of that run go on
        begun = step_began(instance, other.run_id, job.dagster_name) is not None
        silent = time.time() - last_sign_of_life(instance, other)
        if leads(leader, other.run_id) or silent < (SILENT_SECONDS if begun else _QUEUED_SECONDS):
            log(f"Run {other.run_id} goes first: it reads {before}, with whose end state {first.key} begins.")
            raise RetryRequested(max_retries=_NO_LIMIT, seconds_to_wait=_AGAIN_SECONDS)


def _backfill_of(instance: DagsterInstance, run: DagsterRun) -> str | None:
    """Returns the id of the backfill of a run, or of the first backfill or run that it repeats.

    Dagster tags runs that are executed again only until the backfill has ended, and the restart sensor tags nothing.
    """
    while (backfill := run.tags.get(ROOT_BACKFILL_ID_TAG) or run.tags.get(BACKFILL_ID_TAG)) is None:
        first = run.root_run_id or run.tags.get(FIRST_TRY_TAG)
        before = instance.get_run_by_id(first) if first else None
        if before is None or before.run_id == run.run_id:
            return None
        run = before
    return backfill


def _runs_of(instance: DagsterInstance, backfill: str) -> list[RunRecord]:
    """Returns the runs of a backfill, of those that repeat it, and those that repeat them, the newest first."""

    def tagged(tag: str, value: str | list[str]) -> dict[str, RunRecord]:
        return {each.dagster_run.run_id: each for each in instance.get_run_records(RunsFilter(tags={tag: value}))}

    found = tagged(BACKFILL_ID_TAG, backfill) | tagged(ROOT_BACKFILL_ID_TAG, backfill)
    if found:
        found |= tagged(ROOT_RUN_ID_TAG, [*found]) | tagged(FIRST_TRY_TAG, [*found])
    return sorted(found.values(), key=lambda record: record.storage_id, reverse=True)


def _partitions_of(instance: DagsterInstance, backfill: str, keys: Sequence[AssetKey]) -> set[str]:
    """Returns the partitions that a backfill was asked for, of any of these assets; none if Dagster has deleted it."""
    found = instance.get_backfill(backfill)
    if found is None or found.asset_backfill_data is None:
        return set()
    subsets = found.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
    return {each for key in keys if key in subsets for each in subsets[key].get_partition_keys()}


def _refuse_dead(instance: DagsterInstance, job: FlinkJob, ahead: DagsterRun, silent: float, order: str) -> None:
    """Raises if an earlier run counts as dead, given that it and all runs before it were silent for so long."""
    if step_began(instance, ahead.run_id, job.dagster_name) is None:
        if silent >= _QUEUED_SECONDS:
            raise RestoreError(
                f"partition {order}, whose run {ahead.run_id} of this backfill does not begin: it is "
                f"{ahead.status.value}, and nothing has happened since {utc(time.time() - silent)}. Find out whether "
                "it waits for a place in the queue or the pool, or cancel it; then run both again, in order."
            )
    elif silent >= SILENT_SECONDS:
        raise RestoreError(
            f"partition {order}, whose run {ahead.run_id} of this backfill has shown no sign of life since "
            f"{utc(time.time() - silent)}: set it to canceled in the UI, then run both again, in order"
        )


def _range_of(run: DagsterRun) -> tuple[str, str]:
    """Returns the first and the last partition of a run; empty strings if it has none."""
    if one := run.tags.get(PARTITION_NAME_TAG):
        return one, one
    return run.tags.get(ASSET_PARTITION_RANGE_START_TAG, ""), run.tags.get(ASSET_PARTITION_RANGE_END_TAG, "")
