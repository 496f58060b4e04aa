"""Changes stored keyed state with a function of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.errors import CorruptStateError, StateSchemaError, UserFunctionError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.operator_state import INLINE_BELOW
from dagster_flinkpy.state.files.run_file import clip_rows, encode_run, inline, upload_run
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot, span_of
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import TableLayout, in_key_groups, unplaced_rows
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.state.views import layout_of
from dagster_flinkpy.storage import ObjectStore

__all__ = ["MigrateState", "migrate_snapshot"]

MigrateState: TypeAlias = Callable[[dict[str, pa.Table]], Mapping[StateDescriptor | str, pa.Table]]
"""Takes the states of some keys by name, and returns their new states: see ``env.migrate_state``."""

_BATCH_ROWS = 250_000
"""A batch has about so many rows of all states, or one key group."""


def migrate_snapshot(
    snapshot: KeyedSnapshot,
    function: MigrateState,
    *,
    operator: str,
    max_parallelism: int,
    store: ObjectStore,
    written_by: str,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> KeyedSnapshot:
    """Returns the keyed state of one subtask as a function changes it. Timers stay as they are.

    Args:
        snapshot: The state.
        function: The function. It is called for a few key groups at a time, also if there are no rows.
        operator: Uid of the operator, for messages.
        max_parallelism: Number of key groups.
        store: The object store, rooted at the job's prefix.
        written_by: Part of the names of the new files; see `state_files.state_file`.
        on_rows: Called with the number of further rows that have been read.

    Raises:
        StateSchemaError: What the function returns does not fit what it declares, or the keys.
        UserFunctionError: The function has failed.
        CorruptStateError: A file is missing or damaged.
    """
    states = {table.name: table for table in snapshot.tables if table.kind != "TIMER"}
    if not states:
        return snapshot
    what = f"the migration of the state of operator {operator!r}"
    layouts: dict[str, TableLayout] = {}
    runs: dict[str, list[RunHandle]] = {}
    for part in snapshot.parts(_BATCH_ROWS):
        rows = {
            table.name: _columns(table, store)
            for table in part.tables
            if table.name in states and table.kind != "TIMER"
        }
        for declared, table in _call(function, rows, what).items():
            layout = _layout(declared, states, what)
            if layouts.setdefault(layout.name, layout) != layout:
                raise StateSchemaError(f"{what} has returned state {layout.name!r} with two types")
            placed = _placed(layout, table, part.key_groups, max_parallelism, what)
            runs.setdefault(layout.name, []).extend(_written(layout, placed, part.key_groups, store, written_by))
        on_rows(sum(map(len, rows.values())))
    timers = [table for table in snapshot.tables if table.kind == "TIMER"]
    tables = [layout.snapshot(tuple(runs[name])) for name, layout in layouts.items()]
    return replace(snapshot, tables=tuple(sorted([*tables, *timers], key=lambda each: each.identity)))


def _columns(table: TableSnapshot, store: ObjectStore) -> pa.Table:
    rows = read_table(table, store)
    return rows.select(rows.column_names[2:])  # without key group and hash


def _call(function: MigrateState, rows: dict[str, pa.Table], what: str) -> Mapping[StateDescriptor | str, pa.Table]:
    try:
        found = function(rows)
    except Exception as error:
        raise UserFunctionError(f"{what} has raised {type(error).__name__}: {error}") from error
    wrong = not isinstance(found, Mapping) or not all(
        isinstance(declared, StateDescriptor | str) and isinstance(table, pa.Table) for declared, table in found.items()
    )
    if wrong:
        raise StateSchemaError(
            f"{what} must return a dict of Arrow tables, each by the descriptor of its state, or by the name of a "
            "state whose types stay"
        )
    return found


def _layout(declared: StateDescriptor | str, states: Mapping[str, TableSnapshot], what: str) -> TableLayout:
    if isinstance(declared, str):
        if declared not in states:
            raise StateSchemaError(
                f"{what} returns state {declared!r}, which is new: return it by its descriptor, which has its type"
            )
        return TableLayout.of(states[declared])
    if any(table.namespace is not None for table in states.values()):
        raise StateSchemaError(
            f"{what} returns state {declared.name!r} by its descriptor, but the operator keeps its state by window. "
            "Return such a state by its name: its types stay"
        )
    return layout_of(declared, TableLayout.of(next(iter(states.values()))).key_type)


def _placed(
    layout: TableLayout, table: pa.Table, key_groups: KeyGroupRange, max_parallelism: int, what: str
) -> pa.Table:
    """Returns the rows of a state with ``local_schema``."""
    named = f"{what} returns state {layout.name!r}"
    columns: dict[str, Any] = {}
    for field in layout.fields:
        if field.name == "deleted":
            continue
        if field.name not in table.column_names:
            raise StateSchemaError(f"{named} without its column {field.name!r}, with {table.column_names}")
        columns[field.name] = table.column(field.name)
        if columns[field.name].type == field.type:
            continue
        found = columns[field.name].type
        if field.name == "key":
            raise StateSchemaError(
                f"{named} with keys of type {found} instead of {field.type}. Keys cannot change their type: the key "
                "decides which subtask has the state, the timers of the key, and which records meet it. Give the new "
                "operator another uid, and write its state into a savepoint with write_savepoint(...).with_keyed_state"
            )
        raise StateSchemaError(
            f"{named} with column {field.name!r} of type {found}, but it is declared as {field.type}"
        )
    keys = one_chunk(columns["key"])
    if keys.null_count:
        raise StateSchemaError(f"{named} with a key that is null")
    hashes = hash_keys(layout.key_type, keys)
    rows = unplaced_rows(layout, columns, hashes)
    if layout.kind in ("VALUE", "REDUCING", "AGGREGATING"):
        rows = rows.filter(rows.column("value").is_valid())  # null means no value
    if layout.ttl:
        _check_expiry(rows, named)
    try:
        placed = in_key_groups(layout, rows, max_parallelism)
    except CorruptStateError as error:
        raise StateSchemaError(f"{what}: {error}") from error
    if clip_rows(placed.column("sort_key").to_numpy(), span_of(key_groups)) != (0, len(placed)):
        raise StateSchemaError(f"{named} with keys that it was not given, and that belong to another part of the state")
    return placed


def _check_expiry(rows: pa.Table, named: str) -> None:
    """Checks that each value, or each element of a list, says when it expires."""
    expires, values = (rows.column(name).combine_chunks() for name in ("expires_at", "value"))
    if pa.types.is_list(expires.type):
        lengths = (pc.fill_null(pc.list_value_length(column), 0) for column in (expires, values))
        if not pc.all(pc.equal(*lengths), min_count=0).as_py():
            raise StateSchemaError(f"{named} with lists in 'expires_at' that have not one time for each element")
        expires = expires.flatten()
    if expires.null_count:
        raise StateSchemaError(f"{named} with a null in 'expires_at': each value needs the time when it expires")


def _written(
    layout: TableLayout, rows: pa.Table, key_groups: KeyGroupRange, store: ObjectStore, written_by: str
) -> list[RunHandle]:
    if not len(rows):
        return []
    data, handle = encode_run(layout, rows.combine_chunks(), key_groups, written_by)
    if handle.bytes < INLINE_BELOW:
        return [inline(handle, data)]
    upload_run(store, handle, data)
    return [handle]
