"""Computes running sums, minima and maxima of many groups at once; the results equal those of a loop over the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["FoldKind", "IntegerOverflowError", "Segments", "accumulate", "fits"]

FoldKind = Literal["sum", "min", "max"]
Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]

_FEW = 64
"""Up to this many groups are processed one by one; more are processed together, row by row."""


class IntegerOverflowError(ArithmeticError):
    """A sum is out of range for its type."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True)
class Segments:
    """Rows sorted by group; within a group they keep their order."""

    order: Indices
    """The rows, group after group."""
    groups: Indices
    """The distinct groups, ascending."""
    starts: Indices
    """Position of the first row of each group in ``order``."""
    counts: Indices
    """Number of rows of each group."""

    @staticmethod
    def of(groups: Indices) -> Segments:
        """Sorts rows by group.

        Args:
            groups: The group of each row, as numbers from 0. Group and row number together must fit into 64 bits.
        """
        # packed: int64, a group above the row, ascending. order, ordered: int64, one a row, by group and row.
        # begins: bool, likewise: whether a group begins there.
        bits = len(groups).bit_length()
        # Sorting integers once is faster than a stable sort of indices.
        packed = np.sort(groups << bits | np.arange(len(groups)))
        order, ordered = packed & ((1 << bits) - 1), packed >> bits
        begins = np.ones(len(groups), dtype=np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(groups)) if len(groups) else starts
        return Segments(order, ordered[starts], starts, ends - starts)

    @property
    def last(self) -> Indices:
        """Returns the position of the last row of each group in ``order``."""
        return self.starts + self.counts - 1


def accumulate(
    kind: FoldKind, values: Numbers, segments: Segments, before: Numbers, fresh: npt.NDArray[np.bool_]
) -> Numbers:
    """Computes the running result of each row, in the order of ``segments.order``.

    Args:
        kind: The operation.
        values: The value of each row.
        segments: The groups.
        before: The value from which each group starts.
        fresh: Whether each group starts from its first value instead.

    Raises:
        IntegerOverflowError: A sum is out of the range of the values' type.
    """
    ordered = values[segments.order]
    if kind == "sum" and values.dtype.kind == "i":
        return _sum_of_integers(ordered, segments, before, fresh)
    with np.errstate(over="ignore", invalid="ignore"):
        return _by_rank(kind, ordered, segments, before, fresh)


def fits(values: Numbers, before: Numbers) -> bool:
    """Returns whether integers can be added to these in any order without leaving the range of their type."""
    if not len(values):
        return True
    most = max(-int(values.min()), int(values.max())) * len(values)
    return most + max(-int(before.min()), int(before.max())) <= np.iinfo(values.dtype).max


def _sum_of_integers(ordered: Numbers, segments: Segments, before: Numbers, fresh: npt.NDArray[np.bool_]) -> Numbers:
    # ordered, running: one a row, in the order of the segments; total, wide: int64, likewise. offset: int64, by group.
    # Sums wrap around, so the difference of two of them is right even if a sum in between has overflowed.
    wide = ordered.astype(np.int64, copy=False)
    total = np.cumsum(wide)
    offset = np.where(fresh, 0, before.astype(np.int64))
    offset[1:] -= total[segments.starts[1:] - 1]
    running = total + np.repeat(offset, segments.counts)
    sums: Numbers = running.astype(ordered.dtype, copy=False)
    if fits(ordered, before):
        return sums
    previous = running - wide
    wrong = ((previous ^ running) & (wide ^ running)) < 0
    if ordered.dtype != np.int64:
        info = np.iinfo(ordered.dtype)
        wrong |= (running < info.min) | (running > info.max)
    if wrong.any():
        raise IntegerOverflowError(int(segments.order[np.flatnonzero(wrong)].min()))
    return sums


def _by_rank(
    kind: FoldKind, ordered: Numbers, segments: Segments, before: Numbers, fresh: npt.NDArray[np.bool_]
) -> Numbers:
    """Processes the first rows of all groups, then the second rows, and so on; the last few groups one by one."""
    # ordered, running: one a row, in the order of the segments. by_size: int64, groups of several rows, the largest
    # first; starts, counts, current: one of each of them.
    step, rest = _STEPS[kind], _RESTS[kind]
    running = np.empty_like(ordered)
    first = ordered[segments.starts]
    running[segments.starts] = np.where(fresh, first, step(before, first))
    repeated = np.flatnonzero(segments.counts > 1)
    by_size = repeated[np.argsort(-segments.counts[repeated], kind="stable")]
    starts, counts = segments.starts[by_size], segments.counts[by_size]
    current = running[starts]
    rank = 1
    while True:
        left = int(np.searchsorted(-counts, -rank, side="left"))  # groups with more rows than this
        if left <= _FEW:
            break
        rows = starts[:left] + rank
        current = step(current[:left], ordered[rows])
        running[rows] = current
        rank += 1
    for start, count, value in zip(starts[:left].tolist(), counts[:left].tolist(), current[:left], strict=True):
        tail = slice(start + rank, start + count)
        running[tail] = rest(np.concatenate([[value], ordered[tail]]))[1:]
    return running


def _extreme(values: Numbers, better: npt.NDArray[np.bool_]) -> Numbers:
    """Returns the running extreme, as in a loop: NaN stays if it is first, and of 0.0 and -0.0 the first stays."""
    # better: bool, one a value but the first: whether it is beyond all before it.
    if values[0] != values[0]:
        return np.full_like(values, values[0])
    improved = np.concatenate([[False], better])
    extreme: Numbers = values[np.maximum.accumulate(np.where(improved, np.arange(len(values)), 0))]
    return extreme


_STEPS: dict[FoldKind, Callable[[Numbers, Numbers], Numbers]] = {
    "sum": np.add,
    "min": lambda current, values: np.where(values < current, values, current),
    "max": lambda current, values: np.where(values > current, values, current),
}
_RESTS: dict[FoldKind, Callable[[Numbers], Numbers]] = {
    "sum": np.add.accumulate,
    "min": lambda values: _extreme(values, values[1:] < np.fmin.accumulate(values)[:-1]),
    "max": lambda values: _extreme(values, values[1:] > np.fmax.accumulate(values)[:-1]),
}
