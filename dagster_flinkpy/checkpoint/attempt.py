"""An execution attempt that leads a job, and what it knows about the job's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dagster_flinkpy.checkpoint.head import Head
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.shared_state_registry import SharedStateRegistry
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.errors import JobCancelledError
from dagster_flinkpy.storage import lease

__all__ = ["Attempt"]


@dataclass
class Attempt:
    """An execution attempt that leads the job; created by ``CompletedCheckpointStore.begin_attempt``."""

    leader: lease.Leader
    latest: CheckpointMetadata | None
    """The latest completed checkpoint."""
    next_checkpoint_id: int
    """The next checkpoint id, which is greater than every known id."""
    head: Head
    head_etag: str
    """The ETag of ``HEAD`` as this attempt last wrote it."""
    former: lease.LeaderRecord | None = None
    """The previous leader of the job, or None."""
    committed: int | None = None
    """The checkpoint up to which all sinks are known to have committed; recorded when the attempt ends."""
    counter_etag: str | None = None
    """The ETag of ``counter`` as this attempt last saw it, or None if it does not exist."""
    reserved_ids: tuple[int, ...] = ()
    """The ids of the next checkpoints that were taken in advance, in order."""
    statistics_etag: str | None = None
    """The ETag of ``statistics`` as this attempt last saw it, or None if it does not exist."""
    left_behind: str = ""
    """If the attempt starts although HEAD was lost: the remaining objects of the job, in words; otherwise empty."""
    written: dict[int, str] = field(default_factory=dict)
    """Checksums of the ``_metadata`` that this attempt wrote and has not completed, by id."""
    unfinished: set[int] = field(default_factory=set)
    """Checkpoints, newer than the latest, whose metadata it began to write. The next one takes over what a failed one
    names."""
    released: set[int] = field(default_factory=set)
    """Checkpoints that ``HEAD`` no longer retains and that are still to be deleted."""
    registry: SharedStateRegistry = field(default_factory=SharedStateRegistry)
    """Which state files its checkpoints name."""
    others: dict[str, set[str]] = field(default_factory=dict)
    """The files that native savepoints and forks name; see ``claims.named_by_others``."""

    @property
    def token(self) -> int:
        """The fencing token."""
        return self.leader.token

    def start_after(self, checkpoint_id: int) -> None:
        """Uses only ids above this one, such as that of the savepoint that the attempt starts from."""
        self.next_checkpoint_id = max(self.next_checkpoint_id, checkpoint_id + 1)
        self.reserved_ids = tuple(each for each in self.reserved_ids if each > checkpoint_id)

    def claim(self, checkpoint_id: int) -> None:
        """Makes a checkpoint the job's own, to be deleted when it is subsumed."""
        head = self.head
        unclaimed = tuple(i for i in head.unclaimed if i != checkpoint_id)
        self.head = replace(head, unclaimed=unclaimed, retained=tuple(sorted({*head.retained, checkpoint_id})))

    def leave_unclaimed(self, checkpoint_id: int) -> None:
        """Keeps a retained checkpoint even when it is subsumed; takes effect with the next completed checkpoint."""
        if checkpoint_id not in self.head.unclaimed:
            self.head = replace(self.head, unclaimed=(*self.head.unclaimed, checkpoint_id))

    def discards_checkpoints(
        self, retention: ExternalizedCheckpointRetention, error: BaseException | None, *, finished: bool
    ) -> bool:
        """Returns whether all checkpoints are deleted when it ends (Flink: ``CheckpointProperties``).

        If the run has ended without an error, but the job has not finished, they are kept.
        """
        if self.latest is not None and self.committed != self.latest.checkpoint_id:
            return False  # it still has something to commit
        if self.latest is not None and self.latest.stopped:
            return False  # only this checkpoint records that the job is stopped
        if error is None:
            return retention.discards_on_finish and finished
        cancelled = not isinstance(error, Exception) or isinstance(error, JobCancelledError)
        return retention.discards_on_cancellation if cancelled else retention.discards_on_failure
