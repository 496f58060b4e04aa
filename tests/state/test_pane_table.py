"""State of windows that many keys share. What it holds after any changes is checked in ``test_model.py``."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.base_functions import BaseReduceFunction
from dagster_flinkpy.datastream.state import ReducingStateDescriptor

from .conftest import touch

LONG, WINDOWS = Types.LONG(), Types.TUPLE([Types.LONG(), Types.LONG()])


class Sum(BaseReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


def sums(backend: Any) -> Any:
    return backend.get_state(ReducingStateDescriptor("sums", Sum(), LONG), WINDOWS, shared_namespaces=True)


def test_a_window_that_never_was_in_storage_leaves_nothing(make_backend: Any) -> None:
    backend = make_backend(key_type=LONG)
    state = sums(backend)
    touch(backend, LONG, [7, 8])
    state.set_current_namespace((0, 10))
    assert state.add_each([0, 1, 0], [1, 2, 3]) == {0, 1}
    assert state.add_each([1], [4]) == set()
    assert list(state.get_each([1, 0])) == [6, 4]
    state.clear_each([0, 1])
    assert state.table.size == 0
    assert backend.snapshot().tables[0].runs == ()


def test_a_stored_window_that_ends_does_not_come_back(make_backend: Any) -> None:
    backend = make_backend(key_type=LONG)
    state = sums(backend)
    touch(backend, LONG, [7, 8])
    state.set_current_namespace((0, 10))
    state.add_each([0, 1], [1, 2])
    backend.snapshot()
    state.clear_each([0])
    snapshot = backend.snapshot()

    restored = make_backend(snapshot, key_type=LONG)
    state = sums(restored)
    touch(restored, LONG, [7, 8])
    state.set_current_namespace((0, 10))
    assert list(state.get_each([0, 1])) == [2]
    assert state.add_each([0, 1], [5, 5]) == {0}
    assert list(state.get_each([0, 1])) == [5, 7]
