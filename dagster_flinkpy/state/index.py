"""Numbers small integers, pairs of them, or 64-bit integers, many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CellGrid", "IntIndex"]

Integers = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BITS = 10

_FIRST_CLAIM = -2
"""This number and smaller ones are claims: the position of the claimant, counted downwards."""


def _claim(numbers: npt.NDArray[Any], places: Integers, positions: Integers) -> None:
    """Claims free places. If several claim one place, the first of them gets it.

    Args:
        numbers: The number of each place; changed.
        places: Places that are free.
        positions: The claimants, in ascending order.
    """
    numbers[places[::-1]] = _FIRST_CLAIM - positions[::-1]  # the last write wins


def _number_claims(numbers: npt.NDArray[Any], places: Integers, size: int) -> tuple[Integers, Integers]:
    """Gives numbers to claimed places, in the order of the claims.

    Args:
        numbers: The number of each place; changed.
        places: The place of each position.
        size: The first number.

    Returns:
        The number of each position, and the positions whose claims were successful.
    """
    # owners: one a position: which position has claimed its place. first: the positions that have claimed their
    # own, ascending.
    owners = _FIRST_CLAIM - numbers[places]
    first = np.flatnonzero(owners == np.arange(len(places)))
    added = np.empty(len(places), dtype=np.int64)
    added[first] = size + np.arange(len(first))
    numbers[places[first]] = added[first]
    return added[owners], first


_MOST = 2**31
_FREE_PLACES = 8
"""Up to this many places per cell, a grid takes less memory than a hash index."""

_SMALL = 1 << 18
"""A grid of this many places is always worth its memory: one of many subtasks has few of the keys of a range."""


class CellGrid:
    """Numbers distinct pairs of row and column 0, 1, 2, ... in the order in which they are added.

    It is an array: faster than a hash index, and also smaller while most of the possible pairs exist.
    """

    def __init__(self) -> None:
        self._size = 0
        self._numbers = np.full((1, 1024), -1, dtype=np.int32)

    def __len__(self) -> int:
        return self._size

    def reserve(self, rows: int, columns: int, added: int) -> bool:
        """Makes room, and returns whether the grid is still full enough to be worth it.

        Args:
            rows: Number of rows.
            columns: Number of columns.
            added: The number of pairs to be added next.
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
        """Returns the numbers of the pairs of a row."""
        if row >= len(self._numbers):
            return np.zeros(0, dtype=np.int64)
        numbers: Integers = self._numbers[row].astype(np.int64)
        return numbers[numbers >= 0]

    def row_columns(self) -> Integers:
        """Returns the columns of a grid with one row, in the order of their numbers."""
        columns = np.flatnonzero(self._numbers[0] >= 0)
        ordered = np.empty(len(columns), dtype=np.int64)
        ordered[self._numbers[0, columns]] = columns
        return ordered

    def find(self, columns: Integers) -> Integers:
        """Returns the numbers of columns in the first row; -1 for those without a number."""
        numbers = self._numbers[0]
        inside = columns.view(np.uint64) < len(numbers)
        if inside.all():
            found: Integers = numbers[columns].astype(np.int64)
            return found
        found = np.full(len(columns), -1, dtype=np.int64)
        found[inside] = numbers[columns[inside]]
        return found

    def add(self, rows: Integers, columns: Integers) -> tuple[Integers, Integers]:
        """Returns the numbers of pairs; a pair without a number gets one.

        Args:
            rows: The row of each pair; there must be room for it.
            columns: The column of each pair.

        Returns:
            The number of each pair, and the first position of each new pair, in order.
        """
        # flat: int32, all rows of the grid one after the other. places, numbers: int64, one a pair. missing: positions,
        # ascending.
        flat = self._numbers.reshape(-1)
        places = rows * self._numbers.shape[1] + columns
        numbers = flat[places].astype(np.int64)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            _claim(flat, places[missing], np.arange(len(missing)))
            numbers[missing], first = _number_claims(flat, places[missing], self._size)
            self._size += len(first)
            missing = missing[first]
        return numbers, missing


def _doubled(wanted: int, now: int) -> int:
    return now if wanted <= now else 1 << (wanted - 1).bit_length()


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
        numbers[missing], first = _number_claims(self._numbers, self._places_of(integers[missing]), self._size)
        self._size += len(first)
        return numbers, missing[first]

    def _fits_grid(self, integers: Integers) -> bool:
        assert self._grid is not None
        return int(integers.min()) >= 0 and self._grid.reserve(1, int(integers.max()) + 1, len(integers))

    def _places_of(self, integers: Integers) -> Integers:
        """Returns the place of each integer. None of them is in the index; the number there is its first position."""
        # places: int64, one an integer. probing: positions that have no place yet, ascending; at: where they look.
        places, at = np.empty_like(integers), self._home(integers)
        probing = np.arange(len(integers))
        while len(probing):
            free = np.flatnonzero(self._numbers[at] == -1)
            _claim(self._numbers, at[free], probing[free])
            self._integers[at[free]] = integers[_FIRST_CLAIM - self._numbers[at[free]]]
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
        self._numbers[self._places_of(integers)] = numbers
