"""Numbers integers, or rows of them, many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.state.columns import firsts_of, grown, numbered

__all__ = ["IntIndex", "Integers", "WordIndex", "Words"]

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

Words = dict[int, Integers]
"""Words of each row, by their position. A position that is missing has zeros."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LEAST_BITS = 10

_MOST = 2**31
_FREE_PLACES = 8
"""With up to this many places per integer, an array takes less memory than a hash index."""

_SMALL = 1 << 18
"""An array of this many places is always worth its memory: one of many subtasks has few of the keys of a range."""


class WordIndex:
    """Numbers distinct rows of words 0, 1, 2, ... in the order in which they are added.

    It uses open addressing with linear probing, is at most half full, and compares words, so it needs no hashes that
    are unique. All rows of a call are probed together, so Python's cost is per probe and not per row.
    """

    def __init__(self) -> None:
        self._size = 0
        self._words: Words = {}
        """By number."""
        self._hashes: Hashes = np.zeros(0, dtype=np.uint64)
        """By number."""
        self._make(_LEAST_BITS)

    def __len__(self) -> int:
        return self._size

    def _make(self, bits: int) -> None:
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._table: npt.NDArray[np.int32] = np.full(1 << bits, -1, dtype=np.int32)

    def add(self, words: Words, hashes: Hashes) -> None:
        """Adds distinct rows that are not in the index.

        Args:
            words: Their words.
            hashes: A hash of 64 bits for each row, whose upper ones count.
        """
        # new: int32, numbers of rows that have no place in the table, ascending; at: where they look. self._table:
        # int32, by place: a number, or -1. take() is faster than an index.
        before, self._size = self._size, self._size + len(hashes)
        for position in words:
            self._words.setdefault(position, np.zeros(0, dtype=np.int64))
        for position, known in self._words.items():
            self._words[position] = known = grown(known, self._size, 0)
            if position in words:
                known[before : self._size] = words[position]
        self._hashes = grown(self._hashes, self._size, 0)
        self._hashes[before : self._size] = hashes
        new = np.arange(before, self._size, dtype=np.int32)
        if 2 * self._size > len(self._table):
            self._make((2 * self._size).bit_length() + 1)
            new = np.arange(self._size, dtype=np.int32)
        at = (self._hashes.take(new) >> self._shift).view(np.int64)
        while len(new):
            free = np.flatnonzero(self._table.take(at) < 0)  # Positions: numpy takes long by a mask without a pattern.
            self._table[at.take(free)] = new.take(free)
            waiting = np.flatnonzero(self._table.take(at) != new)
            new, at = new.take(waiting), (at.take(waiting) + 1) & self._mask

    def find(self, words: Words, hashes: Hashes) -> Integers:
        """Returns the number of each row, or -1 if it was not added."""
        # found: int64, one a row. probing: rows that are undecided, ascending; at goes with them.
        at = (hashes >> self._shift).view(np.int64)
        found = self._table.take(at).astype(np.int64)
        if not self._size:
            return found
        probing = np.flatnonzero(self._differ(found, words))
        at = at.take(probing)
        while len(probing):
            at = (at + 1) & self._mask
            numbers = self._table.take(at).astype(np.int64)
            found[probing] = numbers
            other = self._differ(numbers, {p: word.take(probing) for p, word in words.items()})
            probing, at = probing[other], at[other]
        return found

    def _differ(self, numbers: Integers, words: Words) -> npt.NDArray[np.bool_]:
        """Returns which numbers are those of rows with other words than these; False for negative ones."""
        other: Any = np.False_
        for position in self._words.keys() | words.keys():
            known, word = self._words.get(position), words.get(position)
            other = other | ((0 if known is None else known.take(numbers)) != (0 if word is None else word))
        differing: npt.NDArray[np.bool_] = (numbers >= 0) & other
        return differing


