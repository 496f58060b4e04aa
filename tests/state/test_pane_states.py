"""State of windows that many keys share. What it holds after any changes is checked in ``test_model.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.base_functions import BaseReduceFunction
from dagster_flinkpy.datastream.state import ListStateDescriptor, ReducingStateDescriptor

from .conftest import make_panes, touch

LONG, WINDOWS = Types.LONG(), Types.TUPLE([Types.LONG(), Types.LONG()])
WINDOW = (0, 10)


@pytest.fixture(params=[False, True], ids=["", "shared"], autouse=True)
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether windows may share what they hold."""
    monkeypatch.setattr(f"{__name__}.SHARED", request.param)


SHARED = False


class Sum(BaseReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


def sums(backend: Any) -> Any:
    return make_panes(backend, ReducingStateDescriptor("sums", Sum(), LONG), WINDOWS, shared=SHARED)


def lists(backend: Any) -> Any:
    return make_panes(backend, ListStateDescriptor("lists", LONG), WINDOWS, shared=SHARED)


def cells_of(state: Any, seats: list[int], window: tuple[int, int] = WINDOW) -> Any:
    return state.table.find(np.array(seats), [window], np.zeros(len(seats), dtype=np.int64))


def add(state: Any, seats: list[int], values: list[int], window: tuple[int, int] = WINDOW) -> list[int]:
    """Adds values; returns the positions in which a seat had no value."""
    cells = cells_of(state, seats, window)
    new = state.table.first_missing(cells).tolist()
    state.add_each(seats, cells, values)
    return new


def contents(state: Any, seats: list[int], window: tuple[int, int] = WINDOW) -> list[Any]:
    return list(state.get_each(seats, cells_of(state, seats, window)))


def test_a_window_that_never_was_in_storage_leaves_nothing(make_backend: Any) -> None:
    backend = make_backend(key_type=LONG)
    state = sums(backend)
    touch(backend, LONG, [7, 8])
    assert add(state, [0, 1, 0], [1, 2, 3]) == [0, 1]
    assert add(state, [1], [4]) == []
    assert contents(state, [1, 0]) == [6, 4]
    state.table.delete(cells_of(state, [0, 1]))
    state.table.release(WINDOW)
    assert contents(state, [0, 1]) == [None, None]
    assert backend.snapshot().tables[0].runs == ()


@pytest.mark.parametrize("make", [sums, lists])
@pytest.mark.parametrize("stored", [False, True])
def test_the_next_window_takes_the_place_of_one_that_has_ended(
    make_backend: Any, make: Any, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.cell_table._SPARE_CELLS", 10)
    backend = make_backend(key_type=LONG)
    state, keys = make(backend), 100
    touch(backend, LONG, list(range(keys)))
    seats, last = list(range(keys)), (90_000, 90_010)
    add(state, seats, seats, last)
    for start in range(0, 300, 10):
        window = (start, start + 10)
        assert len(add(state, seats, seats, window)) == keys
        if stored:
            backend.snapshot()  # storage knows this window until it learns that the window has ended
        state.table.delete(cells_of(state, seats, window))
        state.table.release(window)
    assert len(state.table.cells) <= (5 if stored else 2) * keys
    expected = [[i] for i in seats] if make is lists else seats
    assert contents(state, seats, last) == expected
    snapshot = backend.snapshot()

    restored = make_backend(snapshot, key_type=LONG)
    state = make(restored)
    touch(restored, LONG, seats)
    assert contents(state, seats, last) == expected
    assert contents(state, seats, window) == [None] * keys


@pytest.mark.parametrize(("make", "first", "both"), [(sums, 1, 6), (lists, [1], [1, 5])])
def test_a_stored_window_that_ends_does_not_come_back(make_backend: Any, make: Any, first: Any, both: Any) -> None:
    backend = make_backend(key_type=LONG)
    state, seats = make(backend), list(range(1_000))
    touch(backend, LONG, seats)
    add(state, seats, [1] * len(seats))
    backend.snapshot()
    state.table.delete(cells_of(state, [0]))
    snapshot = backend.snapshot()
    assert len(snapshot.tables[0].runs) == 2

    restored = make_backend(snapshot, key_type=LONG)
    state = make(restored)
    touch(restored, LONG, seats)
    assert contents(state, [0, 1]) == [None, first]
    assert add(state, [0, 1], [1, 5]) == [0]
    assert contents(state, [0, 1]) == [first, both]


def test_lists_are_stored_by_what_was_added(make_backend: Any) -> None:
    backend = make_backend(key_type=LONG)
    state = lists(backend)
    touch(backend, LONG, [7])
    add(state, [0, 0], [1, 2])
    backend.snapshot()
    add(state, [0], [3])
    runs = backend.snapshot().tables[0].runs
    assert [run.appends for run in runs] == [0, 1]

    state.table.delete(cells_of(state, [0]))
    add(state, [0], [4])
    snapshot = backend.snapshot()
    restored = make_backend(snapshot, key_type=LONG)
    state = lists(restored)
    touch(restored, LONG, [7])
    assert contents(state, [0]) == [[4]]


def test_what_a_window_gives_can_be_changed(make_backend: Any) -> None:
    backend = make_backend(key_type=LONG)
    state = lists(backend)
    touch(backend, LONG, [7])
    add(state, [0], [1])
    contents(state, [0])[0].append(2)
    assert contents(state, [0]) == [[1]]
