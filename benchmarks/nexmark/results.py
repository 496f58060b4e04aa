"""What a query has written, and whether it is what another engine has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.nexmark.queries import Query

__all__ = ["before", "differences", "read"]


def read(folder: Path) -> pa.Table:
    """Returns the records that a job has written to a `ParquetSink`, epoch by epoch."""
    files = sorted(folder.glob("**/*.parquet"))  # names begin with the number of the checkpoint
    return pa.concat_tables([pq.read_table(file) for file in files]) if files else pa.table({})


def before(table: pa.Table, field: str, time: int) -> pa.Table:
    """Returns the rows with an earlier time, in milliseconds."""
    return table.filter(pc.less(table[field], time))


def differences(query: Query, ours: pa.Table, theirs: pa.Table) -> str:
    """Returns how two results differ, or an empty text.

    Args:
        query: The query. Of records with one key, the last counts; fields that it does not determine do not.
        ours: The records of our job.
        theirs: The result of another engine, with the same columns.
    """
    ours, theirs = _result(query, ours, theirs.column_names), _result(query, theirs, theirs.column_names)
    missing, extra = theirs - ours, ours - theirs
    if not missing and not extra:
        return ""
    return f"{missing.total()} of {theirs.total()} missing, {extra.total()} too many: {_some(missing)}; {_some(extra)}"


def _result(query: Query, table: pa.Table, names: list[str]) -> Counter[Any]:
    rows = table.to_pylist()
    if query.key:
        rows = list({tuple(row[name] for name in query.key): row for row in rows}.values())
    return Counter(tuple(row[name] for name in names if name not in query.ties) for row in rows)


def _some(rows: Counter[Any]) -> list[Any]:
    return list(rows)[:3]
