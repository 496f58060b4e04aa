"""Which runs of a table are merged, and when: pure rules over their handles.

A large table is divided into sections, ranges of key groups that are merged one by one, in different epochs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import RunHandle

__all__ = [
    "EARLY",
    "MAX_RUNS",
    "SECTION_BYTES",
    "SECTION_ROWS",
    "SPREAD",
    "TURNS",
    "Delta",
    "SectionRows",
    "cut_key_groups",
    "has_turn",
    "joined",
    "plan_merges",
    "sections_of",
]

MAX_RUNS = 8
"""The maximum number of runs of a section. If there are more, they are merged when the next delta is written."""
TURNS = 4
"""Each section has its turn to merge once in this many epochs, so that they do not all merge in the same epoch."""
SPREAD = 2
"""Sections merge before they have to while that reads at most this many times as many rows as a delta has."""
EARLY = 0.5
"""They only do with this share of the rows that would make them merge."""
SECTION_ROWS = 1 << 20
"""A section has at most this many rows, unless a single key group has more. That is merged in parts."""
SECTION_BYTES = 1 << 24
"""A section has at most this many bytes in the store, unless a single key group has more."""

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Delta:
    """What is known of the changes that are about to be written to some key groups."""

    rows: int
    bytes: int
    appends: int
    """How many of the rows append to older ones."""
    tombstones: int


def has_turn(phase: int | None, section: int, sections: int) -> bool:
    """Returns whether a section should merge early, before it has to.

    Neighbours have the same turn, so that a run is left with few gaps.

    Args:
        phase: The number of the epoch modulo ``TURNS``, counted from the subtask's turn. None: nobody has a turn.
        section: The index of the section.
        sections: How many there are.
    """
    return phase == section * TURNS // sections


# --- sections ---------------------------------------------------------------------------------------------------------


def sections_of(
    handles: Sequence[RunHandle], key_groups: KeyGroupRange, delta_rows: npt.NDArray[np.int64] | None
) -> list[KeyGroupRange]:
    """Divides key groups into sections. They begin where files do, as long as those are not too large.

    Args:
        handles: The runs of the table, oldest first.
        key_groups: The key groups of the subtask.
        delta_rows: For each key group, the number of rows that are about to be written. Default: none.
    """
    added = 0 if delta_rows is None else int(delta_rows.sum())
    rows, size = sum(each.rows for each in handles) + added, sum(each.share(each.bytes) for each in handles)
    if rows <= SECTION_ROWS and size <= SECTION_BYTES:
        return [key_groups]
    weights = _weights(handles, key_groups)
    if delta_rows is not None:
        weights += delta_rows / SECTION_ROWS
    parts: list[KeyGroupRange] = []
    for own in _ranges_of_bases(handles, key_groups):
        parts += cut_key_groups(own, weights[own.start - key_groups.start : own.end + 1 - key_groups.start])
    sections: list[KeyGroupRange] = []
    filled = math.inf
    for part in parts:
        weight = float(weights[part.start - key_groups.start : part.end + 1 - key_groups.start].sum())
        if filled + weight <= 1.0:
            sections[-1], filled = KeyGroupRange(sections[-1].start, part.end), filled + weight
        else:
            sections.append(part)
            filled = weight
    return sections


def cut_key_groups(key_groups: KeyGroupRange, weights: Weights) -> list[KeyGroupRange]:
    """Cuts key groups into as few parts of similar weight as have at most the weight 1, if their key groups allow it.

    Args:
        key_groups: The key groups.
        weights: The weight of each.
    """
    # weights, before: float64, one a key group; before ascends. part_of: the number of its part, ascending.
    total = float(weights.sum())
    parts = max(1, math.ceil(total))
    before = np.cumsum(weights) - weights
    part_of = np.minimum(before * parts // total, parts - 1) if parts > 1 else np.zeros(len(weights))
    starts = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(weights)]
    return [KeyGroupRange(key_groups.start + first, key_groups.start + last - 1) for first, last in pairwise(starts)]


def _weights(handles: Sequence[RunHandle], key_groups: KeyGroupRange) -> Weights:
    """Returns how much of a section each key group fills."""
    weights = np.zeros(key_groups.end + 1 - key_groups.start)
    for handle in handles:
        row = max(1 / SECTION_ROWS, handle.bytes / max(handle.file_rows, 1) / SECTION_BYTES)
        for group, rows in handle.rows_by_key_group():
            weights[group - key_groups.start] += rows * row
    return weights


def _ranges_of_bases(handles: Sequence[RunHandle], key_groups: KeyGroupRange) -> list[KeyGroupRange]:
    """Divides key groups where a run begins that has no older one below it."""
    starts = sorted({key_groups.start, *(each.key_groups.start for each in _bases(handles))})
    ends = [*(start - 1 for start in starts[1:]), key_groups.end]
    return [KeyGroupRange(start, end) for start, end in zip(starts, ends, strict=True)]


def _bases(handles: Sequence[RunHandle]) -> list[RunHandle]:
    """Returns the runs without an older one that may have the same keys. After rescaling there may be several."""
    # covered: int64, for each key group from the first one on, the end of the sort keys in older runs.
    if not handles:
        return []
    first = min(each.key_groups.start for each in handles)
    covered = np.zeros(max(each.key_groups.end for each in handles) + 1 - first, dtype=np.int64)
    bases = []
    for handle in handles:
        own = covered[handle.key_groups.start - first : handle.key_groups.end + 1 - first]
        if (own <= handle.span.start).all():
            bases.append(handle)
        np.maximum(own, handle.span.stop, out=own)
    return bases


def joined(handles: Sequence[RunHandle]) -> list[list[RunHandle]]:
    """Joins the files of a section among which a merge has divided a key group: they count as one run.

    Args:
        handles: The runs of the section, oldest first.
    """
    found: list[list[RunHandle]] = []
    for handle in handles:
        follows = found and handle.hashes and found[-1][-1].hashes and handle.span.start >= found[-1][-1].span.stop
        if follows:
            found[-1].append(handle)
        else:
            found.append([handle])
    return found


# --- what to merge ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SectionRows:
    """The rows of a section, with those that are about to be written."""

    sizes: Sequence[int]
    """The number of rows of each run, oldest first."""
    base_rows: int
    """The number of rows of the runs that have no older run below them."""
    tombstones: int
    """The number of tombstones among all rows."""
    added: int
    """The number of rows outside the bases that are live because they append to older ones."""
    weights: Sequence[int] | None
    """The cost of writing each run, in any unit. None: its number of rows."""

    @staticmethod
    def of(runs: Sequence[Sequence[RunHandle]], delta: Delta | None, *, is_list: bool) -> SectionRows:
        """Counts the rows of a section.

        Args:
            runs: The runs of the section, oldest first, each with its files; see :func:`joined`.
            delta: What is about to be written on top of them, if anything.
            is_list: Whether the rows are lists, whose number says little about their size.
        """
        handles = [each for run in runs for each in run]
        bases = _bases(handles)
        sizes = [sum(each.rows for each in run) for run in runs]
        weights = [sum(each.share(each.bytes) for each in run) for run in runs]
        appends = [sum(0 if each in bases else each.share(each.appends) for each in run) for run in runs]
        tombstones = sum(each.share(each.tombstones) for each in handles)
        if delta is not None:
            sizes.append(delta.rows)
            weights.append(delta.bytes)
            appends.append(delta.appends)
            tombstones += delta.tombstones
        base_rows, added = sum(each.rows for each in bases), _unhidden(sizes, appends)
        return SectionRows(sizes, base_rows, tombstones, added, weights if is_list else None)

    @property
    def surplus(self) -> float:
        """The share that there is of the rows that may be too many. Above 1, all runs are merged.

        There may be twice as many rows as live ones. A row of a delta replaces a row, is new, or is a tombstone that
        hides a row. So the number of live rows is at least that of the bases minus that of the tombstones. Rows that
        append to lists are counted separately.
        """
        live = self.base_rows + self.added
        surplus, room = sum(self.sizes) - live, live - 2 * self.tombstones
        if not self.base_rows or surplus <= min(0, room):
            return 0.0
        return surplus / room if room > 0 else math.inf

    def first_to_merge(self, *, turn: bool) -> int | None:
        """Returns the index of the first run to merge with all newer ones, or None not to merge.

        If there are not too many rows, but more than ``MAX_RUNS`` runs, the newest run is merged with all older runs
        that are not larger than the runs after them together. So the number of times that a row is rewritten is about
        the logarithm of the size.

        When it is its turn, a subtask merges at half of the runs and at three quarters of the rows. So under steady
        load, no subtask has to merge out of turn.

        Args:
            turn: Whether it is this subtask's turn.
        """
        costs, runs = self.sizes if self.weights is None else self.weights, MAX_RUNS // 2 if turn else MAX_RUNS
        if len(costs) < 2:
            return None
        if self.surplus > (0.75 if turn else 1):
            return 0
        if len(costs) <= runs:
            return None
        start = min(len(costs) - 2, runs - 1)
        while start > 0 and costs[start - 1] <= sum(costs[start:]):
            start -= 1
        return start


def plan_merges(sections: Sequence[SectionRows], phase: int | None, delta_rows: int) -> dict[int, int]:
    """Returns which sections are merged, each with the index of its first run to merge with all newer ones.

    In a state that grows fast, all sections would have to merge in the same epoch. So if there are several, those that
    are nearest to that merge early, a few for each delta.

    Args:
        sections: The rows of each section, oldest run first.
        phase: See :func:`has_turn`.
        delta_rows: How many rows are about to be written to all of them.
    """
    merged: dict[int, int] = {}
    left = SPREAD * delta_rows if len(sections) > 1 else 0
    for i, each in enumerate(sections):
        first = each.first_to_merge(turn=has_turn(phase, i, len(sections)))
        if first is not None:
            merged[i] = first
            left -= sum(each.sizes[first:])
    for i in sorted(range(len(sections)), key=lambda i: -sections[i].surplus):
        rows = sum(sections[i].sizes)
        if i not in merged and sections[i].surplus >= EARLY and rows <= left:
            merged[i] = 0
            left -= rows
    return merged


def _unhidden(sizes: Sequence[int], appends: Sequence[int]) -> int:
    """Returns a lower bound of the live rows that append to older ones.

    A newer row hides such a row, unless it appends, too.

    Args:
        sizes: The number of rows of each run, oldest first.
        appends: How many of these rows append to older ones.
    """
    newer, live = 0, 0
    for size, added in zip(reversed(sizes), reversed(appends), strict=True):
        live += max(0, added - newer)
        newer += size - added
    return live
