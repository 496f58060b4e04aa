"""What happens to a job between its epochs: it is stopped, rescaled, or written as a savepoint, also on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.requests import Request, RequestKind, name_of
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CheckpointError,
    FlinkPyError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    SavepointOutcomeUnknownError,
)
from dagster_flinkpy.runtime.master.checkpoint_contents import CheckpointContents
from dagster_flinkpy.runtime.master.epoch_request import EpochKind, EpochRequest
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.reports import CompletedEpoch
from dagster_flinkpy.runtime.master.request_desk import RequestDesk
from dagster_flinkpy.runtime.master.savepoints import SavepointWriter

__all__ = ["ServedJob"]


class ServedJob(ABC):
    """The part of a job's attempt that takes savepoints, and stops or rescales the job, while nothing runs."""

    finished: bool
    config: JobConfig
    _attempt: Attempt
    _desk: RequestDesk
    _contents: CheckpointContents
    _master: JobMaster
    _savepoints: SavepointWriter
    _epochs_read: int
    """How many epochs of the last request are complete."""

    def __init__(self) -> None:
        self.stopped_with: str | None = None
        """The URL of the savepoint with which the job was stopped on request; None otherwise."""
        self._stopping = False
        """Whether the next checkpoint is the last one."""

    def stop_with_savepoint(
        self,
        target: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        *,
        drain: bool = False,
    ) -> str:
        """Completes a last checkpoint, commits it and writes it as a savepoint; the job is then finished.

        Later attempts do nothing until one restores this savepoint, or another one, with ``restore_from``.

        Args:
            target: The folder to write to. Default: the job's own prefix, where a native savepoint must be.
            format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.
            drain: Whether to end event time first, so that all timers and windows fire. A job that is restored from
                the savepoint is then finished, too, even if its sources have more to read.

        Returns:
            The URL of the savepoint.

        Raises:
            ConfigurationError: The target must not be used.
            CheckpointError: There is no completed checkpoint yet, and ``drain`` is False.
        """
        self._savepoints.check(target, format_type)
        if not self.finished and self._contents.parent is None and not drain:
            raise CheckpointError(f"job {self.config.job_id!r} has no completed checkpoint to stop with")
        deque(self._stop(drain), maxlen=0)
        return self.savepoint(target, format_type)

    def savepoint(
        self, target: str | None = None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> str:
        """Writes a savepoint of the last completed checkpoint.

        Args:
            target: The folder to write to. Default: the job's own prefix, where a native savepoint must be.
            format_type: Whether the savepoint is self-contained or refers to files of the job's checkpoints.

        Returns:
            The URL of the savepoint.

        Raises:
            ConfigurationError: The target must not be used.
            CheckpointError: There is no completed checkpoint yet.
            FencedError: A newer attempt took over and has subsumed the checkpoint.
            CheckpointTimeoutError: It takes longer than a checkpoint may take. There is no savepoint.
            SavepointOutcomeUnknownError: Nobody knows whether there is one.
        """
        return self._savepoint(target, format_type)

    def _savepoint(self, target: str | None, format_type: SavepointFormatType, name: str = "") -> str:
        if self._master.error is None:
            self._master.settle()
        latest = self._attempt.latest
        if latest is None:
            raise CheckpointError(
                f"job {self.config.job_id!r} has no completed checkpoint to make a savepoint of: run it first"
            )
        return self._savepoints.write(latest, target, format_type, name)

    def _run(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, and stops or rescales the job between them if somebody asks for it."""
        while True:
            yield from self._complete(request)
            if request.limit is not None:
                request = replace(request, limit=max(request.limit - self._epochs_read, 0))
            if (asked := self._desk.take_ending()) is None:
                return
            stops = asked.order.kind is RequestKind.STOP
            yield from self._stop_as_asked(asked) if stops else self._rescale_as_asked(asked)
            if stops or self.finished or request.limit == 0:
                return

    def _stop_as_asked(self, asked: Request) -> Iterator[CompletedEpoch]:
        yield from self._stop(asked.order.drain)
        try:
            self.stopped_with = self._savepoint(asked.order.target, asked.order.format_type, name_of(asked))
        except FlinkPyError as error:
            number = _id_of(self._contents.parent)
            what = (
                f"the job has stopped with checkpoint {number}, but its savepoint is missing. When the reason is "
                f"removed, 'flinkpy savepoint trigger' writes it: {error}"
            )
            unknown = isinstance(error, SavepointOutcomeUnknownError)
            self._desk.failed(asked, (RequestOutcomeUnknownError if unknown else RequestFailedError)(what), number)
            raise
        self._desk.done(asked, _id_of(self._contents.parent), self.stopped_with)

    def _stop(self, drain: bool) -> Iterator[CompletedEpoch]:
        """Completes a last checkpoint, unless the job has ended; then the job is finished."""
        latest = self._attempt.latest
        if self.finished and (latest is None or not drain or latest.end_of_input):
            return
        kind = EpochKind.DRAIN if drain else EpochKind.READ if self._contents.parent is None else EpochKind.REPEAT
        self._stopping = True
        yield from self._complete(EpochRequest(kind, stop=True))
        self.finished = True

    def _rescale_as_asked(self, asked: Request) -> Iterator[CompletedEpoch]:
        assert asked.order.parallelism is not None
        try:
            self._redeploy(asked.order.parallelism)
        except FlinkPyError as error:
            self._desk.failed(asked, error)
            return
        if self._contents.parent is not None:  # a checkpoint records the parallelism
            yield from self._complete(EpochRequest(EpochKind.REPEAT))
        self._desk.done(asked, _id_of(self._contents.parent))

    @abstractmethod
    def _complete(self, request: EpochRequest) -> Iterator[CompletedEpoch]:
        """Runs epochs, and yields each one when its checkpoint is complete and committed."""

    @abstractmethod
    def _redeploy(self, parallelism: int) -> None:
        """Lets the job continue from its last checkpoint at another parallelism. If that fails, nothing has changed.

        Raises:
            FlinkPyError: The state does not allow it.
        """


def _id_of(checkpoint: CheckpointMetadata | None) -> int | None:
    return None if checkpoint is None else checkpoint.checkpoint_id
