"""Starts a job again after a run of it failed, by a restart strategy (Flink: ``ExecutionFailureHandler``)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

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
from dagster._core.execution.stats import StepEventStatus
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
    WILL_RETRY_TAG,
)

from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.job_runs import RESTART_TAG, recent_runs
from dagster_flinkpy.orchestration.targets import FlinkTarget, flink_targets

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.restart_strategies import RestartStrategy

__all__ = ["build_restart_sensor", "next_restart"]

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
    target: FlinkTarget,
    runs: Sequence[RunRecord],
    strategy: RestartStrategy,
    now_ms: int,
    *,
    hopeless: str | None,
    waits_for: str | None = None,
) -> Restart | str:
    """What is to be done about a job, or in plain words why nothing is.

    Args:
        target: The job.
        runs: Its runs, the newest first.
        strategy: Decides.
        now_ms: Milliseconds since 1970.
        hopeless: What the newest run failed of, if that is nothing that another try could mend.
        waits_for: The job of which the newest run failed before it came to this one.
    """
    job = f"Job {target.job_id}"
    if not runs:
        return f"{job} has not run yet."
    last = runs[0].dagster_run
    if last.status != DagsterRunStatus.FAILURE:
        return f"{job}: its last run {_short(last)} is {last.status.value.lower().replace('_', ' ')}."
    if last.tags.get(WILL_RETRY_TAG) == "true":
        return f"{job}: Dagster tries run {_short(last)} again by itself."
    if waits_for is not None:
        return f"{job}: run {_short(last)} failed before it came to it, in job {waits_for}, which has to recover first."
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

    Of a run of several jobs only those are started again whose step did not succeed; one that the run did not come to,
    because another failed before, is so when that one has recovered.

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

    @sensor(
        name=name or f"{targets[0].dagster_name}_restart_sensor",
        jobs=jobs,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Starts each job again whose last run failed, as the restart strategy says.",
    )
    def restart_sensor(context: SensorEvaluationContext) -> SensorResult:
        requests, reasons = [], []
        chosen = strategy or _default_strategy()
        histories = [_History.of(context.instance, target) for target in targets]
        failed = [history.target.job_id for history in histories if history.failed]
        for history, target, job in zip(histories, targets, jobs, strict=True):
            answer = next_restart(
                target,
                history.runs,
                chosen,
                time.time_ns() // 1_000_000,
                hopeless=_hopeless(context.instance, history) if history.failed else None,
                waits_for=failed[0] if failed and not history.reached else None,
            )
            if isinstance(answer, Restart):
                context.log.info(f"Job {target.job_id}: {answer.reason}")
                requests.append(_request(target, answer, job.name))
            else:
                reasons.append(answer)
        return SensorResult(run_requests=requests) if requests else SensorResult(skip_reason=" ".join(reasons))

    return restart_sensor


@cache
def _default_strategy() -> RestartStrategy:
    from dagster_flinkpy.runtime.restart_strategies import ExponentialDelayRestart

    return ExponentialDelayRestart()


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


@dataclass(frozen=True)
class _History:
    """The runs of a job, as far as they are a matter of this sensor."""

    target: FlinkTarget
    runs: Sequence[RunRecord]
    """The newest first. The status of the first is that of the job's part of it."""
    reached: bool = True
    """Whether the newest run, if it failed, came to the job."""

    @property
    def failed(self) -> bool:
        return bool(self.runs) and self.reached and self.runs[0].dagster_run.status == DagsterRunStatus.FAILURE

    @staticmethod
    def of(instance: DagsterInstance, target: FlinkTarget) -> _History:
        found = recent_runs(instance, target.job_id, target.keys)
        runs = [record for record in found if not _is_upkeep(record.dagster_run, target)]
        last = runs[0].dagster_run if runs else None
        if last is None or last.status != DagsterRunStatus.FAILURE or JOB_TAG in last.tags:
            return _History(target, runs)
        # It may be of several jobs, of which each is a step.
        steps = {step.step_key: step.status for step in instance.get_run_step_stats(last.run_id)}
        mine = steps.get(target.dagster_name)
        if mine == StepEventStatus.SUCCESS:
            done = runs[0]._replace(dagster_run=last.with_status(DagsterRunStatus.SUCCESS))
            return _History(target, [done, *runs[1:]])
        reached = mine in (StepEventStatus.FAILURE, StepEventStatus.IN_PROGRESS)
        return _History(target, runs, reached or StepEventStatus.FAILURE not in steps.values())


def _hopeless(instance: DagsterInstance, history: _History) -> str | None:
    """What the newest run failed of, if no other try could mend it."""
    run_id = history.runs[0].dagster_run.run_id
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE):
        data = entry.dagster_event.step_failure_data if entry.dagster_event else None
        said = data.user_failure_data.metadata.get("error") if data and data.user_failure_data else None
        if said is not None and entry.step_key == history.target.dagster_name and retry_is_pointless(str(said.value)):
            return str(said.value)
    return None


def _is_upkeep(run: DagsterRun, target: FlinkTarget) -> bool:
    """Whether it is over and no matter of the sensor: a savepoint, and a rescale or the like that failed.

    That is no failure of the job, and its config is another. One that succeeded is an intervention.
    """
    verbs = _NO_ASSETS[:1] if run.status == DagsterRunStatus.SUCCESS else _NO_ASSETS
    return run.is_finished and run.job_name in {f"{target.dagster_name}_{verb}" for verb in verbs}


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
