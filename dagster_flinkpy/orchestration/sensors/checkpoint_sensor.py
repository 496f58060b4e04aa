"""The sensor that triggers checkpoints periodically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from dagster_flinkpy.checkpoint.requests import DEFAULT_TIMEOUT, JobRequests, Order, RequestKind
from dagster_flinkpy.common.clock import current_millis, epoch_millis, to_millis
from dagster_flinkpy.errors import ConfigurationError, JobNotRunningError, RequestFailedError
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs.runs_of_job import CHECKPOINT_TAG, next_run_key, runs_on
from dagster_flinkpy.orchestration.sensors.targets import (
    SKEW_MS,
    FlinkTarget,
    JobCursor,
    flink_targets,
    runs_alive,
    tick_result,
)
from dagster_flinkpy.orchestration.sensors.waiting_look import LookTime, WaitingLook
from dagster_flinkpy.storage import StorageLocation

__all__ = ["CheckpointPolicy", "JobAtTick", "build_checkpoint_sensor", "reason_to_wait"]


@dataclass(frozen=True)
class CheckpointPolicy:
    """When the sensor requests a checkpoint."""

    interval: timedelta
    """Time from one trigger to the next, at least 10 ms."""
    min_pause: timedelta = timedelta(0)
    """Minimum time from a completion to the next trigger. Default: 0."""

    def __post_init__(self) -> None:
        """Checks the ranges, which are Flink's.

        Raises:
            ConfigurationError: A value is out of range.
        """
        if self.interval < timedelta(milliseconds=10):
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {self.interval}")
        if self.min_pause < timedelta(0):
            raise ConfigurationError(f"min_pause between checkpoints must not be negative, not {self.min_pause}")


@dataclass(frozen=True)
class JobAtTick:
    """What a tick knows about a job. Times are milliseconds since 1970."""

    job_id: str
    last_checkpoint_id: int | None
    """The latest checkpoint in the store, or None before the first."""
    end_of_input: bool
    """Whether that checkpoint holds the end of the input."""
    last_trigger_ms: int | None
    """When that checkpoint, or a run for the next one, was triggered, whichever was later."""
    last_completion_ms: int | None
    active: tuple[str, ...] = ()
    """Ids of the runs that work on the job."""
    stopped: bool = False
    """Whether the job was stopped with that checkpoint."""
    runs_on: str | None = None
    """Id of the run that takes checkpoints until it is told otherwise, and can be asked for one; None without it."""


def reason_to_wait(status: JobAtTick, policy: CheckpointPolicy, now_ms: int) -> str | None:
    """Returns why no checkpoint is triggered now, or None if one is.

    The order is that of Flink's ``CheckpointRequestDecider``, with a run in place of a pending checkpoint. A run that
    runs on is no reason to wait.
    """
    from dagster_flinkpy.checkpoint.coordinator.decider import CheckpointRequestDecider, Dropped
    from dagster_flinkpy.checkpoint.coordinator.stimuli import TriggerRequested

    job = f"Job {status.job_id}"
    if status.stopped:
        return f"{job} was stopped with a savepoint. Restore a savepoint to continue it."
    if status.end_of_input:
        return (
            f"{job} is finished: checkpoint {status.last_checkpoint_id} holds the end of its input. If more input has "
            "arrived since, a run that you start by hand reports it."
        )
    if status.runs_on is not None:
        status = replace(status, active=())
    interval_ms = to_millis(policy.interval)
    if status.last_trigger_ms is not None and now_ms < status.last_trigger_ms + interval_ms and not status.active:
        return f"{job}: the next checkpoint is due in {_span(status.last_trigger_ms + interval_ms - now_ms)}."
    decider = CheckpointRequestDecider(max_concurrent=1, min_pause_ms=to_millis(policy.min_pause))
    decider.submit(TriggerRequested(now_ms, periodic=True))
    choice = decider.choose(
        now_ms, pending=len(status.active), triggering=False, last_completion_ms=status.last_completion_ms
    )
    if choice is None:
        return f"{job}: run {status.active[0]} is still working on it."
    return f"{job}: {choice.message}." if isinstance(choice, Dropped) else None


def build_checkpoint_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    *,
    name: str | None = None,
    interval: timedelta | None = None,
    min_pause: timedelta | None = None,
    minimum_interval_seconds: int | None = None,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> SensorDefinition:
    """Builds a sensor that takes checkpoints at an interval.

    Each tick reads the job's ``HEAD`` from the store, so it sees the checkpoints of any run and any deployment. It
    requests a run of the asset job ``{job}_checkpoint``, unless the input has ended, the interval or pause has not
    passed, a run is working on the job, or there is nothing to do: no source has input after the last checkpoint, no
    processing-time timer is due, nobody asks the job for anything, and the checkpoint is committed and recorded.
    A source that cannot say in 10 seconds whether it has input counts as having some; jobs of one sensor share 45 s.

    The run key is ``{job}-{checkpoint id}-{attempt}``: a failed checkpoint is tried again at the next interval, as
    another attempt.

    A run that goes on until it is told otherwise (``epochs: 0``) is asked for the checkpoint instead. So the sensor
    completes a checkpoint at each interval, whoever runs the job. A run that Dagster takes for started, but that has
    neither led the job nor written to its log for five minutes, is dead, and no reason to wait.

    Args:
        assets: What `flink_assets` returned.
        name: Name of the sensor. Default: ``{job}_checkpoint_sensor``.
        interval: Time from one trigger to the next. Default: set by ``env.enable_checkpointing``.
        min_pause: Minimum time from a completion to the next trigger. Default: set by
            ``set_min_pause_between_checkpoints``, or 0.
        minimum_interval_seconds: Time between ticks. A checkpoint may be this much later than the interval says.
            Default: the interval in whole seconds, between 1 and 30.
        default_status: Whether the sensor is on before anybody switches it.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        ConfigurationError: The assets are not from `flink_assets`, or the interval is missing or out of range.

    Examples:
        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import build_checkpoint_sensor

            # `words` is what flink_assets returned
            every_minute = build_checkpoint_sensor(words, interval=timedelta(minutes=1))
    """
    targets = flink_targets(assets, builder="build_checkpoint_sensor")
    policies = {target.job_id: _policy(target, interval, min_pause) for target in targets}
    jobs = [target.asset_job("checkpoint", f"Takes a checkpoint of job {target.job_id}.") for target in targets]
    shortest = min(policy.interval for policy in policies.values()).total_seconds()
    ticks = max(1, min(30, int(shortest))) if minimum_interval_seconds is None else minimum_interval_seconds
    every = ", ".join(f"{job_id} every {_span(to_millis(each.interval))}" for job_id, each in policies.items())

    looks = {target.job_id: WaitingLook(target) for target in targets}
    sensor_name = name or f"{targets[0].dagster_name}_checkpoint_sensor"

    @sensor(
        name=sensor_name,
        jobs=jobs,
        minimum_interval_seconds=ticks,
        default_status=default_status,
        required_resource_keys={checkpoint_storage_resource_key},
        description=f"Takes a checkpoint of {every}. It looks every {ticks} s, so one may be that much later.",
    )
    def checkpoint_sensor(context: SensorEvaluationContext) -> SensorResult:
        storage = getattr(context.resources, checkpoint_storage_resource_key).location()
        asked = _CheckpointRequests(context.cursor, f"Dagster sensor {sensor_name}")
        time = LookTime(len(targets))

        def decide(target: FlinkTarget) -> RunRequest | str:
            most = time.share()
            status = _status(target, context.instance, storage, context.log.warning)
            if reason := reason_to_wait(status, policies[target.job_id], current_millis()):
                return reason
            if status.runs_on is not None:
                return asked.ask(storage.child(target.job_id), target.job_id, status.runs_on)
            if reason := looks[target.job_id].reason_to_wait(storage.child(target.job_id), context.instance, most):
                return reason
            return _request(target, context.instance, status)

        return tick_result(context, targets, decide, asked)

    return checkpoint_sensor


def _policy(target: FlinkTarget, interval: timedelta | None, min_pause: timedelta | None) -> CheckpointPolicy:
    pause = target.min_pause if min_pause is None else min_pause
    return CheckpointPolicy(_interval(target, interval), pause)


def _interval(target: FlinkTarget, given: timedelta | None) -> timedelta:
    if target.partitioned:
        raise ConfigurationError(
            f"job {target.job_id!r} takes a checkpoint after each partition, not at an interval: use "
            "build_schedule_from_partitioned_job(define_asset_job(..., AssetSelection.assets(*assets)))"
        )
    if given is not None and not isinstance(given, timedelta):
        raise ConfigurationError(f"interval={given!r} must be a timedelta, such as timedelta(minutes=1)")
    chosen = given or target.interval
    if chosen is None:
        raise ConfigurationError(
            f"job {target.job_id!r} has no checkpoint interval: call env.enable_checkpointing(milliseconds), or pass "
            "interval=... to build_checkpoint_sensor"
        )
    return chosen


def _status(
    target: FlinkTarget, instance: DagsterInstance, storage: StorageLocation, log: Callable[[str], object]
) -> JobAtTick:
    from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
    from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

    store = storage.child(target.job_id).open()
    latest = CompletedCheckpointStore(store).latest()
    completed = store.head(f"chk-{latest.checkpoint_id}/{METADATA_NAME}") if latest else None
    tried = instance.get_run_records(_tries(target, 1 + (latest.checkpoint_id if latest else 0)), limit=1)
    triggers = [epoch_millis(tried[0].create_timestamp)] if tried else []
    if latest:
        triggers.append(latest.timestamp_ms)
    completions = [epoch_millis(completed.last_modified)] if completed else []
    active = runs_alive(target, instance, CompletedCheckpointStore(store).leader(), log)
    latest_possible = current_millis() + SKEW_MS
    return JobAtTick(
        job_id=target.job_id,
        last_checkpoint_id=latest.checkpoint_id if latest else None,
        end_of_input=latest is not None and latest.end_of_input,
        stopped=latest is not None and latest.stopped,
        last_trigger_ms=max((each for each in triggers if each <= latest_possible), default=None),
        last_completion_ms=max((each for each in completions if each <= latest_possible), default=None),
        active=tuple(run.run_id for run in active),
        runs_on=next((run.run_id for run in active if runs_on(run, target.dagster_name)), None),
    )


def _request(target: FlinkTarget, instance: DagsterInstance, status: JobAtTick) -> RunRequest:
    checkpoint_id = 1 + (status.last_checkpoint_id or 0)
    return RunRequest(
        run_key=next_run_key(instance, _tries(target, checkpoint_id), f"{target.job_id}-{checkpoint_id}-"),
        job_name=f"{target.dagster_name}_checkpoint",
        tags={JOB_TAG: target.job_id, CHECKPOINT_TAG: str(checkpoint_id)},
    )


def _tries(target: FlinkTarget, checkpoint_id: int) -> RunsFilter:
    """Selects the runs that a sensor requested to complete a checkpoint."""
    return RunsFilter(tags={JOB_TAG: target.job_id, CHECKPOINT_TAG: str(checkpoint_id)})


def _span(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.0f} s"


class _CheckpointRequests(JobCursor):
    """The open requests of a sensor to jobs that run on: one at a time for a job, however many ticks there are.

    Args:
        cursor: The cursor of the sensor.
        asker: Who asks, in words for people.
    """

    def __init__(self, cursor: str | None, asker: str) -> None:
        super().__init__(cursor, "requests")
        self._asker = asker

    def ask(self, job: StorageLocation, job_id: str, run_id: str) -> str:
        """Asks a job for a checkpoint, unless it has not yet answered the last time.

        Args:
            job: The job's prefix.
            job_id: The job.
            run_id: The run that works on it.

        Returns:
            What was done, in words for people.
        """
        requests, said = JobRequests(job, self._asker), ""
        if (asked := self.get(job_id)) is not None:
            answer, age_ms = requests.answer(asked), current_millis() - int(asked.partition("-")[0])
            if (answer is None or not answer.final) and age_ms < to_millis(DEFAULT_TIMEOUT):
                return f"Job {job_id}: run {run_id} was asked for a checkpoint {age_ms // 1000} s ago."
            try:
                requests.wait(asked, timedelta(0))
            except RequestFailedError as error:
                said = f" It could not complete the one before: {error}"
            del self[job_id]
        try:
            self[job_id] = requests.submit(Order(RequestKind.CHECKPOINT))
        except JobNotRunningError:
            return f"Job {job_id}: run {run_id} has not yet begun to work on it.{said}"
        return f"Job {job_id}: run {run_id} is asked for a checkpoint.{said}"
