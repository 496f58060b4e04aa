"""The asynchronous part of a snapshot, beside changes that come after its barrier. See also ``test_model``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot
from tests.state.conftest import MakeBackend
from tests.state.deferred import Deferred

VALUE, LIST = ValueStateDescriptor("v", Types.LONG()), ListStateDescriptor("l", Types.LONG())


@pytest.fixture(autouse=True)
def _deferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("dagster_flinkpy.state.backend.run_aside", Deferred)
    yield
    Deferred.fails = ""


@pytest.mark.parametrize("fails", ["before", "after"])
def test_what_a_snapshot_could_not_write_is_in_the_next_one(make_backend: MakeBackend, fails: str) -> None:
    backend = make_backend(key_type=Types.LONG())
    state, timers = backend.get_state(VALUE), backend.get_timers("t")
    backend.snapshot()
    for key in range(3):
        backend.set_current_key(key)
        state.update(key)
        timers.register(key)
    Deferred.fails = fails
    failed = backend.begin_snapshot()
    Deferred.fails = ""
    assert [time for time, *_ in timers.advance_to(1)] == [0, 1]
    backend.set_current_key(0)
    state.update(7)
    with pytest.raises(StorageError, match="the disk is full"):
        failed.result()
    restored = make_backend(backend.snapshot(), key_type=Types.LONG())
    assert [restored.get_state(VALUE) and restored.read("v", key) for key in range(3)] == [7, 1, 2]
    assert [time for time, *_ in restored.get_timers("t").advance_to(9)] == [2]


def test_lists_and_timers_are_read_from_a_snapshot_that_is_not_written_yet(make_backend: MakeBackend) -> None:
    first = make_backend(key_type=Types.LONG())
    first.get_state(LIST)
    first.set_current_key(1)
    first.get_state(LIST).add(1)
    backend = make_backend(first.snapshot(), key_type=Types.LONG())
    state, timers = backend.get_state(LIST), backend.get_timers("t")
    backend.set_current_key(1)
    state.add(2)
    timers.register(5)
    future = backend.begin_snapshot()
    backend.set_current_key(1)
    assert list(state.get()) == [1, 2]
    state.add(3)
    assert [time for time, *_ in timers.advance_to(5)] == [5]
    assert list(state.get()) == [1, 2, 3]
    then = make_backend(future.result(), key_type=Types.LONG())
    then.get_state(LIST)
    assert list(then.read("l", 1)) == [1, 2]
    assert [time for time, *_ in then.get_timers("t").advance_to(9)] == [5]
    now = make_backend(backend.snapshot(), key_type=Types.LONG())
    now.get_state(LIST)
    assert list(now.read("l", 1)) == [1, 2, 3]
    assert not list(now.get_timers("t").advance_to(9))


def test_local_copies_of_merged_runs_stay_until_a_snapshot_has_replaced_them(
    make_backend: MakeBackend, cache: RunCache
) -> None:
    def copies() -> set[str]:
        return {path.stem for path in cache.directory.iterdir()}

    def named(snapshot: KeyedSnapshot) -> set[str]:
        return {run.sha256 for table in snapshot.tables for run in table.runs}

    backend = make_backend(key_type=Types.LONG(), inline_below=0)
    state = backend.get_state(VALUE)
    for key in range(2):
        backend.set_current_key(key)
        state.update(key)
        first = backend.snapshot()
        assert copies() == named(first)
    backend = make_backend(first, key_type=Types.LONG(), inline_below=0)
    state = backend.get_state(VALUE)
    for key in range(2):
        backend.set_current_key(key)
        state.update(9)
    backend.flush()
    assert copies() > named(first), "a job that fails now restores them"
    for key in range(2):
        backend.set_current_key(key)
        state.update(10)
    Deferred.fails = "after"
    failed = backend.begin_snapshot()
    Deferred.fails = ""
    with pytest.raises(StorageError, match="the disk is full"):
        failed.result()
    assert copies() > named(first)
    second = backend.snapshot()
    assert not named(second) & named(first)
    assert copies() == named(second)
