"""The sensor that restarts a failed job according to a restart strategy (Flink: ``ExecutionFailureHandler``)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

from dagster_flinkpy.common.clock import current_millis, epoch_millis
from dagster_flinkpy.common.restart_strategies import ExponentialDelayRestart, RestartStrategy
from dagster_flinkpy.orchestration.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
    SENSOR_NAME_TAG,
    USER_EDITABLE_SYSTEM_TAGS,
    WILL_RETRY_TAG,
    StepEventStatus,
)
from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.run_tries import FIRST_TRY_TAG, first_try
from dagster_flinkpy.orchestration.runs.exclusive_run import never_launched
from dagster_flinkpy.orchestration.runs.runs_of_job import (
    RESTART_TAG,
    cut_short,
    goes_on,
    operation_of,
    recent_runs,
)
from dagster_flinkpy.orchestration.sensors.targets import SKEW_MS, FlinkTarget, flink_targets, tick_result

__all__ = [
    "JobHistory",
    "Restart",
    "build_restart_sensor",
    "ended_as_planned",
    "hopeless_error",
    "next_restart",
    "restart_request",
]

_KEPT = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG, *USER_EDITABLE_SYSTEM_TAGS)
"""Dagster's own tags that a restarted run has from the one that failed."""


@dataclass(frozen=True)
class Restart:
    """A run to start."""

    of: DagsterRun
    """The run that failed."""
    reason: str
    """The number of the restart and its reason, for the log."""


def next_restart(
    target: FlinkTarget,
    runs: Sequence[RunRecord],
    strategy: RestartStrategy,
    now_ms: int,
    *,
    hopeless: str | None,
    planned: Callable[[DagsterRun], bool],
    waits_for: str | None = None,
) -> Restart | str:
    """Decides whether to restart a job. Returns the restart, or why there is none.

    Args:
        target: The job.
        runs: Its runs, the newest first.
        strategy: The restart strategy.
        now_ms: Milliseconds since 1970.
        hopeless: Why another run would not help, if the newest one has found that out.
        planned: Whether a run that has failed went on until its time limit, which is no failure.
        waits_for: The job in which the newest run failed before it reached this one.
    """
    job = f"Job {target.job_id}"
    if not runs:
        return f"{job} has not run yet."
    last = runs[0].dagster_run
    if last.status != DagsterRunStatus.FAILURE:
        return f"{job}: its last run {_short(last)} is {last.status.value.lower().replace('_', ' ')}."
    if last.tags.get(WILL_RETRY_TAG) == "true":
        return f"{job}: Dagster retries run {_short(last)} by itself."
    if waits_for is not None:
        return (
            f"{job}: run {_short(last)} failed in job {waits_for} before it reached this one, and that job has to "
            "recover first."
        )
    if hopeless is not None:
        return f"{job}: run {_short(last)} failed with {hopeless}."
    if planned(last):
        return Restart(last, f"run {_short(last)} went on until its time limit")
    # The jitter depends on the run, so that each tick gives the same answer.
    failures = _failures(runs, strategy, planned)
    possible = [each for each in failures if each <= now_ms + SKEW_MS]
    decision = strategy.decide(possible or failures, random=random.Random(last.run_id).random)
    if not decision.restart:
        return f"{job} has failed for good: {decision.reason}. Start it by hand to reset the strategy."
    if possible and now_ms < decision.at_ms:
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
    """Builds a sensor that restarts a job when its last run failed.

    The new run has the config and the partitions of the failed run, and continues from the last completed checkpoint.
    The strategy counts the failures since somebody last started the job by hand, which corresponds to submitting the
    job in Flink; `FixedDelayRestart` also starts counting anew after a run that succeeded. A run that goes on
    (``epochs: 0``) and that ``dagster/max_runtime`` ends counts as one that succeeded, and is started again at once. A
    savepoint, restore or rescale that fails does not count as a failure of the job. There is no restart if it could not
    help: the state does not fit, the configuration is wrong, or a newer run has fenced this one. There is none either
    if the program sets a restart strategy, which acts inside its runs, and it has given up. A canceled run stays
    canceled.

    If a run has several jobs, only those whose step did not succeed are restarted. A job that the run did not reach,
    because another job failed first, is restarted when that job has recovered.

    Args:
        assets: What `flink_assets` returned.
        strategy: When and how often to restart. Default: `ExponentialDelayRestart`, Flink's default for jobs with
            checkpoints. `restart_strategy_of` makes a strategy from Flink's options.
        name: Name of the sensor. Default: ``{job}_restart_sensor``.
        minimum_interval_seconds: Time between ticks. A restart may be this much later than the strategy says.
        default_status: Whether the sensor is on before anybody switches it.

    Raises:
        ConfigurationError: The assets are not from `flink_assets`.

    Examples:
        Restart up to three times, 30 seconds after a failure:

        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import FixedDelayRestart, build_restart_sensor

            # `words` is what flink_assets returned
            restart = build_restart_sensor(words, strategy=FixedDelayRestart(attempts=3, delay=timedelta(seconds=30)))
    """
    targets, chosen = flink_targets(assets, builder="build_restart_sensor"), strategy or ExponentialDelayRestart()
    jobs = [target.asset_job("restart", f"Restarts job {target.job_id} after a failure.") for target in targets]

    @sensor(
        name=name or f"{targets[0].dagster_name}_restart_sensor",
        jobs=jobs,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Restarts each job whose last run failed, according to the restart strategy.",
    )
    def restart_sensor(context: SensorEvaluationContext) -> SensorResult:
        histories = {target.job_id: JobHistory.of(context.instance, target) for target in targets}
        failed = [job_id for job_id, history in histories.items() if history.failed]

        def decide(target: FlinkTarget) -> RunRequest | str:
            history = histories[target.job_id]
            answer = next_restart(
                target,
                history.runs,
                chosen,
                current_millis(),
                hopeless=hopeless_error(context.instance, history) if history.failed else None,
                planned=ended_as_planned(context.instance, target),
                waits_for=failed[0] if failed and not history.reached else None,
            )
            if isinstance(answer, str):
                return answer
            context.log.info(f"Job {target.job_id}: {answer.reason}")
            return restart_request(context.instance, target, answer)

        return tick_result(context, targets, decide)

    return restart_sensor


