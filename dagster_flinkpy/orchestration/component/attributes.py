"""The attributes of a `FlinkPipelineComponent` in YAML."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from dagster import (
    DailyPartitionsDefinition,
    DefaultSensorStatus,
    FreshnessPolicy,
    HourlyPartitionsDefinition,
    Model,
    MonthlyPartitionsDefinition,
    ResolutionContext,
    Resolvable,
    Resolver,
    RetryPolicy,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
)
from pydantic import ConfigDict, Field

from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common.configuration import parse_duration
from dagster_flinkpy.common.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    RestartStrategy,
)
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType

__all__ = [
    "ChecksModel",
    "Duration",
    "FreshnessModel",
    "PartitionRetentionModel",
    "PartitionsModel",
    "RetryModel",
    "SensorsModel",
    "resolve_freshness_policy",
    "resolve_partition_retention",
    "resolve_partitions",
    "resolve_retry_policy",
    "switched",
]


def _duration(context: ResolutionContext, text: str) -> timedelta:
    return parse_duration(text)


Duration: TypeAlias = Annotated[
    timedelta,
    Resolver(_duration, model_field_type=str, description="Such as '500 ms', '10 s', '5 min', '1 h' or '1 d'."),
]


def switched(settings: type[Resolvable], description: str) -> Resolver:
    """Resolves an attribute that is on with defaults (``true``), on with settings, or off (``false``)."""

    def resolve(context: ResolutionContext, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return settings() if value else None
        return settings.resolve_from_model(context, value)

    return Resolver(resolve, model_field_type=bool | settings.model(), description=description)


# --- assets -----------------------------------------------------------------------------------------------------------


class FreshnessModel(Resolvable, Model):
    """A ``FreshnessPolicy.time_window``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    fail_window: Duration
    warn_window: Duration | None = None


def resolve_freshness_policy(context: ResolutionContext, model: Any) -> FreshnessPolicy | None:
    """Builds the policy, or returns the one that a template yields."""
    if model is None:
        return None
    if isinstance(model, str):
        return context.resolve_value(model, as_type=FreshnessPolicy)
    windows = FreshnessModel.resolve_from_model(context, model)
    return FreshnessPolicy.time_window(windows.fail_window, windows.warn_window)


class RetryModel(Model):
    """A ``RetryPolicy``."""

    max_retries: int = Field(default=1, ge=1)
    delay: float | None = Field(default=None, ge=0, description="Seconds before a retry. Default: none.")


def resolve_retry_policy(context: ResolutionContext, model: RetryModel | None) -> RetryPolicy | None:
    """Builds the policy."""
    return None if model is None else RetryPolicy(model.max_retries, model.delay)


# --- partitions -------------------------------------------------------------------------------------------------------

_PARTITIONS: Mapping[str, type[TimeWindowPartitionsDefinition]] = {
    "hourly": HourlyPartitionsDefinition,
    "daily": DailyPartitionsDefinition,
    "weekly": WeeklyPartitionsDefinition,
    "monthly": MonthlyPartitionsDefinition,
}


class PartitionsModel(Model):
    """Time windows."""

    type: Literal["hourly", "daily", "weekly", "monthly"]
    start_date: str = Field(description="First partition, in the format of the partition keys: '2024-01-31'.")
    end_date: str | None = Field(default=None, description="End of the last partition. Default: there is no end.")
    timezone: str | None = Field(default=None, description="Such as 'Europe/Berlin'. Default: UTC.")


def resolve_partitions(
    context: ResolutionContext, model: PartitionsModel | None
) -> TimeWindowPartitionsDefinition | None:
    """Builds the partitions definition."""
    if model is None:
        return None
    values = context.resolve_value(model.model_dump(exclude={"type"}))
    return _PARTITIONS[model.type](**values)


class PartitionRetentionModel(Model):
    """The fields of `PartitionRetention`."""

    every: int | None = Field(
        default=1, description="Keep the end state of every k-th partition. null: of none of them."
    )
    last: int | None = Field(
        default=None, description="Keep the end states of the last n partitions. null: no such rule."
    )


def resolve_partition_retention(
    context: ResolutionContext, model: PartitionRetentionModel | None
) -> PartitionRetention | None:
    """Builds the retention."""
    return None if model is None else PartitionRetention(model.every, model.last)


# --- restart strategies -----------------------------------------------------------------------------------------------


class _FixedDelay(Resolvable, Model):
    type: Literal["fixed-delay"]
    attempts: int = FixedDelayRestart.attempts
    delay: Duration = FixedDelayRestart.delay


class _FailureRate(Resolvable, Model):
    type: Literal["failure-rate"]
    max_failures_per_interval: int = FailureRateRestart.max_failures_per_interval
    interval: Duration = FailureRateRestart.interval
    delay: Duration = FailureRateRestart.delay


class _ExponentialDelay(Resolvable, Model):
    type: Literal["exponential-delay"]
    initial_backoff: Duration = ExponentialDelayRestart.initial_backoff
    max_backoff: Duration = ExponentialDelayRestart.max_backoff
    backoff_multiplier: float = ExponentialDelayRestart.backoff_multiplier
    jitter_factor: float = ExponentialDelayRestart.jitter_factor
    reset_backoff_threshold: Duration = ExponentialDelayRestart.reset_backoff_threshold
    attempts_before_reset_backoff: int | None = ExponentialDelayRestart.attempts_before_reset_backoff


