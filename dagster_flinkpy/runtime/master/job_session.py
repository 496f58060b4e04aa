"""The Spark session of an execution attempt, whose Spark jobs can be interrupted."""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.spark.sessions import SparkSettings, announce_job, get_session, lost_server
from dagster_flinkpy.spark.versions import has_stopped, interrupt_tag, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSession", "SharedSession"]

_AGAIN_SECONDS = 1.0
_TASK_TRIES = 4
"""Spark's default of ``spark.task.maxFailures``."""
_IDLE_SECONDS = 60.0
"""After how long a server is asked whether it has the session still: one closes those that were idle for an hour."""


class SharedSession:
    """The Spark sessions of an execution attempt, which are opened when they are first needed."""

    def __init__(self, settings: SparkSettings, progress: Callable[[str], None]) -> None:
        self.settings, self.progress = settings, progress
        self.owner = uuid.uuid4().hex
        """Tells Spark jobs of this attempt from those of others."""
        self._sessions: dict[bool, SparkSession] = {}
        """By whether it is for DataFrames of the user."""
        self._used: dict[bool, float] = {}
        """When somebody asked for them last, in seconds of the monotonic clock."""
        self.gone: weakref.WeakSet[SparkSession] = weakref.WeakSet()
        """The sessions that were forgotten. What another region does with one raises some error of a closed client."""
        self._tries: tuple[SparkSession, int] | None = None
        self._lock = threading.Lock()

    def get(self, *, own: bool = False) -> SparkSession:
        """Returns a session; with ``own``, that for DataFrames of the user. Runs on a local server share the other."""
        own = own and self.settings.mode == "local" and not self.settings.in_this_process
        with self._lock:
            now, spark = time.monotonic(), self._sessions.get(own)
            before, self._used[own] = self._used.get(own, now), now
            was_idle = now - before > _IDLE_SECONDS and self.settings.mode == "remote"
            if spark is None or self.has_stopped(spark) or (was_idle and self._was_closed(spark)):
                if not own:
                    self.progress(f"waiting for Spark ({self.settings.mode})")  # it may have to start first
                spark = self._sessions[own] = get_session(self.settings, own=own)
            return spark

    def _was_closed(self, spark: SparkSession) -> bool:
        try:
            spark.conf.get("spark.sql.session.timeZone")
        except Exception as error:
            return lost_server(self.settings, spark, error) is not None
        return False

    def has_stopped(self, spark: SparkSession) -> bool:
        """Returns whether the driver was in this process, and has ended."""
        return self.settings.in_this_process and has_stopped(spark)

    def task_tries(self, spark: SparkSession) -> int:
        """Returns how often Spark tries a task. A server is asked once, because each question costs a round trip."""
        if self._tries is None or self._tries[0] is not spark:
            self._tries = spark, int(spark.conf.get("spark.task.maxFailures", None) or _TASK_TRIES)
        return self._tries[1]

    def forget(self, lost: SparkSession) -> None:
        """Forgets the sessions of a server that is gone; :meth:`get` opens others."""
        with self._lock:
            if all(spark is not lost for spark in self._sessions.values()):
                return  # another region may have new ones already
            gone = [*self._sessions.values()]
            self._sessions.clear()
            self.gone.update(gone)
        # A driver in this process has ended already; to stop it again would end the one that another job has since.
        for spark in () if self.settings.in_this_process else gone:
            spark.release_session_on_close = False  # nobody would answer
            spark.stop()  # else it is the active one, which functions of PySpark ask for settings

    def close(self) -> None:
        """Closes the sessions, except in mode ``classic``, where they stay open for the next attempt."""
        for spark in () if self.settings.in_this_process else self._sessions.values():
            with suppress(Exception):  # the server may be gone, and the session with it
                spark.stop()
        self._sessions.clear()


class JobSession:
    """Runs the Spark jobs of a region on the shared session, and interrupts them on request.

    Flink: ``CheckpointCanceller``.

    Args:
        shared: The session of the attempt.
        announced: Whether runs on the same server tell each other of these Spark jobs. Default: True.
    """

    def __init__(self, shared: SharedSession, *, announced: bool = True) -> None:
        self._shared, self._announced = shared, announced
        self.interrupted = False
        """Whether somebody has interrupted it since :meth:`begin`."""
        self._interrupt: Callable[[], object] = lambda: None
        self._wake = threading.Event()
        """Set when the Spark jobs of the last :meth:`open` were interrupted or have ended."""

    def begin(self, tag: str, what: str) -> None:
        """Names the Spark jobs that follow, and lets them run even if earlier ones were interrupted.

        Args:
            tag: Distinguishes these jobs from all others of the attempt. Jobs of other attempts may have the same one,
                such as those of a job of this name with other checkpoints: all of them share a session.
            what: Their purpose, such as a checkpoint. Other runs on the same Spark server see it.
        """
        self._tag, self._what, self.interrupted = f"{tag}-{self._shared.owner}", what, False

    def interrupt(self) -> None:
        """Ends running Spark jobs, and those that start before the next :meth:`begin`. Any thread may call it."""
        self.interrupted = True
        self._wake.set()
        self._interrupt()

    @contextmanager
    def interruptible(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Lets :meth:`interrupt` end what runs inside the context without a Spark job of its own.

        Args:
            interrupt: Ends it; called at once if the session is interrupted already. Any thread may call it.
        """
        self._interrupt = interrupt
        try:
            if self.interrupted:
                interrupt()
            yield
        finally:
            self._interrupt = lambda: None

    @contextmanager
    def open(self, *, own: bool = False) -> Iterator[SparkSession]:
        """Provides a session, as :meth:`SharedSession.get`; Spark jobs that are started inside can be interrupted."""
        settings, progress = self._shared.settings, self._shared.progress
        spark, tag, over = self._shared.get(own=own), self._tag, threading.Event()
        wake = self._wake = threading.Event()
        if self.interrupted:
            wake.set()

        def end_when_interrupted() -> None:
            wake.wait()
            while not over.is_set():
                with suppress(Exception):  # the server may be gone
                    interrupt_tag(spark, tag)  # repeatedly, because the job may not have reached Spark yet
                over.wait(_AGAIN_SECONDS)

        with ExitStack() as stack:
            if self._announced:
                others = stack.enter_context(announce_job(settings, self._what, self._shared.owner))
                if others:
                    progress(f"{self._what} shares Spark with {', '.join(others)}")
            stack.enter_context(tagged(spark, tag))
            waits = threading.Thread(target=end_when_interrupted, name=f"{tag}-interrupt", daemon=True)
            stack.callback(wake.set)
            stack.callback(over.set)
            waits.start()
            try:
                yield spark
            except Exception as error:
                lost = lost_server(settings, spark, error)
                if lost is None and spark in self._shared.gone:
                    lost = SparkUnavailableError("The Spark server ended while the job was running.")
                if lost is None and self._shared.has_stopped(spark):
                    lost = SparkUnavailableError(
                        "The Spark session of this process ended while the job was running: some code has called its "
                        "stop(), or the cluster has removed it. A restart opens another one."
                    )
                if lost is None:
                    raise
                self._shared.forget(spark)  # a restarted region connects again, and starts another local server
                raise lost from error
