"""Lets only one run at a time work on a job. A waiting run logs what it waits for, and notices if that run is dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from dagster import AssetSpec, DagsterInstance, DagsterRun, DagsterRunStatus

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.orchestration.dagster_internals import BACKFILL_ID_TAG, StepEventStatus
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.runs.runs_of_job import runs_at_work
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = [
    "POLL_SECONDS",
    "SILENT_SECONDS",
    "WaitLog",
    "await_exclusive_run",
    "is_silent",
    "last_sign_of_life",
    "leads",
    "never_launched",
    "step_began",
    "step_ended",
    "utc",
]

POLL_SECONDS = 2.0
"""How often a waiting run checks again."""
SILENT_SECONDS = 300.0
"""A run whose step has begun counts as dead after this time without leading the job or writing to its log; and so does
one that was created, but not launched."""
_REPEAT_SECONDS = 60.0
_SETTLE_SECONDS = 1.0
"""Within this time, the step of another run may have begun earlier without being recorded yet."""


class WaitLog:
    """Logs what a run waits for: when that changes and once a minute, so that other runs see that it is alive.

    Args:
        log: Writes one line to the run's log.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._said, self._at = "", 0.0

    def say(self, line: str) -> None:
        if line != self._said or time.monotonic() - self._at >= _REPEAT_SECONDS:
            self._said, self._at = line, time.monotonic()
            self._log(line)


def await_exclusive_run(
    instance: DagsterInstance,
    job: FlinkJob,
    assets: Sequence[AssetSpec],
    run: DagsterRun,
    store: ObjectStore,
    log: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until no earlier run works on the job. Call it inside the step.

    A job has one lineage of checkpoints, so two runs over different partitions must not overlap: the newer attempt
    would end the older one. The run whose step began first goes first. Runs of one backfill count as one run; their
    order has been decided before this call. This function does not wait for a run whose step has not begun, because
    that run may itself wait for a pool slot that this run holds. Nor does it wait for a dead run, which the next
    attempt fences.

    Args:
        instance: Where runs are recorded.
        job: The job of the step.
        assets: The assets of the job.
        run: This run.
        store: Store of the job; its ``leader`` object says whose lease is valid.
        log: Writes one line to the run's log.
        sleep: Waits for a number of seconds.
    """
    wait_log, dead, keys = WaitLog(log), set[str](), [spec.key for spec in assets]
    while True:
        records = runs_at_work(instance, job.job_id, keys)
        others = [each for record in records if (each := record.dagster_run).run_id != run.run_id]
        if not others:
            return
        mine = step_began(instance, run.run_id, job.dagster_name) or time.time()
        steps = {other.run_id: step_began(instance, other.run_id, job.dagster_name) for other in others}
        group_began = {_group(run): mine}
        for other in others:
            if (at := steps[other.run_id]) is not None:
                group_began[_group(other)] = min(at, group_began.get(_group(other), at))
        leader, my_place = lease.read(store), (group_began[_group(run)], _group(run))
        ahead = None
        for other in others:
            if leads(leader, other.run_id):
                ahead = other
                break
            if steps[other.run_id] is None or (group_began[_group(other)], _group(other)) >= my_place:
                continue
            last = last_sign_of_life(instance, other)
            if time.time() - last < SILENT_SECONDS:
                ahead = other
            elif other.run_id not in dead:
                dead.add(other.run_id)
                log(
                    f"Run {other.run_id} of job {job.job_id} began earlier but has shown no sign of life since "
                    f"{utc(last)}. This run continues without it. Set that run to canceled in the UI."
                )
        if ahead is not None:
            wait_log.say(
                f"Waiting for run {ahead.run_id}, which works on job {job.job_id}, for as long as it shows signs of "
                "life. If its process is gone, set it to canceled in the UI to continue at once. To make runs wait in "
                "Dagster's queue instead, use a pool with limit 1: flink_assets(pool=...)."
            )
            sleep(POLL_SECONDS)
        elif time.time() - mine < _SETTLE_SECONDS:
            sleep(_SETTLE_SECONDS)
        else:
            return


def leads(leader: lease.LeaderRecord | None, run_id: str) -> bool:
    """Returns whether a run leads the job and its lease has not expired."""
    return leader is not None and leader.led_by == run_id and leader.alive(current_millis())


def is_silent(instance: DagsterInstance, run: DagsterRun, step: str, leader: lease.LeaderRecord | None) -> bool:
    """Returns whether a run counts as dead: its step has begun, but it neither leads the job nor writes to its log.

    Args:
        instance: Where runs are recorded.
        run: The run, which has not ended.
        step: Name of the job's step.
        leader: Who leads the job.
    """
    return (
        run.status == DagsterRunStatus.STARTED
        and not leads(leader, run.run_id)
        and step_began(instance, run.run_id, step) is not None
        and time.time() - last_sign_of_life(instance, run) >= SILENT_SECONDS
    )


def never_launched(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Returns whether Dagster has created a run and then failed to launch it, which nobody tries again.

    Unless a sensor asks for a run of the same key.
    """
    waits = run.status == DagsterRunStatus.NOT_STARTED
    return waits and time.time() - last_sign_of_life(instance, run) >= SILENT_SECONDS


def last_sign_of_life(instance: DagsterInstance, run: DagsterRun) -> float:
    """Returns when a run last wrote to its log, or was created if it never did, in seconds since 1970."""
    newest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    if newest:
        return newest[0].timestamp
    record = instance.get_run_record_by_id(run.run_id)
    return record.create_timestamp.timestamp() if record else 0.0


def step_began(instance: DagsterInstance, run_id: str, step: str) -> float | None:
    """Returns when the current try of a step began in a run, in seconds since 1970.

    Returns None if no try is running, such as between two tries.
    """
    for stats in instance.get_run_step_stats(run_id, [step]):
        if stats.step_key == step:
            return stats.partial_attempt_start
    return None


def step_ended(instance: DagsterInstance, run_id: str, step: str) -> StepEventStatus | None:
    """Returns how a step has ended in a run, whose other steps may go on; None if it has not."""
    for stats in instance.get_run_step_stats(run_id, [step]):
        if stats.step_key == step and stats.status != StepEventStatus.IN_PROGRESS:
            return stats.status
    return None


def _group(run: DagsterRun) -> str:
    """Returns the id of a run's backfill, or of the run itself: what counts as one run."""
    return run.tags.get(BACKFILL_ID_TAG, run.run_id)


def utc(seconds: float) -> str:
    """Formats a time given in seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
