"""The transactions of an attempt's sinks: those of completed checkpoints are committed, all others aborted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.starting_point import Restore
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.checkpointing.state_recovery import may_stay_behind
from dagster_flinkpy.errors import (
    CheckpointTimeoutError,
    CommitRefusedError,
    CommittableLostError,
    CorruptMetadataError,
    FencedError,
    HeadLostError,
    ObjectNotFoundError,
    RestoreError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["Transactions"]


class Transactions:
    """Commits and aborts for one execution attempt."""

    def __init__(
        self,
        store: CompletedCheckpointStore,
        attempt: Attempt,
        committers: Committers,
        restore: Restore,
        watchdog: Watchdog,
        progress: Callable[[str], object],
    ) -> None:
        self._store, self._attempt, self.committers, self._restore = store, attempt, committers, restore
        self._watchdog, self._progress = watchdog, progress

    def recover(self, commit: Callable[[CheckpointMetadata], int], *, start_over: bool) -> tuple[int, int]:
        """Commits what the last checkpoint prepared, then aborts everything else that is open.

        Returns:
            How many committables it had to commit, and how many open transactions it has aborted.

        Raises:
            CommitRefusedError: A sink does not take it, or no longer has what was committed.
            CommittableLostError: It is gone.
            RestoreError: It is of a sink that the program does not have, and the run restores something else or
                nothing. Or it is of a sink that writes to another table or topic now.
            HeadLostError: There was nothing of the job in the store, but a sink has committed its checkpoints. Or HEAD
                is older than what was committed.
        """
        committed, latest = 0, self._attempt.latest
        told = self._restore.path is not None or self._restore.start_empty
        if start_over or told:  # the folder of the job may be another one, and rows of a greater id are never replaced
            self._attempt.start_after(self.committers.last_committed() or 0)
        if not start_over:
            self._check_folder(None if told else latest)
        if latest is not None and not told:
            self._check_kept(latest)
        if latest is not None and self._attempt.committed != latest.checkpoint_id:
            prepared = {o.uid: n for o in latest.operators if (n := sum(len(s.committables) for s in o.subtasks))}
            own = {uid: number for uid, number in prepared.items() if uid in self.committers.uids}
            if told:
                self._check_left_behind(latest, prepared.keys() - own.keys())
            self.committers.check_targets(latest)
            try:
                committed = sum(own.values()) - commit(latest)
                if own == prepared:  # the program may no longer have a sink
                    self._attempt.committed = latest.checkpoint_id
            except (CommitRefusedError, CommittableLostError) as e:
                if self._restore.path is None:
                    raise
                self._progress(f"giving up checkpoint {latest.checkpoint_id}: {e}")
            if committed:
                self._progress(f"committed {committed} committables of checkpoint {latest.checkpoint_id}")
        if told:
            self._restore.last_committed = self.committers.last_of_each()
        return committed, self.abort_lingering()

    def _check_left_behind(self, latest: CheckpointMetadata, sinks: Collection[str]) -> None:
        """Checks that the run may give up what sinks had to commit that the program does not have."""
        for uid in sorted(sinks):
            if not may_stay_behind(self._restore.allow_non_restored_state, uid):
                raise RestoreError(
                    f"what sink {uid!r} has written up to checkpoint {latest.checkpoint_id} is not known to be "
                    "committed, and the program has no such sink. Run the program that has it once more, which commits "
                    f"it, or set allow_non_restored_state to [{uid!r}] to give it up."
                )

    def _check_folder(self, latest: CheckpointMetadata | None) -> None:
        """Checks that the folder of the job is neither a new one nor older than what sinks have committed."""
        try:
            if self._attempt.head.new:
                self.committers.check_new(self._store.store.url)
            elif latest is not None:
                self.committers.check_not_ahead(self._attempt.next_checkpoint_id - 1, latest, self._store.store.url)
        except HeadLostError:
            self.check_leader()  # an attempt that took over may have committed meanwhile
            raise

    def _check_kept(self, latest: CheckpointMetadata) -> None:
        """Checks that sinks still have what is known to be committed: the latest checkpoint, or one before it."""
        if (known := self._attempt.committed) is None:
            return
        if known > latest.checkpoint_id:
            self.check_leader()
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
        self.committers.check_kept(committed)

    def commit(self, metadata: CheckpointMetadata) -> int:
        """Commits a checkpoint. Returns how many of its committables were committed before."""
        return self._led(lambda: self.committers.commit(metadata))

    def _led(self, step: Callable[[], int]) -> int:
        try:
            return step()
        except SinkCommitError:
            self.check_leader()  # an attempt that took over has committed it, or more, or keeps this one from it
            raise

    def abort_lingering(self) -> int:
        """Aborts open transactions that no checkpoint names. Returns their number."""
        self.check_leader()
        return self._led(lambda: self.committers.abort_lingering(self._attempt.latest, self._restore.last_committed))

    def abort_left_open(self) -> None:
        """Aborts those of tasks that Spark ran again or speculatively, as there may be no next attempt."""
        # Not after an error: HEAD may name a checkpoint that this attempt does not know to be complete.
        if aborted := self.abort_lingering():
            self._progress(f"aborted {aborted} open transactions that belong to no checkpoint")

    def abort_after_failure(self) -> None:
        """Aborts them while the job runs. A fenced attempt aborts nothing: they may be those of its successor."""
        with suppress(FencedError, StorageError, CheckpointTimeoutError):
            self.abort_lingering()

    def check_leader(self) -> None:
        """Raises a FencedError if a newer attempt took over."""
        self._watchdog.run("checking who leads the job", self._store.check_leader, self._attempt)
