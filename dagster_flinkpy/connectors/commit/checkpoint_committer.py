"""The second phase of sinks that put a checkpoint into their target as a whole, or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dagster_flinkpy.connectors.commit.staged_files import Staged, signal_failure
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, digest_of
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError, StorageError

__all__ = ["BY_KEY", "BY_PARTITION", "CheckpointCommitter", "StagedCheckpoint", "other_writer"]

BY_KEY = "With a key, it has changed rows in place, whose former values are gone"
"""Why a sink does not replace the rows of epochs if it replaces rows with the same key."""
BY_PARTITION = "It replaces the rows of partitions: run these again"
"""The same if it replaces those of partitions."""


def other_writer(what: str, partition: str | None, job_id: str, uid: str) -> ConfigurationError:
    """Returns the error of a partition whose rows, which are to be replaced, another job has written."""
    return ConfigurationError(
        f"partition {partition!r} of {what} has rows of sink {uid!r} of job {job_id!r}, and a sink with a "
        "partition_column replaces all rows of a partition, so these would be lost. Give each job a table of its own. "
        "If that job is no more, delete its rows of the partition"
    )


@dataclass(frozen=True)
class StagedCheckpoint:
    """What all subtasks have staged for a checkpoint."""

    requests: Sequence[CommitRequest]
    replaced: tuple[int, int] | None = None
    """Between which checkpoints are those whose rows it replaces. None: it replaces none."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint, or the transaction of an asset."""
        return self.requests[0].checkpoint_id

    @cached_property
    def files(self) -> list[RowFile]:
        """The staged files, those of the first subtask first."""
        return [RowFile.of(request) for request in self.requests]

    @cached_property
    def digest(self) -> str:
        """The identity of the files, as SHA-256 in hex."""
        return digest_of(self.files)

    @property
    def staged_ms(self) -> int:
        """When the first file was staged, in milliseconds since 1970."""
        return min(file.staged_ms for file in self.files)

    @cached_property
    def by_partition(self) -> dict[str | None, list[RowFile]]:
        """The files of each Dagster partition, in their order."""
        found = dict[str | None, list[RowFile]]()
        for file in self.files:
            found.setdefault(file.partition, []).append(file)
        return found


class CheckpointCommitter(Committer):
    """Commits a checkpoint as a whole, or not at all. A subclass says how it gets into the target."""

    _client_errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """What is raised if the target cannot be used for now."""
    _refusals: ClassVar[tuple[type[Exception], ...]] = (ConfigurationError,)
    """What is raised if the target does not take the rows until somebody changes it."""
    _advice: ClassVar[str] = ""
    """What to do if the target cannot be used."""
    _owned = False
    """Whether the sink belongs to a plain asset."""
    _never_replaces = ""
    """Why rows of epochs cannot be replaced, if they never can."""

    def __init__(self, context: CommitterInitContext, staged: Staged, what: str) -> None:
        self._context, self._staged, self._what = context, staged, what

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._commit_checkpoint(StagedCheckpoint(requests))

    def replace_epochs(self, checkpoint_id: int, requests: Sequence[CommitRequest], after: int, before: int) -> None:
        if self._never_replaces:
            raise ConfigurationError(self._never_replaces)
        if requests:
            self._commit_checkpoint(StagedCheckpoint(requests, (after, before)))
            return
        with self._reaching():
            self._remove_epochs(checkpoint_id, after, before)

    def check_replaceable(self, after: int, before: int) -> None:
        if self._never_replaces:
            raise ConfigurationError(self._never_replaces)
        with self._reaching():
            self._check_epochs(after, before)

    def _check_epochs(self, after: int, before: int) -> None:
        """Raises a ConfigurationError if the rows committed between two checkpoints cannot be told from others."""

    def _remove_epochs(self, checkpoint_id: int, after: int, before: int) -> None:
        """Removes these rows, of which there are none anew at a checkpoint."""

    def _commit_checkpoint(self, checkpoint: StagedCheckpoint) -> None:
        requests = checkpoint.requests
        try:
            # 1. Put the checkpoint into the target, unless it is there already.
            is_new = self._put(checkpoint)
        except Exception as error:
            # 2. Or say why it is not there, and whether to try again.
            self._signal(requests, error)
            return
        # 3. Say that somebody has committed it before, such as an attempt that died while it did.
        for request in () if is_new else requests:
            request.signal_already_committed()
        # 4. Delete what was staged only for this.
        with suppress(StorageError):  # abort_lingering deletes what remains
            self._clean_up(checkpoint)

    @abstractmethod
    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        """Puts a checkpoint into the target. Returns whether it was not there yet.

        Raises:
            CommittableLostError: What was staged is lost.
            SinkCommitError: It is not in the target, or nobody knows whether it is.
            ConfigurationError: The target does not take it.
            StorageError: It is not in the target now.
        """

    def _signal(self, requests: Sequence[CommitRequest], error: Exception) -> None:
        """Says why requests are not committed. Raises an error that is not one of the target."""
        if isinstance(error, self._refusals):
            try:
                gone = self._staged.missing_rows(requests)
            except StorageError as unknown:
                signal_failure(requests, unknown)
                return
            uid, checkpoint_id = self._context.uid, requests[0].checkpoint_id
            error = CommitRefusedError.of(uid, checkpoint_id, error, owned=self._owned, gone=gone)
        signal_failure(requests, error, retried=self._client_errors)

    def _clean_up(self, checkpoint: StagedCheckpoint) -> None:
        """Deletes what is of no use any more when a checkpoint is committed."""
        self._staged.delete(checkpoint.requests)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Says what cannot be reached, outside of commits."""
        try:
            yield
        except self._client_errors as error:
            raise StorageError(f"sink {self._context.uid!r} cannot use {self._what}: {error}{self._advice}") from error

    def _begin(self) -> None:
        """Looks at the target when an attempt starts."""

    def is_record_with_rows(self) -> bool:
        return self.last_committed() is not None  # without it, the target may have forgotten it

    def check_committed(self, latest: int) -> None:
        """Checks that nothing of a checkpoint after the latest complete one is visible, because it comes again.

        Raises:
            CommitRefusedError: Somebody has committed it.
        """

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._staged.lingering(keep)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        with self._reaching():
            self._begin()
            return self._staged.abort_lingering(keep)
