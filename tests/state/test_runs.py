from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.cache import Run, RunCache
from dagster_flinkpy.state.files.compaction import MAX_RUNS, TURNS
from dagster_flinkpy.state.files.operator_state import INLINE_BELOW
from dagster_flinkpy.state.files.runs import RunFiles, Runs
from dagster_flinkpy.state.handles import RunHandle, span_of
from dagster_flinkpy.state.layout import TableLayout, make_sort_keys, sorted_rows
from dagster_flinkpy.state.reader import _live
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.state.conftest import merge_from

ALL = KeyGroupRange(0, 9)
LAYOUT = TableLayout("v", "VALUE", Types.LONG(), value_type=Types.LONG())


@pytest.fixture
def files(store: LocalObjectStore, cache: RunCache) -> RunFiles:
    return RunFiles(store, cache, ALL)


def delta(rows: dict[int, int | None]) -> pa.Table:
    """Returns one row per key, in key group 0 with the key as its hash."""
    keys = sorted(rows)
    column = pa.array(keys)
    sort_keys = make_sort_keys(pa.array([0] * len(keys)).cast("uint16").to_numpy(), column.cast("int32").to_numpy())
    values = [rows[key] for key in keys]
    arrays = [pa.array(sort_keys), column, pa.array(values, pa.int64()), pa.array([v is None for v in values])]
    return pa.table(arrays, schema=LAYOUT.local_schema)


def rows_of(runs: Runs) -> list[dict[int, int | None]]:
    """Returns the rows of each run, newest first."""
    tables = [run.table() for run in runs.newest_first()]
    return [dict(zip(t["key"].to_pylist(), t["value"].to_pylist(), strict=True)) for t in tables]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_compaction_bounds_runs_and_space(deltas: list[int]) -> None:
    sizes: list[int] = []
    for size in deltas:
        sizes.append(size)
        start = merge_from(sizes, sizes[0] if len(sizes) > 1 else 0)
        sizes[start:] = [sum(sizes[start:])]
        assert len(sizes) <= MAX_RUNS
        assert sum(sizes) <= 2 * sizes[0]


@given(
    epochs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), max_size=60),
    inline_below=st.sampled_from([0, 20_000]),
    turns=st.booleans(),
)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_and_rows_are_bounded_by_what_is_live(
    store: LocalObjectStore,
    cache: RunCache,
    epochs: list[tuple[int, int, int]],
    inline_below: int,
    turns: bool,
) -> None:
    files = RunFiles(store, cache, ALL, inline_below=inline_below)
    runs, live, made = Runs(LAYOUT, (), files), dict[int, int](), 0
    for epoch, (new, changed, deleted) in enumerate(epochs):
        known = list(live)
        rows: dict[int, int | None] = dict.fromkeys(range(made, made + new), epoch)
        made += new
        rows |= dict.fromkeys(known[:changed], epoch)
        rows |= dict.fromkeys(known[-deleted:] if deleted else [], None)
        live = {key: value for key, value in {**live, **rows}.items() if value is not None}
        files.phase = epoch % TURNS if turns else None
        handles = runs.handles
        runs.append(delta(rows) if rows else None)
        assert len(runs) <= MAX_RUNS
        assert sum(handle.rows for handle in runs.handles) <= 2 * max(len(live), 1)
        merged: dict[int, int | None] = {}
        for table in reversed(rows_of(runs)):
            merged |= table
        assert {key: value for key, value in merged.items() if value is not None} == live
        for handle in handles:  # of an older checkpoint, which may be restored
            assert cache.open(handle, store)


