"""Asks whether a job has anything to do, for a sensor that would start a run: cheaply, and for a limited time."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from dagster import DagsterInstance

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.orchestration.runs.asset_enumerator import assets_from
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.sensors.waiting_input import WaitingInput

__all__ = ["LookTime", "WaitingLook"]

_TIMEOUT, _ALL = timedelta(seconds=10), timedelta(seconds=45)
"""The most time for one job, and for all of a tick. Dagster gives a tick 60 seconds."""


class LookTime:
    """The time that is left in a tick, divided among the jobs that it has yet to look at.

    Args:
        jobs: How many jobs the tick may look at.
    """

    def __init__(self, jobs: int) -> None:
        self._until, self._jobs = time.monotonic() + _ALL.total_seconds(), jobs

    def share(self) -> timedelta:
        """Returns how long the next job may take."""
        left, self._jobs = max(self._until - time.monotonic(), 0.0) / self._jobs, self._jobs - 1
        return min(timedelta(seconds=left), _TIMEOUT)


class WaitingLook:
    """Looks at one job.

    Args:
        target: The job.
    """

    def __init__(self, target: FlinkTarget) -> None:
        self._target = target
        self._recorded: int | None = None
        """The last checkpoint whose rows were found to be recorded."""

    @cached_property
    def _input(self) -> WaitingInput | None:
        # Imported here, because a code location must load quickly.
        from dagster_flinkpy.orchestration.sensors.waiting_input import WaitingInput

        return None if self._target.job is None else WaitingInput(self._target.job.graph)

    def reason_to_wait(self, job: StorageLocation, instance: DagsterInstance, most: timedelta) -> str | None:
        """Returns why no run is started; None if it has something to do, or nobody can tell: then the run says why.

        Args:
            job: The job's prefix.
            instance: Where assets that sources read are recorded.
            most: How long it may take. Sources that take longer count as having something.
        """
        from dagster_flinkpy.runtime.master.watchdog import Watchdog

        if self._input is None:
            return None
        watchdog, now_ms = Watchdog(most), current_millis()
        try:
            with assets_from(instance):
                found = watchdog.run("asking the sources for input", self._input.find, job, now_ms)
        except FlinkPyError:
            return None
        finally:
            watchdog.close()
        if found is not None or self._is_unrecorded(job, instance):
            return None
        return f"Job {self._target.job_id}: no source has input after the last checkpoint, and no timer is due."

    def _is_unrecorded(self, job: StorageLocation, instance: DagsterInstance) -> bool:
        """Returns whether a run of the instance has committed rows, and was killed before the assets got an event.

        The next run materializes them, so that what waits for them runs. What other instances do is recorded there.
        """
        from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
        from dagster_flinkpy.orchestration.runs.changed_tables import recorded_checkpoint

        checkpoints = CompletedCheckpointStore(job.open())
        latest, leader = checkpoints.latest(), checkpoints.leader()
        if latest is None or leader is None or latest.checkpoint_id == self._recorded:
            return False
        if not leader.led_by or instance.get_run_by_id(leader.led_by) is None:
            return False
        if any(recorded_checkpoint(instance, key) != latest.checkpoint_id for key in self._target.keys):
            return True
        self._recorded = latest.checkpoint_id
        return False
