"""Parts of runs that fit into memory: what a merge reads at once, and writes as a file."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from dagster_flinkpy.state.files.cache import Run
from dagster_flinkpy.state.files.compaction import SECTION_ROWS

__all__ = ["PART_BYTES", "divide"]

PART_BYTES = 1 << 26
"""How many bytes a part has at most where nothing else is set."""


def divide(runs: Sequence[Run], span: range, most_bytes: int) -> Iterator[tuple[range, list[Run]]]:
    """Divides the rows of runs by sort key. All rows with the same identity are in one part.

    A part ends where a key group does, unless it has only one. It has at most ``SECTION_ROWS`` rows, unless a single
    sort key has more.

    Args:
        runs: The runs.
        span: The sort keys to divide. It begins and ends where key groups do.
        most_bytes: How many bytes a part may have.

    Yields:
        The sort keys of each part that has rows, in ascending order, and its rows of each run.
    """
    runs = [run.within(span) for run in runs]
    rows = sum(map(len, runs))
    if not rows:
        return
    parts = math.ceil(max(rows / SECTION_ROWS, sum(run.nbytes for run in runs) / most_bytes))
    cut = _cut(runs, span, rows * (parts // 2) // parts) if parts > 1 else None
    if cut is None:
        yield span, runs
        return
    for half in (range(span.start, cut), range(cut, span.stop)):
        yield from divide(runs, half, most_bytes)


def _cut(runs: Sequence[Run], span: range, wanted: int) -> int | None:
    """Returns a sort key below which there are about as many rows as wanted, but not all; None if there is none."""

    def below(sort_key: int) -> int:
        return sum(run.below(sort_key) for run in runs)

    spans = [run.span for run in runs if len(run)]
    first, stop = min(each.start for each in spans), max(each.stop for each in spans)
    # The cut is above the first row, and not above the last.
    cut = first + 1 + bisect_left(range(first + 1, stop - 1), wanted, key=below)
    lowest, highest = (span.start >> 32) + 1, (span.stop - 1) >> 32  # the key groups that are not the first
    if lowest > highest:
        return cut if cut < stop else None
    group = (cut - 1) >> 32
    starts = (min(max(each, lowest), highest) << 32 for each in (group, group + 1))
    return min(starts, key=lambda each: abs(below(each) - wanted))
