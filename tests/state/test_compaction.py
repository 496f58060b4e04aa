"""Which runs are merged, and in which sections."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files import compaction, runs
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.compaction import (
    EARLY,
    MAX_RUNS,
    SPREAD,
    TURNS,
    SectionRows,
    cut_key_groups,
    has_turn,
    joined,
    plan_merges,
    sections_of,
)
from dagster_flinkpy.state.files.runs import RunFiles, Runs
from dagster_flinkpy.state.handles import RunHandle, count_key_groups
from dagster_flinkpy.state.layout import TableLayout, make_sort_keys
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples

OWN = KeyGroupRange(8, 23)
LAYOUT = TableLayout("v", "VALUE", Types.LONG(), value_type=Types.LONG())


def handle(start: int, counts: list[int]) -> RunHandle:
    """Returns the handle of a run with some rows in each key group from a first one on."""
    groups = np.repeat(np.arange(start, start + len(counts), dtype=np.uint16), counts)
    return RunHandle(
        path="shared/a",
        sha256="0" * 64,
        bytes=max(1, len(groups)),
        rows=len(groups),
        key_groups=KeyGroupRange(start, start + len(counts) - 1),
        rows_per_key_group=count_key_groups(groups),
        footer_bytes=1,
        footer_sha256="0" * 64,
    )


COUNTS = st.integers(0, 40)


@st.composite
def handles_of_a_subtask(draw: st.DrawFn) -> list[RunHandle]:
    """Draws runs, of which the oldest divide the key groups."""
    starts = sorted({OWN.start, *draw(st.lists(st.integers(OWN.start, OWN.end), max_size=4))})
    bases = [handle(a, [draw(COUNTS.filter(bool))] * (b - a)) for a, b in pairwise([*starts, OWN.end + 1])]
    whole = st.lists(COUNTS, min_size=16, max_size=16).filter(any)
    return [*bases, *(handle(OWN.start, counts) for counts in draw(st.lists(whole, max_size=3)))]


def is_divided(parts: list[KeyGroupRange]) -> bool:
    """Whether parts divide the key groups of the subtask, in order."""
    ends = [OWN.start - 1, *(part.end for part in parts)]
    return ends[-1] == OWN.end and all(part.start == end + 1 for part, end in zip(parts, ends, strict=False))


@given(handles=handles_of_a_subtask(), most=st.sampled_from([1, 50, 200, 10_000]))
def test_a_section_is_large_only_if_one_key_group_is(handles: list[RunHandle], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "SECTION_ROWS", most)
        sections = sections_of(handles, OWN, None)
    assert is_divided(sections)
    largest = max(sum(rows for each in handles for g, rows in each.rows_by_key_group() if g == i) for i in range(8, 24))
    rows = [sum(clip.rows for each in handles if (clip := each.clip(section))) for section in sections]
    assert max(rows) <= most + largest
    assert len(sections) == 1 or all(a + b > most for a, b in pairwise(rows)), "neighbours would fit into one"


@given(st.lists(st.integers(0, 300), min_size=16, max_size=16), st.integers(1, 500))
def test_parts_are_as_few_as_their_weight_asks_for(rows: list[int], most: int) -> None:
    parts = cut_key_groups(OWN, np.array(rows) / most)
    assert is_divided(parts)
    assert len(parts) <= max(1, -(-sum(rows) // most))
    weights = [sum(rows[part.start - OWN.start : part.end + 1 - OWN.start]) for part in parts]
    assert max(weights) <= most + max(rows)


@given(st.integers(1, 300))
def test_each_section_has_a_turn_and_they_are_spread(sections: int) -> None:
    turns = Counter(phase for phase in range(TURNS) for i in range(sections) if has_turn(phase, i, sections))
    assert turns.total() == sections
    assert max(turns.values()) <= -(-sections // TURNS)
    assert not any(has_turn(None, i, sections) for i in range(sections))


@given(
    sections=st.lists(
        st.builds(
            lambda base, deltas: SectionRows([base, *deltas], base, 0, 0, None),
            st.integers(1, 100),
            st.lists(st.integers(1, 60), max_size=MAX_RUNS + 2),
        ),
        min_size=1,
        max_size=12,
    ),
    phase=st.sampled_from([None, 0, 1]),
    delta_rows=st.integers(0, 200),
)
def test_sections_merge_early_only_as_far_as_a_delta_allows(
    sections: list[SectionRows], phase: int | None, delta_rows: int
) -> None:
    merged = plan_merges(sections, phase, delta_rows)
    turns = [each.first_to_merge(turn=has_turn(phase, i, len(sections))) for i, each in enumerate(sections)]
    due = {i: first for i, first in enumerate(turns) if first is not None}
    assert {i: merged.get(i) for i in due} == due
    early = merged.keys() - due.keys()
    allowed = SPREAD * delta_rows if len(sections) > 1 else 0
    rows = [sum(each.sizes) for each in sections]
    read = sum(sum(sections[i].sizes[first:]) for i, first in merged.items())
    assert not early or read <= allowed
    for i, each in enumerate(sections):
        if i in early:
            assert merged[i] == 0
            assert each.surplus >= EARLY
        elif i not in due and each.surplus >= EARLY:
            assert read + rows[i] > allowed, "it would have been allowed"


def delta(keys: np.ndarray[Any, Any], value: int, groups: int = 16) -> pa.Table:
    """Returns a row for each key, in the key group that is its remainder."""
    sort_keys = make_sort_keys((keys % groups + OWN.start).astype(np.uint16), keys.astype(np.int32))
    order = np.argsort(sort_keys)
    columns = [sort_keys[order], keys[order], np.full(len(keys), value), np.zeros(len(keys), dtype=np.bool_)]
    return pa.table([*map(pa.array, columns)], schema=LAYOUT.local_schema)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows that each merge has read."""
    sizes: list[int] = []
    merge = runs.merge_runs

    def counted(layout: TableLayout, tables: list[pa.Table], **options: Any) -> pa.Table:
        sizes.append(sum(map(len, tables)))
        return merge(layout, tables, **options)

    for module in (compaction, runs):
        monkeypatch.setattr(module, "SECTION_ROWS", 4000)
    monkeypatch.setattr(runs, "merge_runs", counted)
    return sizes


