"""Which runs of a table are merged, and when: pure rules over their handles.

A large table is divided into sections, ranges of key groups that are merged one by one. So a merge needs the memory of
a section, not of the table, and different sections have their turn in different epochs.
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
    "MAX_RUNS",
    "SECTION_ROWS",
    "TURNS",
    "Delta",
    "cut_key_groups",
    "first_to_merge",
    "has_turn",
    "merge_from",
    "sections_of",
]

MAX_RUNS = 8
"""The maximum number of runs of a section. If there are more, they are merged when the next delta is written."""
TURNS = 4
"""Each section has its turn to merge once in this many epochs, so that they do not all merge in the same epoch."""
SECTION_ROWS = 1 << 20
"""A section has at most this many rows, unless a single key group has more."""
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
    rows, size = sum(each.rows for each in handles) + added, sum(map(_bytes_of, handles))
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
    """Returns the runs without an older one in the same key groups. After rescaling there may be several."""
    # covered: bool, one a key group, from the first one on.
    if not handles:
        return []
    first = min(each.key_groups.start for each in handles)
    covered = np.zeros(max(each.key_groups.end for each in handles) + 1 - first, dtype=np.bool_)
    bases = []
    for handle in handles:
        own = covered[handle.key_groups.start - first : handle.key_groups.end + 1 - first]
        if not own.any():
            bases.append(handle)
        own[:] = True
    return bases


# --- what to merge ----------------------------------------------------------------------------------------------------


def first_to_merge(handles: Sequence[RunHandle], delta: Delta | None, *, is_list: bool, turn: bool) -> int:
    """Returns the index of the first run of a section to merge with all newer ones; see :func:`merge_from`.

    Args:
        handles: The runs of the section, oldest first.
        delta: What is about to be written on top of them, if anything.
        is_list: Whether the rows are lists, whose number says little about their size.
        turn: Whether it is the section's turn.
    """
    bases = _bases(handles)
    sizes = [each.rows for each in handles]
    weights = [_bytes_of(each) for each in handles]
    appends = [0 if each in bases else _share(each, each.appends) for each in handles]
    tombstones = sum(_share(each, each.tombstones) for each in handles)
    if delta is not None:
        sizes.append(delta.rows)
        weights.append(delta.bytes)
        appends.append(delta.appends)
        tombstones += delta.tombstones
    return merge_from(
        sizes,
        sum(each.rows for each in bases),
        tombstones,
        added=_unhidden(sizes, appends),
        weights=weights if is_list else None,
        turn=turn,
    )


def _bytes_of(handle: RunHandle) -> int:
    return handle.bytes * handle.rows // max(handle.file_rows, 1)


def _share(handle: RunHandle, rows: int) -> int:
    """Returns how many of certain rows of a file belong to a handle, supposing that they are spread evenly."""
    return rows * handle.rows // max(handle.file_rows, 1)


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


def merge_from(
    sizes: Sequence[int],
    base_rows: int,
    tombstones: int = 0,
    *,
    added: int = 0,
    weights: Sequence[int] | None = None,
    turn: bool = False,
) -> int:
    """Returns the index of the first run to merge with all newer runs. The index of the newest run means no merge.

    All runs are merged if there would be more than twice as many rows as live ones. A row of a delta replaces a row, is
    new, or is a tombstone that hides a row. So the number of live rows is at least that of the bases minus that of the
    tombstones. Rows that append to lists are counted separately. Otherwise, if there are more than ``MAX_RUNS``, the
    newest run is merged with all older runs that are not larger than the runs after them together. So the number of
    times that a row is rewritten is about the logarithm of the size.

    When it is its turn, a subtask merges at half of the runs and at three quarters of the rows. So under steady load,
    no subtask has to merge out of turn.

    Args:
        sizes: The number of rows of each run, oldest first.
        base_rows: The number of rows of the runs that have no older run below them.
        tombstones: The number of tombstones among all rows.
        added: The number of rows outside the bases that are live because they append to older ones.
        weights: The cost of writing each run, in any unit. Default: its number of rows.
        turn: Whether it is this subtask's turn. Default: False.
    """
    last = len(sizes) - 1
    room = base_rows + added - 2 * tombstones
    if base_rows and sum(sizes) - base_rows - added > (0.75 * room if turn else room):
        return 0
    runs = MAX_RUNS // 2 if turn else MAX_RUNS
    if len(sizes) <= runs:
        return last
    start = min(last - 1, runs - 1)
    costs = sizes if weights is None else weights
    while start > 0 and costs[start - 1] <= sum(costs[start:]):
        start -= 1
    return start
