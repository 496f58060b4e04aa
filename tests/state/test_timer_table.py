"""Stored timers: compares which fire with a set, and checks which rows are read to find them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files import cache
from dagster_flinkpy.state.files.cache import Rows, Run, RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.timers import timer_table
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples

from .conftest import HASHMAP, MAX_PARALLELISM, MakeBackend, groups_of, touch

LONG = Types.LONG()
KEYS = [-1, 0, 1, 2, 77, 1 << 40]  # -1 and 0 have one hash.
GROUPS = groups_of(LONG, KEYS).tolist()


def fire(backend: Any, until: int) -> list[tuple[int, int]]:
    return [(time, key) for time, key, _ in backend.get_timers("t").advance_to(until)]


def change(backend: Any, key: int, time: int, register: bool) -> None:
    backend.set_current_key(key)
    timers = backend.get_timers("t")
    (timers.register if register else timers.delete)(time)


TIMES = st.integers(-4, 12)
CHANGE = st.tuples(st.sampled_from(KEYS), TIMES, st.sampled_from([True, True, True, False]))
STEP = st.tuples(st.lists(CHANGE, max_size=4), st.none() | TIMES, st.lists(CHANGE, max_size=2))
EPOCH = st.tuples(st.lists(STEP, max_size=3), st.integers(1, 3), st.booleans(), st.sampled_from([False, False, True]))


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(
    epochs=st.lists(EPOCH, min_size=1, max_size=14),
    at_once=st.sampled_from([1, 3, 65_536]),
    overlay_rows=st.sampled_from([0, 1_000_000]),
    inline_below=st.sampled_from([0, 20_000]),
)
def test_timers_behave_like_a_set(epochs: Any, at_once: int, overlay_rows: int, inline_below: int) -> None:
    """Each epoch has new backends: at any parallelism, columnar or in memory, with or without local files."""
    directory = Path(tempfile.mkdtemp())
    store = LocalObjectStore(directory / "store")
    model: set[tuple[int, int]] = set()
    snapshots: list[KeyedSnapshot] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_table, "LOAD_TIMERS", at_once)
        for number, (steps, parallelism, cold, heap) in enumerate(epochs):
            if cold:
                shutil.rmtree(directory / "cache", ignore_errors=True)
            backends: list[Any] = []
            for i in range(parallelism):
                key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, i)
                pieces = [piece for snapshot in snapshots if (piece := snapshot.restrict(key_groups))]
                options: dict[str, Any] = {
                    "operator": "op",
                    "key_groups": key_groups,
                    "max_parallelism": MAX_PARALLELISM,
                    "store": store,
                    "cache": RunCache(directory / "cache"),
                    "restored": KeyedSnapshot.concat(pieces, key_groups) if pieces else None,
                    "inline_below": inline_below,
                    "written_by": f"{i}-{number}",
                }
                options |= HASHMAP if heap else {"overlay_rows": overlay_rows, "phase": (number - i) % 4}
                backend = ColumnarKeyedStateBackend(**options)
                backend.bind_key_type(LONG)
                backends.append((key_groups, backend))

            def owner(key: int, of: list[Any] = backends) -> Any:
                return next(backend for groups, backend in of if GROUPS[KEYS.index(key)] in groups)

            for changes, until, while_firing in steps:
                for key, time, register in changes:
                    change(owner(key), key, time, register)
                    (model.add if register else model.discard)((time, key))
                for _, backend in backends if until is not None else ():
                    pending = list(while_firing)
                    for time, key, _ in backend.get_timers("t").advance_to(until):
                        assert time == min(t[0] for t in model if owner(t[1]) is backend)
                        model.remove((time, key))
                        if pending:
                            other, when, register = pending.pop()
                            if owner(other) is backend:
                                change(backend, other, when, register)
                                (model.add if register else model.discard)((when, other))
                    assert not [t for t in model if owner(t[1]) is backend and t[0] <= until]
            snapshots = [KeyedSnapshot.from_json(backend.snapshot().to_json()) for _, backend in backends]
    shutil.rmtree(directory)


@pytest.mark.short("False")
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_looked_at_follows_the_due_timers(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    if packed:
        monkeypatch.setattr(cache, "_PACKED", 1)
    count, due = 4096, 16
    backend = make_backend(key_type=LONG, inline_below=0)
    touch(backend, LONG, list(range(count)))
    for key in range(count):
        change(backend, key, key // due, True)
    rows, part = Run.rows, Rows.slice
    read: list[int] = []
    searched: list[int] = []
    monkeypatch.setattr(Run, "rows", lambda run, wanted: read.extend(wanted) or rows(run, wanted))
    bases = set()
    for epoch in range(120):
        snapshot = backend.snapshot()
        bases.add(snapshot.tables[0].runs[0].sha256)
        backend = make_backend(snapshot, key_type=LONG, inline_below=0, phase=epoch % 4)
        backend.get_timers("t").runs.by_time()  # Orders the run that is new.
        read.clear()
        searched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(
                Rows, "slice", lambda rows, name, *span: searched.extend(range(*span)) or part(rows, name, *span)
            )
            assert len(fire(backend, epoch)) == due
        assert len(read) == due  # Without tombstones and timers that fired before.
        assert len(searched) <= 2 * 8 * 5 * 13  # Columns, runs, searches in each, steps of a search.
    assert len(bases) > 1  # Runs were merged meanwhile.


def count_orders(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    make = cache.make_time_order
    monkeypatch.setattr(cache, "make_time_order", lambda run: made.append(len(run)) or make(run))
    return made


def test_the_order_of_a_run_is_made_once(make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_orders(monkeypatch)
    first = make_backend(key_type=LONG, inline_below=0)
    for key in range(100):
        change(first, key, key, True)
    snapshot = first.snapshot()
    for until in (0, 50, 99):
        assert len(fire(make_backend(snapshot, key_type=LONG), until)) == until + 1
    assert made == [100]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 5000)])
def test_an_order_that_is_gone_or_damaged_is_made_anew(
    make_backend: MakeBackend, cache: RunCache, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    made = count_orders(monkeypatch)
    first = make_backend(key_type=LONG, inline_below=0)
    for key in range(100):
        change(first, key, key, True)
    snapshot = first.snapshot()
    assert len(fire(make_backend(snapshot, key_type=LONG), 9)) == 10
    (path,) = cache.directory.glob("*-by-time.arrow")
    damage(path)
    assert len(fire(make_backend(snapshot, key_type=LONG), 9)) == 10
    assert made == [100, 100]


def test_the_parts_of_a_run_have_orders_of_their_own(make_backend: MakeBackend) -> None:
    first = make_backend(key_type=LONG, inline_below=0)
    for key in range(100):
        change(first, key, key % 10, True)
    snapshot = first.snapshot()
    fired = []
    for i in range(3):
        key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, 3, i)
        fired += fire(make_backend(snapshot.restrict(key_groups), key_type=LONG, key_groups=key_groups), 4)
    assert sorted(fired) == sorted((key % 10, key) for key in range(100) if key % 10 <= 4)


def test_a_timer_for_the_past_fires_though_older_ones_of_its_time_have(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    change(backend, 1, 5, True)
    change(backend, 1, 50, True)
    for _ in range(3):
        backend = make_backend(backend.snapshot(), key_type=LONG)
        assert fire(backend, 10) == [(5, 1)]
        backend = make_backend(backend.snapshot(), key_type=LONG)
        assert fire(backend, 10) == []
        change(backend, 1, 5, True)
    assert [run.fired_before for run in backend.snapshot().tables[0].runs][-1] is None
    assert fire(backend, 100) == [(5, 1), (50, 1)]


def test_a_timer_that_is_next_can_be_deleted(make_backend: MakeBackend) -> None:
    first = make_backend(key_type=LONG)
    for key, time in ((1, 4), (1, 5), (2, 5), *((key, 9) for key in range(100))):
        change(first, key, time, True)
    second = make_backend(first.snapshot(), key_type=LONG)
    assert fire(second, 4) == [(4, 1)]
    third = make_backend(second.snapshot(), key_type=LONG)
    change(third, 1, 5, False)
    fourth = make_backend(third.snapshot(), key_type=LONG)
    assert (
        fourth.snapshot().tables[0].runs[0].fired_before == 5
    )  # It was not merged; otherwise this would prove nothing.
    assert fire(fourth, 5) == [(5, 2)]
