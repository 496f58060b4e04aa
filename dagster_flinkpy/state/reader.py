"""Reads stored state as Arrow tables; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.files.cache import Run
from dagster_flinkpy.state.files.compaction import SECTION_ROWS
from dagster_flinkpy.state.files.operator_state import read_partitions
from dagster_flinkpy.state.files.run_file import clip_rows, read_columns, read_run
from dagster_flinkpy.state.files.runs import in_layout
from dagster_flinkpy.state.handles import Json, KeyedSnapshot, RunHandle, TableSnapshot
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import (
    SortKeys,
    TableLayout,
    are_among,
    equal_rows,
    hashes_of,
    key_groups_of,
    make_sort_keys,
    merge_runs,
)
from dagster_flinkpy.storage import ObjectStore

__all__ = [
    "KeySet",
    "operator_state_schema",
    "parts_of",
    "read_operator_state",
    "read_rows",
    "read_table",
    "table_schema",
]


@dataclass(frozen=True)
class KeySet:
    """A set of keys to look for, created by :meth:`of`."""

    column: pa.Array[Any]
    sort_keys: SortKeys
    """The sort keys of the keys, in ascending order."""

    @staticmethod
    def of(keys: Iterable[Any], key_type: TypeInformation, max_parallelism: int) -> KeySet:
        """Returns the set of some keys.

        Args:
            keys: Python values, or a column with the Arrow type of the keys.
            key_type: The key type of the state.
            max_parallelism: The max parallelism of its operator.

        Raises:
            TypeMismatchError: One of the keys does not have this type.
        """
        if isinstance(keys, pa.ChunkedArray):
            keys = one_chunk(keys)
        column = keys if isinstance(keys, pa.Array) else key_type.to_arrow(list(keys))
        if column.type != key_type.arrow_type:  # its keys would hash to other key groups
            raise TypeMismatchError(f"the keys of the state are {key_type.arrow_type}, not {column.type}")
        hashes = hash_keys(key_type, column)
        sort_keys = make_sort_keys(key_groups_of_hashes(hashes, max_parallelism), hashes)
        order = np.argsort(sort_keys)
        return KeySet(column.take(pa.array(order)), sort_keys[order])

    def within(self, span: range) -> bool:
        """Returns whether one of the keys has a sort key in this range."""
        start, stop = clip_rows(self.sort_keys, span)
        return start < stop


def table_schema(table: TableSnapshot) -> pa.Schema:
    """Returns the schema of :func:`read_table`'s result."""
    fields = [field for field in TableLayout.of(table).fields if field.name != "deleted"]
    return pa.schema([("key_group", pa.uint16()), ("key_hash", pa.int32()), *fields])


def parts_of(table: TableSnapshot) -> Iterator[TableSnapshot]:
    """Divides a state by key groups into parts that can be read one after the other; at least one.

    A part has at most ``SECTION_ROWS`` rows, unless it has a single key group. The parts are in order of key groups.

    Args:
        table: A table of one subtask's snapshot.
    """
    first = min((run.key_groups.start for run in table.runs), default=0)
    last = max((run.key_groups.end for run in table.runs), default=0)
    whole = KeyedSnapshot(KeyGroupRange(first, last), (table,))
    return (part.tables[0] for part in whole.parts(SECTION_ROWS))


def read_table(table: TableSnapshot, store: ObjectStore, keys: KeySet | None = None) -> pa.Table:
    """Returns the live rows of a state, sorted by key group, key hash and key.

    Args:
        table: A table of one subtask's snapshot.
        store: The object store, rooted at the prefix that the paths of the runs are relative to.
        keys: The keys whose rows to read. Of large files, only row groups that may have them are read. Default: all.

    Returns:
        The columns ``key_group``, ``key_hash`` and ``key``, and, depending on the kind of state, ``namespace``,
        ``map_key``, ``value``, ``time`` and ``expires_at``. Pickled values are bytes. Expired values are included.

    Raises:
        CorruptStateError: A file is missing, damaged, or of another state. The message names it.
    """
    layout = TableLayout.of(table)
    handles = [handle for handle in table.runs if keys is None or keys.within(handle.span)]
    runs = [_read(handle, layout, store, keys) for handle in reversed(handles)]
    merged = merge_runs(layout, [layout.local_schema.empty_table(), *runs], drop_deleted=True)
    sort_keys = merged.column("sort_key").to_numpy()
    schema = table_schema(table)
    arrays = [pa.array(key_groups_of(sort_keys)), pa.array(hashes_of(sort_keys))]
    return pa.table([*arrays, *(merged.column(name) for name in schema.names[2:])], schema=schema)


