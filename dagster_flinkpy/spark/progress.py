"""Reports the progress of a Spark job, or of something else, with one line every few seconds."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.spark.versions import is_classic

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

__all__ = ["INTERVAL_SECONDS", "ProgressLines", "SparkProgress", "StageProgress", "watched"]

INTERVAL_SECONDS = 5.0
"""The minimum time between two lines, in seconds. A Spark job that takes less reports nothing."""

_SHARE = 0.05
"""The minimum time between two lines as a share of the time so far, so that a long job does not flood the log."""

_BAR_WIDTH = 20
_POLL_SECONDS = 1.0
_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True)
class StageProgress:
    """The progress of a stage, as Spark reports it."""

    num_tasks: int
    num_completed_tasks: int


class ProgressLines:
    """Lines about something that takes long: at most one in five seconds, and later one each time it took 5 % longer.

    An unchanged state is not reported again.

    Args:
        what: What it is, such as ``checkpoint 7 of job orders``.
        on_line: Takes the lines.
        read: How many records were read before. Default: 0.
        clock: Returns monotonic time in seconds.
    """

    def __init__(
        self,
        what: str,
        on_line: Callable[[str], object],
        *,
        read: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._on_line, self._read, self._clock = what, on_line, read, clock
        self._started = self._told_at = clock()
        self._told = ""

    @property
    def due(self) -> bool:
        """Whether another line may follow."""
        now = self._clock()
        return now - self._told_at >= max(INTERVAL_SECONDS, _SHARE * (now - self._started))

    def say(self, told: str, records: int, read: int) -> None:
        """Passes on a state.

        Args:
            told: The state.
            records: How many records were read for it; 0 if there are none, or that is not known.
            read: How many records were read in all, for their rate.
        """
        told += f", {records:,} records read" if records else ""
        if told == self._told:
            return
        now, rate = self._clock(), ""
        if records and read > self._read:
            rate = f" ({(read - self._read) / (now - self._told_at):,.0f} per second)"
        self._told, self._told_at, self._read = told, now, read
        self._on_line(f"{self._what}: {told}{rate}, after {now - self._started:.0f} s")


class SparkProgress:
    """Turns Spark's reports into lines with a bar, which shows how many of the tasks of all stages are done.

    Args:
        lines: Takes them.
        stages: How many stages the job has.
        records: Returns how many records the tasks of each stage have read so far.
    """

    def __init__(self, lines: ProgressLines, stages: int, records: Callable[[], Mapping[int, int]]) -> None:
        self._lines, self._stages, self._records = lines, stages, records

    def update(self, stages: Iterable[StageProgress], running: int) -> None:
        """Takes a progress report of Spark: the stages that have begun, in order, and the number of running tasks."""
        if self._lines.due:
            begun = [stage for stage in stages if stage.num_tasks]
            done = sum(1 for stage in begun if stage.num_completed_tasks >= stage.num_tasks)
            records = self._records()
            self._lines.say(self._describe(begun, done, running), records.get(done, 0), sum(records.values()))

    def _describe(self, begun: list[StageProgress], done: int, running: int) -> str:
        current = next((stage for stage in begun if stage.num_completed_tasks < stage.num_tasks), None)
        if current is None:
            waits = done < self._stages
            return "waiting for Spark to start its tasks" if waits else "Spark is done; fetching the results"
        stages = max(self._stages, len(begun))  # what the driver sends to tasks is one more
        filled = int(_BAR_WIDTH * (done + current.num_completed_tasks / current.num_tasks) / stages)
        stage = f"[{'#' * filled:-<{_BAR_WIDTH}}] stage {done + 1} of {stages}"
        tasks = f"{current.num_completed_tasks} of {current.num_tasks} tasks done"
        if not running:
            return f"{stage}, {tasks}; waiting for free task slots"
        return f"{stage}, {tasks}, {running} running"


@contextmanager
def watched(spark: SparkSession, progress: SparkProgress) -> Iterator[None]:
    """Reports the progress of the Spark jobs that this thread starts inside the context."""
    if is_classic(spark):
        with _polled(spark.sparkContext, progress):
            yield
        return

    if not hasattr(spark, "registerProgressHandler"):  # before PySpark 4.0
        yield
        return

    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        progress.update([StageProgress(s.num_tasks, s.num_completed_tasks) for s in stages or ()], inflight_tasks)

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _polled(context: SparkContext, progress: SparkProgress) -> Iterator[None]:
    """Polls a driver in this process every second. The jobs of this thread are identified by their job group."""
    tracker, over = context.statusTracker(), threading.Event()
    former = context.getLocalProperty(_GROUP)  # the user's own
    group = former or f"flinkpy-{uuid.uuid4().hex}"
    before = set(tracker.getJobIdsForGroup(group))

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            with suppress(Exception):  # a job must not fail because of its progress report
                progress.update(*_tracked(tracker, set(tracker.getJobIdsForGroup(group)) - before))

    if former is None:
        context.setLocalProperty(_GROUP, group)
    thread = threading.Thread(target=poll, name=f"{group}-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if former is None:
            context.setLocalProperty(_GROUP, None)  # None removes the property


def _tracked(tracker: StatusTracker, jobs: Iterable[int]) -> tuple[list[StageProgress], int]:
    """Returns the stages of some jobs in order, and the number of their running tasks."""
    infos = [info for job_id in jobs if (info := tracker.getJobInfo(job_id)) is not None]
    ids = sorted({stage_id for info in infos for stage_id in info.stageIds})
    stages = [stage for stage_id in ids if (stage := tracker.getStageInfo(stage_id)) is not None]
    progress = [StageProgress(stage.numTasks, stage.numCompletedTasks) for stage in stages]
    return progress, sum(stage.numActiveTasks for stage in stages)
