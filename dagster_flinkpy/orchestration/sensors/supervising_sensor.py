"""The sensor that keeps a job running which goes on until it is told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.common.restart_strategies import ExponentialDelayRestart, RestartStrategy
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.orchestration.sensors.restart_sensor import (
    JobHistory,
    ended_as_planned,
    hopeless_error,
    next_restart,
    restart_request,
)
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget, flink_targets, runs_alive, tick_result
from dagster_flinkpy.storage import StorageLocation

__all__ = ["build_supervising_sensor"]


def build_supervising_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    *,
    config: FlinkRunConfig | None = None,
    tags: Mapping[str, str] | None = None,
    strategy: RestartStrategy | None = None,
    name: str | None = None,
    minimum_interval_seconds: int = 15,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> SensorDefinition:
    """Builds a sensor that keeps a job running: it starts the job whenever no run works on it.

    After a failure it waits as long as the restart strategy says, and starts the run again with its config, like
    `build_restart_sensor`, whose place it takes: a job has one of the two sensors. Both start the Dagster job
    ``{job}_restart``, so Dagster refuses a code location that has both. A run that ``dagster/max_runtime`` ends has not
    failed, and is started again at once.

    A run that Dagster takes for started, but that has neither led the job nor written to its log for five minutes, is
    dead: its machine was lost, and nobody has told Dagster. Another one takes its place.

    It starts no run if the job was stopped with a savepoint, if its input has ended, if its last run was canceled, or
    if the strategy or the error forbids another attempt. A restore, or a start by hand, makes it start the job again.

    Args:
        assets: What `flink_assets` returned.
        config: Config of the runs. Default: ``FlinkRunConfig(epochs=0)``, which goes on until it is told otherwise.
        tags: Tags of the runs, such as ``{"dagster/max_runtime": "86400"}`` for a new process each day.
        strategy: When and how often to start the job after a failure. Default: `ExponentialDelayRestart`.
        name: Name of the sensor. Default: ``{job}_supervising_sensor``.
        minimum_interval_seconds: Time between ticks. A start may be this much later than necessary.
        default_status: Whether the sensor is on before anybody switches it.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        ConfigurationError: The assets are not from `flink_assets`, the job has partitions, or ``config`` says where to
            start from, which would go back to the same state at each start.

    Examples:
        .. code-block:: python

            from dagster_flinkpy.orchestration import build_supervising_sensor

            # `words` is what flink_assets returned
            keeps_running = build_supervising_sensor(words)
    """
    targets = flink_targets(assets, builder="build_supervising_sensor")
    for target in targets:
        if target.partitioned:
            raise ConfigurationError(
                f"job {target.job_id!r} has partitions, so a run ends with the last of its partitions: use "
                "build_restart_sensor"
            )
    config = config or FlinkRunConfig(epochs=0)
    if config.start_empty or config.restore_from is not None:
        raise ConfigurationError(
            "the config of build_supervising_sensor is for every start, so it must not have start_empty or "
            "restore_from: start the job by hand once, or use the restore job"
        )
    jobs = [target.asset_job("restart", f"Starts job {target.job_id} when no run works on it.") for target in targets]

    @sensor(
        name=name or f"{targets[0].dagster_name}_supervising_sensor",
        jobs=jobs,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={checkpoint_storage_resource_key},
        description="Starts each job when no run works on it; after a failure, according to the restart strategy.",
    )
    def supervising_sensor(context: SensorEvaluationContext) -> SensorResult:
        storage = getattr(context.resources, checkpoint_storage_resource_key).location()

        def decide(target: FlinkTarget) -> RunRequest | str:
            if reason := _reason_to_leave(target, context.instance, storage.child(target.job_id), context.log.warning):
                return reason
            return _start(target, context.instance, strategy or ExponentialDelayRestart(), config, tags or {})

        return tick_result(context, targets, decide)

    return supervising_sensor


def _reason_to_leave(
    target: FlinkTarget, instance: DagsterInstance, location: StorageLocation, log: Callable[[str], None]
) -> str | None:
    """Returns why the job needs no start, or None if nobody works on it and there is something left to do."""
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    job = f"Job {target.job_id}"
    store = CompletedCheckpointStore(location.open())
    leader, latest = store.leader(), store.latest()
    if runs := runs_alive(target, instance, leader, log):
        return f"{job}: run {runs[0].run_id} works on it."
    if leader is not None and leader.alive(current_millis()) and instance.get_run_by_id(leader.led_by) is None:
        until = f"{datetime_of_millis(leader.expires_at):%Y-%m-%d %H:%M:%S} UTC"
        return f"{job}: {leader.owner}, which is not a run of this instance, leads it until {until} at least."
    if latest is not None and latest.stopped:
        return f"{job} was stopped with a savepoint. Restore a savepoint to continue it."
    if latest is not None and latest.end_of_input:
        return f"{job} is finished: checkpoint {latest.checkpoint_id} holds the end of its input."
    return None


def _start(
    target: FlinkTarget,
    instance: DagsterInstance,
    strategy: RestartStrategy,
    config: FlinkRunConfig,
    tags: Mapping[str, str],
) -> RunRequest | str:
    """Returns the run to start, or why none is started. Nobody works on the job."""
    history = JobHistory.of(instance, target, idle=True)
    last = history.runs[0].dagster_run if history.runs else None
    if history.failed:
        answer = next_restart(
            target,
            history.runs,
            strategy,
            current_millis(),
            hopeless=hopeless_error(instance, history),
            planned=ended_as_planned(instance, target),
        )
        return answer if isinstance(answer, str) else restart_request(instance, target, answer)
    if last is not None and last.status == DagsterRunStatus.CANCELED:
        return f"Job {target.job_id}: run {last.run_id} was canceled. Start it by hand."
    return RunRequest(
        run_key=f"{target.job_id}-start-after-{last.run_id if last else 'none'}",
        job_name=f"{target.dagster_name}_restart",
        run_config={"ops": {target.dagster_name: {"config": config.model_dump(mode="json")}}},
        tags={**tags, JOB_TAG: target.job_id},
    )
