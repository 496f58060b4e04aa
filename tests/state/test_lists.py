"""Adding to a list writes the added elements, and nothing else of the list."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.errors import CorruptStateError, TypeMismatchError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.compaction import MAX_RUNS, TURNS
from dagster_flinkpy.state.files.runs import RunFiles, Runs
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, span_of
from dagster_flinkpy.state.layout import APPEND, TableLayout, make_sort_keys, merge_runs
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.state.conftest import MakeBackend, merge_from

LAYOUT = TableLayout("l", "LIST", Types.LONG(), value_type=Types.LIST(Types.LONG()))
EXPIRING = TableLayout("l", "LIST", Types.LONG(), value_type=Types.LIST(Types.LONG()), ttl=True)
LIST = ListStateDescriptor("l", Types.LONG())

Change = tuple[str, list[int]]
"""A change of a key: "add" or "set", and the elements. A tombstone sets no elements."""


def delta(changes: dict[int, Change], layout: TableLayout = LAYOUT) -> pa.Table:
    """Returns one row per key, in key group 0 with the key as hash. Each element is also its expiry."""
    keys = pa.array(sorted(changes), pa.int64())
    rows = [changes[key] for key in keys.to_pylist()]
    values = [elements or None for _, elements in rows]
    columns = {
        "sort_key": pa.array(make_sort_keys(keys.cast("uint16").to_numpy() * 0, keys.cast("int32").to_numpy())),
        "key": keys,
        "value": pa.array(values, pa.list_(pa.int64())),
        "expires_at": pa.array(values, pa.list_(pa.int64())),
        "deleted": pa.array([elements is None for elements in values]),
        APPEND: pa.array([what == "add" for what, _ in rows]),
    }
    schema = layout.append_schema if any(what == "add" for what, _ in rows) else layout.local_schema
    return pa.table([columns[name] for name in schema.names], schema=schema)


def apply(model: dict[int, list[int]], changes: dict[int, Change]) -> None:
    for key, (what, elements) in changes.items():
        model[key] = [*(model.get(key, []) if what == "add" else []), *elements]


changes = st.dictionaries(
    st.integers(0, 5),
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 99), min_size=1, max_size=3)),
        st.tuples(st.just("set"), st.lists(st.integers(1, 99), max_size=3)),
    ),
    min_size=1,
)


@given(deltas=st.lists(changes, min_size=1, max_size=8), cuts=st.tuples(st.integers(0, 8), st.integers(0, 8)))
@settings(suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("layout", [LAYOUT, EXPIRING])
def test_however_runs_are_merged_they_hold_the_same_lists(
    layout: TableLayout, deltas: list[dict[int, Change]], cuts: tuple[int, int]
) -> None:
    model: dict[int, list[int]] = {}
    for each in deltas:
        apply(model, each)
    tables = [delta(each, layout) for each in deltas]
    start, stop = sorted(min(cut, len(tables)) for cut in cuts)
    if stop > start:
        tables[start:stop] = [merge_runs(layout, tables[start:stop][::-1], drop_deleted=False)]
    merged = merge_runs(layout, tables[::-1], drop_deleted=True)
    merged.validate(full=True)
    assert merged.schema == layout.local_schema
    live = {key: elements for key, elements in model.items() if elements}
    assert dict(zip(merged["key"].to_pylist(), merged["value"].to_pylist(), strict=True)) == live
    if layout.ttl:
        assert merged["expires_at"].to_pylist() == merged["value"].to_pylist()
        unexpired = merge_runs(layout, tables[::-1], drop_deleted=True, now=50)
        assert unexpired["key"].to_pylist() == sorted(key for key, each in live.items() if max(each) > 50)


@given(
    epochs=st.lists(
        st.lists(st.tuples(st.sampled_from(["add", "add", "add", "set", "clear"]), st.integers(0, 40)), max_size=30),
        max_size=40,
    ),
    inline_below=st.sampled_from([0, 20_000]),
    turns=st.booleans(),
)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_runs_and_rows_are_bounded_by_what_makes_up_the_lists(
    store: LocalObjectStore,
    cache: RunCache,
    epochs: list[list[tuple[str, int]]],
    inline_below: int,
    turns: bool,
) -> None:
    files = RunFiles(store, cache, KeyGroupRange(0, 9), inline_below=inline_below)
    runs, model = Runs(LAYOUT, (), files), dict[int, list[int]]()
    for epoch, each in enumerate(epochs):
        made: dict[int, Change] = {}
        for what, key in each:
            made[key] = ("add", [epoch, key]) if what == "add" else ("set", [epoch] if what == "set" else [])
        apply(model, made)
        files.phase = epoch % TURNS if turns else None
        runs.append(delta(made) if made else None)
        tables = [run.table() for run in runs.newest_first()]
        merged = merge_runs(LAYOUT, [*tables, LAYOUT.local_schema.empty_table()], drop_deleted=True)
        live = {key: elements for key, elements in model.items() if elements}
        assert dict(zip(merged["key"].to_pylist(), merged["value"].to_pylist(), strict=True)) == live
        assert len(runs) <= MAX_RUNS
        assert sum(handle.rows for handle in runs.handles) <= 2 * max(needed(tables), 1)
        again = Runs(LAYOUT, [RunHandle.from_json(handle.to_json()) for handle in runs.handles], files)
        assert [run.table() for run in again.newest_first()] == tables


def needed(newest_first: list[pa.Table]) -> int:
    """Returns the number of rows that the lists consist of."""
    begun, count = set[int](), 0
    for table in newest_first:
        for row in table.to_pylist():
            if row["key"] not in begun:
                count += not row["deleted"]
                if not row.get(APPEND):
                    begun.add(row["key"])
    return count


def test_rows_that_add_are_no_garbage() -> None:
    assert merge_from([1, 1, 1], base_rows=1, added=2) == 2
    assert merge_from([1, 1, 1], base_rows=1, added=0) == 0


def test_a_large_list_is_not_rewritten_for_its_runs() -> None:
    rows, weights = [1] * (MAX_RUNS + 1), [1_000_000, *[3000] * MAX_RUNS]
    assert merge_from(rows, 1, added=MAX_RUNS) == 0
    assert merge_from(rows, 1, added=MAX_RUNS, weights=weights) == 1


@pytest.fixture
def large(make_backend: MakeBackend) -> KeyedSnapshot:
    """Returns state with two lists. That of key 7 has 100,000 elements."""
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(LIST)
    random = Random(1)
    for key, size in ((7, 100_000), (8, 10)):
        backend.set_current_key(key)
        state.update([random.getrandbits(60) for _ in range(size)])
    return backend.snapshot()


def test_an_element_that_is_added_to_a_large_list_costs_what_it_is_large(
    make_backend: MakeBackend, large: KeyedSnapshot, store: LocalObjectStore
) -> None:
    (base,) = large.tables[0].runs
    assert base.bytes > 700_000
    backend = make_backend(KeyedSnapshot.from_json(large.to_json()), key_type=Types.LONG())
    state = backend.get_state(LIST)
    backend.set_current_key(7)
    state.add(0)
    snapshot = backend.snapshot()
    assert snapshot.tables[0].runs[1].appends == 1
    assert backend.statistics.delta_bytes < 5000
    for i in range(1, 60):
        state.add(i)
        snapshot = backend.snapshot()
    assert snapshot.tables[0].runs[0] == base
    assert backend.statistics.delta_bytes < 60 * 12_000  # including everything that merging has written
    assert backend.statistics.cache_hits == backend.statistics.cache_misses == 0  # the list was not read
    assert state.get()[100_000:] == list(range(60))
    lists = {row["key"]: row["value"] for row in read_table(snapshot.tables[0], store).to_pylist()}
    assert (len(lists[7]), lists[7][-1], len(lists[8])) == (100_060, 59, 10)
    assert sorted(backend.keys("l")) == [7, 8]


def test_files_have_the_column_only_if_they_need_it(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    backend = make_backend(key_type=Types.LONG(), inline_below=0)
    state = backend.get_state(LIST)
    written = []
    for what in (state.add_all, state.add_all, state.update):
        for key in range(20):
            backend.set_current_key(key)
            what([1, 2])
        handle = backend.snapshot().tables[0].runs[-1]
        file = pq.ParquetFile(pa.BufferReader(store.get(handle.path)[0]))
        version = file.metadata.metadata[b"flinkpy.format_version"]
        written.append((handle.appends, APPEND in file.schema_arrow.names, version))
    # The last one is a merge: at least 20 rows of 60 would have been replaced.
    assert written == [(0, False, b"1"), (20, True, b"2"), (0, False, b"1")]


def test_a_column_in_a_state_that_is_none_of_lists_is_refused(store: LocalObjectStore, cache: RunCache) -> None:
    files = RunFiles(store, cache, KeyGroupRange(0, 9))
    handle, _ = files.write(LAYOUT, delta({1: ("add", [1])}), span_of(KeyGroupRange(0, 0)))
    other = TableLayout("v", "VALUE", Types.LONG(), value_type=Types.LIST(Types.LONG()))
    with pytest.raises(CorruptStateError, match="does not belong to state 'v'"):
        list(Runs(other, (handle,), files).newest_first())


def test_elements_of_several_types_are_one_list(make_backend: MakeBackend) -> None:
    snapshot = None
    kinds = [Types.ROW_NAMED(["a"], [Types.INT()]), Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])]
    for kind, row in zip([*kinds, kinds[1]], [Row(a=1), Row(a=2**40, b="b"), Row(a=3, b="c")], strict=True):
        backend = make_backend(snapshot, key_type=Types.LONG())
        state = backend.get_state(ListStateDescriptor("l", kind))
        backend.set_current_key(1)
        state.add(row)
        snapshot = KeyedSnapshot.from_json(backend.snapshot().to_json())
    assert [(row.a, row.b) for row in state.get()] == [(1, None), (2**40, "b"), (3, "c")]


def test_a_list_that_was_never_stored_leaves_no_tombstone(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(LIST)
    for key in range(4):
        backend.set_current_key(key)
        state.add(key)
        if key == 1:
            state.update([])
        elif key == 2:
            state.update([9])
            state.clear()
    assert backend.snapshot().rows == 2
    for key in (0, 3):
        backend.set_current_key(key)
        assert (state.get(), list(state)) == ([key], [key])
        state.clear()
        assert state.get() == []
    state.add(5)
    snapshot = backend.snapshot()
    backend = make_backend(KeyedSnapshot.from_json(snapshot.to_json()), key_type=Types.LONG())
    state = backend.get_state(LIST)
    assert [(key, state.get()) for key in backend.keys("l")] == [(3, [5])]


def test_a_wrong_element_is_named(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    backend.set_current_key(7)
    backend.get_state(LIST).add("x")
    with pytest.raises(TypeMismatchError, match=r"state 'l' of key 7.*'x'"):
        backend.snapshot()


def test_reading_takes_what_other_rows_of_the_batch_have_done(make_backend: MakeBackend) -> None:
    """All keys are read together with the first one. The others keep their earlier changes."""
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(LIST)

    def each(what: Any) -> None:
        keys = list(range(4))
        column = pa.array(keys)
        seats = backend.touch_column(column, column.cast("int32").to_numpy()).tolist()
        for key, seat in zip(keys, seats, strict=True):
            backend.key_context.seat = seat
            what(key)

    each(lambda key: state.add(key))
    snapshot = backend.snapshot()
    backend = make_backend(snapshot, key_type=Types.LONG())
    state = backend.get_state(LIST)
    seen = []

    def change(key: int) -> None:
        if key == 0:
            state.add(10)
        elif key == 1:
            state.update([11])
            state.add(12)
        else:
            seen.append(state.get())

    each(change)
    backend.snapshot()
    each(lambda key: seen.append(state.get()))
    assert seen == [[2], [3], [0, 10], [11, 12], [2], [3]]