class IntIndex:
    """Numbers distinct integers 0, 1, 2, ... in the order in which they are added.

    While the integers are small and dense, as ids often are, an array has their numbers: it is faster than a hash
    index, and also smaller while most of the possible integers exist.
    """

    def __init__(self) -> None:
        self._size = 0
        self._numbers: npt.NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        """By integer."""
        self._index: WordIndex | None = None
        """What has the numbers instead, as soon as the array would be too empty."""

    def __len__(self) -> int:
        return self._size

    def within(self, start: int, stop: int) -> Integers | None:
        """Returns the numbers of the integers in a range, or None if finding them would take long."""
        if self._index is not None:
            return None
        numbers: Integers = self._numbers[start:stop].astype(np.int64)
        return numbers[numbers >= 0]

    def find(self, integers: Integers) -> Integers:
        """Returns the number of each integer, or -1 if it was not added."""
        if self._index is not None:
            return self._index.find({0: integers}, _spread(integers))
        inside = integers.view(np.uint64) < len(self._numbers)
        if inside.all():
            found: Integers = self._numbers[integers].astype(np.int64)
            return found
        found = np.full(len(integers), -1, dtype=np.int64)
        found[inside] = self._numbers[integers[inside]]
        return found

    def add(self, integers: Integers) -> tuple[Integers, Integers]:
        """Returns the numbers of integers; an integer without a number gets one.

        Args:
            integers: The integers; may repeat.

        Returns:
            The number of each integer, and the first position of each new one, in order.
        """
        # numbers: int64, one an integer. missing: positions, ascending. new: the distinct ones that are missing, in
        # order; codes: positions in new, one a missing integer.
        is_array = self._has_room(integers)
        numbers = self._numbers[integers].astype(np.int64) if is_array else self.find(integers)
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return numbers, missing
        if is_array:
            return numbers, self._add_missing(integers, missing, numbers)
        new, codes = numbered(integers[missing])
        numbers[missing] = len(self) + codes
        self.add_new(new)
        return numbers, missing[firsts_of(codes)]

    def _add_missing(self, integers: Integers, missing: Integers, numbers: Integers) -> Integers:
        """Numbers the integers at some positions in the array, and returns the first position of each."""
        # at, positions, owners: one a missing integer: itself, its position in missing, that of the first equal one.
        at, positions = integers[missing], np.arange(len(missing))
        self._numbers[at[::-1]] = positions[::-1]  # The last write wins.
        owners = self._numbers[at]
        first = np.flatnonzero(owners == positions)
        self._numbers[at[first]] = self._size + positions[: len(first)]
        numbers[missing] = self._numbers[at]
        self._size += len(first)
        return missing[first]

    def add_new(self, integers: Integers) -> None:
        """Adds distinct integers that are not in the index."""
        if self._has_room(integers):
            self._numbers[integers] = np.arange(self._size, self._size + len(integers), dtype=np.int32)
        elif self._index is None:
            known = np.flatnonzero(self._numbers >= 0)
            self._index, before = WordIndex(), np.empty(len(known), dtype=np.int64)
            before[self._numbers[known]] = known
            self._index.add({0: before}, _spread(before))
        if self._index is not None:
            self._index.add({0: integers}, _spread(integers))
        self._size += len(integers)

    def _has_room(self, integers: Integers) -> bool:
        """Makes room in the array, and returns whether it is still worth it."""
        if self._index is not None or not len(integers):
            return self._index is None
        wanted, places = int(integers.max()) + 1, len(self._numbers)
        places = places if wanted <= places else 1 << (wanted - 1).bit_length()
        if int(integers.min()) < 0 or places > max(_FREE_PLACES * (self._size + len(integers)), _SMALL):
            return False
        if places >= _MOST:
            return False
        if places > len(self._numbers):
            numbers = np.full(places, -1, dtype=np.int32)
            numbers[: len(self._numbers)] = self._numbers
            self._numbers = numbers
        return True


def _spread(integers: Integers) -> Hashes:
    return integers.view(np.uint64) * _SPREAD
