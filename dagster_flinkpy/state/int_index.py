"""A hash index of 64-bit integers that looks up many at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["IntIndex"]

Integers = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BITS = 10


class IntIndex:
    """Numbers distinct integers 0, 1, 2, ... in the order in which they are added.

    Open addressing with linear probing, at most half full. All integers of a call probe together, so Python's cost is
    per probe and not per integer.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._size

    def clear(self) -> None:
        """Forgets all."""
        self._size = 0
        self._make(_FIRST_BITS)

    def find(self, integers: Integers) -> Integers:
        """The number of each integer; -1 where it was not added."""
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
        """Numbers integers; those that have no number get one.

        Args:
            integers: may repeat.

        Returns:
            The number of each, and for each new one, in order, where it occurs first.
        """
        numbers = self.find(integers)
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return numbers, missing
        encoded = pa.array(integers[missing]).dictionary_encode()
        distinct, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
        first = np.empty(len(distinct), dtype=np.int64)
        first[codes[::-1]] = missing[::-1]
        added = self._size + np.arange(len(distinct))
        self._size += len(distinct)
        if 2 * self._size > len(self._numbers):
            self._grow()
        self._insert(distinct, added)
        numbers[missing] = added[codes]
        return numbers, first

    def _home(self, integers: Integers) -> Integers:
        spread = integers.view(np.uint64) * _SPREAD
        return (spread >> self._shift).view(np.int64)

    def _make(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._integers: Integers = np.zeros(1 << bits, dtype=np.int64)
        self._numbers: Integers = np.full(1 << bits, -1, dtype=np.int64)

    def _grow(self) -> None:
        used = np.flatnonzero(self._numbers >= 0)
        integers, numbers = self._integers[used], self._numbers[used]
        self._make((2 * self._size).bit_length() + 1)
        self._insert(integers, numbers)

    def _insert(self, integers: Integers, numbers: Integers) -> None:
        """Adds distinct integers that are not there."""
        at = self._home(integers)
        while len(integers):
            free = self._numbers[at] < 0
            # Of those that meet at one free place the last one gets it.
            self._integers[at[free]] = integers[free]
            self._numbers[at[free]] = numbers[free]
            on = self._numbers[at] != numbers
            integers, numbers, at = integers[on], numbers[on], (at[on] + 1) & self._mask
