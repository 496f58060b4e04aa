"""The jobs that a sensor works for, found from what ``flink_assets`` returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
)

from dagster_flinkpy.errors import ConfigurationError, add_note, message_of
from dagster_flinkpy.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from dagster_flinkpy.orchestration.flink_job import FlinkJob, dagster_name
from dagster_flinkpy.orchestration.job_assets import asset_job, job_of
from dagster_flinkpy.orchestration.metadata_set import FlinkMetadataSet
from dagster_flinkpy.orchestration.runs.exclusive_run import is_silent, last_sign_of_life, never_launched, utc
from dagster_flinkpy.orchestration.runs.runs_of_job import active_runs
from dagster_flinkpy.storage.lease import LeaderRecord

__all__ = ["SKEW_MS", "FlinkTarget", "JobCursor", "flink_targets", "runs_alive", "tick_result"]

_CURSOR_VERSION = 1

SKEW_MS = 5 * 60_000
"""A time further ahead is of a clock that was wrong. A job that waited for it would do nothing until then."""


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
    definitions = [assets] if isinstance(assets, AssetsDefinition) else assets
    if isinstance(definitions, str) or not isinstance(definitions, Sequence):
        raise ConfigurationError(f"{builder} needs what flink_assets(...) returned, not {assets!r}")
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


def runs_alive(
    target: FlinkTarget, instance: DagsterInstance, leader: LeaderRecord | None, log: Callable[[str], object]
) -> list[DagsterRun]:
    """Returns the runs of a job that are queued or alive, without those that Dagster only takes for that.

    Their machine is lost, or Dagster has created them and failed to launch them.

    Args:
        target: The job.
        instance: Where runs are recorded.
        leader: Who leads the job.
        log: Takes a line about each of those.
    """
    alive = []
    for run in active_runs(instance, target.job_id, target.keys):
        if never_launched(instance, run):
            log(
                f"Job {target.job_id}: run {run.run_id} was created, but Dagster has not launched it since "
                f"{utc(last_sign_of_life(instance, run))}. Delete it."
            )
        elif is_silent(instance, run, target.dagster_name, leader):
            log(
                f"Job {target.job_id}: run {run.run_id} is started, but has shown no sign of life since "
                f"{utc(last_sign_of_life(instance, run))}. Its process is gone: set it to canceled in the UI."
            )
        else:
            alive.append(run)
    return alive


class JobCursor(dict[str, Any]):
    """What a sensor remembers of each job, by its id. Its text is the cursor of the sensor.

    Args:
        text: The cursor as the last tick left it. Other text is ignored, because the runs show what was requested.
        name: What is remembered.
    """

    def __init__(self, text: str | None, name: str) -> None:
        super().__init__()
        self._name = name
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            data = json.loads(text or "{}")
            if data["version"] == _CURSOR_VERSION:
                self.update(data[name])

    def __str__(self) -> str:
        return json.dumps({"version": _CURSOR_VERSION, self._name: self})


def tick_result(
    context: SensorEvaluationContext,
    targets: Sequence[FlinkTarget],
    decide: Callable[[FlinkTarget], RunRequest | str],
    cursor: object = None,
) -> SensorResult:
    """Decides about each job, and returns the result of the tick.

    Dagster shows why a tick is skipped; if others get runs, the tick's log says it. A job about which nothing can be
    decided does not keep the others from their runs. Its error is in the tick's log, and a tick that does nothing for
    the others fails with it.

    Args:
        context: The context of the tick.
        targets: The jobs.
        decide: Returns the run to start for a job, or why there is none, in words for people.
        cursor: Its text is what the next tick is told. Default: nothing.

    Raises:
        Exception: What `decide` has raised, if there is nothing else to do.
    """
    before = str(cursor)
    requests, reasons, errors = list[RunRequest](), list[str](), list[Exception]()
    for target in targets:
        try:
            decided = decide(target)
        except Exception as error:  # also those of conditions that users write
            errors.append(error)
            decided = f"Job {target.job_id}: {type(error).__name__}: {message_of(error)}"
            context.log.error(decided)
        if isinstance(decided, RunRequest):
            requests.append(decided)
        else:
            reasons.append(decided)
    if errors and not requests and str(cursor) == before:  # a tick that fails forgets its cursor
        add_note(errors[0], " ".join(reasons))
        raise errors[0]
    told = None if cursor is None else str(cursor)
    if not requests:
        return SensorResult(skip_reason=" ".join(reasons), cursor=told)
    for reason in reasons:
        context.log.info(reason)
    return SensorResult(run_requests=requests, cursor=told)
