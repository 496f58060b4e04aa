"""Runs of timers in order of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.state.files.cache import Run

__all__ = ["MAX_TIME", "MIN_TIME", "Indices", "TimedRun"]

MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1
"""The least and the greatest time, in milliseconds."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimedRun:
    """A run whose rows are found by time, with a binary search that reads few other rows."""

    run: Run
    order: Indices
    """The rows in order: first the live timers by time, then the tombstones by time."""
    fired_before: int
    """The timers before this time, in milliseconds, have fired or were deleted."""

    def rows(self, start: int, stop: int, *, deleted: bool = False) -> Indices:
        """Returns the rows in a range of times.

        Args:
            start: The first time, in milliseconds; timers that have fired are left out.
            stop: The last time, in milliseconds, inclusive.
            deleted: Whether to return the tombstones instead of the timers. Default: False.
        """
        if not deleted:
            start = max(start, self.fired_before)
        first = self._from(deleted, start)
        last = bisect_right(self.order, (deleted, stop), lo=first, key=self._at)
        return self.order[first:last]

    def next_time(self, start: int) -> int:
        """Returns the time of the first unfired timer at or after a time, or more than ``MAX_TIME`` if none."""
        first = self._from(False, max(start, self.fired_before))
        deleted, time = self._at(self.order[first]) if first < len(self.order) else (True, 0)
        return MAX_TIME + 1 if deleted else time

    def _from(self, deleted: bool, start: int) -> int:
        return bisect_left(self.order, (deleted, start), key=self._at)

    def _at(self, row: np.int64) -> tuple[bool, int]:
        return self.run.value("deleted", int(row)), self.run.value("time", int(row))
