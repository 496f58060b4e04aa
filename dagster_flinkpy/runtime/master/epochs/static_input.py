"""The input of a static source: all of it at once, in the first epoch of a run if it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    position_field,
)
from dagster_flinkpy.runtime.master.epochs.partition_input import WholeInput

__all__ = ["StaticInput"]


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
