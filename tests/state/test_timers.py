from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import java_hash_code
from dagster_flinkpy.state.files.cache import MAX_TIME, MIN_TIME
from dagster_flinkpy.state.timers import timer_table
from tests.examples import examples
from tests.state.conftest import MakeBackend, groups_of, touch

LONG = Types.LONG()


def fire(timers: Any, until: int) -> list[tuple[int, Any]]:
    return [(time, key) for time, key, _ in timers.advance_to(until)]


def test_a_timer_fires_once_and_in_time(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    timers = backend.get_timers("t")
    for time in (30, 10, 20, 10):
        backend.set_current_key(1)
        timers.register(time)
    assert fire(timers, 9) == []
    assert fire(timers, 20) == [(10, 1), (20, 1)]
    assert fire(timers, 20) == []
    assert fire(timers, (1 << 63) - 1) == [(30, 1)]


@pytest.mark.parametrize("snapshot_between", [False, True])
def test_a_deleted_timer_does_not_fire(make_backend: MakeBackend, snapshot_between: bool) -> None:
    backend = make_backend(key_type=LONG)
    timers = backend.get_timers("t")
    backend.set_current_key(1)
    timers.register(10)
    timers.register(11)
    if snapshot_between:
        backend.snapshot()
    timers.delete(10)
    backend.snapshot()
    assert fire(timers, 20) == [(11, 1)]
    backend.snapshot()
    assert fire(timers, 20) == []
    restored = make_backend(backend.snapshot(), key_type=LONG)
    assert fire(restored.get_timers("t"), 20) == []


def test_a_deleted_timer_can_be_registered_again(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    timers = backend.get_timers("t")
    backend.set_current_key(1)
    for change in (timers.register, timers.delete, timers.register):
        change(10)
        backend.snapshot()
    assert fire(timers, 10) == [(10, 1)]


def test_timers_registered_while_firing_are_due_in_the_same_call(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    timers = backend.get_timers("t")
    backend.set_current_key(1)
    timers.register(10)
    fired = []
    for time, _, _ in timers.advance_to(30):
        fired.append(time)
        timers.register(time + 10)
    assert fired == [10, 20, 30]
    assert fire(timers, 40) == [(40, 1)]


def test_the_order_depends_on_neither_parallelism_nor_epochs(make_backend: MakeBackend) -> None:
    keys = list(range(-20, 20))

    def run(order: list[int], ranges: list[KeyGroupRange], snapshot_each: int) -> list[list[tuple[int, Any]]]:
        fired = []
        for key_groups in ranges:
            backend = make_backend(key_type=LONG, key_groups=key_groups)
            timers = backend.get_timers("t")
            groups = groups_of(LONG, order)
            for i, (key, group) in enumerate(zip(order, groups.tolist(), strict=True)):
                if group in key_groups:
                    backend.set_current_key(key)
                    timers.register(key % 3)
                if i % snapshot_each == 0:
                    backend.snapshot()
            fired.append(fire(timers, 10))
        return fired

    (one,) = run(keys, [KeyGroupRange(0, 15)], 1000)
    assert sorted(one) == sorted((key % 3, key) for key in keys)
    assert run(keys[::-1], [KeyGroupRange(0, 15)], 7) == [one]
    halves = run(keys, [KeyGroupRange(0, 7), KeyGroupRange(8, 15)], 3)
    group = dict(zip(keys, groups_of(LONG, keys).tolist(), strict=True))
    assert halves == [[f for f in one if group[f[1]] <= 7], [f for f in one if group[f[1]] > 7]]


def test_many_due_timers_are_read_piece_by_piece(make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_table, "LOAD_TIMERS", 5)
    first = make_backend(key_type=LONG)
    touch(first, LONG, list(range(100)))
    for key in range(100):
        first.set_current_key(key)
        first.get_timers("t").register(key // 7)
    backend = make_backend(first.snapshot(), key_type=LONG, overlay_rows=20)
    timers = backend.get_timers("t")
    largest, fired = 0, []
    for time, key, _ in timers.advance_to(100):
        fired.append((time, key))
        largest = max(largest, timers.size)
    assert sorted(fired) == [(key // 7, key) for key in range(100)]
    assert [time for time, _ in fired] == sorted(time for time, _ in fired)
    assert largest < 60
    assert fire(timers, 200) == []


def test_keys_of_stored_timers_have_their_state_when_they_fire(make_backend: MakeBackend) -> None:
    first = make_backend(key_type=LONG)
    value = first.get_state(ValueStateDescriptor("v", LONG))
    for key in range(50):
        first.set_current_key(key)
        value.update(key * 10)
        first.get_timers("t").register(5)
    backend = make_backend(first.snapshot(), key_type=LONG)
    value = backend.get_state(ValueStateDescriptor("v", LONG))
    timers = backend.get_timers("t")
    fired = {key: value.value() for _, key, _ in timers.advance_to(5)}
    assert fired == {key: key * 10 for key in range(50)}
    assert backend.statistics.keys_touched == 50


def test_namespaces_tell_timers_apart(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.STRING())
    timers = backend.get_timers("t", Types.TUPLE([LONG, LONG]))
    backend.set_current_key("k")
    for window in ((10, 20), (0, 10), (10, 20)):
        timers.set_current_namespace(window)
        timers.register(7)
    assert list(timers.advance_to(7)) == [(7, "k", (0, 10)), (7, "k", (10, 20))]


def test_timers_need_a_current_key(make_backend: MakeBackend) -> None:
    timers = make_backend(key_type=LONG).get_timers("t")
    with pytest.raises(ConfigurationError, match="no current key"):
        timers.register(1)
    with pytest.raises(ConfigurationError, match="no namespace"):
        timers.set_current_namespace((0, 1))


@pytest.mark.parametrize("wrong", [1.0, None, "1", True, 1 << 63, -(1 << 63) - 1])
def test_a_wrong_time_is_rejected_and_leaves_nothing(make_backend: MakeBackend, wrong: Any) -> None:
    backend = make_backend(key_type=LONG)
    timers = backend.get_timers("t")
    for key, change in ((1, timers.register), (2, timers.delete)):
        backend.set_current_key(key)
        with pytest.raises(ConfigurationError, match=f"timer of key {key}: its time is .*64-bit int"):
            change(wrong)
    backend.set_current_key(3)
    timers.register(np.int64(5))  # type: ignore[arg-type]
    timers.register(MAX_TIME)
    timers.register(MIN_TIME)
    assert fire(timers, 5) == [(MIN_TIME, 3), (5, 3)]
    assert fire(make_backend(backend.snapshot(), key_type=LONG).get_timers("t"), MAX_TIME) == [(MAX_TIME, 3)]


WINDOWS = Types.TUPLE([LONG, LONG])
KEYS = ["a", "b", "Aa", "BB"]  # The last two have one hash.
PLACES = {
    key: (group, java_hash_code(key), key)
    for key, group in zip(KEYS, groups_of(Types.STRING(), KEYS).tolist(), strict=True)
}
CHANGE = st.tuples(
    st.sampled_from(KEYS),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sampled_from(["register", "register", "register", "delete", "delete one that is there"]),
)
STEP = st.tuples(st.lists(CHANGE, max_size=8), st.integers(0, 12), st.lists(CHANGE, max_size=6), st.booleans())


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(STEP, min_size=1, max_size=6),
    namespaces=st.booleans(),
    small=st.booleans(),
    at_once=st.sampled_from([1, 65_536]),
    only_times=st.booleans(),
)
def test_timers_fire_like_those_of_a_sorted_set(
    make_backend: MakeBackend, steps: Any, namespaces: bool, small: bool, at_once: int, only_times: bool
) -> None:
    """Each timer that fires changes another one, maybe one that is due, too, or one that has fired."""
    options: dict[str, Any] = {"key_type": Types.STRING(), "overlay_rows": 0 if small else 1_000_000}
    kind = WINDOWS if namespaces else None
    backend = make_backend(None, **options)
    timers = backend.get_timers("t", kind)
    model: set[tuple[int, Any, Any]] = set()

    def change(key: str, window: int, time: int, what: str) -> None:
        register = what == "register"
        if what == "delete one that is there" and model:
            time, (_, _, key), namespace = sorted(model)[time % len(model)]
            window = namespace[0] if namespaces else window
        backend.set_current_key(key)
        if namespaces:
            timers.set_current_namespace((window, 9))
        (timers.register if register else timers.delete)(time)
        (model.add if register else model.discard)((time, PLACES[key], (window, 9) if namespaces else None))

    def due(until: int) -> Iterator[tuple[int, Any, Any]]:
        if namespaces or not only_times:
            return timers.advance_to(until)
        return ((time, backend.key_context.current_key(), None) for time in timers.times_to(until))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_table, "LOAD_TIMERS", at_once)
        for changes, until, while_firing, restore in steps:
            for each in changes:
                change(*each)
            for time, key, window in due(until):
                assert backend.key_context.current_key() == key
                first = min(model)
                assert (time, PLACES[key], window) == first
                model.remove(first)
                if while_firing:
                    change(*while_firing.pop())
            assert not model or min(model)[0] > until
            if restore:
                backend = make_backend(backend.snapshot(), **options)
                timers = backend.get_timers("t", kind)
