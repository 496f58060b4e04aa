"""How the columns of Parquet files are encoded."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["repeating"]

_SAMPLE = 8192
"""Number of rows that are looked at."""


def repeating(table: pa.Table, besides: Collection[str] = ()) -> list[str]:
    """Returns the columns that dictionaries serve, by their paths in a Parquet file.

    They are those of which at most half of the first values are different. For others dictionaries take two to four
    times as long and more bytes: the writer builds one, and gives it up when it is full.

    Args:
        table: The first rows of the file.
        besides: Columns that are encoded otherwise, by their paths.
    """
    sample = table.slice(0, _SAMPLE)
    leaves = (leaf for column in sample.columns for leaf in _leaves(column.combine_chunks()))
    return [
        path
        for path, leaf in zip(_paths(table.schema.remove_metadata()), leaves, strict=True)
        if path not in besides and len(leaf.unique()) <= len(leaf) // 2
    ]


@lru_cache(maxsize=64)
def _paths(schema: pa.Schema) -> tuple[str, ...]:
    """Returns the paths of all leaves."""
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.ParquetFile(sink).schema
    return tuple(leaves.column(i).path for i in range(len(leaves)))


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
