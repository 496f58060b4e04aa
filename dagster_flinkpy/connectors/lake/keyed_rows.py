"""Rows that replace those with the same key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

__all__ = ["last_of_each", "without"]

_ROW = "__row"


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the last row of each key, in the order of the rows."""
    last = _numbered(rows, key).group_by(list(key)).aggregate([(_ROW, "max")])
    return rows.take(last.column(f"{_ROW}_max").sort())


def without(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the rows whose key none of the others has."""
    numbered = _numbered(rows, key)
    numbered = numbered.cast(pa.schema([*(others.schema.field(name) for name in key), numbered.schema.field(_ROW)]))
    # Only the key is joined: PyArrow cannot carry nested columns through a join.
    kept = numbered.join(others.select(list(key)), keys=list(key), join_type="left anti")
    return rows.take(kept.column(_ROW).sort())


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.select(list(key)).append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
