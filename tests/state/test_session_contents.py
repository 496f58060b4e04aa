"""What sessions hold: each session is a cell. What windows do with it is checked with whole jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.base_functions import BaseReduceFunction
from dagster_flinkpy.datastream.state import ListStateDescriptor, ReducingStateDescriptor
from dagster_flinkpy.state.session_table import SessionTable
from dagster_flinkpy.state.value_folds import fold_values
from tests.examples import examples

from .conftest import make_panes, touch

LONG, WINDOWS = Types.LONG(), Types.TUPLE([Types.LONG(), Types.LONG()])


class Sum(BaseReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


DESCRIPTORS = {"sum": ReducingStateDescriptor("held", Sum(), LONG), "list": ListStateDescriptor("held", LONG)}


class Sessions:
    def __init__(self, backend: Any, contents: str) -> None:
        self.backend = backend
        self.table, _ = backend.get_sessions("windows", "timers", WINDOWS, 0)
        self.state = make_panes(backend, DESCRIPTORS[contents], WINDOWS, self.table)
        self.fold = fold_values(DESCRIPTORS[contents])
        touch(backend, LONG, [7])

    def join(self, start: int, value: int) -> int:
        (cell,), _ = self.table.join(np.array([0]), np.array([start]), np.array([start + 10]), 0)
        self.state.table.reserve()
        for _, held, places in self.state.table.column.changing(np.array([cell])):
            self.fold.add_each(self.backend.key_context, held, zip([0], places, [value], strict=True))
        self.state.table.mark(np.array([cell]))
        return int(cell)

    def end(self, cell: int) -> None:
        self.state.table.delete(np.array([cell]))
        self.table.end_all(np.array([cell]))

    def held(self, start: int) -> Any:
        return list(self.state.get_each([0], self.table.at(np.array([0]), np.array([start]))))


@pytest.mark.parametrize(("contents", "expected"), [("sum", 5), ("list", [5])])
def test_a_session_replaces_a_stored_one_with_the_same_window(make_backend: Any, contents: str, expected: Any) -> None:
    sessions = Sessions(make_backend(key_type=LONG), contents)
    former = sessions.join(100, 3)
    sessions.backend.snapshot()
    sessions.end(former)
    assert sessions.join(100, 5) != former
    snapshot = sessions.backend.snapshot()
    restored = Sessions(make_backend(snapshot, key_type=LONG), contents)
    assert restored.held(100) == [expected]


@pytest.mark.parametrize(("contents", "expected"), [("sum", 8), ("list", [3, 5])])
def test_merged_sessions_are_stored_as_one(make_backend: Any, contents: str, expected: Any) -> None:
    sessions = Sessions(make_backend(key_type=LONG), contents)
    one, other = sessions.join(100, 3), sessions.join(120, 5)
    sessions.backend.snapshot()
    sessions.table.move(one, 100, 130)
    sessions.state.merge(one, other)
    sessions.table.retire(np.array([other]))
    sessions.table.link({0: [one]})
    sessions.table.changed[one] = True
    snapshot = sessions.backend.snapshot()
    restored = Sessions(make_backend(snapshot, key_type=LONG), contents)
    assert restored.held(129) == [expected]
    assert restored.table.size == 1


@pytest.mark.parametrize("contents", ["sum", "list"])
def test_a_session_that_has_ended_leaves_nothing(make_backend: Any, contents: str) -> None:
    sessions = Sessions(make_backend(key_type=LONG), contents)
    cell = sessions.join(100, 3)
    sessions.backend.snapshot()
    sessions.end(cell)
    snapshot = sessions.backend.snapshot()
    restored = Sessions(make_backend(snapshot, key_type=LONG), contents)
    assert restored.table.size == 0
    assert restored.join(100, 1) == 0
    assert restored.held(100) == [1 if contents == "sum" else [1]]


def sessions_of(backend: Any, seats: int) -> SessionTable:
    table, _ = backend.get_sessions("windows", "timers", WINDOWS, 0)
    touch(backend, LONG, list(range(seats)))
    found: SessionTable = table
    return found


def merged(windows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Returns the sessions of windows of keys: they have no gap between them, and do not touch each other."""
    found: list[tuple[int, int, int]] = []
    for seat, start, end in sorted(windows):
        if found and found[-1][0] == seat and found[-1][2] >= start:
            found[-1] = (seat, found[-1][1], max(found[-1][2], end))
        else:
            found.append((seat, start, end))
    return found


SEATS = 12  # More than are followed one by one.
window = st.tuples(st.integers(0, SEATS - 1), st.integers(0, 60), st.integers(1, 4))
everywhere = st.integers(0, 60).map(lambda start: [(seat, start, 2) for seat in range(SEATS)])


@given(batches=st.lists(st.one_of(st.lists(window, min_size=1, max_size=30), everywhere), max_size=8))
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_windows_of_any_age_join_the_sessions_that_they_touch(
    make_backend: Any, batches: list[list[tuple[int, int, int]]]
) -> None:
    table = sessions_of(make_backend(key_type=LONG), SEATS)
    model: list[tuple[int, int, int]] = []
    for batch in batches:
        windows = [(seat, start, start + length) for seat, start, length in batch]
        seats, starts, ends = np.array(windows).T
        cells, _, _, _ = table.unite(seats, starts, ends)
        model = merged(model + windows)
        chains = {seat: table.chain(seat) for seat in range(SEATS)}
        each = [(s, table.start.item(c), table.end.item(c)) for s, chain in chains.items() for c in chain]
        assert each == model
        assert table.at(seats, starts).tolist() == cells.tolist()
        for seat, time in ((seat, time) for seat in range(SEATS) for time in (-1, 10, 30, 100)):
            (cell,) = table.at(np.array([seat]), np.array([time])).tolist()
            before = [start for of, start, _ in model if of == seat and start <= time]
            assert before[-1:] == ([] if cell < 0 else [table.start.item(cell)])


def calls_of(function: Callable[[], Any]) -> int:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_a_record_that_is_a_little_out_of_order_does_not_look_at_all_sessions_of_its_key(make_backend: Any) -> None:
    def calls(sessions: int) -> int:
        table = sessions_of(make_backend(key_type=LONG), 1)
        starts = np.arange(sessions) * 10
        table.join(np.zeros(sessions, dtype=np.int64), starts, starts + 2, 0)
        late = np.array([sessions * 10 - 35])
        return calls_of(lambda: table.unite(np.array([0]), late, late + 2))

    assert calls(1000) <= calls(10) + 5
