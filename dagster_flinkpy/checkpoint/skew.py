"""How evenly keyed state is spread over key groups and subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.operator_states import OperatorState

__all__ = ["rows_by_key_group", "skew"]


def rows_by_key_group(operator: OperatorState) -> list[int]:
    """Returns the rows of keyed state and timers of an operator, for each of its key groups.

    It counts stored rows: rows that newer ones replace or hide count until they are merged away.
    """
    rows = [0] * operator.max_parallelism
    for subtask in operator.subtasks:
        for table in subtask.keyed.tables if subtask.keyed else ():
            for run in table.runs:
                for group, count in run.rows_by_key_group():
                    rows[group] += count
    return rows


def skew(loads: Sequence[int]) -> float | None:
    """Returns the largest load divided by the mean: 1.0 is even, ``len(loads)`` is all in one; None without loads."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else None
