"""Numbers integers, and rows of numbers, times and short texts or bytes, many at a time.

Rows become 64-bit words, which numpy hashes and compares many at a time. Two rows are equal if and only if their words
are. That is several times faster than comparing text, and hash codes of Java say little about some keys: with ids of 0
to n, n * n pairs share 32 * n of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.state.columns import firsts_of, grown, numbered

__all__ = [
    "IntIndex",
    "Integers",
    "RowIndex",
    "WordIndex",
    "Words",
    "distinct_words",
    "has_words",
    "integers_of",
    "words_of",
]

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


TEXT_WORDS = 8
"""Words that a text has at most."""

_NULLS = 0  # The position of the word that has a bit for the row, and for each field, which is set if it is null.
_FIELD = TEXT_WORDS + 1  # Positions of a field. The last one of a text counts the NULs at its end.
_MOST_FIELDS = 62

_MIX, _AGAIN = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xC2B2AE3D27D4EB4F)
_HALF = np.uint64(32)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
_BLOCK = 1 << 14  # How many rows are processed at a time: their temporaries stay in the processor's cache.
_SAMPLE = 256  # How many rows say whether the bytes of a word may be digits.


@lru_cache(maxsize=256)
def has_words(kind: pa.DataType) -> bool:
    """Returns whether values of a type are numbers, times, texts, bytes, or rows of these."""
    if pa.types.is_struct(kind):
        return 0 < kind.num_fields <= _MOST_FIELDS and all(_is_flat(field.type) for field in kind)
    return _is_flat(kind)


def _is_flat(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64())
    return bool(number or pa.types.is_boolean(kind) or _is_text(kind) or _is_time(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_timestamp(kind))


def words_of(column: pa.Array[Any]) -> tuple[Words, Integers]:
    """Returns the words of a column whose type has them, and the rows with a text that is too long for words.

    Floating-point numbers are equal as in Java: there is one NaN, and -0.0 does not equal 0.0.
    """
    # nulls: int64, one a row, a bit for each field. long: rows, ascending.
    words: Words = {}
    nulls, has_nulls = np.zeros(len(column), dtype=np.int64), False
    long = np.zeros(0, dtype=np.int64)
    rows: Any = column
    fields = rows.flatten() if pa.types.is_struct(column.type) else []
    for i, field in enumerate([column, *fields]):
        if field.null_count:
            has_nulls = True
            nulls += field.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << i
        if pa.types.is_struct(field.type):
            continue
        first = 1 + i * _FIELD
        if _is_text(field.type):
            longer = _add_text(words, first, field)
            long = np.union1d(long, longer) if len(longer) else long
        else:
            words[first] = integers_of(field)
    if has_nulls:
        words[_NULLS] = nulls
    return words, long


def integers_of(column: pa.Array[Any]) -> Integers:
    """Returns integers that are equal where numbers or times are; they order all but floating-point numbers."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif _is_time(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = (column.fill_null(0) if column.null_count else column).to_numpy()
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.float64("nan"), values).astype(np.float64).view(np.int64)
    integers: Integers = values.astype(np.int64, copy=False)
    return integers


