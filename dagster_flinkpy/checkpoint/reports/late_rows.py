"""Rows that reach a sink behind its watermark, by event time: whoever has read an earlier hour has missed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["QUARTER_HOUR_MS", "LateRows", "late_rows", "to_metrics"]

QUARTER_HOUR_MS = 900_000
"""How exact times are. All time zones are a multiple of it away from UTC."""

_METRIC = "late_rows"
_MOST = 100
"""How many periods a checkpoint tells apart at most, per subtask of a sink."""


@dataclass(frozen=True, order=True)
class LateRows:
    """Late rows of a period of event time."""

    start_ms: int
    """Milliseconds since 1970, a multiple of 15 minutes."""
    end_ms: int
    """Exclusive."""
    rows: int


def to_metrics(counts: Mapping[int, int]) -> dict[str, int | float]:
    """Returns late rows as metrics of a subtask: ``late_rows.{first}.{last}``, in quarters of an hour since 1970.

    Args:
        counts: The rows by quarter of an hour. Those that follow each other are put together, and those with the least
            time between them if there are more than 100 periods.
    """
    quarters = sorted(counts)
    gaps = sorted((after - before, i) for i, (before, after) in enumerate(pairwise(quarters)))
    ends = sorted(i + 1 for gap, i in gaps[-(_MOST - 1) :] if gap > 1)
    found = dict[str, int | float]()
    for start, end in zip([0, *ends], [*ends, len(quarters)], strict=True):
        period = quarters[start:end]
        if period:
            found[f"{_METRIC}.{period[0]}.{period[-1]}"] = sum(counts[quarter] for quarter in period)
    return found


def late_rows(subtasks: Iterable[Mapping[str, int | float]]) -> tuple[LateRows, ...]:
    """Returns the late rows of an operator, by time.

    Args:
        subtasks: The metrics of its subtasks in a checkpoint.
    """
    periods = Counter[tuple[int, int]]()
    for metrics in subtasks:
        for name, rows in metrics.items():
            metric, *numbers = name.split(".")
            if metric == _METRIC and len(numbers) == 2:
                periods[int(numbers[0]), int(numbers[1])] += int(rows)
    return tuple(
        LateRows(first * QUARTER_HOUR_MS, (last + 1) * QUARTER_HOUR_MS, rows)
        for (first, last), rows in sorted(periods.items())
    )
