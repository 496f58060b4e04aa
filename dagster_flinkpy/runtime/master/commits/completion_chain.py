"""Completes acknowledged checkpoints one by one, in their order: metadata, HEAD, commit.

A part of :class:`~dagster_flinkpy.runtime.master.job_state.JobState`. The way of a checkpoint, from top to bottom:
:meth:`~CompletionChain.add`, :meth:`~CompletionChain.proceed`, :meth:`~CompletionChain.replace_head`,
:meth:`~CompletionChain.commit`, :meth:`~CompletionChain.finish`; or, if it fails, :meth:`~CompletionChain.hand_over` or
:meth:`~CompletionChain.end`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dagster_flinkpy.checkpoint.coordinator.instructions import HandOver, Instruction, WriteMetadata
from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.stimuli import MetadataWriteFailed
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import Outcome
from dagster_flinkpy.runtime.master.commits.epoch_outputs import EpochOutputs
from dagster_flinkpy.runtime.master.job_messages import CommitCheckpoint, CompleteCheckpoint, HandOut, WriteCheckpoint
from dagster_flinkpy.runtime.master.regions.region_epoch import Acknowledged, Turn
from dagster_flinkpy.runtime.master.results import TaskFailure

__all__ = ["CompletionChain"]


class CompletionChain:
    """The checkpoints that all tasks have acknowledged and that are not committed yet."""

    def __init__(self, turn: Turn, create_metadata: Callable[[WriteMetadata], CheckpointMetadata]) -> None:
        self._turn, self._create_metadata = turn, create_metadata
        self.outputs = EpochOutputs()
        """What becomes visible with the checkpoints."""
        self.waiting: deque[WriteMetadata] = deque()
        """The checkpoints behind the current one."""
        self._declined: dict[int, TaskFailure] = {}
        """Why a task could not store its snapshot, by checkpoint."""
        self.current: CheckpointMetadata | None = None
        """The checkpoint that is being completed."""
        self.replacing_head = False
        """Whether HEAD is being replaced, or names the current checkpoint."""
        self.broken = False
        """Whether an acknowledged checkpoint will not complete. Later ones must not complete either."""

    @property
    def idle(self) -> bool:
        """Whether no checkpoint is being completed or waits for it."""
        return self.current is None and not self.waiting

    # --- the way of a checkpoint -------------------------------------------------------------------------------------

    def add(self, write: WriteMetadata) -> None:
        """1. All tasks have acknowledged it: it waits for those before it."""
        if not self.broken:
            self.waiting.append(write)

    def take(self, region: int, acknowledged: Acknowledged) -> None:
        """Takes what the tasks of a region have done for a checkpoint, and whether a part of it is not in the store."""
        self.outputs.add(region, acknowledged.checkpoint_id, acknowledged.results)
        if acknowledged.failure is not None:
            self._declined.setdefault(acknowledged.checkpoint_id, acknowledged.failure)

    def proceed(self) -> Outcome | None:
        """2. It is its turn: its metadata is written, with what failed checkpoints have handed over.

        Returns:
            How it has failed if a task has declined it, so that its metadata is not written; otherwise None.
        """
        if self.current is not None or not self.waiting:
            return None
        self.current = metadata = self._next()
        if (failure := self._declined.pop(metadata.checkpoint_id, None)) is None:
            self._tell(WriteCheckpoint(metadata))
            return None
        failed = MetadataWriteFailed(
            self._turn.now_ms,
            metadata.checkpoint_id,
            unknown_outcome=False,
            cause=f"{failure.task.uid}[{failure.task.subtask}]: {failure.error}",
            reason=CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        )
        return Outcome(self._turn.now_ms, failed, failure.error)

    def _next(self) -> CheckpointMetadata:
        return self.outputs.taken_over(self._create_metadata(self.waiting.popleft()))

    def replace_head(self, checkpoint_id: int) -> None:
        """3. Its metadata is written: HEAD is to name it, and then it is complete."""
        self.replacing_head = True
        self._tell(CompleteCheckpoint(self._current(checkpoint_id)))

    def commit(self, checkpoint_id: int) -> CheckpointMetadata:
        """4. HEAD names it: the sinks commit. Returns its metadata."""
        metadata = self._current(checkpoint_id)
        self._tell(CommitCheckpoint(metadata))
        return metadata

    def finish(self) -> HandOut:
        """5. The sinks have committed: its outputs become visible."""
        assert self.current is not None
        metadata, self.current, self.replacing_head = self.current, None, False
        return self.outputs.publish(metadata)

    # --- if it fails -------------------------------------------------------------------------------------------------

    def hand_over_expired(self) -> bool:
        """Lets the next checkpoint take over from one that has expired, if it is that one's turn. Returns whether."""
        if self.current is not None or not self.waiting or not isinstance(self.waiting[0], HandOver):
            return False
        self.outputs.hand_over(metadata := self._next())
        self._declined.pop(metadata.checkpoint_id, None)
        return True

    def hand_over(self, checkpoint_id: int | None) -> None:
        """Lets the next checkpoint take over from one that has failed, if that is the current one."""
        metadata = self.current
        if metadata is not None and metadata.checkpoint_id == checkpoint_id:
            self.outputs.hand_over(metadata)
            self.current, self.replacing_head = None, False

    def end(self) -> None:
        """Gives up all checkpoints, because one of them has failed."""
        self.broken, self.current = True, None
        self.waiting.clear()

    def _current(self, checkpoint_id: int) -> CheckpointMetadata:
        metadata = self.current
        assert metadata is not None and metadata.checkpoint_id == checkpoint_id, "checkpoints complete in their order"
        return metadata

    def _tell(self, instruction: Instruction) -> None:
        self._turn.instructions.append(instruction)
