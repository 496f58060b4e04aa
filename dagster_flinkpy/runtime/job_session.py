"""The Spark session of an execution attempt, in which nothing lasts longer than a checkpoint may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_flinkpy.runtime.spark import SparkSettings, get_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSession"]

_AGAIN_SECONDS = 1.0


class JobSession:
    """Gets the session when it is first needed; interrupts what lasts too long in it (Flink: ``CheckpointCanceller``).

    Args:
        settings: Which Spark.
        progress: Is told that Spark may have to start.
    """

    def __init__(self, settings: SparkSettings, progress: Callable[[str], None]) -> None:
        self.timed_out = False
        """Whether anything had to be interrupted since the last :meth:`limit`."""
        self._settings = settings
        self._progress = progress
        self._spark: SparkSession | None = None

    def limit(self, tag: str, timeout: timedelta) -> None:
        """Says how long Spark jobs may last from now on, all together.

        Args:
            tag: Tells them from all others.
            timeout: Counts from now.
        """
        self.timed_out = False
        self._tag, self._deadline = tag, time.monotonic() + timeout.total_seconds()

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """Gives the session; the Spark jobs that are started inside are interrupted when their time is over."""
        if self._spark is None:
            self._progress(f"waits for Spark ({self._settings.mode})")  # which may have to start
            self._spark = get_session(self._settings)
        spark, tag, deadline, over = self._spark, self._tag, self._deadline, threading.Event()

        def expire() -> None:
            over.wait(deadline - time.monotonic())
            while not over.is_set():
                self.timed_out = True
                spark.interruptTag(tag)  # again and again: the job may not have reached Spark yet
                over.wait(_AGAIN_SECONDS)

        spark.addTag(tag)
        threading.Thread(target=expire, name=f"{tag}-timeout", daemon=True).start()
        try:
            yield spark
        finally:
            over.set()
            spark.removeTag(tag)

    def close(self) -> None:
        """Gives the session back; one of a driver in this process stays, for the next attempt."""
        if self._spark is not None and self._settings.mode != "classic":
            self._spark.stop()
        self._spark = None
