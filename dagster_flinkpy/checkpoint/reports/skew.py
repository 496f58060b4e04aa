"""Measures how evenly keyed state is spread over key groups and subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.operator_states import OperatorState

__all__ = ["rows_by_key_group", "skew"]


def rows_by_key_group(operator: OperatorState) -> list[int]:
    """Returns the number of rows of keyed state and timers of an operator in each key group.

    These are stored rows: rows that newer rows replace or delete are counted until runs are merged.
    """
    rows = [0] * operator.max_parallelism
    for table in operator.tables:
        for run in table.runs:
            for group, count in run.rows_by_key_group():
                rows[group] += count
    return rows


def skew(loads: Sequence[int]) -> float | None:
    """Returns the largest load divided by the mean, or None if there is no load.

    1.0 means that loads are equal, and ``len(loads)`` that one has everything.

    Example:
        >>> skew([5, 5, 5, 5]), skew([20, 0, 0, 0])
        (1.0, 4.0)
    """
    total = sum(loads)
    return max(loads) * len(loads) / total if total else None