_STRATEGIES: Mapping[str, tuple[type[Resolvable], type[RestartStrategy]]] = {
    "fixed-delay": (_FixedDelay, FixedDelayRestart),
    "failure-rate": (_FailureRate, FailureRateRestart),
    "exponential-delay": (_ExponentialDelay, ExponentialDelayRestart),
}


def _strategy(context: ResolutionContext, model: Any) -> RestartStrategy | None:
    if model is None:
        return None
    settings, strategy = _STRATEGIES[model.type]
    values = dict(settings.resolve_from_model(context, model))
    return strategy(**{name: value for name, value in values.items() if name != "type"})


# --- sensors and checks -----------------------------------------------------------------------------------------------


class _SensorModel(Resolvable, Model):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    minimum_interval_seconds: int | None = Field(
        default=None, ge=1, description="Time between ticks. Default: set by the function that builds the sensor."
    )
    default_status: DefaultSensorStatus = Field(
        default=DefaultSensorStatus.STOPPED,
        description="RUNNING: switched on from the start. STOPPED: off until somebody switches it on.",
    )

    def ticks(self) -> dict[str, Any]:
        """The arguments that all functions that build sensors take."""
        seconds = self.minimum_interval_seconds
        given = {} if seconds is None else {"minimum_interval_seconds": seconds}
        return {**given, "default_status": self.default_status}


class _CheckpointSensor(_SensorModel):
    min_pause: Duration = timedelta(0)


class _RestartSensor(_SensorModel):
    strategy: Annotated[
        RestartStrategy | None,
        Resolver(
            _strategy,
            model_field_type=_FixedDelay.model() | _FailureRate.model() | _ExponentialDelay.model(),
            description="When and how often to restart. Default: exponential-delay.",
        ),
    ] = None


class _SupervisingSensor(_RestartSensor):
    max_runtime: Duration | None = Field(
        default=None, description="How long a run takes at most, before another one takes its place. Default: for ever."
    )


class _SavepointSensor(_SensorModel):
    interval: Duration
    target: str | None = Field(default=None, description="Folder for the savepoints. Default: next to the checkpoints.")
    format_type: SavepointFormatType = Field(
        default=SavepointFormatType.CANONICAL,
        description="CANONICAL: self-contained. NATIVE: without copying state files.",
    )


class _RetentionSensor(_SensorModel):
    interval: Duration = timedelta(days=1)
    grace_hours: float = Field(default=24.0, ge=0, description="Age in hours at which unreferenced files are deleted.")
    savepoint_days: float | None = Field(
        default=None, ge=0, description="Age in days at which savepoints are deleted. Default: never."
    )
    keep_savepoints: int = Field(default=1, ge=0, description="Number of newest savepoints to keep.")
    keep_runs: int | None = Field(
        default=None, ge=200, description="Number of newest runs of the job that Dagster keeps. Default: all."
    )


class SensorsModel(Resolvable, Model):
    """The sensors. Each is off, on with defaults (``true``), or on with settings."""

    checkpoint: Annotated[_CheckpointSensor | None, switched(_CheckpointSensor, "Takes checkpoints.")] = None
    job_status: Annotated[
        _SensorModel | None, switched(_SensorModel, "Switches the checkpoint sensor on and off with the job's status.")
    ] = None
    restart: Annotated[_RestartSensor | None, switched(_RestartSensor, "Restarts the job after a failure.")] = None
    supervising: Annotated[
        _SupervisingSensor | None,
        switched(_SupervisingSensor, "Keeps the job running: starts it when no run works on it. Instead of restart."),
    ] = None
    savepoint: Annotated[
        _SavepointSensor | None,
        Resolver(
            lambda context, value: _SavepointSensor.resolve_from_model(context, value) if value else None,
            model_field_type=_SavepointSensor.model(),
            description="Takes savepoints at an interval.",
        ),
    ] = None
    retention: Annotated[
        _RetentionSensor | None, switched(_RetentionSensor, "Deletes unreferenced files, old savepoints and old runs.")
    ] = None


class ChecksModel(Resolvable, Model):
    """The fields of `FlinkAssetChecks`."""

    max_lag: Duration | None = Field(default=None, description="Maximum age of the last checkpoint.")
    max_event_time_lag: Duration | None = Field(default=None, description="Maximum lag of the watermark.")
    max_unread_files: int | None = Field(default=None, ge=0, description="Maximum number of unread files of a source.")
    max_unread_bytes: int | None = Field(default=None, ge=0, description="Maximum number of unread bytes of a source.")
    max_unread_records: int | None = Field(default=None, ge=0, description="Maximum number of unread records.")
    max_unread_versions: int | None = Field(default=None, ge=0, description="Maximum number of unread versions.")
    max_unread_milliseconds: int | None = Field(
        default=None, ge=0, description="Maximum age of the last record that was read, if there are later ones."
    )
    max_late_records: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of late records that a window drops between two materializations.",
    )
    trend_factor: float = Field(default=3.0, gt=1, description="Warn above this many times the median.")