@given(base=st.integers(2000, 100_000), delta_rows=st.integers(1, 120), subtasks=st.integers(1, 12))
def test_in_steady_work_a_subtask_merges_in_its_turn_only(base: int, delta_rows: int, subtasks: int) -> None:
    state = [[base] for _ in range(subtasks)]
    for epoch in range(80):
        for i, sizes in enumerate(state):
            sizes.append(delta_rows)
            turn = (epoch + i) % TURNS == 0
            start = merge_from(sizes, sizes[0], turn=turn)
            assert turn or start == len(sizes) - 1
            # If all are merged, half of the delta's keys are new.
            sizes[start:] = [sum(sizes[start:]) if start else sizes[0] + sum(sizes[1:]) // 2]
            assert len(sizes) <= MAX_RUNS
            assert sum(sizes) <= 2 * sizes[0]


def test_tombstones_count_for_what_they_hide() -> None:
    assert merge_from([100, 30], base_rows=100) == 1
    assert merge_from([100, 30], base_rows=100, tombstones=30) == 1
    assert merge_from([100, 36], base_rows=100, tombstones=36) == 0  # 64 live ones in 136 rows


def test_compaction_rewrites_each_row_rarely() -> None:
    sizes, written = [1_000_000], 0
    for _ in range(900):
        sizes.append(1000)
        start = merge_from(sizes, sizes[0])
        sizes[start:] = [sum(sizes[start:])]
        written += sizes[-1]
    assert written < 900 * 1000 * 8
    assert sizes[0] == 1_000_000


def test_bases_of_other_subtasks_are_no_amplification() -> None:
    assert merge_from([500, 500, 500], base_rows=1500) == 2


def test_a_tombstone_outlives_a_merge_that_leaves_older_runs(files: RunFiles) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({key: key for key in range(100)}))
    runs.append(delta({5: None, 6: 60}))
    for key in range(10, 10 + MAX_RUNS - 1):
        runs.append(delta({key: -key}))
    assert len(runs) < MAX_RUNS
    merged, base = rows_of(runs)[-2:]
    assert merged[5] is None
    assert merged[6] == 60
    assert base[5] == 5


def test_a_merge_of_the_newest_runs_opens_no_older_one(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({key: key for key in range(100)}))
    for key in range(10, 10 + MAX_RUNS - 1):
        runs.append(delta({key: -key}))
    opened: list[RunHandle] = []
    open_run = files.cache.open
    monkeypatch.setattr(files.cache, "open", lambda handle, store: opened.append(handle) or open_run(handle, store))
    again = Runs(LAYOUT, runs.handles, files)
    again.append(delta({1: -1}))
    assert len(again) < len(runs)
    assert again.handles[0] == runs.handles[0]
    assert runs.handles[0] not in opened
    assert opened


def test_a_merge_of_all_runs_drops_tombstones(files: RunFiles) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({1: 1, 2: 2}))
    runs.append(delta({1: None, 2: 3}))
    runs.append(delta({3: 3, 4: 4}))
    assert rows_of(runs) == [{2: 3, 3: 3, 4: 4}]
    runs.append(delta({4: None}))
    runs.append(delta({2: None, 3: None}))
    runs.append(delta({2: 1, 3: None}))
    assert rows_of(runs) == [{2: 1}]


def test_deleting_everything_leaves_no_run(files: RunFiles) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({1: 1}))
    runs.append(delta({1: None}))
    runs.append(delta({2: None}))
    assert [row for rows in rows_of(runs) for row in rows.values() if row is not None] in ([1], [])
    runs.append(delta({1: 1, 2: 2}))
    runs.append(delta({1: None, 2: None}))
    runs.append(delta({1: None}))
    reopened = Runs(LAYOUT, runs.handles, files)
    assert rows_of(reopened) == rows_of(runs)


def test_tombstones_of_what_was_never_stored_are_not_written(files: RunFiles) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({1: None}))
    assert runs.handles == ()
    runs.append(delta({key: key for key in range(10)}))
    before = files.written.rows
    runs.append(delta({11: None, 12: None}))
    assert files.written.rows == before
    runs.append(delta({11: None, 3: None}))
    assert files.written.rows == before + 1


def alike(keys: Sequence[int], *, deleted: bool) -> pa.Table:
    """Returns rows that all have the same sort key, as the entries of a map have."""
    sort_keys = make_sort_keys(np.zeros(len(keys), np.uint16), np.zeros(len(keys), np.int32))
    column = pa.array(keys, pa.int64())
    arrays = [pa.array(sort_keys), column, column, pa.array([deleted] * len(keys))]
    return sorted_rows(LAYOUT, pa.table(arrays, schema=LAYOUT.local_schema))


