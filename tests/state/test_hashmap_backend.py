from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import KeyedSnapshot
from tests.state.conftest import HASHMAP, MakeBackend

VALUE = ValueStateDescriptor("v", Types.LONG())


@pytest.fixture
def make_heap(make_backend: MakeBackend) -> MakeBackend:
    return partial(make_backend, key_type=Types.LONG(), **HASHMAP)


def put(backend: Any, values: dict[int, int | None], descriptor: Any = VALUE) -> KeyedSnapshot:
    state = backend.get_state(descriptor)
    for key, value in values.items():
        backend.set_current_key(key)
        state.update(value)
    snapshot: KeyedSnapshot = backend.snapshot()
    return snapshot


def values_of(backend: Any, keys: range) -> list[int | None]:
    state = backend.get_state(VALUE)
    found = []
    for key in keys:
        backend.set_current_key(key)
        found.append(state.value())
    return found


def test_a_snapshot_is_one_run_of_all_live_rows(make_heap: Any) -> None:
    backend = make_heap()
    put(backend, {key: key for key in range(10)})
    snapshot = put(backend, {3: None, 4: 40})
    (run,) = snapshot.tables[0].runs
    assert (run.rows, run.tombstones) == (9, 0)
    assert backend.snapshot() == snapshot  # nothing changed, nothing is written
    written = backend.statistics.delta_bytes
    assert put(backend, {4: 40}).rows == 9
    assert backend.statistics.delta_bytes > written
    assert put(backend, dict.fromkeys(range(10))).tables[0].runs == ()


def test_state_goes_from_one_backend_to_the_other(make_heap: Any, make_backend: MakeBackend) -> None:
    columnar = make_backend(key_type=Types.LONG())
    put(columnar, {key: key for key in range(0, 60, 3)})
    put(columnar, {0: None, 61: 61})
    snapshot = put(columnar, {9: 90})
    assert len(snapshot.tables[0].runs) > 1
    heap = make_heap(snapshot)
    expected = values_of(make_backend(snapshot, key_type=Types.LONG()), range(70))
    assert values_of(heap, range(70)) == expected
    moved = heap.snapshot()
    assert len(moved.tables[0].runs) == 1
    assert values_of(make_backend(moved, key_type=Types.LONG()), range(70)) == expected
    assert sorted(heap.keys("v")) == [key for key in range(70) if expected[key] is not None]


def test_expired_state_is_dropped(make_heap: Any) -> None:
    clock = [0]
    descriptor = ValueStateDescriptor("v", Types.LONG())
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(10)).build())
    backend = make_heap(now=lambda: clock[0])
    assert put(backend, {1: 1, 2: 2}, descriptor).rows == 2
    clock[0] = 20
    assert put(backend, {3: 3}, descriptor).rows == 1


def test_the_part_of_a_subtask_is_its_own(make_heap: Any) -> None:
    snapshot = put(make_heap(), {key: key for key in range(100)})
    parts = [make_heap(snapshot, key_groups=KeyGroupRange(a, b)) for a, b in ((0, 4), (5, 15))]
    assert sum(len(list(part.keys("v"))) for part in parts if part.get_state(VALUE)) == 100
