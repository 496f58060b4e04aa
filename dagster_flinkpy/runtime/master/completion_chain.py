"""Completes acknowledged checkpoints one by one, in their order: metadata, HEAD, commit.

Only the master's thread calls it. The steps run on the store's lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dagster_flinkpy.checkpoint.instructions import WriteMetadata
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.runtime.master.checkpoint_contents import CheckpointContents
from dagster_flinkpy.runtime.master.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.epoch_outputs import EpochOutputs, Published
from dagster_flinkpy.runtime.master.mailbox import Lane, Mailbox, Work

__all__ = ["CompletionChain"]


class CompletionChain:
    """The checkpoints that all tasks have acknowledged and that are not committed yet.

    Args:
        mailbox: Runs the store's lane.
        steps: Carry out the steps.
        contents: Which time partition is read.
        create_metadata: Returns the metadata of a checkpoint that all have acknowledged.
        on_completed: Called with each checkpoint once HEAD names it.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        steps: CheckpointSteps,
        contents: CheckpointContents,
        create_metadata: Callable[[WriteMetadata], CheckpointMetadata],
        on_completed: Callable[[CheckpointMetadata], object],
    ) -> None:
        self._mailbox, self._steps, self._contents = mailbox, steps, contents
        self._create_metadata, self._on_completed = create_metadata, on_completed
        self.outputs = EpochOutputs()
        """What becomes visible with the checkpoints."""
        self.waiting: deque[WriteMetadata] = deque()
        """The checkpoints behind the current one."""
        self.current: CheckpointMetadata | None = None
        """The checkpoint that is being completed."""
        self.step: Work | None = None
        """The current or last step."""
        self.replacing_head = False
        """Whether HEAD is being replaced."""
        self.broken = False
        """Whether an acknowledged checkpoint will not complete. Later ones must not complete either."""

    @property
    def idle(self) -> bool:
        """Whether no checkpoint is being completed or waits for it."""
        return self.current is None and not self.waiting

    def add(self, write: WriteMetadata) -> None:
        """Adds a checkpoint that all tasks have acknowledged."""
        if not self.broken:
            self.waiting.append(write)

    def proceed(self) -> None:
        """Begins to complete the next checkpoint, unless another one is being completed."""
        if self.current is None and self.waiting:
            self.current = metadata = self.outputs.taken_over(self._create_metadata(self.waiting.popleft()))
            self._submit(partial(self._steps.write_metadata, metadata))

    def replace_head(self, checkpoint_id: int) -> None:
        """Lets HEAD name the current checkpoint."""
        self.replacing_head, metadata = True, self._current(checkpoint_id)
        partition = self._contents.partition_end(metadata, self._steps.attempt.head.partitions)
        self._submit(partial(self._steps.replace_head, metadata, partition))

    def commit(self, checkpoint_id: int) -> None:
        """Commits the current checkpoint, which HEAD names."""
        metadata = self._current(checkpoint_id)
        self._on_completed(metadata)
        self._submit(partial(self._steps.commit_checkpoint, metadata))

    def hand_over(self, checkpoint_id: int | None) -> bool:
        """Lets the next checkpoint take over from the current one, which has failed.

        Returns:
            Whether it was the current one.
        """
        metadata = self.current
        if metadata is None or metadata.checkpoint_id != checkpoint_id:
            return False
        self.outputs.hand_over(metadata)
        self.current, self.replacing_head = None, False
        return True

    def end(self) -> None:
        """Gives up all checkpoints, because one of them has failed."""
        self.broken, self.current = True, None
        self.waiting.clear()

    def finish(self) -> tuple[CheckpointMetadata, Published]:
        """Returns the current checkpoint, which is committed, and its outputs."""
        assert self.current is not None
        metadata, self.current, self.replacing_head = self.current, None, False
        return metadata, self.outputs.publish(metadata.checkpoint_id)

    def _current(self, checkpoint_id: int) -> CheckpointMetadata:
        metadata = self.current
        assert metadata is not None and metadata.checkpoint_id == checkpoint_id, "checkpoints complete in their order"
        return metadata

    def _submit(self, step: Work) -> None:
        self.step = step
        self._mailbox.submit(Lane.STORE, step)