def _failures(runs: Sequence[RunRecord], strategy: RestartStrategy, planned: Callable[[DagsterRun], bool]) -> list[int]:
    """Returns when the runs since the last start by hand failed, oldest first."""

    def newest_first() -> Iterator[int]:
        for record in runs:
            run = record.dagster_run
            failed = run.status == DagsterRunStatus.FAILURE and not planned(run)
            ended_well = run.status in (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE) and not failed
            if ended_well and strategy.success_ends_series:
                return
            if failed:
                yield _milliseconds(record)
            if JOB_TAG not in run.tags or SENSOR_NAME_TAG not in run.tags:
                return

    return list(newest_first())[::-1]


@dataclass(frozen=True)
class JobHistory:
    """The runs of a job that concern this sensor."""

    target: FlinkTarget
    runs: Sequence[RunRecord]
    """The runs, the one that ended last first. The status of the first is that of the job's step in it."""
    reached: bool = True
    """Whether the newest run, if it failed, reached the job."""

    @property
    def failed(self) -> bool:
        """Whether the job failed in its newest run."""
        return bool(self.runs) and self.reached and self.runs[0].dagster_run.status == DagsterRunStatus.FAILURE

    @staticmethod
    def of(instance: DagsterInstance, target: FlinkTarget, *, idle: bool = False) -> JobHistory:
        """Reads the history of a job.

        Args:
            instance: Where runs are recorded.
            target: The job.
            idle: Whether no run works on the job, so that those that have not ended are dead. Default: False.
        """
        found = recent_runs(instance, target.job_id, target.keys)
        # If a sensor has asked for a run that was never launched, it asks for it again, and Dagster launches it.
        found = [each for each in found if not never_launched(instance, each.dagster_run)]
        found = [record for record in found if not _is_upkeep(record.dagster_run, target)]
        runs = _last_ended_first(found, target, idle)
        last = runs[0].dagster_run if runs else None
        if last is None or last.status != DagsterRunStatus.FAILURE or JOB_TAG in last.tags:
            return JobHistory(target, runs)
        # The run may have several jobs, each as a step.
        steps = {step.step_key: step.status for step in instance.get_run_step_stats(last.run_id)}
        mine = steps.get(target.dagster_name)
        # In earlier versions of the library, a step that was terminated succeeded.
        if mine == StepEventStatus.SUCCESS and not cut_short(instance, last, target.dagster_name):
            done = runs[0]._replace(dagster_run=last.with_status(DagsterRunStatus.SUCCESS))
            return JobHistory(target, [done, *runs[1:]])
        reached = mine in (StepEventStatus.SUCCESS, StepEventStatus.FAILURE, StepEventStatus.IN_PROGRESS)
        return JobHistory(target, runs, reached or StepEventStatus.FAILURE not in steps.values())


