"""State in columns and state per record write the same, and each can read what the other has written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import StateTtlConfig, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.reader import read_table
from tests.examples import examples

from .conftest import MAX_PARALLELISM, groups_of, touch

KEYS = {
    "long": (Types.LONG(), [0, 1, 2, 2**40, -1, 1 << 32]),
    "string": (Types.STRING(), ["a", "b", "Aa", "BB", ""]),  # Java: "Aa" and "BB" hash alike.
    "double": (Types.DOUBLE(), [0.0, -0.0, 1.5, float("inf")]),
    "row": (Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()]), [Row(1, "x"), Row(1, "y"), Row(2, "x")]),
}
WINDOWS = Types.TUPLE([Types.LONG(), Types.LONG()])
VALUE = Types.TUPLE([Types.LONG(), Types.STRING()])
DESCRIPTOR = ValueStateDescriptor("state", VALUE)


def in_columns(backend: Any, key_type: Any, ops: list[Any], namespaced: bool) -> None:
    table = backend.get_cells(DESCRIPTOR, WINDOWS if namespaced else None)
    column = key_type.to_arrow([key for key, _, _ in ops])
    seats = backend.touch_column(column, hash_keys(key_type, column))
    for start in range(0, len(ops), 3):
        some, cells = ops[start : start + 3], seats[start : start + 3]
        if namespaced:
            ids = table.cells.namespace_ids([(n, n + 1) for _, n, _ in some])
            cells, _ = table.cells.of(cells, np.array(ids, dtype=np.int64))
        table.update(cells, VALUE.to_arrow([value for _, _, value in some]))
        last = {cell: value for cell, (_, _, value) in zip(cells.tolist(), some, strict=True)}
        assert VALUE.from_arrow(table.lookup(cells)) == [last[cell] for cell in cells.tolist()]
        if namespaced:
            for _, n, _ in some:
                table.release((n, n + 1))  # as often as possible; a seat with content stays


def per_record(backend: Any, key_type: Any, ops: list[Any], namespaced: bool) -> None:
    state = backend.get_state(DESCRIPTOR, WINDOWS if namespaced else None)
    touch(backend, key_type, [key for key, _, _ in ops])
    for key, namespace, value in ops:
        backend.set_current_key(key)
        if namespaced:
            state.set_current_namespace((namespace, namespace + 1))
        state.update(value)


def test_windows_that_came_and_went_leave_their_cells_to_the_next_ones(make_backend: Any, store: Any) -> None:
    backend = make_backend(None, key_type=Types.LONG())
    table = backend.get_cells(DESCRIPTOR, WINDOWS)
    column = pa.array(range(100))
    seats = backend.touch_column(column, hash_keys(Types.LONG(), column))
    for window in range(50):
        (number,) = table.cells.namespace_ids([(window, window + 1)])
        cells, _ = table.cells.of(seats, np.full(len(seats), number))
        assert not table.contains(cells).any()
        table.update(cells, VALUE.to_arrow([(window, "x")] * len(cells)))
        table.release((window, window + 1))  # has content, so nothing happens
        assert table.contains(cells).all()
        if window < 49:
            table.delete(cells)
            table.release((window, window + 1))
    assert len(table.cells) == 100
    (snapshot,) = backend.snapshot().tables
    rows = read_table(snapshot, store).to_pylist()
    assert {(row["namespace"]["f0"], row["value"]["f0"]) for row in rows} == {(49, 49)}
    assert len(rows) == 100
    table.delete(cells)
    table.release((window, window + 1))  # the content is in storage
    assert table.cells.namespace_ids([(49, 50), (50, 51)]) == [number, number + 1]


def test_cells_without_values_are_dropped(make_backend: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.cell_table._SPARE_CELLS", 10)
    backend = make_backend(None, key_type=Types.LONG())
    table = backend.get_cells(DESCRIPTOR, WINDOWS)
    column = pa.array(range(10))
    seats = backend.touch_column(column, hash_keys(Types.LONG(), column))
    for window in range(50):
        table.compact()
        cells = table.cells.find(seats, [(window, window + 1)], np.zeros(len(seats), dtype=np.int64))
        table.update(cells, VALUE.to_arrow([(window, str(key)) for key in range(10)]))
        if window == 20:
            backend.snapshot()  # storage needs tombstones for the values of two windows
        table.delete(cells[window % 4 :])
    assert len(table.cells) < 250
    (snapshot,) = backend.snapshot().tables
    rows = [(row["namespace"]["f0"], row["key"], row["value"]["f1"]) for row in read_table(snapshot, store).to_pylist()]
    assert sorted(rows) == [(n, key, str(key)) for n in range(50) for key in range(n % 4)]


@pytest.mark.parametrize("namespaced", [False, True])
@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_two_forms_write_the_same_state(make_backend, store, kind, namespaced, data):
    key_type, keys = KEYS[kind]
    value = st.one_of(st.none(), st.tuples(st.integers(0, 9), st.one_of(st.none(), st.text(max_size=2))))
    op = st.tuples(st.sampled_from(keys), st.integers(0, 2), value)
    epochs = data.draw(st.lists(st.tuples(st.lists(op, min_size=1, max_size=8), st.booleans()), min_size=1, max_size=5))
    mixed = expected = None
    for ops, columns in epochs:
        backend = make_backend(mixed, key_type=key_type)
        (in_columns if columns else per_record)(backend, key_type, ops, namespaced)
        mixed = backend.snapshot()
        model = make_backend(expected, key_type=key_type)
        per_record(model, key_type, ops, namespaced)
        expected = model.snapshot()
        (mine,), (theirs,) = mixed.tables, expected.tables
        assert mine.schema == theirs.schema
        assert read_table(mine, store) == read_table(theirs, store)


@pytest.mark.parametrize("namespaced", [False, True])
def test_the_two_forms_write_the_same_files(make_backend, namespaced):
    ops = [(key, n, (n, key)) for key in KEYS["string"][1] for n in range(3)]
    snapshots = []
    for form in (in_columns, per_record):
        backend = make_backend(key_type=Types.STRING())
        form(backend, Types.STRING(), ops, namespaced)
        snapshots.append(backend.snapshot())
    assert snapshots[0] == snapshots[1]


def test_a_batch_loads_only_its_keys_and_a_range_only_its_part(make_backend):
    key_type, keys = Types.LONG(), list(range(100))
    backend = make_backend(key_type=key_type)
    in_columns(backend, key_type, [(key, 0, (key, "x")) for key in keys], False)
    snapshot = backend.snapshot()
    half = KeyGroupRange(0, MAX_PARALLELISM // 2 - 1)
    mine = [k for k, g in zip(keys, groups_of(key_type, keys).tolist(), strict=True) if g <= half.end]
    part = make_backend(snapshot, key_type=key_type, key_groups=half)
    table = part.get_cells(DESCRIPTOR)
    column = key_type.to_arrow(mine)
    seats = part.touch_column(column, hash_keys(key_type, column))
    assert VALUE.from_arrow(table.lookup(seats)) == [(key, "x") for key in mine]
    foreign = key_type.to_arrow([key for key in keys if key not in mine])
    with pytest.raises(ConfigurationError, match="belongs to key group"):
        part.touch_column(foreign, hash_keys(key_type, foreign))


def test_what_came_and_went_leaves_nothing(make_backend):
    backend = make_backend(key_type=Types.LONG())
    table = backend.get_cells(DESCRIPTOR)
    column = pa.array([1, 2])
    seats = backend.touch_column(column, hash_keys(Types.LONG(), column))
    table.update(seats, VALUE.to_arrow([(1, "x"), (2, "y")]))
    table.delete(seats)
    assert backend.snapshot().tables[0].runs == ()


def test_flushed_state_is_read_again(make_backend):
    key_type = Types.LONG()
    backend = make_backend(key_type=key_type, overlay_rows=10)
    for start in range(0, 200, 10):
        in_columns(backend, key_type, [(key, 0, (key, "x")) for key in range(start, start + 10)], True)
    in_columns(backend, key_type, [(key, 1, (key, "y")) for key in range(5)], True)
    restored = make_backend(backend.snapshot(), key_type=key_type)
    state = restored.get_state(DESCRIPTOR, WINDOWS)
    touch(restored, key_type, list(range(200)))
    for key in range(200):
        restored.set_current_key(key)
        state.set_current_namespace((0, 1))
        assert state.value() == (key, "x")


def test_one_operator_uses_state_in_one_way(make_backend):
    backend = make_backend(key_type=Types.LONG())
    backend.get_state(DESCRIPTOR)
    with pytest.raises(ConfigurationError, match="by record and by column"):
        backend.get_cells(DESCRIPTOR)
    backend = make_backend(key_type=Types.LONG())
    backend.get_cells(DESCRIPTOR)
    with pytest.raises(ConfigurationError, match="by record and by column"):
        backend.get_state(DESCRIPTOR)


def test_other_types_and_a_time_to_live_are_refused(make_backend):
    backend = make_backend(key_type=Types.LONG())
    backend.get_cells(DESCRIPTOR)
    with pytest.raises(StateSchemaError):
        backend.get_cells(ValueStateDescriptor("state", Types.LONG()))
    expiring = ValueStateDescriptor("other", Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    with pytest.raises(ConfigurationError, match="time to live"):
        backend.get_cells(expiring)