def test_a_large_table_is_merged_in_parts_and_not_in_one_epoch(
    store: LocalObjectStore, cache: RunCache, merges: list[int]
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    table, random, expected, written = Runs(LAYOUT, (), files), np.random.default_rng(1), {}, []
    for epoch in range(60):
        keys = np.arange(40_000) if epoch == 0 else np.unique(random.integers(0, 40_000, 2000))
        files.phase = epoch % TURNS
        before = files.written.rows
        table.append(delta(keys, epoch))
        written.append(files.written.rows - before)
        expected |= dict.fromkeys(keys.tolist(), epoch)
        for section in sections_of(table.handles, OWN, None):
            assert sum(each.clip(section) is not None for each in table.handles) <= MAX_RUNS
    assert len(merges) > 100
    assert max(merges) < 2 * 4000
    assert max(written[1:]) < 40_000 / 2, "no epoch rewrites the half of it"
    assert sum(each.rows for each in table.handles) < 2 * 40_000
    again = Runs(LAYOUT, [RunHandle.from_json(each.to_json()) for each in table.handles], files)
    found: dict[int, int] = {}
    for tables in again.parts():
        for rows in reversed(tables):
            found |= zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    assert found == expected


def test_a_state_that_grows_fast_is_merged_a_little_in_each_epoch(
    store: LocalObjectStore, cache: RunCache, merges: list[int]
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    table, written = Runs(LAYOUT, (), files), []
    for epoch in range(8):
        files.phase = epoch % TURNS
        before = files.written.rows
        for part in range(5):
            table.append(delta(np.arange(2000) + 10_000 * epoch + 2000 * part, epoch))
        written.append(files.written.rows - before)
    assert max(written[1:]) < 1.5 * np.median(written[1:])
    assert sum(written) < 4 * 80_000


def test_a_large_key_group_is_merged_in_parts_too(
    store: LocalObjectStore, cache: RunCache, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    table, random, expected = Runs(LAYOUT, (), files), np.random.default_rng(1), {}
    for epoch in range(40):
        keys = np.arange(40_000) if epoch == 0 else np.unique(random.integers(0, 40_000, 3000))
        files.phase = epoch % TURNS
        table.append(delta(keys, epoch, 1))
        expected |= dict.fromkeys(keys.tolist(), epoch)
        assert len(joined(table.handles)) <= MAX_RUNS
    assert len(merges) > 40
    assert max(merges) <= 4000
    assert max(each.rows for each in table.handles) <= 4000
    assert sum(each.rows for each in table.handles) < 2 * 40_000
    assert sum(merges) < 10 * 40 * 3000, "not all is merged in each epoch"
    opened: list[RunHandle] = []
    real = cache.open
    monkeypatch.setattr(cache, "open", lambda handle, store: opened.append(handle) or real(handle, store))
    again = Runs(LAYOUT, [RunHandle.from_json(each.to_json()) for each in table.handles], files)
    assert len(again.find(delta(np.array([7]), 0, 1).select(["sort_key", "key"])))
    assert len(opened) <= MAX_RUNS
    found: dict[int, int] = {}
    for tables in again.parts():
        assert sum(map(len, tables)) <= 4000
        for rows in reversed(tables):
            found |= zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    assert found == expected


def test_a_large_file_of_an_older_release_is_divided_when_it_is_merged(
    store: LocalObjectStore, cache: RunCache, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    with monkeypatch.context() as patch:
        for module in (compaction, runs):
            patch.setattr(module, "SECTION_ROWS", 1 << 20)
        before = Runs(LAYOUT, (), files)
        before.append(delta(np.arange(40_000), 0))
    assert len(before.handles) == 1
    table = Runs(LAYOUT, before.handles, files)
    for epoch in range(1, 3):
        table.append(delta(np.arange(40_000), epoch))
    assert max(merges) <= 2 * 4000
    assert len(table.handles) >= 10
    assert {value for tables in table.parts() for value in tables[0]["value"].to_pylist()} == {2}


def test_a_lookup_opens_only_runs_of_its_key_groups(
    store: LocalObjectStore, cache: RunCache, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    before = Runs(LAYOUT, (), files)
    before.append(delta(np.arange(40_000), 0))
    opened: list[KeyGroupRange] = []
    real = cache.open
    monkeypatch.setattr(cache, "open", lambda handle, store: opened.append(handle.key_groups) or real(handle, store))
    table = Runs(LAYOUT, before.handles, files)
    identity = delta(np.array([3, 19]), 0).select(["sort_key", "key"])
    assert len(table.find(identity)) == 2
    assert len(opened) == 1
    assert OWN.start + 3 in opened[0]


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, 15), count=st.integers(1, 16), parts=st.sampled_from([1, 3, 16]))
def test_gaps_of_a_run_belong_to_nobody(
    store: LocalObjectStore, cache: RunCache, first: int, count: int, parts: int
) -> None:
    files = RunFiles(store, cache, OWN, inline_below=0)
    table = Runs(LAYOUT, (), files)
    table.append(delta(np.arange(1600), 0))
    ranges = cut_key_groups(OWN, np.full(16, parts / 16))[first % parts :][:count]
    left = [each for each, _ in table._runs_without(dict.fromkeys(ranges, 0))]
    assert sum(each.rows for each in left) == 1600 - sum(100 * (each.end + 1 - each.start) for each in ranges)
    assert not any(each.clip(gone) for each in left for gone in ranges)
    assert all(replace(each, key_groups=OWN, rows=1600) == table.handles[0] for each in left)
