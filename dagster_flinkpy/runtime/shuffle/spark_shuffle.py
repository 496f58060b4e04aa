"""The Spark shuffle between two stages: rows go to the task of their target, in an order that a replay repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["shuffle"]


def shuffle(rows: DataFrame, width: int) -> DataFrame:
    """Gives each Spark task the rows of its target, sorted by position so that the channels of a task interleave.

    Args:
        rows: Rows in the wire format.
        width: Number of downstream tasks. A row for a later stage may have a greater target; it goes through the task
            ``target % width``.
    """
    from pyspark.sql import functions as F

    return rows.repartitionById(width, F.expr(f"pmod(target, {width})")).sortWithinPartitions("seq", "edge", "channel")
