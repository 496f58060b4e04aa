"""Runs of every kind of state have the content of a dict, however they are written, merged, rescaled and evolved."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.runs import PART_BYTES, RunFiles, Runs
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.layout import APPEND, TableLayout, make_sort_keys, merge_runs, sorted_rows
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples

KEY_GROUPS = 6
WINDOWS = Types.TUPLE([Types.LONG(), Types.LONG()])
NAN = float("nan")
LAYOUTS = {
    "value": TableLayout("s", "VALUE", Types.LONG(), value_type=Types.INT()),
    "value of double": TableLayout("s", "VALUE", Types.DOUBLE(), value_type=Types.INT()),
    "reducing": TableLayout("s", "REDUCING", Types.LONG(), namespace_type=WINDOWS, value_type=Types.INT()),
    "map": TableLayout("s", "MAP", Types.LONG(), map_key_type=Types.DOUBLE(), value_type=Types.INT()),
    "timer": TableLayout("s", "TIMER", Types.LONG(), namespace_type=WINDOWS),
    "list": TableLayout("s", "LIST", Types.LONG(), value_type=Types.LIST(Types.INT())),
    "panes": TableLayout("s", "LIST", Types.LONG(), namespace_type=WINDOWS, value_type=Types.LIST(Types.INT())),
}
LAYOUTS |= {f"{name} for a time": replace(LAYOUTS[name], ttl=True) for name in ("value", "map", "list")}
WIDER = {Types.INT(): Types.LONG(), Types.LIST(Types.INT()): Types.LIST(Types.LONG())}

KEYS = {
    Types.LONG(): [0, 1, -1, 2**40, *range(4, 24)],
    Types.DOUBLE(): [0.0, -0.0, NAN, 1.5, -1.5, float("inf")],
}
"""Key `i` of them is in key group ``i % 6`` and has the hash number ``i // 6``, so that two long keys share both."""
HASHES = [7, 7, 0, -1]


@dataclass(frozen=True)
class Row:
    """A row to write."""

    key: int  # Its index.
    namespace: int
    map_key: int
    time: int
    value: list[int]
    """The element of a value, all elements of a list, or none for a tombstone."""
    expires: list[int]
    add: bool

    def identity(self, layout: TableLayout) -> Hashable:
        parts = {"key": self.key, "namespace": self.namespace, "map_key": self.map_key, "time": self.time}
        return tuple(parts[name] for name in layout.identity)


TIMES = st.lists(st.integers(1, 40), min_size=3, max_size=3)
SMALL = st.integers(0, 2)
ROWS = st.lists(
    st.builds(
        Row, st.integers(0, 23), SMALL, SMALL, SMALL, st.lists(st.integers(0, 9), max_size=3), TIMES, st.booleans()
    ),
    max_size=14,
)
MAP_KEYS = [0.0, -0.0, NAN]


