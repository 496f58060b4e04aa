"""The state of the simulated tasks: the same handles and files as real ones, but with rows in JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.operator_state import file_of, state_file
from dagster_flinkpy.state.files.run_file import upload_run
from dagster_flinkpy.state.handles import KeyedSnapshot, OperatorStateHandle, RunHandle, TableSnapshot
from dagster_flinkpy.storage import ObjectStore

__all__ = ["Rows", "merged", "read_counts", "read_held", "read_seen", "runs_of", "table_of", "to_rows", "write_run"]

Rows = list[tuple[int, Any, Any]]
"""Rows of key group, key and value, in order of key groups."""


def write_run(rows: Rows, owned: KeyGroupRange, store: ObjectStore, written_by: str) -> RunHandle:
    """Uploads rows as a file of state."""
    data = json.dumps(rows).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    groups = [group for group, _, _ in rows]
    counts = [groups.count(group) or -1 for group in range(groups[0], groups[-1] + 1)]
    handle = RunHandle(
        path=state_file(sha256, written_by),
        sha256=sha256,
        bytes=len(data),
        rows=len(rows),
        key_groups=owned,
        rows_per_key_group=(groups[0], *counts),
        footer_bytes=1,
        footer_sha256=sha256,
    )
    upload_run(store, handle, data)
    return handle


def _read_run(handle: RunHandle, read: Callable[[str], bytes]) -> Rows:
    data = read(handle.path)
    if hashlib.sha256(data).hexdigest() != handle.sha256:
        raise AssertionError(f"{handle.path} is another file")
    return [(group, key, value) for group, key, value in json.loads(data) if group in handle.key_groups]


def table_of(name: str, runs: Iterable[RunHandle]) -> TableSnapshot:
    """Returns the snapshot of a table that is in some files."""
    long = Types.LONG().to_json()
    return TableSnapshot(name, "VALUE", long, None, None, long, tuple(runs))


def runs_of(snapshot: KeyedSnapshot | None, name: str) -> tuple[RunHandle, ...]:
    """Returns the files of a table."""
    tables = snapshot.tables if snapshot else ()
    return next((table.runs for table in tables if table.name == name), ())


def merged(runs: Iterable[RunHandle], read: Callable[[str], bytes]) -> dict[Any, tuple[int, Any]]:
    """Returns key group and value of each key, of which later files win."""
    state: dict[Any, tuple[int, Any]] = {}
    for run in runs:
        for group, key, value in _read_run(run, read):
            state[key] = (group, value)
    return state


def to_rows(state: Mapping[Any, tuple[int, Any]]) -> Rows:
    """Returns the rows that :func:`merged` makes this of."""
    return sorted(((group, key, value) for key, (group, value) in state.items()), key=lambda row: (row[0], str(row[1])))


def read_counts(snapshots: Iterable[KeyedSnapshot | None], read: Callable[[str], bytes]) -> dict[int, list[int]]:
    """Returns all records that the keyed state of a checkpoint has counted, by key."""
    counts: dict[int, list[int]] = {}
    for snapshot in snapshots:
        for key, (_, records) in merged(runs_of(snapshot, "counts"), read).items():
            counts.setdefault(key, []).extend(records)
    return counts


def read_held(snapshots: Iterable[KeyedSnapshot | None], read: Callable[[str], bytes]) -> list[int]:
    """Returns all records whose rows are held back."""
    states = (merged(runs_of(snapshot, "held"), read) for snapshot in snapshots)
    return [record for state in states for _, rows in state.values() for record, _ in rows]


def read_seen(handles: Iterable[OperatorStateHandle], read: Callable[[str], bytes]) -> list[int]:
    """Returns the splits that an operator state names."""
    seen = []
    for handle in handles:
        for partition in handle.partitions:
            path = file_of(partition)
            seen.append(partition["n"] if path is None else json.loads(read(path))[partition["row"]])
    return seen
