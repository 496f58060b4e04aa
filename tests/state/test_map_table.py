from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.datastream.state_ttl import StateTtlConfig
from dagster_flinkpy.errors import ConfigurationError, UnsupportedKeyTypeError
from tests.state.conftest import MakeBackend

MAP = MapStateDescriptor("m", Types.STRING(), Types.LONG())

changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 1), st.sampled_from("abc"), st.sampled_from([1, 2, None])),
        st.tuples(st.just("remove"), st.integers(0, 1), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("put nothing"), st.integers(0, 1), st.none(), st.none()),
        st.tuples(st.just("clear"), st.integers(0, 1), st.none(), st.none()),
        st.tuples(st.just("snapshot"), st.integers(0, 1), st.none(), st.none()),
    ),
    max_size=20,
)


SNAPSHOT, PUT = ("snapshot", 0, None, None), ("put", 0, "a", 1)


@given(changes=changes, namespaced=st.booleans())
# A dict of changes that is empty when they are written.
@example(changes=[PUT, ("remove", 0, "a", None), SNAPSHOT, PUT], namespaced=False)
@example(changes=[("put nothing", 0, None, None), SNAPSHOT, PUT], namespaced=False)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_map_is_a_dict_in_order_across_snapshots(
    make_backend: MakeBackend, changes: list[Any], namespaced: bool
) -> None:
    backend = make_backend(key_type=Types.LONG())
    state: Any = backend.get_state(MAP, Types.LONG() if namespaced else None)
    model: dict[int, dict[str, int | None]] = {0: {}, 1: {}}
    for what, key, map_key, value in changes:
        backend.set_current_key(key)
        if namespaced:
            state.set_current_namespace(key)
        if what == "put":
            state.put(map_key, value)
            model[key][map_key] = value
        elif what == "remove":
            state.remove(map_key)
            model[key].pop(map_key, None)
        elif what == "put nothing":
            state.put_all({})
        elif what == "clear":
            state.clear()
            model[key].clear()
        else:
            backend.snapshot()
        assert list(state.items()) == list(model[key].items())
        assert [state.get(each) for each in "abc"] == [model[key].get(each) for each in "abc"]
        assert [state.contains(each) for each in "abc"] == [each in model[key] for each in "abc"]
        assert state.is_empty() == (not model[key])
    snapshot = backend.snapshot()
    assert state.table.size == sum(map(len, model.values()))
    restored = make_backend(snapshot, key_type=Types.LONG())
    state = restored.get_state(MAP, Types.LONG() if namespaced else None)
    for key, entries in model.items():
        restored.set_current_key(key)
        if namespaced:
            state.set_current_namespace(key)
        assert dict(state.items()) == entries


def test_what_is_written_is_what_changed(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state: Any = backend.get_state(MAP)
    for key in range(10):
        backend.set_current_key(key)
        state.put_all({"a": 1, "b": 2})
    backend = make_backend(backend.snapshot(), key_type=Types.LONG())
    state = backend.get_state(MAP)
    backend.set_current_key(3)
    state.put("a", 5)
    state.remove("b")
    snapshot = backend.snapshot()
    assert backend.statistics.delta_rows == 2
    assert backend.snapshot() == snapshot


@pytest.mark.parametrize("ttl", [False, True], ids=["forever", "ttl"])
def test_looking_for_one_entry_does_not_copy_a_large_map(make_backend: MakeBackend, ttl: bool) -> None:
    backend = make_backend(key_type=Types.LONG())
    descriptor = MapStateDescriptor("m", Types.LONG(), Types.LONG())
    if ttl:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
    state: Any = backend.get_state(descriptor)
    backend.set_current_key(0)
    state.put_all(dict.fromkeys(range(20_000), 1))
    backend.snapshot()
    state.put(-1, 1)  # From now on, the map has entries that are stored and others that are not.
    tracemalloc.start()
    try:
        assert state.contains(7) and not state.contains(-7) and state.get(7) == 1 and not state.is_empty()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000


def test_misuse_is_found_in_an_empty_map(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state: Any = backend.get_state(MAP)
    for use in (lambda: state.get("a"), lambda: state.put("a", 1)):
        with pytest.raises(ConfigurationError, match="no current key"):
            use()
    backend.set_current_key(1)
    for use in (lambda: state.get(["a"]), lambda: state.put(["a"], 1), lambda: state.contains(["a"])):
        with pytest.raises(UnsupportedKeyTypeError, match="map key"):
            use()
