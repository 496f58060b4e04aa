"""Sensors that switch the periodic trigger with the job's status (Flink: ``CheckpointCoordinatorDeActivator``)."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunStatusSensorContext,
    SensorDefinition,
    SkipReason,
    run_status_sensor,
)

from dagster_flinkpy.orchestration.dagster_internals import switch_sensor
from dagster_flinkpy.orchestration.runs.runs_of_job import operation_of, works_on
from dagster_flinkpy.orchestration.sensors.restart_sensor import JobHistory
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget, flink_targets

__all__ = ["build_job_status_sensors"]

_ON = DagsterRunStatus.STARTED
_OFF = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_NO_START = ("savepoint", "stop")
_HAPPENED = {_ON: "starts", DagsterRunStatus.FAILURE: "fails", DagsterRunStatus.CANCELED: "is canceled"}


def build_job_status_sensors(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    checkpoint_sensor: SensorDefinition,
    *,
    minimum_interval_seconds: int = 10,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
) -> list[SensorDefinition]:
    """Builds sensors that switch the checkpoint sensor on when the job runs, and off when it fails or is canceled.

    As in Flink, the periodic trigger is active only while the job is RUNNING. With `build_restart_sensor` a failed job
    restarts by itself, which switches the trigger on again. A run that succeeded has completed its checkpoints and
    changes nothing. Nor does a savepoint, a restore, a rescale or the like that fails, or a run in which only other
    assets have failed: then the job has not.

    Args:
        assets: What `flink_assets` returned.
        checkpoint_sensor: What `build_checkpoint_sensor` returned. It must be in the same code location.
        minimum_interval_seconds: Time between ticks.
        default_status: Whether the sensors are on before anybody switches them.

    Raises:
        ConfigurationError: The assets are not from `flink_assets`.

    Examples:
        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import build_checkpoint_sensor, build_job_status_sensors

            # `words` is what flink_assets returned
            checkpoints = build_checkpoint_sensor(words, interval=timedelta(minutes=1))
            sensors = [checkpoints, *build_job_status_sensors(words, checkpoints)]
    """
    targets = flink_targets(assets, builder="build_job_status_sensors")

    def one(status: DagsterRunStatus) -> SensorDefinition:
        switch_on = status == _ON
        verb = "on" if switch_on else "off"

        @run_status_sensor(
            run_status=status,
            name=f"{checkpoint_sensor.name}_{verb}_when_{status.value.lower()}",
            description=f"Switches {checkpoint_sensor.name} {verb} when a run of the job {_HAPPENED[status]}.",
            minimum_interval_seconds=minimum_interval_seconds,
            default_status=default_status,
        )
        def status_sensor(context: RunStatusSensorContext) -> SkipReason:
            run = context.dagster_run
            mine = [each for each in targets if works_on(context.instance, run, each.job_id, each.keys)]
            if not mine:
                return SkipReason(f"Run {run.run_id} does not belong to a job of {checkpoint_sensor.name}.")
            if run.remote_job_origin is None:
                return SkipReason(f"Run {run.run_id} was not launched from a code location.")
            if reason := _reason_to_leave(context.instance, run, mine, status):
                return SkipReason(reason)
            changed = switch_sensor(context.instance, run, checkpoint_sensor, on=switch_on)
            what = f"switched {verb}" if changed else f"is {verb} already"
            return SkipReason(
                f"{checkpoint_sensor.name} {what}: run {run.run_id} of job {mine[0].job_id} is {status.value.lower()}."
            )

        return status_sensor

    return [one(_ON), *(one(status) for status in _OFF)]


def _reason_to_leave(
    instance: DagsterInstance, run: DagsterRun, mine: Sequence[FlinkTarget], status: DagsterRunStatus
) -> str | None:
    """Returns why a run changes nothing. The sensors tick independently, so what happens may arrive in any order."""
    if status == _ON:
        now = instance.get_run_by_id(run.run_id)
        if now is not None and now.status in _OFF:
            return f"Run {run.run_id} started, and is {now.status.value.lower()} by now."
        if any(operation_of(run, target.dagster_name) in _NO_START for target in mine):
            return f"Run {run.run_id} takes a savepoint, and starts no job."
        return None
    reasons = []
    for target in mine:
        history = JobHistory.of(instance, target)
        newest = history.runs[0].dagster_run if history.runs else None
        if newest is not None and (history.failed or newest.status == DagsterRunStatus.CANCELED):
            return None
        now_is = "has not run yet" if newest is None else f"is {newest.status.value.lower()} in run {newest.run_id}"
        reasons.append(f"Run {run.run_id} is {status.value.lower()}, but job {target.job_id} {now_is}.")
    return " ".join(reasons)
