"""A hash index of 64-bit integers that looks up many integers at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.state.cell_grid import FIRST_CLAIM, CellGrid, claim, number_claims

__all__ = ["IntIndex"]

Integers = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BITS = 10


class IntIndex:
    """Numbers distinct integers 0, 1, 2, ... in the order in which they are added.

    If the integers are small and dense, as ids often are, an array has their numbers. Otherwise the index uses open
    addressing with linear probing, and is at most half full. All integers of a call are probed together, so Python's
    cost is per probe and not per integer.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._size if self._grid is None else len(self._grid)

    def clear(self) -> None:
        """Forgets everything."""
        self._grid: CellGrid | None = CellGrid()  # None when it would be too empty.
        self._size = 0

    def find(self, integers: Integers) -> Integers:
        """Returns the number of each integer, or -1 if it was not added."""
        # at, numbers: int64, the place of each integer, and the number there. probing: positions in integers that are
        # undecided, ascending; at goes with them.
        if self._grid is not None:
            return self._grid.find(integers)
        at = self._home(integers)
        numbers = self._numbers[at]
        probing = np.flatnonzero((self._integers[at] != integers) & (numbers >= 0))
        at = at[probing]
        while len(probing):
            at = (at + 1) & self._mask
            found = self._numbers[at]
            numbers[probing] = found
            on = (self._integers[at] != integers[probing]) & (found >= 0)
            probing, at = probing[on], at[on]
        return numbers

    def add(self, integers: Integers) -> tuple[Integers, Integers]:
        """Returns the numbers of integers; an integer without a number gets one.

        Args:
            integers: The integers; may repeat.

        Returns:
            The number of each integer, and the first position of each new one, in order.
        """
        if self._grid is not None:
            if not len(integers) or self._fits_grid(integers):
                return self._grid.add(np.zeros(1, dtype=np.int64), integers)
            before = self._grid.row_columns()
            self._grid = None
            self._make(max(_FIRST_BITS, (2 * len(before)).bit_length() + 1))
            self.add(before)
        numbers = self.find(integers)
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return numbers, missing
        if 2 * (self._size + len(missing)) > len(self._numbers):
            self._grow(self._size + len(missing))
        numbers[missing], first = number_claims(self._numbers, self._claim(integers[missing]), self._size)
        self._size += len(first)
        return numbers, missing[first]

    def _fits_grid(self, integers: Integers) -> bool:
        assert self._grid is not None
        return int(integers.min()) >= 0 and self._grid.reserve(1, int(integers.max()) + 1, len(integers))

    def _claim(self, integers: Integers) -> Integers:
        """Returns the place of each integer. None of them is in the index; the number there is its first position."""
        # places: int64, one an integer. probing: positions that have no place yet, ascending; at: where they look.
        places, at = np.empty_like(integers), self._home(integers)
        probing = np.arange(len(integers))
        while len(probing):
            free = np.flatnonzero(self._numbers[at] == -1)
            claim(self._numbers, at[free], probing[free])
            self._integers[at[free]] = integers[FIRST_CLAIM - self._numbers[at[free]]]
            # Equal integers probe in step, so they meet.
            here = self._integers[at] == integers[probing]
            places[probing[here]] = at[here]
            probing, at = probing[~here], (at[~here] + 1) & self._mask
        return places

    def _home(self, integers: Integers) -> Integers:
        spread = integers.view(np.uint64) * _SPREAD
        return (spread >> self._shift).view(np.int64)

    def _make(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._integers: Integers = np.zeros(1 << bits, dtype=np.int64)
        self._numbers: Integers = np.full(1 << bits, -1, dtype=np.int64)

    def _grow(self, size: int) -> None:
        used = np.flatnonzero(self._numbers >= 0)
        integers, numbers = self._integers[used], self._numbers[used]
        self._make((2 * size).bit_length() + 1)
        self._numbers[self._claim(integers)] = numbers
