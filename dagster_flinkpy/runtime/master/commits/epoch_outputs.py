"""What epochs have produced that becomes visible with a checkpoint: rows of sinks, printed lines, collected records.

A checkpoint that fails without losing anything hands its part over: the next one to complete commits the rows of both,
in the order of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.runtime.master.job_messages import HandOut
from dagster_flinkpy.runtime.master.results import EpochResults

__all__ = ["EpochOutputs"]


class EpochOutputs:
    """Keeps the outputs of epochs until a checkpoint completes."""

    def __init__(self) -> None:
        self._printed: dict[int, dict[int, list[str]]] = {}
        self._collected: dict[int, dict[str, list[pa.Array]]] = {}
        self._failed: CheckpointMetadata | None = None
        """The last checkpoint that has handed its part over, with the committables of all before it."""
        self._handed_over: list[int] = []

    @property
    def waiting(self) -> bool:
        """Whether a failed checkpoint has handed its part over, and none has completed since."""
        return bool(self._handed_over)

    def add(self, region: int, checkpoint_id: int, results: Sequence[EpochResults]) -> None:
        """Adds the outputs of a region for a checkpoint, or replaces them, if the region has run again."""
        collected = self._collected.setdefault(checkpoint_id, {})
        for uid in {uid for each in results for uid in each.collected}:
            collected[uid] = [column for each in results for column in each.collected.get(uid, ())]
        self._printed.setdefault(checkpoint_id, {})[region] = [line for each in results for line in each.printed]

    def hand_over(self, failed: CheckpointMetadata) -> None:
        """Lets the next checkpoint commit what a failed one would have committed."""
        self._failed = failed
        self._handed_over.append(failed.checkpoint_id)

    def taken_over(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Returns the metadata of a checkpoint with the committables that failed ones have handed over."""
        if self._failed is None:
            return metadata
        before = {(o.uid, s.index): s.committables for o in self._failed.operators for s in o.subtasks}
        operators = tuple(
            replace(
                operator,
                subtasks=tuple(
                    replace(s, committables=before.get((operator.uid, s.index), ()) + s.committables)
                    for s in operator.subtasks
                ),
            )
            for operator in metadata.operators
        )
        return replace(metadata, operators=operators)

    def publish(self, metadata: CheckpointMetadata) -> HandOut:
        """Returns the outputs of a complete checkpoint, and forgets them."""
        numbers, printed = (*self._handed_over, metadata.checkpoint_id), list[str]()
        collected: dict[str, list[pa.Array]] = {}
        for number in numbers:
            for _, lines in sorted(self._printed.pop(number, {}).items()):
                printed += lines
            for uid, columns in self._collected.pop(number, {}).items():
                collected[uid] = collected.get(uid, []) + columns
        self._failed = None
        self._handed_over.clear()
        return HandOut(metadata, numbers, tuple(printed), collected)
