"""A hash index of 64-bit integers that looks up many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["IntIndex", "claim", "number_claims"]

Integers = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BITS = 10

_CLAIM = -2
"""Numbers from here down are claims: the position of what is being added, counted backwards."""


def claim(numbers: npt.NDArray[Any], places: Integers, positions: Integers) -> None:
    """Claims free places; of those that meet at one the first one of all gets it.

    Args:
        numbers: By place; changed.
        places: Some that are free.
        positions: Who claims, in ascending order.
    """
    numbers[places[::-1]] = _CLAIM - positions[::-1]  # the last one written stays


def number_claims(numbers: npt.NDArray[Any], places: Integers, size: int) -> tuple[Integers, Integers]:
    """Gives numbers to claimed places, in the order of the claims.

    Args:
        numbers: By place; changed.
        places: The place of each position.
        size: The first number.

    Returns:
        The number of each position, and the positions whose claims held.
    """
    owners = _CLAIM - numbers[places]
    first = np.flatnonzero(owners == np.arange(len(places)))
    added = np.empty(len(places), dtype=np.int64)
    added[first] = size + np.arange(len(first))
    numbers[places[first]] = added[first]
    return added[owners], first


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
        if 2 * (self._size + len(missing)) > len(self._numbers):
            self._grow(self._size + len(missing))
        numbers[missing], first = number_claims(self._numbers, self._claim(integers[missing]), self._size)
        self._size += len(first)
        return numbers, missing[first]

    def _claim(self, integers: Integers) -> Integers:
        """The place of each integer, none of which is there; its number says where it occurs first."""
        places, at = np.empty_like(integers), self._home(integers)
        probing = np.arange(len(integers))
        while len(probing):
            free = np.flatnonzero(self._numbers[at] == -1)
            claim(self._numbers, at[free], probing[free])
            self._integers[at[free]] = integers[_CLAIM - self._numbers[at[free]]]
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
