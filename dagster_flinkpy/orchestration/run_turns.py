"""Runs of one job take turns. One that waits says for what, and sees when the other is dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from dagster import AssetSpec, DagsterInstance, DagsterRun
from dagster._core.storage.tags import BACKFILL_ID_TAG

from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_runs import runs_at_work
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["POLL_SECONDS", "SILENT_SECONDS", "Waiting", "await_turn", "began", "last_sign", "leads", "utc"]

POLL_SECONDS = 2.0
"""How often a run that waits looks again."""
SILENT_SECONDS = 300.0
"""A run whose step has begun is dead when it neither leads the job nor has written to its log for so long."""
_REPEAT_SECONDS = 60.0
_SETTLE_SECONDS = 1.0
"""Until then the step of another run may have begun earlier, and not be recorded."""


class Waiting:
    """Says what a run waits for, when that changes and once a minute: so others see that it lives.

    Args:
        log: Told in a line.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._said, self._at = "", 0.0

    def say(self, line: str) -> None:
        if line != self._said or time.time() - self._at >= _REPEAT_SECONDS:
            self._said, self._at = line, time.time()
            self._log(line)


def await_turn(
    instance: DagsterInstance,
    job: FlinkJob,
    assets: Sequence[AssetSpec],
    run: DagsterRun,
    store: ObjectStore,
    log: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until it is a run's turn to work on the job; to be called in the step.

    A job has one lineage of checkpoints, so two runs over different partitions take turns; a newer attempt would
    otherwise end the older one. The run whose step began first goes first; runs of one backfill count as one, and are
    in order before they ask for their turn. A run whose step has not begun is not waited for: it may itself wait, for
    a slot of a pool that this one holds. Nor is one that is dead: what leads after it fences it.

    Args:
        instance: Where runs are recorded.
        job: Of the step.
        assets: Of the job.
        run: This one.
        store: Of the job; its ``leader`` object says whose lease runs.
        log: Told what is waited for.
        sleep: Waits for some seconds.
    """
    waiting, buried, keys = Waiting(log), set[str](), [spec.key for spec in assets]
    while True:
        records = runs_at_work(instance, job.job_id, keys)
        others = [each for record in records if (each := record.dagster_run).run_id != run.run_id]
        if not others:
            return
        mine = began(instance, run.run_id, job) or time.time()
        steps = {other.run_id: began(instance, other.run_id, job) for other in others}
        turns = {_backfill(run): mine}
        for other in others:
            if (at := steps[other.run_id]) is not None:
                turns[_backfill(other)] = min(at, turns.get(_backfill(other), at))
        leader, my_turn = lease.read(store), (turns[_backfill(run)], _backfill(run))
        ahead = None
        for other in others:
            if leads(leader, other.run_id):
                ahead = other
                break
            if steps[other.run_id] is None or (turns[_backfill(other)], _backfill(other)) >= my_turn:
                continue
            last = last_sign(instance, other)
            if time.time() - last < SILENT_SECONDS:
                ahead = other
            elif other.run_id not in buried:
                buried.add(other.run_id)
                log(
                    f"run {other.run_id} of job {job.job_id} began earlier, and has given no sign of life since "
                    f"{utc(last)}: this run goes on without it. Set that one to canceled in the UI."
                )
        if ahead is not None:
            waiting.say(
                f"waiting for run {ahead.run_id}, which works on job {job.job_id}, as long as it gives a sign of life. "
                "If its process is gone, set it to canceled in the UI to go on at once. With a pool of limit 1 "
                "(flink_assets(pool=...)) runs wait in Dagster's queue."
            )
            sleep(POLL_SECONDS)
        elif time.time() - mine < _SETTLE_SECONDS:
            sleep(_SETTLE_SECONDS)
        else:
            return


def leads(leader: lease.LeaderRecord | None, run_id: str) -> bool:
    """Whether a run leads the job and its lease has not run out."""
    return leader is not None and run_id in leader.owner and leader.alive(time.time_ns() // 1_000_000)


def last_sign(instance: DagsterInstance, run: DagsterRun) -> float:
    """When the log of a run was last written to, or the run created; in seconds since 1970."""
    newest = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    if newest:
        return newest[0].timestamp
    record = instance.get_run_record_by_id(run.run_id)
    return record.create_timestamp.timestamp() if record else 0.0


def began(instance: DagsterInstance, run_id: str, job: FlinkJob) -> float | None:
    """When the try of the job's step began that a run is at; None if there is none, as between two tries."""
    step = job.dagster_name
    for stats in instance.get_run_step_stats(run_id, [step]):
        if stats.step_key == step:
            return stats.partial_attempt_start
    return None


def _backfill(run: DagsterRun) -> str:
    return run.tags.get(BACKFILL_ID_TAG, run.run_id)


def utc(seconds: float) -> str:
    """A time in words; given in seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
