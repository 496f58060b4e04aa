"""The input of a job that is partitioned by time: one epoch reads all of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator, SplitEnumeratorContext

__all__ = ["WholeInput"]


class WholeInput(SplitEnumerator):
    """Plans all of a bounded source as one epoch, and never reports the end of input.

    Another partition may follow, so windows that reach into it stay open. The enumerator has no state, because each
    partition is read from its beginning.
    """

    def __init__(self, inner: SplitEnumerator) -> None:
        self._inner = inner

    def start(self, context: SplitEnumeratorContext) -> None:
        self._inner.start(context)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._inner.notify_checkpoint_complete(checkpoint_id)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        while True:
            planned = self._inner.plan_epoch(parallelism)
            for share, splits in zip(shares, planned, strict=True):
                share += splits
            given = [split for splits in planned for split in splits]
            if self._inner.exhausted or not given:
                return shares
            self._inner.on_epoch_read([replace(split, finished=True) for split in given])

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot_state(self) -> Json:
        return {}

    def on_snapshot(self, checkpoint_id: int) -> None:
        self._inner.on_snapshot(checkpoint_id)
