"""Reports the progress of a Spark job, with one line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["INTERVAL_SECONDS", "SparkProgress", "StageProgress", "watched"]

INTERVAL_SECONDS = 5.0
"""The minimum time between two lines, in seconds. A Spark job that takes less reports nothing."""


@dataclass(frozen=True)
class StageProgress:
    """The progress of a stage, as Spark reports it."""

    num_tasks: int
    num_completed_tasks: int


class SparkProgress:
    """Turns Spark's reports into lines: at most one every few seconds, and none for an unchanged state.

    Args:
        what: What the Spark job is for, such as ``checkpoint 7 of job orders``.
        stages: How many stages the job has.
        on_line: Takes the lines.
        clock: Returns monotonic time in seconds.
    """

    def __init__(
        self, what: str, stages: int, on_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._stages, self._on_line, self._clock = what, stages, on_line, clock
        self._started = self._told_at = clock()
        self._told = ""

    def update(self, stages: Iterable[StageProgress], running: int) -> None:
        """Takes a progress report of Spark.

        Args:
            stages: The stages that Spark has begun, in order.
            running: The number of running tasks.
        """
        now = self._clock()
        if now - self._told_at < INTERVAL_SECONDS:
            return
        told = self._describe(list(stages), running)
        if told != self._told:
            self._told, self._told_at = told, now
            self._on_line(f"{self._what}: {told}, after {now - self._started:.0f} s")

    def _describe(self, stages: list[StageProgress], running: int) -> str:
        begun = [stage for stage in stages if stage.num_tasks]
        done = sum(1 for stage in begun if stage.num_completed_tasks >= stage.num_tasks)
        current = next((stage for stage in begun if stage.num_completed_tasks < stage.num_tasks), None)
        if current is None:
            waits = done < self._stages
            return "waiting for Spark to start its tasks" if waits else "Spark is done; fetching the results"
        tasks = f"{current.num_completed_tasks} of {current.num_tasks} tasks done"
        if not running:
            return f"stage {done + 1} of {self._stages}, {tasks}; waiting for free task slots"
        return f"stage {done + 1} of {self._stages}, {tasks}, {running} running"


@contextmanager
def watched(spark: SparkSession, progress: SparkProgress) -> Iterator[None]:
    """Reports the progress of Spark inside the context; does nothing in a classic session, which has no reports."""
    if not hasattr(spark, "client"):  # only a session of Spark Connect has it
        yield
        return

    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        progress.update([StageProgress(s.num_tasks, s.num_completed_tasks) for s in stages or ()], inflight_tasks)

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