def ended_as_planned(instance: DagsterInstance, target: FlinkTarget) -> Callable[[DagsterRun], bool]:
    """Returns a function that says whether a run that has failed was to go on, and did until its time limit.

    Args:
        instance: Where runs are recorded.
        target: The job.
    """
    step = target.dagster_name
    return lambda run: goes_on(run, step) and cut_short(instance, run, step)


def hopeless_error(instance: DagsterInstance, history: JobHistory) -> str | None:
    """Returns why the newest run is not tried again: a retry cannot fix its error, or it was retried in the run."""
    run_id = history.runs[0].dagster_run.run_id
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.STEP_FAILURE):
        data = entry.dagster_event.step_failure_data if entry.dagster_event else None
        metadata = data.user_failure_data.metadata if data and data.user_failure_data else {}
        if (said := metadata.get("error")) is None or entry.step_key != history.target.dagster_name:
            continue
        if retry_is_pointless(str(said.value)) or "permanent" in metadata:
            return f"{said.value}, which a retry cannot fix"
        if (suppressed := metadata.get("suppressed_by")) is not None:
            return f"{said.value}, and {suppressed.value}"
    return None


def _last_ended_first(newest_first: Sequence[RunRecord], target: FlinkTarget, idle: bool) -> list[RunRecord]:
    """Puts runs into the order in which they ended: a rescale may begin and end beside a run.

    The sensors start a run when no other works on the job, so it ends after those before it, whatever the clocks of the
    machines say on which they ran; and of those, one that has not ended is dead. A run of the same name that a person
    has started beside others, and canceled, has only waited for them.
    """
    of_sensors = {f"{target.dagster_name}_{verb}" for verb in ("checkpoint", "restart")}
    found = list[tuple[float, RunRecord]]()
    for record in reversed(newest_first):
        ended, run = _ended(record, idle), record.dagster_run
        waited = run.status == DagsterRunStatus.CANCELED and SENSOR_NAME_TAG not in run.tags
        if run.job_name in of_sensors and not waited:
            found = [(_ended(each, idle=True) if at == math.inf else at, each) for at, each in found]
            ended = max(ended, *(at for at, _ in found), 0.0)
        found.append((ended, record))
    return [record for _, record in sorted(found, key=lambda each: each[0])][::-1]


def _ended(record: RunRecord, idle: bool) -> float:
    """Returns when a run ended, in seconds since 1970; infinity if it has not, unless it is dead."""
    if not record.dagster_run.is_finished and not idle:
        return math.inf
    return record.create_timestamp.timestamp() if record.end_time is None else record.end_time


def _is_upkeep(run: DagsterRun, target: FlinkTarget) -> bool:
    """Returns whether a finished run does not concern the sensor: a savepoint, or a failed rescale or the like.

    Such a failure is not a failure of the job, and the run's config is not that of an epoch. A rescale that succeeded
    counts as a start by hand, unless a run beside it has ended later.
    """
    operation = operation_of(run, target.dagster_name)
    return run.is_finished and operation is not None and (not run.is_success or operation == "savepoint")


def restart_request(instance: DagsterInstance, target: FlinkTarget, restart: Restart) -> RunRequest:
    """Returns the request for the run that replaces a failed one, with its config and its partitions."""
    run, step = restart.of, target.dagster_name
    config: dict[str, Any] = dict(run.run_config)
    if "ops" in config:  # Dagster refuses the config of steps that the new run does not have
        config["ops"] = {name: of for name, of in config["ops"].items() if name == step}
    kept = {
        name: value
        for name, value in run.tags.items()
        if name in _KEPT or not name.startswith((".dagster/", "dagster/"))
    }
    return RunRequest(
        run_key=f"{target.job_id}-restart-of-{run.run_id}",
        job_name=f"{step}_restart",
        run_config=config,
        partition_key=run.tags.get(PARTITION_NAME_TAG),
        tags={**kept, JOB_TAG: target.job_id, RESTART_TAG: run.run_id, FIRST_TRY_TAG: first_try(instance, run)},
    )


def _milliseconds(record: RunRecord) -> int:
    return epoch_millis(record.end_time or record.update_timestamp)


def _short(run: DagsterRun) -> str:
    return run.run_id[:8]