def test_tombstones_of_many_rows_with_one_sort_key_take_little_memory(files: RunFiles) -> None:
    count = 80_000  # 48 GB, if each was compared with each
    runs = Runs(LAYOUT, (), files)
    runs.append(alike(range(count), deleted=False))
    before = files.written.rows
    runs.append(alike(range(count // 2, 2 * count), deleted=True))
    assert files.written.rows == before + count // 2


def test_rows_of_runs_with_one_sort_key_are_read_in_little_memory() -> None:
    count = 80_000
    older, newer = (Run.of(alike(keys, deleted=False)) for keys in (range(count), range(count // 2, count + 5)))
    schema = pa.schema([LAYOUT.local_schema.field("key")])
    assert sorted(_live(older, [newer], LAYOUT, schema)["key"].to_pylist()) == list(range(count // 2))


@given(stored=st.lists(st.sets(st.integers(0, 20)), max_size=3), deleted=st.sets(st.integers(0, 20)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tombstones_are_written_for_what_was_stored(files: RunFiles, stored: list[set[int]], deleted: set[int]) -> None:
    runs = Runs(LAYOUT, (), files)
    for keys in stored:
        runs.append(alike(sorted(keys), deleted=False))
    left = runs._without_idle_tombstones(alike(sorted(deleted), deleted=True))
    assert set(left.column("key").to_pylist()) == deleted & set().union(*stored)


def test_a_clipped_run_brings_only_its_rows_into_a_merge(files: RunFiles, tmp_path: Path) -> None:
    column = pa.array([1, 2, 3])
    groups = pa.array([0, 4, 8]).cast("uint16").to_numpy()
    arrays = [pa.array(make_sort_keys(groups, column.cast("int32").to_numpy())), column, column, pa.array([False] * 3)]
    handle, _ = files.write(LAYOUT, pa.table(arrays, schema=LAYOUT.local_schema), span_of(ALL))
    clip = handle.clip(KeyGroupRange(3, 5))
    assert clip is not None
    runs = Runs(LAYOUT, (clip,), files)
    assert rows_of(runs) == [{2: 2}]
    runs.append(delta({7: 7, 8: 8}))
    assert rows_of(runs) == [{7: 7, 8: 8, 2: 2}]


def test_a_run_of_another_state_is_refused(files: RunFiles) -> None:
    handle, _ = files.write(LAYOUT, delta({1: 1}), span_of(ALL))
    other = TableLayout("w", "VALUE", Types.LONG(), value_type=Types.STRING())
    with pytest.raises(CorruptStateError, match=f"{handle.path}.*'w'"):
        list(Runs(other, (handle,), files).newest_first())


def test_small_runs_are_part_of_the_metadata_until_they_add_up(store: LocalObjectStore, cache: RunCache) -> None:
    files = RunFiles(store, cache, ALL, written_by="3-7")
    runs = Runs(LAYOUT, (), files)
    random = Random(1)
    runs.append(delta({key: random.getrandbits(60) for key in range(20_000)}))
    (base,) = runs.handles
    assert base.path == f"shared/3-7-{base.sha256}.parquet"
    kept = []
    for epoch in range(60):
        runs.append(delta({key: random.getrandbits(60) for key in range(epoch * 300, epoch * 300 + 300)}))
        inline = [handle for handle in runs.handles if handle.data is not None]
        kept.append(sum(handle.bytes for handle in inline))
        assert kept[-1] < 2 * INLINE_BELOW
        again = Runs(LAYOUT, [RunHandle.from_json(handle.to_json()) for handle in runs.handles], files)
        assert rows_of(again) == rows_of(runs)
    assert max(kept) > INLINE_BELOW / 2
    assert 0 in kept


def test_a_damaged_run_in_the_metadata_is_refused(files: RunFiles, store: LocalObjectStore) -> None:
    runs = Runs(LAYOUT, (), files)
    runs.append(delta({1: 1}))
    (handle,) = runs.handles
    assert handle.data is not None
    damaged = replace(handle, data=handle.data[:-1] + b"x")
    with pytest.raises(CorruptStateError, match="in the metadata of"):
        rows_of(Runs(LAYOUT, [damaged], files))
