"""Breaks rules of failures that do not end a run, and adds them to the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.starting_point import Restore
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.commits.epoch_outputs import EpochOutputs
from dagster_flinkpy.runtime.master.job_messages import AbortLingering
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.regions.region_runner import JobRunner
from dagster_flinkpy.storage import lease
from tests.simulation.mutations import ONE_STREAM, Wrapped, mutation
from tests.simulation.request_mutations import MUTATIONS

__all__ = ["MUTATIONS"]

_TWICE = "which no uninterrupted run would"
_FAILING = {**ONE_STREAM, "task_fails": 0.1, "restarts": 1}

_TOLERANT = {**ONE_STREAM, "fail_before": 0.04, "savepoint": 0.1, "tolerates": 1, "regions": 0}


@mutation(
    "the next checkpoint does not commit the rows of one whose failure is tolerated",
    EpochOutputs,
    "taken_over",
    "but the files have",
    **_TOLERANT,
)
def _(real: Wrapped, outputs: EpochOutputs, metadata: CheckpointMetadata) -> CheckpointMetadata:
    return metadata


@mutation(
    "transactions are aborted that the next checkpoint takes over",
    JobState,
    "_tolerate",
    "whose upload is gone",
    **_TOLERANT,
)
def _(real: Wrapped, state: JobState, *args: Any) -> Any:
    tolerated = real(state, *args)
    state._tell(AbortLingering())
    return tolerated


@mutation("a region that restarts does not read its input again", JobRunner, "run", "but counted", **_FAILING)
def _(real: Wrapped, runner: JobRunner, epoch: EpochInput, restarts: int = 0, **options: Any) -> Any:
    read = replace(epoch, splits={}) if restarts else epoch
    return real(runner, read, restarts, **options)


@mutation(
    "a job that restarts restores its savepoint again",
    Restore,
    "continue_run",
    _TWICE,
    restore=1,
    task_fails=0.1,
    restarts=1,
)
def _(real: Wrapped, restore: Restore) -> None:
    pass


@mutation(
    "a restart in a run fences a newer run",
    lease,
    "acquire",
    _TWICE,
    pause=0.03,
    task_fails=0.1,
    restarts=1,
)
def _(real: Wrapped, *args: Any, after: Any = None, **options: Any) -> Any:
    return real(*args, **options)
