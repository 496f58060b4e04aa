from __future__ import annotations

import math
from typing import Any

import pytest

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import StateTtlConfig, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from tests.state.conftest import MakeBackend, touch

VALUE = ValueStateDescriptor("v", Types.LONG())


def test_what_is_written_is_what_changed(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(VALUE)
    keys = list(range(10))
    touch(backend, Types.LONG(), keys)
    for key in keys:
        backend.set_current_key(key)
        state.update(key)
    backend = make_backend(backend.snapshot(), key_type=Types.LONG())
    state = backend.get_state(VALUE)
    touch(backend, Types.LONG(), [*keys, 10])
    for key in (3, 10):
        backend.set_current_key(key)
        state.clear()
    backend.set_current_key(5)
    state.update(50)
    snapshot = backend.snapshot()
    assert backend.statistics.delta_rows == 2
    assert backend.snapshot() == snapshot
    backend = make_backend(snapshot, key_type=Types.LONG())
    state = backend.get_state(VALUE)
    values = []
    for key in [*keys, 10]:
        backend.set_current_key(key)
        values.append(state.value())
    assert values == [0, 1, 2, None, 4, 50, 6, 7, 8, 9, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Types.LONG(), 7),
        (Types.DOUBLE(), math.nan),
        (Types.STRING(), "x"),
        (Types.TUPLE([Types.LONG()]), (None,)),
        (Types.PICKLED_BYTE_ARRAY(), {"a": None}),
    ],
    ids=lambda each: repr(each),
)
def test_none_is_no_value(make_backend: MakeBackend, kind: TypeInformation, value: Any) -> None:
    descriptor, keys = ValueStateDescriptor("v", kind), range(8)
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(descriptor)
    touch(backend, Types.LONG(), keys)
    for key in keys:
        backend.set_current_key(key)
        state.update(value)
        if key % 4 == 0:
            state.update(None)  # since the last snapshot, so nothing is written
    snapshot = backend.snapshot()
    assert backend.statistics.delta_rows == 6
    for key in (1, 5):
        backend.set_current_key(key)
        state.update(None)
    backend = make_backend(backend.snapshot(), key_type=Types.LONG())
    state = backend.get_state(descriptor)
    touch(backend, Types.LONG(), keys)
    found = {}
    for key in keys:
        backend.set_current_key(key)
        found[key] = state.value()
    assert [key for key in keys if found[key] is not None] == [2, 3, 6, 7]
    assert repr(found[2]) == repr(value)
    assert sum(run.tombstones for table in snapshot.tables for run in table.runs) == 0


def test_no_key_is_current_once_the_overlay_was_written_out(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(VALUE)
    backend.set_current_key(1)
    state.update(1)
    backend.flush()
    for use in (state.value, lambda: state.update(2), state.clear):
        with pytest.raises(ConfigurationError, match="no current key"):
            use()
    assert backend.key_context.current_key() is None


def test_a_value_of_another_type_is_no_missing_key(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(VALUE)
    backend.set_current_key(1)
    state.update("x")
    assert state.value() == "x"
    with pytest.raises(TypeMismatchError, match=r"state 'v' of key 1.*'x'"):
        backend.snapshot()


def test_values_that_expire_are_written_once(make_backend: MakeBackend) -> None:
    descriptor = ValueStateDescriptor("v", Types.ROW_NAMED(["n"], [Types.LONG()]))
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    backend = make_backend(key_type=Types.LONG())
    state = backend.get_state(descriptor)
    keys = list(range(10))
    touch(backend, Types.LONG(), keys)
    for key in keys:
        backend.set_current_key(key)
        assert state.value() is None
        state.update(Row(key))
        assert state.value().n == key
    backend = make_backend(backend.snapshot(), key_type=Types.LONG())
    state = backend.get_state(descriptor)
    touch(backend, Types.LONG(), [*keys, 10])
    for key in (3, 10):
        backend.set_current_key(key)
        state.clear()
    backend.set_current_key(4)
    state.update(None)
    backend.set_current_key(5)
    state.update(Row(50))
    snapshot = backend.snapshot()
    assert backend.statistics.delta_rows == 3
    assert backend.snapshot() == snapshot
    backend = make_backend(snapshot, key_type=Types.LONG())
    state = backend.get_state(descriptor)
    values = []
    for key in [*keys, 10]:
        backend.set_current_key(key)
        value = state.value()
        values.append(value and value.n)
    assert values == [0, 1, 2, None, None, 50, 6, 7, 8, 9, None]
    backend.flush()
    for use in (state.value, lambda: state.update(Row(2)), lambda: state.update(None), state.clear):
        with pytest.raises(ConfigurationError, match="no current key"):
            use()
