"""Compares the output of two sides as sets of rows, in which a row may be several times."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class OutputDiffersError(Exception):
    """A side has written other rows than ours."""


def parquet_rows(folder: Path) -> Counter[tuple[Any, ...]]:
    """Returns the rows of Parquet files."""
    return Counter(tuple(row.values()) for row in pq.read_table(folder).to_pylist())


def json_rows(file: Path) -> Counter[tuple[Any, ...]]:
    """Returns the rows of a file with a JSON list on each line."""
    with file.open() as lines:
        return Counter(tuple(json.loads(line)) for line in lines)


def check(side: str, found: Counter[tuple[Any, ...]], wanted: Counter[tuple[Any, ...]]) -> None:
    """Compares rows.

    Raises:
        OutputDiffersError: They differ. The message has some of the rows that are too many, and some that are missing.
    """
    extra, missing = found - wanted, wanted - found
    if extra or missing:
        raise OutputDiffersError(
            f"{side} has {extra.total()} rows too many ({_some(extra)}) and lacks {missing.total()} ({_some(missing)})"
        )


def _some(rows: Iterable[tuple[Any, ...]]) -> str:
    return ", ".join(map(str, sorted(rows)[:3])) or "none"