def read_rows(table: TableSnapshot, store: ObjectStore, columns: Sequence[str]) -> pa.Table:
    """Returns some columns of the live rows of a state, in any order, which takes less time than :func:`read_table`.

    Args:
        table: A table of one subtask's snapshot.
        store: The object store, rooted at the prefix that the paths of the runs are relative to.
        columns: Names of columns of :func:`table_schema`.

    Raises:
        CorruptStateError: A file is missing, damaged, or of another state; the message names it.
    """
    layout = TableLayout.of(table)
    schema = pa.schema([table_schema(table).field(name) for name in columns])
    parts, others = [schema.empty_table()], []
    for handle in table.runs:
        # Values may have had the type of today before: a field that was removed, and added again, is null in them.
        as_stored = handle.is_whole and not handle.value_types
        alone = as_stored and not any(_overlap(handle, other) for other in table.runs if other is not handle)
        stored = _stored_rows(handle, store, layout, schema) if alone else None
        if stored is None:
            others.append(handle)
        else:
            parts.append(stored)
    if layout.kind == "LIST" and others:  # whose rows may append to older ones
        return pa.concat_tables([*parts, read_table(replace(table, runs=tuple(others)), store).select(schema.names)])
    others.reverse()
    runs = [_run(handle, layout, store) for handle in others]
    for i, (handle, run) in enumerate(zip(others, runs, strict=True)):
        newer = [runs[j] for j in range(i) if _overlap(handle, others[j])]
        parts.append(_live(run, newer, layout, schema))
    return pa.concat_tables(parts)


def _overlap(one: RunHandle, other: RunHandle) -> bool:
    return max(one.span.start, other.span.start) < min(one.span.stop, other.span.stop)


def _stored_rows(handle: RunHandle, store: ObjectStore, layout: TableLayout, schema: pa.Schema) -> pa.Table | None:
    """Returns the live rows of a file that no other run changes, or None if it was written with another layout."""
    stored = read_columns(handle, store, layout, [*schema.names, "deleted"])
    if stored is None:
        return None
    deleted = stored.column("deleted")
    if pc.any(deleted).as_py():
        stored = stored.filter(pc.invert(deleted))
    return stored.select(schema.names).cast(schema)


def _live(run: Run, newer: Sequence[Run], layout: TableLayout, schema: pa.Schema) -> pa.Table:
    """Returns the rows of a run that are no tombstones, and that no newer run replaces."""
    live = ~run.column("deleted").to_numpy(zero_copy_only=False)
    for other in newer:
        _, alike = run.find(np.unique(other.sort_keys))
        identity = [run.take(name, alike) for name in layout.identity]
        others = [other.column(name) for name in layout.identity]
        live[alike[are_among(run.sort_keys[alike], identity, other.sort_keys, others)]] = False
    rows = np.flatnonzero(live)
    keys: dict[str, Callable[[SortKeys], Any]] = {"key_group": key_groups_of, "key_hash": hashes_of}
    arrays = [pa.array(keys[n](run.sort_keys[rows])) if n in keys else run.take(n, rows) for n in schema.names]
    return pa.table(arrays, schema=schema)


def operator_state_schema(types: Mapping[str, Json]) -> pa.Schema:
    """Returns the schema of :func:`read_operator_state`'s result."""
    columns = {name: type_from_json(kind).arrow_type for name, kind in types.items()}
    return pa.schema(columns or {"value": pa.binary()})


def read_operator_state(partitions: Sequence[Any], types: Mapping[str, Json], store: ObjectStore) -> pa.Table:
    """Returns the rows of an operator state.

    Args:
        partitions: The partitions of one subtask's handle.
        types: The types as JSON, by column; empty for raw state.
        store: The object store, rooted at the prefix that the paths of its files are relative to.

    Returns:
        The column ``value``, and for broadcast state also ``key``. Raw state and pickled values are bytes.

    Raises:
        CorruptStateError: A file is missing or damaged; the message names it.
    """
    return read_partitions(partitions, operator_state_schema(types), store, "operator state")


def _read(handle: RunHandle, layout: TableLayout, store: ObjectStore, keys: KeySet | None) -> pa.Table:
    run = _run(handle, layout, store, None if keys is None else keys.sort_keys)
    if keys is None:
        return run.table()
    wanted, found = run.find(keys.sort_keys)
    same = equal_rows([run.take("key", found)], [keys.column.take(pa.array(wanted))])
    return run.rows(np.unique(found[same]))


def _run(handle: RunHandle, layout: TableLayout, store: ObjectStore, only: SortKeys | None = None) -> Run:
    rows, _ = read_run(handle, store, only)
    return in_layout(Run.of(rows).within(handle.span), handle, layout, store)
