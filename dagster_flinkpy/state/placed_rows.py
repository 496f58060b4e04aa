"""Rows of new state, sorted and in their key groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.layout import TableLayout, hashes_of, make_sort_keys, sort_identities, sorted_rows

__all__ = ["in_key_groups", "unplaced_rows"]


def unplaced_rows(layout: TableLayout, columns: dict[str, Any], hashes: npt.NDArray[np.int32]) -> pa.Table:
    """Builds rows with ``local_schema``, all in key group 0; :func:`in_key_groups` assigns their key groups.

    Args:
        layout: Layout of the table.
        columns: The columns that its fields name.
        hashes: The hashes of the keys.
    """
    columns = {
        **columns,
        "sort_key": pa.array(make_sort_keys(np.zeros(len(hashes), dtype=np.uint16), hashes)),
        "deleted": pa.array(np.zeros(len(hashes), dtype=np.bool_)),
    }
    return pa.table([columns[name] for name in layout.local_schema.names], schema=layout.local_schema)


def in_key_groups(layout: TableLayout, rows: pa.Table, max_parallelism: int) -> pa.Table:
    """Assigns rows to key groups and sorts them.

    Args:
        layout: Layout of the table.
        rows: Rows with ``local_schema``.
        max_parallelism: Number of key groups.

    Raises:
        CorruptStateError: An identity occurs more than once.
    """
    rows = rows.combine_chunks()
    hashes = hashes_of(rows.column("sort_key").to_numpy())
    sort_keys = make_sort_keys(key_groups_of_hashes(hashes, max_parallelism), hashes)
    placed = sorted_rows(layout, rows.set_column(0, layout.local_schema.field(0), pa.array(sort_keys)))
    identity = [one_chunk(placed.column(name)) for name in layout.identity]
    _, starts = sort_identities(placed.column("sort_key").to_numpy(), identity)
    if len(again := np.flatnonzero(~starts)):
        shown = {name: placed.column(name)[int(again[0])].as_py() for name in layout.identity}
        raise CorruptStateError(f"state {layout.name!r} has {shown} more than once")
    return placed
