"""The steps of a checkpoint that wait for the store, the sinks or the master hooks.

They run on the store's lane, one after the other, each under the watchdog. A step returns the stimulus that reports its
outcome to the coordinator, and an error if there was one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    CheckpointIdAssigned,
    CommitFinished,
    HeadReplaced,
    MasterHookFailed,
    MasterStateCollected,
    MetadataWriteFailed,
    MetadataWritten,
    Stimulus,
    TriggerFailed,
)
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointTimeline
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.partitions import PartitionEnd, PartitionRetention
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.checkpointing.checkpoint_listener import CheckpointListener
from dagster_flinkpy.errors import CheckpointError, CheckpointTimeoutError, FencedError, FlinkPyError, StorageError
from dagster_flinkpy.runtime.master.commits.master_hooks import MasterHooks
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.job_messages import CheckpointIdsReserved
from dagster_flinkpy.runtime.master.watchdog import Watchdog

__all__ = ["CheckpointSteps", "Outcome"]

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Stimulus):
    """A step of a checkpoint has ended, well or not."""

    stimulus: Stimulus
    """What to tell the coordinator."""
    error: FlinkPyError | None = None
    """Why the step failed, or None."""


@dataclass
class CheckpointSteps:
    """Carries out the coordinator's instructions outside Spark."""

    store: CompletedCheckpointStore
    attempt: Attempt
    watchdog: Watchdog
    hooks: MasterHooks
    transactions: Transactions
    lease: timedelta
    """The lease of the attempt, which each checkpoint renews."""
    partition_retention: PartitionRetention
    started_from: int | None
    """Id of the checkpoint or savepoint from which the run started, and another try of it would; or None."""
    now: Callable[[], int]
    """Returns the time, in milliseconds since 1970."""
    wall: Callable[[], int]
    """The same, as other machines see it."""
    commit: Callable[[CheckpointMetadata], object]
    """Commits what the sinks have prepared for a checkpoint."""
    after_commit: Callable[[], object]
    """Runs when a checkpoint has been committed."""
    timeline: CheckpointTimeline
    """Measures the phases of checkpoints."""
    tell_tasks: Callable[[str, int], object]
    """Tells tasks that live how a checkpoint has ended, as does :meth:`tell`."""

    def assign_checkpoint_id(self) -> Outcome:
        """Renews the lease and takes the next checkpoint id."""
        began_ms = self.now()
        try:
            checkpoint_id = self.watchdog.run("taking a checkpoint id", self._renewed, self.store.assign_checkpoint_id)
            self.timeline.add("trigger_ms", checkpoint_id, began_ms)
            return Outcome(self.now(), CheckpointIdAssigned(self.now(), checkpoint_id))
        except (StorageError, CheckpointTimeoutError) as error:
            return Outcome(self.now(), TriggerFailed(self.now(), str(error)), error)

    def reserve_checkpoint_ids(self, number: int) -> CheckpointIdsReserved:
        """Takes the next checkpoint ids ahead. If that fails, :meth:`assign_checkpoint_id` tries again."""
        with suppress(CheckpointTimeoutError, StorageError):
            reserve = self.store.reserve_checkpoint_ids
            self.watchdog.run("taking a checkpoint id", self._renewed, lambda attempt: reserve(attempt, number))
        return CheckpointIdsReserved(self.now(), self.attempt.reserved_ids)

    def _renewed(self, step: Callable[[Attempt], T]) -> T:
        """Renews the lease before a step."""
        self.store.renew(self.attempt, self.lease, self.wall())
        return step(self.attempt)

    def trigger_hook(self, identifier: str, checkpoint_id: int, timestamp_ms: int) -> Outcome:
        """Calls a master hook for its state."""
        try:
            with self.timeline.measured("trigger_ms", checkpoint_id):
                state = self.hooks.trigger(identifier, checkpoint_id, timestamp_ms)
        except CheckpointError as error:
            return Outcome(self.now(), MasterHookFailed(self.now(), checkpoint_id, identifier, str(error)), error)
        return Outcome(self.now(), MasterStateCollected(self.now(), checkpoint_id, identifier, state))

    def write_metadata(self, metadata: CheckpointMetadata) -> Outcome:
        """Writes the metadata of a fully acknowledged checkpoint."""
        number = metadata.checkpoint_id
        return self._finalize(
            f"writing chk-{number}/{METADATA_NAME}",
            "metadata_ms",
            number,
            lambda: self.store.write_metadata(self.attempt, metadata),
            MetadataWritten,
        )

    def replace_head(self, metadata: CheckpointMetadata, partition: PartitionEnd | None) -> Outcome:
        """Completes a checkpoint; `partition` is the entry for the time partition whose end state it is."""
        return self._finalize(
            f"writing HEAD for checkpoint {metadata.checkpoint_id}",
            "head_ms",
            metadata.checkpoint_id,
            lambda: self.store.complete(
                self.attempt,
                metadata,
                partition=partition,
                partition_retention=self.partition_retention,
                started_from=self.started_from,
            ),
            HeadReplaced,
        )

    def _finalize(
        self, what: str, phase: str, checkpoint_id: int, write: Callable[[], None], done: Callable[[int, int], Stimulus]
    ) -> Outcome:
        try:
            with self.timeline.measured(phase, checkpoint_id):
                self.watchdog.run(what, write)
        except FlinkPyError as error:
            unknown = isinstance(error, (StorageError, CheckpointTimeoutError))
            return Outcome(self.now(), MetadataWriteFailed(self.now(), checkpoint_id, unknown, str(error)), error)
        return Outcome(self.now(), done(self.now(), checkpoint_id))

    def commit_checkpoint(self, metadata: CheckpointMetadata) -> Outcome:
        """Commits a completed checkpoint, and notifies checkpoint listeners.

        Raises:
            FencedError: A newer attempt took over, and commits the checkpoint.
            FlinkPyError: A sink cannot commit.
        """
        number = metadata.checkpoint_id
        with self.timeline.measured("commit_ms", number):
            self.transactions.check_leader()
            self.commit(metadata)
            self.attempt.committed = number
            self.tell("notify_checkpoint_complete", number)
        phases = self.timeline.committed(number)
        self.watchdog.run("deleting the claimed savepoint", self.after_commit)
        return Outcome(self.now(), CommitFinished(self.now(), number, phases))

    def tell(self, news: str, checkpoint_id: int) -> None:
        """Calls a method of all committers, hooks and functions that are checkpoint listeners."""
        for listener in (*self.transactions.committers, *self.hooks):
            if isinstance(listener, CheckpointListener):
                what = f"{type(listener).__qualname__}.{news}({checkpoint_id})"
                self.watchdog.run(what, getattr(listener, news), checkpoint_id)
        self.tell_tasks(news, checkpoint_id)

    def tell_aborted(self, checkpoint_id: int) -> None:
        """Notifies checkpoint listeners that a checkpoint was aborted, unless a step hangs."""
        with suppress(CheckpointTimeoutError):
            self.tell("notify_checkpoint_aborted", checkpoint_id)

    def subsume(self, checkpoint_ids: Sequence[int]) -> None:
        """Deletes checkpoints that are no longer retained."""
        self.watchdog.run("deleting subsumed checkpoints", self.store.subsume, self.attempt, checkpoint_ids)

    def discard(self, files: Iterable[str]) -> None:
        """Deletes the state of an aborted checkpoint. If that fails, the next sweep deletes it."""
        with suppress(CheckpointTimeoutError, FencedError, StorageError):  # the error of the checkpoint is reported
            self.watchdog.run("deleting the state of an aborted checkpoint", self.store.discard, self.attempt, files)
