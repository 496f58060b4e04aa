"""What sessions hold: each session is a cell. What windows do with it is checked with whole jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.base_functions import BaseReduceFunction
from dagster_flinkpy.datastream.state import ListStateDescriptor, ReducingStateDescriptor
from dagster_flinkpy.state.value_folds import fold_values

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
