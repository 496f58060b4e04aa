"""Rows in order of time that are added in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.state.columns import Cells

__all__ = ["TimeParts", "Times"]

Times = npt.NDArray[np.int64]


class TimeParts:
    """Pairs of time and cell, from which those that are due are taken.

    Args:
        tidy: Returns rows in order of time, without those that others replace. Newer rows come last.
    """

    def __init__(self, tidy: Callable[[Times, Cells], tuple[Times, Cells]]) -> None:
        self._tidy = tidy
        self._parts: list[tuple[Times, Cells]] = []  # The oldest and largest first.

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._parts)

    def add(self, times: Times, cells: Cells) -> None:
        """Adds rows, in any order of time."""
        if not len(times):
            return
        # Merging parts of similar size keeps their number small, and sorts each row only a few times.
        while self._parts and len(self._parts[-1][0]) <= 2 * len(times):
            before, others = self._parts.pop()
            times, cells = np.concatenate([before, times]), np.concatenate([others, cells])
        self._parts.append(self._tidy(times, cells))

    def take(self, until: int) -> tuple[Times, Cells]:
        """Removes the rows up to a time, in milliseconds, and returns them in order."""
        # Each part: times: int64, ascending, and cells, as many.
        taken, left = [], []
        for times, cells in self._parts:
            stop = int(np.searchsorted(times, until, side="right"))
            if stop:
                taken.append((times[:stop], cells[:stop]))
            if stop < len(times):
                left.append((times[stop:], cells[stop:]))
        self._parts = left
        if not taken:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return self._tidy(np.concatenate([part for part, _ in taken]), np.concatenate([part for _, part in taken]))

    def clear(self) -> None:
        """Drops all rows."""
        self._parts.clear()
