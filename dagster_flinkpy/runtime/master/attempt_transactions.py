"""The transactions of an attempt's sinks: those of completed checkpoints are committed, all others aborted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import (
    CheckpointTimeoutError,
    CommitRefusedError,
    CommittableLostError,
    CorruptMetadataError,
    FencedError,
    HeadLostError,
    ObjectNotFoundError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.runtime.master.committers import Committers
from dagster_flinkpy.runtime.master.starting_point import Restore
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["AttemptTransactions"]


class AttemptTransactions(ABC):
    """The part of a `JobAttempt` that commits and aborts. All attributes belong to it."""

    committed_on_recovery: int
    aborted_lingering: int
    _attempt: Attempt
    _committers: Committers
    _restore: Restore
    _start_over: bool
    _store: CompletedCheckpointStore
    _watchdog: Watchdog

    @abstractmethod
    def _progress(self, line: str) -> None:
        """Takes a one-line progress message."""

    def _recover(self, latest: CheckpointMetadata | None) -> None:
        """Commits what the last checkpoint prepared, then aborts everything else that is open.

        Raises:
            CommitRefusedError: A sink does not take it, or no longer has what was committed.
            CommittableLostError: It is gone.
            HeadLostError: There was nothing of the job in the store, but a sink has committed its checkpoints. Or HEAD
                is older than what was committed.
        """
        if self._attempt.head.new and not self._start_over:
            self._check_new()
        if latest is not None and self._restore.path is None and not self._restore.start_empty:
            self._check_kept(latest)
        if latest is not None and self._attempt.committed != latest.checkpoint_id:
            prepared = sum(len(s.committables) for o in latest.operators for s in o.subtasks)
            try:
                self.committed_on_recovery = prepared - self._commit(latest)
                self._attempt.committed = latest.checkpoint_id
            except (CommitRefusedError, CommittableLostError) as e:
                if self._restore.path is None:
                    raise
                self._progress(f"giving up checkpoint {latest.checkpoint_id}: {e}")
            if self.committed_on_recovery:
                self._progress(
                    f"committed {self.committed_on_recovery} committables of checkpoint {latest.checkpoint_id}"
                )
        self.aborted_lingering = self._abort_lingering()

    def _check_new(self) -> None:
        try:
            self._committers.check_new(self._store.store.url)
        except HeadLostError:
            self._check_leader()  # an attempt that took over may have committed meanwhile
            raise

    def _check_kept(self, latest: CheckpointMetadata) -> None:
        """Checks that sinks still have what is known to be committed: the latest checkpoint, or one before it."""
        known = self._attempt.committed
        if known is None:
            return
        if known > latest.checkpoint_id:
            self._check_leader()
            raise HeadLostError(
                f"{self._store.store.url}/HEAD says that checkpoint {latest.checkpoint_id} is the latest, but "
                f"checkpoint {known} was committed: HEAD was replaced by an older one, maybe from a backup. The run "
                "would commit rows again. Put the newer HEAD back, or give the run a savepoint with restore_from; with "
                f"'chk-{latest.checkpoint_id}' it goes on from there nevertheless."
            )
        try:
            committed = latest if known == latest.checkpoint_id else self._store.load(known)
        except (ObjectNotFoundError, CorruptMetadataError):
            return
        self._committers.check_kept(committed)

    def _abort_lingering(self) -> int:
        self._check_leader()
        return self._committers.abort_lingering(self._attempt.latest)

    def _abort_left_open(self) -> None:
        """Aborts the transactions of tasks that Spark ran again or speculatively, as there may be no next attempt.

        Must not be called after an error: HEAD may name a checkpoint that this attempt does not know to be complete.
        """
        if aborted := self._abort_lingering():
            self._progress(f"aborted {aborted} open transactions that belong to no checkpoint")

    def _check_leader(self) -> None:
        self._watchdog.run("checking who leads the job", self._store.check_leader, self._attempt)

    def _abort_after_failure(self) -> None:
        # A fenced attempt aborts nothing: an open transaction may belong to the attempt that took over.
        with suppress(FencedError, StorageError, CheckpointTimeoutError):
            self._abort_lingering()

    def _commit(self, metadata: CheckpointMetadata) -> int:
        try:
            return self._committers.commit(metadata)
        except SinkCommitError:
            self._check_leader()  # an attempt that took over has committed it, or keeps this one from it
            raise
