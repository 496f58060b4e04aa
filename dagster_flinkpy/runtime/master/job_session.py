"""The Spark session of an execution attempt, in which nothing lasts longer than a checkpoint may take."""

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
    """Gets the session when it is first needed; interrupts what lasts too long in it (Flink: ``CheckpointCanceller``).

    Args:
        settings: Which Spark.
        progress: Takes one-line progress messages.
    """

    def __init__(self, settings: SparkSettings, progress: Callable[[str], None]) -> None:
        self.timed_out = False
        """Whether anything had to be interrupted since the last :meth:`limit`."""
        self._settings = settings
        self._progress = progress
        self._spark: SparkSession | None = None

    def limit(self, tag: str, what: str, timeout: timedelta) -> None:
        """Says how long Spark jobs may last from now on, all together.

        Args:
            tag: Tells them from all others.
            what: They are for, such as a checkpoint; other runs on the same Spark server are told.
            timeout: Counts from now.
        """
        self.timed_out = False
        self._tag, self._what, self._deadline = tag, what, time.monotonic() + timeout.total_seconds()

    @contextmanager
    def open(self) -> Iterator[SparkSession]:
        """Gives the session; the Spark jobs that are started inside are interrupted when their time is over."""
        if self._spark is None:
            self._progress(f"waiting for Spark ({self._settings.mode})")  # which may have to start
            self._spark = get_session(self._settings)
        spark, tag, deadline, over = self._spark, self._tag, self._deadline, threading.Event()

        def expire() -> None:
            over.wait(deadline - time.monotonic())
            while not over.is_set():
                self.timed_out = True
                with suppress(Exception):  # of a server that has gone
                    spark.interruptTag(tag)  # again and again: the job may not have reached Spark yet
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
                lost = lost_server(self._settings, error)
                if lost is None:
                    raise
                raise lost from error

    def close(self) -> None:
        """Gives the session back; one of a driver in this process stays, for the next attempt."""
        if self._spark is not None and self._settings.mode != "classic":
            with suppress(Exception):  # a server that has gone has no session, either
                self._spark.stop()
        self._spark = None
