"""Reads stored state as Arrow; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import type_from_json
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.state.cache import RunCache
from dagster_flinkpy.state.handles import Json, RunHandle, TableSnapshot
from dagster_flinkpy.state.layout import TableLayout, hashes_of, key_groups_of, merge_runs
from dagster_flinkpy.state.operator_state import read_partitions
from dagster_flinkpy.state.run_file import clip_rows, read_run
from dagster_flinkpy.storage import ObjectStore

__all__ = ["read_operator_state", "read_table"]


def read_table(table: TableSnapshot, store: ObjectStore, cache: RunCache | None = None) -> pa.Table:
    """The live rows of a state, sorted by key group, key hash and key.

    Args:
        table: of one subtask's snapshot.
        store: rooted at the prefix that the paths of the runs are relative to.
        cache: where to keep local copies. Default: nowhere; the runs are held in memory.

    Returns:
        ``key_group``, ``key_hash``, ``key``, and of ``namespace``, ``map_key``, ``value``, ``time`` and
        ``expires_at`` what the kind of state has. Pickled values come as bytes; what has expired is not left out.

    Raises:
        CorruptStateError: a file is missing, damaged, or of another state; names it.
    """
    layout = TableLayout.of(table)
    runs = [_read(handle, layout, store, cache) for handle in reversed(table.runs)]
    merged = merge_runs(layout, [layout.local_schema.empty_table(), *runs], drop_deleted=True)
    sort_keys = merged.column("sort_key").to_numpy()
    columns = [field.name for field in layout.fields if field.name != "deleted"]
    arrays = [pa.array(key_groups_of(sort_keys)), pa.array(hashes_of(sort_keys)), *(merged.column(n) for n in columns)]
    return pa.table(arrays, names=["key_group", "key_hash", *columns])


def read_operator_state(partitions: Sequence[Any], types: Mapping[str, Json], store: ObjectStore) -> pa.Table:
    """The rows of an operator state.

    Args:
        partitions: of one subtask's handle.
        types: its types as JSON, by column; none for raw state.
        store: rooted at the prefix that the paths of its files are relative to.

    Returns:
        ``value``, and of broadcast state ``key``. Raw state and pickled values come as bytes.

    Raises:
        CorruptStateError: a file is missing or damaged; names it.
    """
    columns = {name: type_from_json(kind).arrow_type for name, kind in types.items()}
    return read_partitions(partitions, pa.schema(columns or {"value": pa.binary()}), store, "operator state")


def _read(handle: RunHandle, layout: TableLayout, store: ObjectStore, cache: RunCache | None) -> pa.Table:
    if cache is not None:
        table = cache.open(handle, store).table()
    else:
        rows, _ = read_run(handle, store)
        start, stop = clip_rows(rows.column("sort_key").to_numpy(), handle.key_groups)
        table = rows.slice(start, stop - start)
    if not table.schema.equals(layout.local_schema):
        raise CorruptStateError(
            f"state file {store.url}/{handle.path} is not of state {layout.name!r}: its columns are {table.schema}"
        )
    return table