def _add_text(words: Words, first: int, column: pa.Array[Any]) -> Integers:
    """Adds the words of texts, filled up with zeros, and returns which texts have more than fit."""
    # offsets: int32, one more than rows, ascending. text: uint8, all texts one after the other. anywhere: uint64, the 8
    # bytes from each byte on. lengths, begins, left, by_row: one a row. some: rows with a word here, ascending.
    column = column.view(pa.binary())
    column = column.fill_null(b"") if column.null_count else column
    _, bounds, data = column.buffers()
    if not len(column) or data is None:
        return np.zeros(0, dtype=np.int64)
    offsets = np.frombuffer(bounds, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
    start, stop = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    least, most = int(lengths.min()), int(lengths.max())
    if not most:
        return np.zeros(0, dtype=np.int64)
    text = np.frombuffer(data, dtype=np.uint8, count=stop - start, offset=start)
    count = min(-(-most // 8), TEXT_WORDS)
    if least == most >= 8:
        for i in range(count):
            # The last word of a text begins before its place, so that it ends with the text.
            before = max(8 * (i + 1) - most, 0)
            by_row = np.ndarray(len(column), np.uint64, text.data, offset=8 * i - before, strides=(most,))
            words[first + i] = (by_row >> np.uint64(8 * before)).view(np.int64)
    else:
        padded = np.zeros(len(text) + 8, dtype=np.uint8)
        padded[: len(text)] = text
        anywhere = np.ndarray(len(text) + 1, dtype=np.uint64, buffer=padded.data, strides=(1,))
        begins = offsets[:-1] - start
        for i in range(count):
            if 8 * (i + 1) <= least:
                words[first + i] = anywhere[begins + 8 * i].view(np.int64)
                continue
            left = lengths - 8 * i
            some = np.flatnonzero(left > 0)
            word = anywhere[begins[some] + 8 * i] & _MASKS[np.minimum(left[some], 8)]
            if len(some) < len(column):
                all_rows = np.zeros(len(column), dtype=np.uint64)
                all_rows[some] = word
                word = all_rows
            words[first + i] = word.view(np.int64)
    if not text.min():
        ended = np.flatnonzero((lengths > 0) & (text[np.maximum(offsets[1:] - start - 1, 0)] == 0))
        if len(ended):
            counts = np.zeros(len(column), dtype=np.int64)
            texts = column.take(pa.array(ended)).to_pylist()
            counts[ended] = [len(text) - len(text.rstrip(b"\0")) for text in texts]
            words[first + TEXT_WORDS] = counts
    return np.flatnonzero(lengths > 8 * TEXT_WORDS) if most > 8 * TEXT_WORDS else np.zeros(0, dtype=np.int64)


def _hashes(words: Words, rows: int) -> npt.NDArray[np.uint64]:
    """Returns a hash of 64 bits for each row. A word that is zero makes no difference."""
    # hashes: uint64, one a row. Each word: int64, one a row.
    hashes = np.zeros(rows, dtype=np.uint64)
    for start in range(0, rows, _BLOCK):
        block = hashes[start : start + _BLOCK]
        for position, word in words.items():
            mix = word[start : start + _BLOCK].view(np.uint64) * _factor(position)
            mix ^= mix >> _HALF
            mix *= _MIX
            mix ^= mix >> _HALF
            mix *= _AGAIN
            block += mix
    return hashes


@lru_cache(maxsize=1024)
def _factor(position: int) -> np.uint64:
    return np.uint64((int(_SPREAD) * (2 * position + 1)) & 0xFFFFFFFFFFFFFFFF)


def distinct_words(words: Words, rows: int) -> tuple[Integers, Integers]:
    """Returns the first row of each distinct value, and for each row the number of its value among these."""
    # codes: int64, one a row, not dense. first: rows, ascending. numbers: by code, in the end the place in first.
    everything = np.arange(rows)
    ranges = {position: (int(word.min()), int(word.max())) for position, word in words.items() if rows}
    # A word that all rows have, such as a common prefix, tells none of them apart.
    ranges = {position: (least, most) for position, (least, most) in ranges.items() if least < most}
    words = {position: words[position] for position in ranges}
    codes = _codes(words, ranges, rows)
    if codes is None:
        codes = _owners(words, _hashes(words, rows))
        first = np.flatnonzero(codes == everything)
        numbers = np.empty(rows, dtype=np.int64)
    else:
        numbers = firsts_of(codes)
        first = np.flatnonzero(numbers[codes] == everything)
    numbers[codes[first]] = everything[: len(first)]
    return first, numbers[codes]


def _codes(words: Words, ranges: Mapping[int, tuple[int, int]], rows: int) -> Integers | None:
    """Returns small numbers that are equal where words are, which saves hashing; None if they would not be small."""
    # digits: of a number, the first one counts most. Each is a word, or a byte of one, such as a digit of an id: its
    # position, shift and mask, its least value, and how many it may have.
    most_codes = 4 * rows
    size, digits = 1, list[tuple[int, int, int, int, int]]()
    for position, (least, most) in ranges.items():
        parts = [(0, -1, least, most)]
        if most - least >= most_codes:
            word = words[position]
            if rows < _BLOCK or _count(_byte_ranges(word[:_SAMPLE])) * size > most_codes:
                return None
            parts = [(8 * i, 0xFF, *of_byte) for i, of_byte in enumerate(_byte_ranges(word))]
        digits += [(position, shift, mask, low, high - low + 1) for shift, mask, low, high in parts if low < high]
        size *= _count(part[2:] for part in parts)
        if size > most_codes:
            return None
    codes = np.zeros(rows, dtype=np.int64)
    for start in range(0, rows, _BLOCK):
        block = codes[start : start + _BLOCK]
        for position, shift, mask, least, count in digits:
            digit = words[position][start : start + _BLOCK]
            if mask > 0:
                digit = digit >> shift & mask
            block *= count
            block += digit
            block -= least
    return codes


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    """Returns how many combinations there are of values that are each in a range."""
    return math.prod(most - least + 1 for least, most in ranges)


def _byte_ranges(word: Integers) -> list[tuple[int, int]]:
    """Returns the least and greatest value of each byte of a word, the lowest byte first."""
    # wide: uint8, 64 rows in a line, which numpy compares at once; rest: uint8, a line for each of the rows left.
    lines = len(word) // 64
    wide, rest = word[: 64 * lines].view(np.uint8).reshape(lines, 512), word[64 * lines :].view(np.uint8).reshape(-1, 8)
    least = wide.min(axis=0, initial=255).reshape(64, 8).min(axis=0)
    most = wide.max(axis=0, initial=0).reshape(64, 8).max(axis=0)
    least = np.minimum(least, rest.min(axis=0, initial=255))
    most = np.maximum(most, rest.max(axis=0, initial=0))
    return list(zip(least.tolist(), most.tolist(), strict=True))


def _owners(words: Words, hashes: npt.NDArray[np.uint64]) -> Integers:
    """Returns the first row with the same words as each row."""
    # rows: int64, ascending: those without an owner. words, hashes, found: one a row of them. left: positions in rows.
    owners, left = _claimed(words, hashes)
    rows = left
    while len(rows):
        words = {position: word[left] for position, word in words.items()}
        hashes = hashes[left] * _MIX
        hashes ^= hashes >> _HALF
        hashes *= _AGAIN
        found, left = _claimed(words, hashes)
        owners[rows] = rows[found]
        rows = rows[left]
    return owners


def _claimed(words: Words, hashes: npt.NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Returns for each row the first one with its place in a table, and the rows that have other words than that."""
    # places, found: int64, one a row. first: int32, by place, a row. others: rows, ascending.
    rows = len(hashes)
    bits = max(rows.bit_length() + 1, _LEAST_BITS)
    places = (hashes >> np.uint64(64 - bits)).view(np.int64)
    first = np.empty(1 << bits, dtype=np.int32)
    first[places[::-1]] = np.arange(rows, dtype=np.int32)[::-1]  # the last write wins
    found, others = np.empty(rows, dtype=np.int64), list[Integers]()
    for start in range(0, rows, _BLOCK):
        block = slice(start, start + _BLOCK)
        found[block] = first[places[block]]
        here = found[block]
        same = np.True_
        for word in words.values():
            same = same & (word.take(here) == word[block])
        others.append(np.flatnonzero(~same) + start)
    return found, np.concatenate(others)


class RowIndex:
    """Numbers distinct rows 0, 1, 2, ... in the order in which they are added."""

    def __init__(self) -> None:
        self._index = WordIndex()

    def add(self, column: pa.Array[Any]) -> bool:
        """Adds distinct rows that are not in the index; returns False, and does nothing, if a text is too long."""
        words, long = words_of(column)
        if not len(long):
            self._index.add(words, _hashes(words, len(column)))
        return not len(long)

    def find(self, column: pa.Array[Any]) -> Integers:
        """Returns the number of each row, or -1 if it was not added, as no row with a long text was."""
        words, long = words_of(column)
        found = self._index.find(words, _hashes(words, len(column)))
        found[long] = -1
        return found
