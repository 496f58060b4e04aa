"""Sensors that take savepoints and delete old state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    JobDefinition,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from dagster_flinkpy.common.clock import current_millis, epoch_millis
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import WILL_RETRY_TAG, UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.run_config import SavepointConfig, SweepConfig
from dagster_flinkpy.orchestration.runs.runs_of_job import SAVEPOINT_TAG, active_runs, next_run_key, runs_on
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget, JobCursor, flink_targets, tick_result

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["build_retention_sensor", "build_savepoint_sensor"]

_TRIES = 3


def build_savepoint_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    jobs: Sequence[JobDefinition | UnresolvedAssetJobDefinition],
    *,
    interval: timedelta | None = None,
    condition: Callable[[CheckpointMetadata], bool] | None = None,
    config: SavepointConfig | None = None,
    name: str | None = None,
    minimum_interval_seconds: int = 60,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> SensorDefinition:
    """Builds a sensor that takes savepoints: at an interval, if a condition holds for the last checkpoint, or both.

    It takes at most one savepoint of a checkpoint, and none while a run is working on the job, unless that run goes on
    until it is told otherwise (``epochs: 0``): the savepoint job asks such a run for a savepoint. A failed run is tried
    again at the next two ticks, with the run key ``{job}-savepoint-of-{checkpoint id}-{attempt}``. After that the
    sensor waits for the next interval, or for the next checkpoint for which the condition holds. A canceled run is not
    tried again.

    Args:
        assets: What `flink_assets` returned.
        jobs: What `build_flink_jobs` returned for the same program.
        interval: Time from one savepoint to the next.
        condition: Function of the metadata of the last completed checkpoint. If it returns True, a savepoint of that
            checkpoint is taken.
        config: Config of the savepoint runs.
        name: Name of the sensor. Default: ``{job}_savepoint_sensor``.
        minimum_interval_seconds: Time between ticks.
        default_status: Whether the sensor is on before anybody switches it.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        ConfigurationError: There is neither an interval nor a condition, or the jobs belong to another program.

    Examples:
        Take a savepoint every day:

        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import build_flink_jobs, build_savepoint_sensor

            # `words_env` builds the program, and `words` is what flink_assets returned for it
            jobs = build_flink_jobs(words_env, name="words")
            daily = build_savepoint_sensor(words, jobs, interval=timedelta(days=1))
    """
    if interval is None and condition is None:
        raise ConfigurationError("build_savepoint_sensor needs interval=..., condition=..., or both")
    targets = flink_targets(assets, builder="build_savepoint_sensor")
    by_name = _jobs_of(targets, jobs, "savepoint", "build_savepoint_sensor")

    @sensor(
        name=name or f"{targets[0].dagster_name}_savepoint_sensor",
        jobs=list(by_name.values()),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={checkpoint_storage_resource_key},
        description="Keeps the last checkpoint of each job as a savepoint when one is due.",
    )
    def savepoint_sensor(context: SensorEvaluationContext) -> SensorResult:
        from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

        storage = getattr(context.resources, checkpoint_storage_resource_key).location()
        cursor, now_ms = JobCursor(context.cursor, "jobs"), current_millis()

        def decide(target: FlinkTarget) -> RunRequest | str:
            latest = CompletedCheckpointStore(storage.child(target.job_id).open()).latest()
            asked = _AskedSavepoint.find(context.instance, target, latest, cursor.get(target.job_id))
            if reason := _no_savepoint(target, latest, asked, interval, condition, now_ms):
                return reason
            found = active_runs(context.instance, target.job_id, target.keys)
            if runs := [run for run in found if not runs_on(run, target.dagster_name)]:
                return f"Job {target.job_id}: run {runs[0].run_id} is still working on it."
            assert latest is not None
            tries = 1 + (asked.tries if asked is not None and asked.is_to_be_tried_again else 0)
            tags = _savepoint_of(target, latest.checkpoint_id)
            prefix = f"{target.job_id}-savepoint-of-{latest.checkpoint_id}-"
            key = next_run_key(context.instance, RunsFilter(tags=tags), prefix)
            request = _request(target, by_name, "savepoint", key, config or SavepointConfig(), tags)
            cursor[target.job_id] = {"checkpoint_id": latest.checkpoint_id, "at_ms": now_ms, "tries": tries}
            return request

        return tick_result(context, targets, decide, cursor)

    return savepoint_sensor


def build_retention_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    jobs: Sequence[JobDefinition | UnresolvedAssetJobDefinition],
    *,
    interval: timedelta = timedelta(days=1),
    config: SweepConfig | None = None,
    name: str | None = None,
    minimum_interval_seconds: int = 300,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
) -> SensorDefinition:
    """Builds a sensor that runs each job's sweep, which deletes unreferenced files, old savepoints and old runs.

    A tick only requests the run, since deleting may take longer than a tick may last. Subsumed checkpoints do not need
    the sweep: each run deletes them itself.

    Args:
        assets: What `flink_assets` returned.
        jobs: What `build_flink_jobs` returned for the same program.
        interval: Time from one sweep to the next. Default: 1 day.
        config: Config of the sweep runs. Default: deletes unreferenced files after 24 h, and neither
            savepoints nor runs.
        name: Name of the sensor. Default: ``{job}_retention_sensor``.
        minimum_interval_seconds: Time between ticks.
        default_status: Whether the sensor is on before anybody switches it.

    Raises:
        ConfigurationError: The jobs belong to another program, or the interval is not positive.

    Examples:
        Also delete savepoints that are older than 30 days, and all but the newest 500 runs:

        .. code-block:: python

            from dagster_flinkpy.orchestration import SweepConfig, build_flink_jobs, build_retention_sensor

            # `words_env` builds the program, and `words` is what flink_assets returned for it
            jobs = build_flink_jobs(words_env, name="words")
            sweeps = build_retention_sensor(words, jobs, config=SweepConfig(savepoint_days=30, keep_runs=500))
    """
    if interval <= timedelta(0):
        raise ConfigurationError(f"interval of the retention sensor must be positive, not {interval}")
    targets = flink_targets(assets, builder="build_retention_sensor")
    by_name = _jobs_of(targets, jobs, "sweep", "build_retention_sensor")

    @sensor(
        name=name or f"{targets[0].dagster_name}_retention_sensor",
        jobs=list(by_name.values()),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Deletes unreferenced files, old savepoints and old runs.",
    )
    def retention_sensor(context: SensorEvaluationContext) -> SensorResult:
        cursor, now_ms = JobCursor(context.cursor, "jobs"), current_millis()

        def decide(target: FlinkTarget) -> RunRequest | str:
            last = cursor.get(target.job_id)
            left = None if last is None else _left(last["at_ms"], interval, now_ms)
            if left is not None:
                return f"Job {target.job_id}: the next sweep is due in {left}."
            key = f"{target.job_id}-sweep-at-{now_ms}"
            request = _request(target, by_name, "sweep", key, config or SweepConfig(), {})
            cursor[target.job_id] = {"at_ms": now_ms}
            return request

        return tick_result(context, targets, decide, cursor)

    return retention_sensor


@dataclass(frozen=True)
class _AskedSavepoint:
    """The savepoint that was requested last."""

    checkpoint_id: int
    at_ms: int
    tries: int
    """How many times it was requested in a row, including this time."""
    failed_in: DagsterRun | None
    """The run, if it failed and Dagster does not itself retry it."""

    @property
    def is_to_be_tried_again(self) -> bool:
        return self.failed_in is not None and self.tries < _TRIES

    @staticmethod
    def find(
        instance: DagsterInstance, target: FlinkTarget, latest: CheckpointMetadata | None, noted: dict[str, int] | None
    ) -> _AskedSavepoint | None:
        """Finds the request in the cursor or in the runs for the last checkpoint; None if there was none."""
        if noted is not None:
            checkpoint_id = noted["checkpoint_id"]
        elif latest is not None:
            checkpoint_id = latest.checkpoint_id
        else:
            return None
        found = instance.get_run_records(RunsFilter(tags=_savepoint_of(target, checkpoint_id)), limit=1)
        if noted is None and not found:
            return None
        run = found[0].dagster_run if found else None
        failed = run is not None and run.status == DagsterRunStatus.FAILURE and run.tags.get(WILL_RETRY_TAG) != "true"
        created_ms = epoch_millis(found[0].create_timestamp) if found else 0
        at_ms, tries = (noted["at_ms"], noted.get("tries", 1)) if noted is not None else (created_ms, 1)
        return _AskedSavepoint(checkpoint_id, at_ms, tries, run if failed else None)


def _savepoint_of(target: FlinkTarget, checkpoint_id: int) -> dict[str, str]:
    return {JOB_TAG: target.job_id, SAVEPOINT_TAG: str(checkpoint_id)}


def _no_savepoint(
    target: FlinkTarget,
    latest: CheckpointMetadata | None,
    asked: _AskedSavepoint | None,
    interval: timedelta | None,
    condition: Callable[[CheckpointMetadata], bool] | None,
    now_ms: int,
) -> str | None:
    """Returns why no savepoint is due, or None if one is."""
    job = f"Job {target.job_id}"
    if latest is None:
        return f"{job} has no completed checkpoint yet."
    if asked is not None and not asked.is_to_be_tried_again:
        same = asked.checkpoint_id == latest.checkpoint_id
        left = None if interval is None else _left(asked.at_ms, interval, now_ms)
        due = f"due in {left}" if left is not None else "due after the next checkpoint"
        if asked.failed_in is not None and (left is not None or (same and interval is None)):
            return (
                f"{job}: {asked.tries} savepoints in a row failed, see run {asked.failed_in.run_id}; the next is {due}."
            )
        if same and asked.failed_in is None:
            return f"{job}: a savepoint of checkpoint {latest.checkpoint_id}, the last one, has already been requested."
        if left is not None:
            return f"{job}: the next savepoint is {due}."
    if condition is not None and not condition(latest):
        return f"{job}: the condition does not hold for checkpoint {latest.checkpoint_id}."
    return None


def _left(last_ms: int, interval: timedelta, now_ms: int) -> timedelta | None:
    """Returns the time until the next run is due, or None if it is due now."""
    left = timedelta(milliseconds=last_ms - now_ms) + interval
    return timedelta(seconds=round(left.total_seconds())) if left > timedelta(0) else None


def _jobs_of(
    targets: Sequence[FlinkTarget],
    jobs: Sequence[JobDefinition | UnresolvedAssetJobDefinition],
    verb: str,
    builder: str,
) -> dict[str, JobDefinition]:
    known = {job.name: job for job in jobs if isinstance(job, JobDefinition)}
    wanted = [f"{target.dagster_name}_{verb}" for target in targets]
    if missing := [name for name in wanted if name not in known]:
        raise ConfigurationError(
            f"{builder} needs what build_flink_jobs(...) returned for the same program; there is no job {missing[0]}"
        )
    return {name: known[name] for name in wanted}


def _request(
    target: FlinkTarget,
    jobs: dict[str, JobDefinition],
    verb: str,
    run_key: str,
    config: SavepointConfig | SweepConfig,
    tags: dict[str, str],
) -> RunRequest:
    job = jobs[f"{target.dagster_name}_{verb}"]
    (node,) = job.nodes
    run_config: dict[str, Any] = {"ops": {node.name: {"config": config.model_dump(mode="json")}}}
    return RunRequest(run_key=run_key, job_name=job.name, run_config=run_config, tags={**job.tags, **tags})
