"""Numbers of cells by two small integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.state.int_index import claim, number_claims

__all__ = ["CellGrid"]

Integers = npt.NDArray[np.int64]

_MOST = 2**31
_FREE_PLACES = 8
"""Places per cell up to which a grid takes less memory than a hash index."""

_SMALL = 1 << 16


class CellGrid:
    """Numbers distinct pairs of row and column 0, 1, 2, ... in the order in which they are added.

    An array: quicker than a hash index, and as long as most pairs there can be are there it is smaller, too.
    """

    def __init__(self) -> None:
        self._size = 0
        self._numbers = np.full((1, 1024), -1, dtype=np.int32)

    def __len__(self) -> int:
        return self._size

    def reserve(self, rows: int, columns: int, added: int) -> bool:
        """Makes room; says whether the grid is still filled well enough to be worth it.

        Args:
            rows: Number of rows.
            columns: Number of columns.
            added: Pairs that are asked for next.
        """
        height, width = self._numbers.shape
        height, width = max(height, _doubled(rows, height)), max(width, _doubled(columns, width))
        places = height * width
        if places > max(_FREE_PLACES * (self._size + added), _SMALL) or places >= _MOST:
            return False
        if (height, width) != self._numbers.shape:
            numbers = np.full((height, width), -1, dtype=np.int32)
            numbers[: self._numbers.shape[0], : self._numbers.shape[1]] = self._numbers
            self._numbers = numbers
        return True

    def row(self, row: int) -> Integers:
        """The numbers of the pairs of a row."""
        if row >= len(self._numbers):
            return np.zeros(0, dtype=np.int64)
        numbers: Integers = self._numbers[row].astype(np.int64)
        return numbers[numbers >= 0]

    def add(self, rows: Integers, columns: Integers) -> tuple[Integers, Integers]:
        """Numbers pairs; those that have no number get one.

        Args:
            rows: May repeat; there must be room for them.
            columns: Of each.

        Returns:
            The number of each pair, and for each new one, in order, where it occurs first.
        """
        flat = self._numbers.reshape(-1)
        places = rows * self._numbers.shape[1] + columns
        numbers = flat[places].astype(np.int64)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            claim(flat, places[missing], np.arange(len(missing)))
            numbers[missing], first = number_claims(flat, places[missing], self._size)
            self._size += len(first)
            missing = missing[first]
        return numbers, missing


def _doubled(wanted: int, now: int) -> int:
    return now if wanted <= now else 1 << (wanted - 1).bit_length()
