"""The periodic trigger follows the job's status (Flink: ``CheckpointCoordinatorDeActivator``)."""

from __future__ import annotations

import time
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
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.sensor_definition import SensorType

from dagster_flinkpy.orchestration.job_runs import recent_runs, works_on
from dagster_flinkpy.orchestration.targets import FlinkTarget, flink_targets

__all__ = ["build_job_status_sensors"]

_ON = DagsterRunStatus.STARTED
_OFF = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


def build_job_status_sensors(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    checkpoint_sensor: SensorDefinition,
    *,
    minimum_interval_seconds: int = 10,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
) -> list[SensorDefinition]:
    """Sensors that switch the checkpoint sensor on when the job runs, and off when it fails or is canceled.

    As in Flink: the periodic trigger is active while the job is RUNNING, and in no other state. With
    `build_restart_sensor` a failed job runs again by itself, which switches the trigger on again. A run that succeeded
    has completed its checkpoints and changes nothing.

    Args:
        assets: What `flink_assets` returned.
        checkpoint_sensor: What `build_checkpoint_sensor` returned; in the same code location.
        minimum_interval_seconds: Time between ticks.
        default_status: Whether the sensors run before anybody has switched them on.

    Raises:
        ConfigurationError: The assets are not of `flink_assets`.
    """
    targets = flink_targets(assets, builder="build_job_status_sensors")

    def one(status: DagsterRunStatus) -> SensorDefinition:
        switch_on = status == _ON
        verb = "on" if switch_on else "off"

        @run_status_sensor(
            run_status=status,
            name=f"{checkpoint_sensor.name}_{verb}_when_{status.value.lower()}",
            description=f"Switches {checkpoint_sensor.name} {verb} when a run of the job is {status.value.lower()}.",
            minimum_interval_seconds=minimum_interval_seconds,
            default_status=default_status,
        )
        def status_sensor(context: RunStatusSensorContext) -> SkipReason:
            run = context.dagster_run
            job = _job_of(context.instance, run, targets)
            if job is None:
                return SkipReason(f"Run {run.run_id} is of no job of {checkpoint_sensor.name}.")
            if run.remote_job_origin is None:
                return SkipReason(f"Run {run.run_id} was not launched from a code location.")
            if later := _overtaken(context.instance, run, targets, status):
                return SkipReason(later)
            changed = _switch(context.instance, run, checkpoint_sensor, on=switch_on)
            what = f"switched {verb}" if changed else f"is {verb} already"
            return SkipReason(
                f"{checkpoint_sensor.name} {what}: run {run.run_id} of job {job} is {status.value.lower()}."
            )

        return status_sensor

    return [one(_ON), *(one(status) for status in _OFF)]


def _job_of(instance: DagsterInstance, run: DagsterRun, targets: Sequence[FlinkTarget]) -> str | None:
    mine = (target.job_id for target in targets if works_on(instance, run, target.job_id, target.keys))
    return next(mine, None)


def _overtaken(
    instance: DagsterInstance, run: DagsterRun, targets: Sequence[FlinkTarget], status: DagsterRunStatus
) -> str | None:
    """Why this change does not count any more. The sensors tick apart, so they may see changes in any order."""
    if status == _ON:
        now = instance.get_run_by_id(run.run_id)
        if now is not None and now.status in _OFF:
            return f"Run {run.run_id} started, and is {now.status.value.lower()} by now."
        return None
    for target in (one for one in targets if works_on(instance, run, one.job_id, one.keys)):
        newest = next((r.dagster_run for r in recent_runs(instance, target.job_id, target.keys)), run)
        if newest.run_id != run.run_id and newest.status not in _OFF:
            return f"Run {run.run_id} is {status.value.lower()}, and job {target.job_id} has run {newest.run_id} since."
    return None


def _switch(instance: DagsterInstance, run: DagsterRun, sensor: SensorDefinition, *, on: bool) -> bool:
    """Does what the switch in the UI does; says whether that changed anything."""
    from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData

    assert run.remote_job_origin is not None  # asked for before
    origin = run.remote_job_origin.repository_origin.get_instigator_origin(sensor.name)
    status = InstigatorStatus.RUNNING if on else InstigatorStatus.STOPPED
    data = SensorInstigatorData(
        min_interval=sensor.minimum_interval_seconds,
        last_sensor_start_timestamp=time.time() if on else None,
        sensor_type=SensorType.STANDARD,
    )
    wanted = InstigatorState(origin, InstigatorType.SENSOR, status, data)
    stored = instance.get_instigator_state(wanted.instigator_origin_id, wanted.selector_id)
    runs_now = sensor.default_status == DefaultSensorStatus.RUNNING if stored is None else stored.is_running
    if runs_now == on:
        return False
    if stored is None:
        instance.add_instigator_state(wanted)
        return True
    known = stored.instigator_data
    if on and isinstance(known, SensorInstigatorData):
        stored = stored.with_data(known.with_sensor_start_timestamp(time.time()))
    instance.update_instigator_state(stored.with_status(status))
    return True
