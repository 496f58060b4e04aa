"""Sources that are read as a whole: static ones, in the first epoch of a run if they have changed, and partitions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    position_field,
)

__all__ = ["StaticInput", "WholeInput"]


class StaticInput(SplitEnumerator):
    """Plans all of a source once in each execution attempt, unless it is known that nothing has changed.

    It has always ended, apart from what it plans, so nobody waits for it.

    Its state is a checksum of the content that was read, if the splits of the source name it, and splits of which a
    part was not read before the barrier.

    Args:
        source: The source.
        restored: The state of an earlier enumerator, or None. That of another kind of enumerator is ignored.
    """

    def __init__(self, source: Source, restored: Json | None) -> None:
        self._create: Callable[[], SplitEnumerator] = lambda: source.create_enumerator(None)
        self._content_token = source.content_token
        self._context: SplitEnumeratorContext | None = None
        self._read: str | None = None
        self._rest: list[SourceSplit] = []
        if restored and "static" in restored:
            self._read = restored["static"]
            self._rest = [SourceSplit.from_json(each) for each in position_field(restored, "rest", list)]
        self._planned: str | None = None
        """The checksum of the content that is assigned."""
        self._looked = False

    def start(self, context: SplitEnumeratorContext) -> None:
        self._context = context

    def has_input(self, parallelism: int) -> bool:
        if self._content_token is None:
            return False  # what others read decides whether there is a run, which then reads this, too
        return self.plans_something(parallelism)

    def plans_something(self, parallelism: int) -> bool:
        return any(self.plan_epoch(parallelism))

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if self._rest:
            return [self._rest[i::parallelism] for i in range(parallelism)]
        if self._looked:
            return [[] for _ in range(parallelism)]
        inner = self._create()
        try:
            if self._context is not None:
                inner.start(self._context)
            shares = WholeInput(inner).plan_epoch(parallelism)
        finally:
            inner.close()
        self._looked = True
        content = None if self._content_token is None else _checksum(self._content_token, shares)
        if content is not None and content == self._read:
            return [[] for _ in range(parallelism)]
        self._planned = content
        return shares

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        if splits:
            self._read = self._planned or self._read
            self._rest = [split for split in splits if not split.finished]

    @property
    def exhausted(self) -> bool:
        return not self._rest

    def snapshot_state(self) -> Json:
        return {"static": self._read, "rest": [split.to_json() for split in self._rest]}


def _checksum(token: str, shares: Sequence[Sequence[SourceSplit]]) -> str:
    """Returns a checksum of what splits name, however they are assigned."""
    splits = sorted(json.dumps(split.to_json(), sort_keys=True) for share in shares for split in share)
    return hashlib.sha256("\n".join([token, *splits]).encode()).hexdigest()


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
