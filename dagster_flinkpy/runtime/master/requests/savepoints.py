"""Writes savepoints of completed checkpoints while the job's attempt is at work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster_flinkpy.checkpoint.locations.savepoint_target import check_target
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.offline import without_committables
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CorruptStateError,
    SavepointOutcomeUnknownError,
    StorageError,
)
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import StorageLocation

__all__ = ["JobSavepoints", "SavepointCopy"]

_LOOK_TIMEOUT = timedelta(seconds=30)
"""How long it may take to look at a folder: other requests wait meanwhile."""


@dataclass(frozen=True)
class JobSavepoints:
    """Writes savepoints of a job's completed checkpoints."""

    job: StorageLocation
    """The job's prefix."""
    store: CompletedCheckpointStore
    check_leader: Callable[[], object]
    """Raises a FencedError if a newer attempt took over."""
    timeout: timedelta
    """How long it may take to write a savepoint: as long as to take a checkpoint, as in Flink."""
    folders: tuple[str, ...] = ()
    """URLs of the folders that the sources of the job read and its sinks write."""

    def check(self, target: str | None, format_type: SavepointFormatType) -> StorageLocation:
        """Returns the folder to write to. Waits for the store, unless it is the job's prefix, for which None stands.

        Raises:
            ConfigurationError: It is no location, or must not be used.
            StorageError: It cannot be looked at, or that takes too long.
        """
        if target is None:
            return self.job
        location = replace(self.job, url=target)
        watchdog = Watchdog(min(self.timeout, _LOOK_TIMEOUT))
        try:
            watchdog.run("looking at the target", check_target, location, self.job, format_type, self.folders)
        except CheckpointTimeoutError as error:
            raise StorageError(
                f"no savepoint is written to {location.url}: looking at this folder took more than {watchdog.timeout}. "
                "Check that it can be reached from where the job runs"
            ) from error
        finally:
            watchdog.close()
        return location


class _GivenUpError(CheckpointError):
    """Nobody waits for the savepoint any more."""


class SavepointCopy:
    """A savepoint that is written on another thread than that of who may give it up.

    Both threads agree through `outcome` whether the savepoint appears. It is cancelled by who gives the savepoint up,
    which only succeeds until the other thread has set it running, right before the savepoint appears.
    """

    def __init__(
        self,
        writer: JobSavepoints,
        checkpoint: CheckpointMetadata,
        target: str | None,
        format_type: SavepointFormatType,
        name: str = "",
    ) -> None:
        self.checkpoint = checkpoint
        """The checkpoint."""
        self.outcome: Future[str] = Future()
        """The URL of the savepoint; cancelled if it was given up."""
        self._writer, self._target, self._format_type, self._name = writer, target, format_type, name
        self._watchdog = Watchdog(writer.timeout, so="nobody waits for it any more")

    @property
    def appearing(self) -> bool:
        """Whether it cannot be given up any more, and is not known to be there yet."""
        return self.outcome.running()

    def give_up(self) -> bool:
        """Makes sure that the savepoint will not appear. Any thread may call it. Returns False if it is too late."""
        given_up = self.outcome.cancel()
        if given_up:
            self._watchdog.interrupt(0)
        return given_up

    def interrupt(self) -> None:
        """Gives the savepoint up, or if it is too late gives it a moment to appear."""
        if not self.give_up():
            self._watchdog.interrupt()

    def run(self) -> str:
        """Writes the savepoint, and returns its URL.

        Raises:
            ConfigurationError: The target must not be used.
            CorruptStateError: A file is damaged or missing, such as because the checkpoint was subsumed.
            FencedError: A newer attempt took over and has subsumed the checkpoint.
            CheckpointTimeoutError: It takes longer than a checkpoint may take. There is no savepoint.
            SavepointOutcomeUnknownError: Nobody knows whether there is one.
        """
        try:
            self._go_on()
            url = self._watchdog.run("writing a savepoint", self._write)
        except CheckpointTimeoutError as error:
            if self.give_up():
                raise CheckpointTimeoutError(f"there is no savepoint: {error}") from error
            unknown = SavepointOutcomeUnknownError(
                f"it is unknown whether there is a savepoint {self._name} in {self._target or self._writer.job.url}: "
                f"{error}"
            )
            self.outcome.set_exception(unknown)
            raise unknown from error
        except BaseException as error:
            if isinstance(error, Exception):
                with suppress(InvalidStateError):  # it was given up
                    self.outcome.set_exception(error)
            else:
                self.interrupt()
            raise
        finally:
            self._watchdog.close()
        self.outcome.set_result(url)
        return url

    def _write(self) -> str:
        location = self._writer.check(self._target, self._format_type)
        checkpoint, source = without_committables(self.checkpoint), self._writer.store.store
        try:
            folder = write_savepoint(
                checkpoint, source, location.open(), self._format_type, name=self._name, go_on=self._go_on
            )
        except CorruptStateError:
            self._writer.check_leader()  # a newer attempt may have subsumed the checkpoint meanwhile
            raise
        return f"{location.url}/{folder}"

    def _go_on(self, appears: bool = False) -> None:
        if self.outcome.cancelled() or (appears and not self.outcome.set_running_or_notify_cancel()):
            raise _GivenUpError("nobody waits for the savepoint any more")
