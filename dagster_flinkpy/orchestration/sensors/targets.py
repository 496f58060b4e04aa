"""The jobs that a sensor works for, found from what ``flink_assets`` returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from dagster import AssetKey, AssetsDefinition, RunRequest, SensorEvaluationContext, SensorResult

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.flink_job import FlinkJob, dagster_name
from dagster_flinkpy.orchestration.job_assets import asset_job, job_of
from dagster_flinkpy.orchestration.metadata_set import FlinkMetadataSet

__all__ = ["FlinkTarget", "flink_targets", "tick_result"]


@dataclass(frozen=True)
class FlinkTarget:
    """One job and its assets."""

    job_id: str
    keys: tuple[AssetKey, ...]
    interval: timedelta | None
    """Time between checkpoints, if the program sets it."""
    min_pause: timedelta = timedelta(0)
    """Minimum time from a completion to the next checkpoint; set by the program."""
    partitioned: bool = False
    """Whether the job has time partitions, so that it takes a checkpoint for each instead of one per interval."""
    job: FlinkJob | None = None
    """The job. None if its assets are in a multi-asset of the user's own."""

    @property
    def dagster_name(self) -> str:
        """The job id in the characters that Dagster allows in names."""
        return dagster_name(self.job_id)

    def asset_job(self, suffix: str, description: str) -> UnresolvedAssetJobDefinition:
        """Builds the asset job ``{job}_{suffix}``, with the checks of the assets."""
        return asset_job(self.job_id, frozenset(self.keys), suffix, description)


def flink_targets(assets: AssetsDefinition | Sequence[AssetsDefinition], *, builder: str) -> list[FlinkTarget]:
    """Returns the jobs behind assets.

    Args:
        assets: What ``flink_assets`` returned.
        builder: Name of the calling function, for the error.

    Raises:
        ConfigurationError: The assets are not from ``flink_assets``, or there are none.
    """
    definitions = [assets] if isinstance(assets, AssetsDefinition) else list(assets)
    if not definitions:
        raise ConfigurationError(f"{builder} needs what flink_assets(...) returned, and got no assets")
    return [_target(each, builder) for each in definitions]


def _target(assets: AssetsDefinition, builder: str) -> FlinkTarget:
    declared = [FlinkMetadataSet.extract(spec.metadata) for spec in assets.specs]
    job_ids = {one.job_id for one in declared}
    job_id = job_ids.pop() if len(job_ids) == 1 else None
    if job_id is None:
        raise ConfigurationError(f"{builder} needs what flink_assets(...) returned")
    interval_ms = declared[0].checkpoint_interval_ms
    interval = None if interval_ms is None else timedelta(milliseconds=interval_ms)
    min_pause = timedelta(milliseconds=declared[0].checkpoint_min_pause_ms or 0)
    partitioned = assets.partitions_def is not None
    return FlinkTarget(job_id, tuple(assets.keys), interval, min_pause, partitioned, job_of(assets))


def tick_result(
    context: SensorEvaluationContext, requests: Sequence[RunRequest], reasons: Sequence[str], cursor: str | None = None
) -> SensorResult:
    """Returns the result of a tick. Dagster shows why a tick is skipped; if others get runs, the tick's log says it.

    Args:
        context: The context of the tick.
        requests: The runs to start.
        reasons: Why the other jobs get no run, in words for people.
        cursor: What the next tick is told. Default: nothing.
    """
    if not requests:
        return SensorResult(skip_reason=" ".join(reasons), cursor=cursor)
    for reason in reasons:
        context.log.info(reason)
    return SensorResult(run_requests=requests, cursor=cursor)
