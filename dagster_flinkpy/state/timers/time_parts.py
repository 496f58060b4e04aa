"""Rows in order of time that are added in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TimeParts", "Times", "Values"]

Times = npt.NDArray[np.int64]
Values = npt.NDArray[Any]


class TimeParts:
    """Pairs of time and value, from which those that are due are taken.

    Args:
        dtype: The type of the values.
        tidy: Returns rows in order of time, without those that others replace. Newer rows come last.
    """

    def __init__(self, dtype: Any, tidy: Callable[[Times, Values], tuple[Times, Values]]) -> None:
        self._dtype, self._tidy = dtype, tidy
        self._parts: list[tuple[Times, Values]] = []  # The oldest and largest first.

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._parts)

    def add(self, times: Times, values: Values) -> None:
        """Adds rows, in any order of time."""
        # Merging parts of similar size keeps their number small, and sorts each row only a few times.
        while self._parts and len(self._parts[-1][0]) <= 2 * len(times):
            before, others = self._parts.pop()
            times, values = np.concatenate([before, times]), np.concatenate([others, values])
        self._parts.append(self._tidy(times, values))

    def take(self, until: int) -> tuple[Times, Values]:
        """Removes the rows up to a time, in milliseconds, and returns them in order."""
        # Each part: times: int64, ascending, and values, as many.
        taken, left = [], []
        for times, values in self._parts:
            stop = int(np.searchsorted(times, until, side="right"))
            if stop:
                taken.append((times[:stop], values[:stop]))
            if stop < len(times):
                left.append((times[stop:], values[stop:]))
        self._parts = left
        if not taken:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=self._dtype)
        return self._tidy(np.concatenate([part for part, _ in taken]), np.concatenate([part for _, part in taken]))

    def clear(self) -> None:
        """Drops all rows."""
        self._parts.clear()
