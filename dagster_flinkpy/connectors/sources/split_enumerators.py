"""What the enumerators of declared sources have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from dagster_flinkpy.connectors.sources.open_splits import OpenRanges, OpenSplits
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    position_field,
)
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits

__all__ = ["EndingEnumerator", "OpenEnumerator"]

OpenT = TypeVar("OpenT", OpenSplits, OpenRanges)


class EndingEnumerator(SplitEnumerator):
    """Looks for input between two barriers, too, unless it limits what is read there.

    Args:
        limits: What is read at most between two barriers.
        interval: How long it rests between two barriers after it has found nothing, because a look costs much. Others
            read, and barriers pass, more often. Default: it looks whenever it is asked.
    """

    def __init__(self, limits: EpochLimits, interval: timedelta = timedelta(0)) -> None:
        self._limits, self._interval = limits, interval.total_seconds()
        self._rests_until = 0.0
        self._ended = False
        """Whether the input ends with what was found."""
        self._progress: Callable[[str], None] = lambda line: None

    def start(self, context: SplitEnumeratorContext) -> None:
        self._progress = context.progress

    def plan_part(self, parallelism: int) -> list[list[SourceSplit]]:
        if time.monotonic() < self._rests_until:
            return [[] for _ in range(parallelism)]
        planned = self.plan_epoch(parallelism)
        if not any(planned):
            self._rests_until = time.monotonic() + self._interval
        return planned

    @property
    def assigns_late(self) -> bool:
        return not self._limits

    @property
    def exhausted(self) -> bool:
        return self._ended


class OpenEnumerator(EndingEnumerator, Generic[OpenT]):
    """Plans splits again until they are read to their ends."""

    def __init__(self, limits: EpochLimits, open_splits: OpenT, interval: timedelta = timedelta(0)) -> None:
        super().__init__(limits, interval)
        self._open: OpenT = open_splits

    def _restore_open(self, position: Json) -> None:
        """Takes over what `snapshot_state` here has returned."""
        self._open.restore(position)
        self._ended = position_field(position, "ended", bool)

    def snapshot_state(self) -> Json:
        return {**self._open.to_json(), "ended": self._ended}

    def has_input(self, parallelism: int) -> bool | None:
        return self.plans_something(parallelism)

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        self._open.take_back(splits)

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._open.rest

    def unread(self) -> Sequence[str]:
        return [f"the rest of {split.split_id}" for split in self._open.left()] if self._open.rest else []
