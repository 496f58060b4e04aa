"""Starts a job again after a run of it failed, by a restart strategy (Flink: ``ExecutionFailureHandler``)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster import (
    AssetsDefinition,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
    WILL_RETRY_TAG,
)

from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.job_runs import recent_runs
from dagster_flinkpy.orchestration.targets import FlinkTarget, flink_targets
from dagster_flinkpy.runtime.restart_strategies import ExponentialDelayRestart, RestartStrategy

__all__ = ["RESTART_TAG", "build_restart_sensor", "next_restart"]

RESTART_TAG = "flink/restart_of"
"""Run tag: the failed run that a run replaces."""


_PARTITION_RANGE = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
_NO_ASSETS = ("savepoint", "restore", "rescale", "reset", "stop")
"""Jobs of `build_flink_jobs` that work on the job without running it."""


@dataclass(frozen=True)
class Restart:
    """A run that is to be started."""

    of: DagsterRun
    """The run that failed."""
    reason: str
    """Which restart it is, for the log."""


def next_restart(
    target: FlinkTarget, runs: Sequence[RunRecord], strategy: RestartStrategy, now_ms: int, *, hopeless: str | None
) -> Restart | str:
    """What is to be done about a job, or in plain words why nothing is.

    Args:
        target: The job.
        runs: Its runs, the newest first.
        strategy: Decides.
        now_ms: Milliseconds since 1970.
        hopeless: What the newest run failed of, if that is nothing that another try could mend.
    """
    job = f"Job {target.job_id}"
    if not runs:
        return f"{job} has not run yet."
    last = runs[0].dagster_run
    if last.status != DagsterRunStatus.FAILURE:
        return f"{job}: its last run {_short(last)} is {last.status.value.lower().replace('_', ' ')}."
    if last.tags.get(WILL_RETRY_TAG) == "true":
        return f"{job}: Dagster tries run {_short(last)} again by itself."
    if hopeless is not None:
        return f"{job}: run {_short(last)} failed of {hopeless}, which trying again does not mend."
    # The jitter depends on the run, so each tick comes to the same answer.
    decision = strategy.decide(_failures(runs, strategy), random=random.Random(last.run_id).random)
    if not decision.restart:
        return f"{job} has failed for good: {decision.reason}. Run it yourself to start anew."
    if now_ms < decision.at_ms:
        return f"{job}: {decision.reason}, in {(decision.at_ms - now_ms) / 1000:.0f} s."
    return Restart(last, decision.reason)


def build_restart_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    *,
    strategy: RestartStrategy | None = None,
    name: str | None = None,
    minimum_interval_seconds: int = 15,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
) -> SensorDefinition:
    """A sensor that starts a job again when its last run failed.

    The new run has the config and the partition, or range of them, of the failed one and goes on from the last
    completed checkpoint. The strategy is asked with the failures since somebody last started the job by hand, which is
    what submitting it is in Flink; `FixedDelayRestart` counts from the last run that succeeded, too. A savepoint, a
    restore or a rescale that fails is no failure of the job. There is no restart where none would help: a state that
    does not fit, a bad configuration, a run that a newer one has fenced. A canceled run stays canceled.

    Args:
        assets: What `flink_assets` returned.
        strategy: When, and how often. Default: `ExponentialDelayRestart`, as Flink does for jobs with checkpoints.
            `restart_strategy_of` makes one of Flink's options.
        name: Of the sensor. Default: ``{job}_restart_sensor``.
        minimum_interval_seconds: Time between ticks, so a restart may be that much later than the strategy says.
        default_status: Whether the sensor runs before anybody has switched it on.

    Raises:
        ConfigurationError: The assets are not of `flink_assets`.
    """
    targets = flink_targets(assets, builder="build_restart_sensor")
    jobs = [target.asset_job("restart", f"Starts job {target.job_id} again after a failure.") for target in targets]
    chosen = strategy or ExponentialDelayRestart()

    @sensor(
        name=name or f"{targets[0].dagster_name}_restart_sensor",
        jobs=jobs,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Starts each job again whose last run failed, as the restart strategy says.",
    )
    def restart_sensor(context: SensorEvaluationContext) -> SensorResult:
        requests, reasons = [], []
        for target, job in zip(targets, jobs, strict=True):
            runs = [
                record
                for record in recent_runs(context.instance, target.job_id, target.keys)
                if not _is_failed_upkeep(record.dagster_run, target)
            ]
            hopeless = _hopeless(context.instance, runs[0].dagster_run) if runs else None
            answer = next_restart(target, runs, chosen, time.time_ns() // 1_000_000, hopeless=hopeless)
            if isinstance(answer, Restart):
                context.log.info(f"Job {target.job_id}: {answer.reason}")
                requests.append(_request(target, answer, job.name))
            else:
                reasons.append(answer)
        return SensorResult(run_requests=requests) if requests else SensorResult(skip_reason=" ".join(reasons))

    return restart_sensor


def _failures(runs: Sequence[RunRecord], strategy: RestartStrategy) -> list[int]:
    """When the runs since the last start by hand failed, oldest first."""

    def newest_first() -> Iterator[int]:
        for record in runs:
            run = record.dagster_run
            if run.status == DagsterRunStatus.SUCCESS and strategy.success_ends_series:
                return
            if run.status == DagsterRunStatus.FAILURE:
                yield _milliseconds(record)
            if JOB_TAG not in run.tags or "dagster/sensor_name" not in run.tags:
                return

    return list(newest_first())[::-1]


def _hopeless(instance: DagsterInstance, run: DagsterRun) -> str | None:
    """What a run failed of, if no other try could mend it."""
    if run.status != DagsterRunStatus.FAILURE:
        return None
    for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_FAILURE):
        data = entry.dagster_event.step_failure_data if entry.dagster_event else None
        said = data.user_failure_data.metadata.get("error") if data and data.user_failure_data else None
        if said is not None and retry_is_pointless(str(said.value)):
            return str(said.value)
    return None


def _is_failed_upkeep(run: DagsterRun, target: FlinkTarget) -> bool:
    """Whether a savepoint, a rescale or the like failed: that is no failure of the job, and its config is another."""
    return run.status == DagsterRunStatus.FAILURE and run.job_name in {
        f"{target.dagster_name}_{verb}" for verb in _NO_ASSETS
    }


def _request(target: FlinkTarget, restart: Restart, job_name: str) -> RunRequest:
    run = restart.of
    kept = {
        name: value
        for name, value in run.tags.items()
        if name in _PARTITION_RANGE or not name.startswith((".dagster/", "dagster/"))
    }
    return RunRequest(
        run_key=f"{target.job_id}-restart-of-{run.run_id}",
        job_name=job_name,
        run_config=run.run_config,
        partition_key=run.tags.get(PARTITION_NAME_TAG),
        tags={**kept, JOB_TAG: target.job_id, RESTART_TAG: run.run_id},
    )


def _milliseconds(record: RunRecord) -> int:
    return round((record.end_time or record.update_timestamp.timestamp()) * 1000)


def _short(run: DagsterRun) -> str:
    return run.run_id[:8]