def table(layout: TableLayout, rows: list[Row]) -> pa.Table:
    lists = layout.kind == "LIST"
    keys = layout.key_type.to_arrow([KEYS[layout.key_type][row.key] for row in rows])
    groups, hashes = np.array([(row.key % KEY_GROUPS, HASHES[row.key // KEY_GROUPS]) for row in rows]).reshape(-1, 2).T
    values = [row.value if lists else row.value[0] if row.value else None for row in rows]
    columns: dict[str, Any] = {
        "sort_key": make_sort_keys(groups.astype(np.uint16), hashes.astype(np.int32)),
        "key": keys,
        "namespace": WINDOWS.to_arrow([(row.namespace, row.namespace + 1) for row in rows]),
        "map_key": [MAP_KEYS[row.map_key] for row in rows],
        "value": [value if row.value else None for row, value in zip(rows, values, strict=True)],
        "time": [row.time for row in rows],
        "expires_at": [row.expires[: len(row.value)] if lists else row.expires[0] for row in rows],
        "deleted": [not row.value for row in rows],
        APPEND: [row.add and bool(row.value) for row in rows],
    }
    schema = layout.append_schema if lists and any(columns[APPEND]) else layout.local_schema
    return pa.table(
        [c if isinstance(c := columns[f.name], pa.Array) else pa.array(c, f.type) for f in schema], schema=schema
    )


class Model:
    """The expected content by identity, each element with its expiry. Values other than lists have one element."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._cells: dict[Hashable, list[tuple[int, int]]] = {}

    def write(self, row: Row) -> None:
        identity = row.identity(self._layout)
        if self._layout.kind == "LIST":
            before = self._cells.get(identity, []) if row.add and row.value else []
            self._cells[identity] = [*before, *zip(row.value, row.expires, strict=False)]
        else:
            self._cells[identity] = list(zip(row.value[:1], row.expires, strict=False))

    def live(self, now: int) -> dict[Hashable, list[int]]:
        live = {}
        for identity, cell in self._cells.items():
            values = [value for value, expires in cell if expires > now or not self._layout.ttl]
            if values:
                live[identity] = [] if self._layout.value_type is None else values
        return live


def contents(layout: TableLayout, rows: pa.Table, now: int) -> dict[Hashable, list[int]]:
    """Returns the content of rows, by identity."""
    known = {repr(key): i for i, key in enumerate(KEYS[layout.key_type])}
    found: dict[Hashable, list[int]] = {}
    for row in rows.to_pylist():
        assert not row["deleted"]
        parts = {
            "key": known[repr(row["key"])],
            "namespace": row["namespace"]["f0"] if layout.namespace_type else None,
            "map_key": [repr(key) for key in MAP_KEYS].index(repr(row["map_key"])) if layout.map_key_type else None,
            "time": row.get("time"),
        }
        identity = tuple(parts[name] for name in layout.identity)
        assert identity not in found
        values = row.get("value", [])
        if layout.ttl:
            pairs = (
                zip(values, row["expires_at"], strict=True) if layout.kind == "LIST" else [(values, row["expires_at"])]
            )
            values = [value for value, expires in pairs if expires > now]
            if not values:
                continue
        elif layout.kind not in ("LIST", "TIMER"):
            values = [values]
        found[identity] = values
    return found


class Subtasks:
    """The runs of one table, split by key groups."""

    def __init__(self, layout: TableLayout, files: RunFiles) -> None:
        self.layout, self._files = layout, files
        self.runs: list[Runs] = []
        self.now = 0

    def restore(self, parallelism: int) -> None:
        """Restores the current content with another parallelism."""
        handles = [RunHandle.from_json(handle.to_json()) for runs in self.runs for handle in runs.handles]
        size = KEY_GROUPS // parallelism
        ranges = [KeyGroupRange(size * i, size * (i + 1) - 1) for i in range(parallelism)]
        self.runs = []
        for mine in ranges:
            clips = [clip for handle in handles if (clip := handle.clip(mine))]
            files = replace(self._files, key_groups=mine, now=lambda: self.now)
            self.runs.append(Runs(self.layout, clips, files))

    def evolve(self) -> None:
        """Declares a wider type of the values."""
        before = self.layout.value_type
        if before in WIDER:
            self.layout = replace(self.layout, value_type=WIDER[before])
            for runs in self.runs:
                runs._runs = [
                    (replace(handle, value_types=(*handle.value_types, before.to_json())), None)
                    for handle in runs.handles
                ]
            self.restore(len(self.runs))

    def append(self, rows: list[Row], phase: int | None) -> None:
        for i, runs in enumerate(self.runs):
            runs._files.phase = phase
            size = KEY_GROUPS // len(self.runs)
            mine = [row for row in rows if row.key % KEY_GROUPS // size == i]
            runs.append(table(self.layout, mine) if mine else None)

    def contents(self) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = {}
        for runs in self.runs:
            tables = [run.table() for run in runs.newest_first()]
            for each in tables:
                assert str(each.to_pydict()) == str(sorted_rows(self.layout, each).to_pydict())  # NaN != NaN
            rows = merge_runs(self.layout, [*tables, self.layout.local_schema.empty_table()], drop_deleted=True)
            part = contents(self.layout, rows, self.now)
            assert not part.keys() & found.keys()
            found |= part
        return found


EPOCHS = st.lists(
    st.tuples(ROWS, st.integers(0, 4), st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, None, None, 1, 2, 3])),
    min_size=1,
    max_size=16,
)


LAST_FIRST = [Row(key, 0, 0, 0, value, [1] * 3, False) for key, value in ((0, []), (3, []), (2, [0]))]
"""Changes because of which a section merges before one that has lower key groups."""


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@example(
    epochs=[(LAST_FIRST, 0, None, None)],
    evolve=0,
    inline_below=0,
    runs=2,
    section_rows=2,
    always=False,
    part_bytes=PART_BYTES,
)
@given(
    epochs=EPOCHS,
    evolve=st.integers(0, 20),
    inline_below=st.sampled_from([0, 0, 7000]),
    runs=st.sampled_from([2, 3, 8]),
    section_rows=st.sampled_from([1 << 20, 30, 8, 2]),
    always=st.booleans(),
    part_bytes=st.sampled_from([PART_BYTES, 300, 1]),
)
def test_runs_hold_what_a_dict_would(
    store: LocalObjectStore,
    cache: RunCache,
    name: str,
    epochs: list[Any],
    evolve: int,
    inline_below: int,
    runs: int,
    section_rows: int,
    always: bool,
    part_bytes: int,
) -> None:
    layout = LAYOUTS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.state.files.compaction.MAX_RUNS", runs)
        patch.setattr("dagster_flinkpy.state.files.compaction.SECTION_ROWS", section_rows)
        patch.setattr("dagster_flinkpy.state.files.runs.SECTION_ROWS", section_rows)
        subtasks = Subtasks(
            layout, RunFiles(store, cache, KeyGroupRange(0, 5), inline_below=inline_below, part_bytes=part_bytes)
        )
        subtasks.restore(1)
        model = Model(layout)
        # Because of rows that no delta touches, only few of the runs are merged.
        kept = [] if always else [Row(i, n, n, n, [1], [99] * 3, False) for i in range(24) for n in range(3)]
        for epoch, (changes, passed, phase, parallelism) in enumerate([(kept, 0, None, None), *epochs]):
            if epoch == evolve:
                subtasks.evolve()
            if parallelism is not None:
                subtasks.restore(parallelism)
            keys = len(KEYS[layout.key_type])
            rows = {row.identity(layout): row for row in (replace(row, key=row.key % keys) for row in changes)}
            subtasks.append([*rows.values()], phase)
            for row in rows.values():
                model.write(row)
            subtasks.now += passed
            assert subtasks.contents() == model.live(subtasks.now)
