"""The Spark session of an execution attempt, which interrupts jobs that exceed the checkpoint timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_flinkpy.spark.sessions import SparkSettings, announce_job, get_session, lost_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSession"]

_AGAIN_SECONDS = 1.0


class JobSession:
    """Opens the session when it is first needed, and interrupts jobs that take too long.

    Flink: ``CheckpointCanceller``.

    Args:
        settings: Which Spark to use.
        progress: Takes one-line progress messages.
    """

    def __init__(self, settings: SparkSettings, progress: Callable[[str], None]) -> None:
        self.timed_out = False
        """Whether anything had to be interrupted since the last :meth:`limit`."""
        self._settings = settings
        self._progress = progress
        self._spark: SparkSession | None = None

    def limit(self, tag: str, what: str, timeout: timedelta) -> None:
        """Limits the total time of the Spark jobs that follow.

        Args:
            tag: Distinguishes these jobs from all others.
            what: What the jobs are for, such as a checkpoint. Other runs on the same Spark server see it.
            timeout: The time limit, counted from now.
        """
        self.timed_out = False
        self._tag, self._what, self._deadline = tag, what, time.monotonic() + timeout.total_seconds()

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """Provides the session; Spark jobs that are started inside the context are interrupted at the time limit."""
        if self._spark is None:
            self._progress(f"waiting for Spark ({self._settings.mode})")  # it may have to start first
            self._spark = get_session(self._settings)
        spark, tag, deadline, over = self._spark, self._tag, self._deadline, threading.Event()

        def expire() -> None:
            over.wait(deadline - time.monotonic())
            while not over.is_set():
                self.timed_out = True
                with suppress(Exception):  # the server may be gone
                    spark.interruptTag(tag)  # repeatedly, because the job may not have reached Spark yet
                over.wait(_AGAIN_SECONDS)

        with ExitStack() as stack:
            others = stack.enter_context(announce_job(self._settings, self._what))
            if others:
                self._progress(f"{self._what} shares Spark with {', '.join(others)}")
            spark.addTag(tag)
            stack.callback(spark.removeTag, tag)
            stack.callback(over.set)
            threading.Thread(target=expire, name=f"{tag}-timeout", daemon=True).start()
            try:
                yield spark
            except Exception as error:
                lost = lost_server(self._settings, spark, error)
                if lost is None:
                    raise
                raise lost from error

    def close(self) -> None:
        """Closes the session, except in mode ``classic``, where it stays open for the next attempt."""
        if self._spark is not None and self._settings.mode != "classic":
            with suppress(Exception):  # the server may be gone, and the session with it
                self._spark.stop()
        self._spark = None
