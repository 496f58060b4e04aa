"""How the columns of Parquet files are encoded."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["REPEATING", "leaves_of", "repeating"]

REPEATING = 0.5
"""Up to this share of different values, a dictionary serves a column."""
_SAMPLE = 8192


def leaves_of(table: pa.Table, rows: int = _SAMPLE) -> Mapping[str, tuple[str, float]]:
    """Returns the physical types of the columns in a Parquet file, and which share of the first values are different.

    Args:
        table: The first rows of the file.
        rows: Number of rows that are looked at. Default: 8192.

    Returns:
        Both by the path of the column.
    """
    sample = table.slice(0, rows)
    leaves = (leaf for column in sample.columns for leaf in _leaves(column.combine_chunks()))
    kinds = _kinds(table.schema.remove_metadata())
    return {
        path: (kind, len(leaf.unique()) / max(len(leaf), 1))
        for (path, kind), leaf in zip(kinds.items(), leaves, strict=True)
    }


def repeating(table: pa.Table) -> list[str]:
    """Returns the columns that dictionaries serve, by their paths in a Parquet file.

    They are those of which at most half of the first values are different. For others dictionaries take two to four
    times as long and more bytes: the writer builds one, and gives it up when it is full.

    Args:
        table: The first rows of the file.
    """
    return [path for path, (_, share) in leaves_of(table).items() if share <= REPEATING]


@lru_cache(maxsize=64)
def _kinds(schema: pa.Schema) -> Mapping[str, str]:
    """Returns the physical types of all leaves by their paths."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(sink).schema
    return {leaves.column(i).path: leaves.column(i).physical_type for i in range(len(leaves))}


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yields the columns without parts that a column is made of, in the order of a Parquet file."""
    kind = column.type
    if pa.types.is_struct(kind):
        for field in cast("pa.StructArray", column).flatten():
            yield from _leaves(field)
    elif pa.types.is_map(kind):
        entries = cast("pa.MapArray", column)
        yield from _leaves(entries.keys)
        yield from _leaves(entries.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(cast("pa.ListArray", column).flatten())
    else:
        yield column
