from __future__ import annotations

import datetime
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    CorruptStateError,
    StateSchemaError,
    TypeMismatchError,
    UnsupportedKeyTypeError,
)
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import java_hash_codes
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.runs import Runs
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.state.conftest import MakeBackend, groups_of, touch

LONG, STRING = Types.LONG(), Types.STRING()
VALUE = ValueStateDescriptor("v", LONG)


def write(backend: ColumnarKeyedStateBackend, values: dict[Any, Any], descriptor: Any = VALUE) -> KeyedSnapshot:
    state: Any = backend.get_state(descriptor)
    for key, value in values.items():
        backend.set_current_key(key)
        state.update(value)
    return backend.snapshot()


def read(backend: ColumnarKeyedStateBackend, keys: list[Any], descriptor: Any = VALUE) -> list[Any]:
    state: Any = backend.get_state(descriptor)
    values = []
    for key in keys:
        backend.set_current_key(key)
        values.append(state.value())
    return values


def test_colliding_keys_have_their_own_state(make_backend: MakeBackend) -> None:
    assert java_hash_codes(pa.array([-1, 0])).tolist() == [0, 0]
    snapshot = write(make_backend(key_type=LONG), {-1: 1, 0: 2})
    backend = make_backend(snapshot, key_type=LONG)
    touch(backend, LONG, [0, -1, 0])
    assert read(backend, [-1, 0]) == [1, 2]
    one = write(make_backend(key_type=LONG), {-1: 1})
    assert read(make_backend(one, key_type=LONG), [0, -1]) == [None, 1]


def test_the_delta_follows_the_touched_keys(make_backend: MakeBackend) -> None:
    def delta_bytes(keys: int) -> int:
        backend = make_backend(key_type=LONG)
        touch(backend, LONG, list(range(keys)))
        snapshot = write(backend, {key: key for key in range(keys)})
        later = make_backend(snapshot, key_type=LONG)
        touch(later, LONG, list(range(0, keys, keys // 500)))
        after = write(later, {key: -key for key in range(0, keys, keys // 500)})
        assert [run.rows for run in after.tables[0].runs] == [keys, 500]
        assert later.statistics.delta_bytes == after.tables[0].runs[1].bytes
        return later.statistics.delta_bytes

    assert delta_bytes(100_000) < 2 * delta_bytes(10_000)


def test_untouched_state_is_not_written(make_backend: MakeBackend) -> None:
    snapshot = write(make_backend(key_type=LONG), {1: 1})
    backend = make_backend(snapshot, key_type=LONG)
    assert read(backend, [1, 2]) == [1, None]
    assert backend.snapshot() == snapshot
    assert backend.statistics.delta_rows == 0


def test_the_overlay_stays_after_a_snapshot(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    write(backend, {1: 1})
    value = backend.get_state(VALUE)
    assert value.value() == 1
    value.update(2)
    assert read(make_backend(backend.snapshot(), key_type=LONG), [1]) == [2]


def test_new_keys_are_not_looked_up_while_the_overlay_has_all_of_the_state(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    find = Runs.find
    monkeypatch.setattr(Runs, "find", lambda runs, identity: looked_up.append(len(identity)) or find(runs, identity))
    backend = make_backend(key_type=LONG)
    write(backend, {1: 10})
    write(backend, {2: 20})
    assert read(backend, [1, 2, 3]) == [10, 20, None]
    assert looked_up == []
    backend.flush()
    assert read(backend, [1, 3]) == [10, None]
    assert looked_up == [1, 1], "the overlay was emptied"
    assert read(make_backend(backend.snapshot(), key_type=LONG), [2, 3]) == [20, None]
    assert looked_up == [1, 1, 1, 1], "restored state is not in the overlay"


def test_the_overlay_is_written_out_when_it_is_full(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG, overlay_rows=100)
    value = backend.get_state(VALUE)
    for start in range(0, 1000, 50):
        keys = list(range(start, start + 50))
        touch(backend, LONG, keys)
        for key in keys:
            backend.set_current_key(key)
            value.update(key)
    assert backend.statistics.delta_rows >= 900
    snapshot = backend.snapshot()
    assert len(snapshot.tables[0].runs) <= 8
    assert read(make_backend(snapshot, key_type=LONG), [0, 500, 999]) == [0, 500, 999]


@pytest.mark.parametrize("value_bytes", [10, 20_000])
def test_the_overlay_is_written_out_when_it_takes_its_share_of_managed_memory(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, value_bytes: int
) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.overlay_table._in_process", WeakSet())
    share, batch, random = 2 << 20, 10, np.random.default_rng(1)
    values = [random.bytes(value_bytes) for _ in range(1000)]
    descriptor = ValueStateDescriptor("v", Types.PRIMITIVE_ARRAY(Types.BYTE()))
    restored, most = None, []
    for _ in range(2):
        backend = make_backend(restored, key_type=LONG, managed_memory=2 * share)
        other = make_backend(key_type=LONG)  # has the other half
        value = backend.get_state(descriptor)
        for start in range(0, 1000, batch):
            keys = list(range(start, start + batch))
            touch(backend, LONG, keys)
            for key in keys:
                backend.set_current_key(key)
                value.update(values[key])
            most.append(backend.statistics.memory)
        restored = backend.snapshot()
        assert other.statistics.memory == 0
        del backend, value
    of_batch = max(
        after - before for before, after in pairwise([0, *most])
    )  # more than that of values: it is estimated
    assert max(most) <= share + of_batch, "a batch more than its share"
    assert of_batch <= 8 * batch * (max(value_bytes, 1 << 15) + 300)
    if value_bytes > 10:
        assert max(most) > share / 2, "less than the share would be too little"
    again = make_backend(restored, key_type=LONG)
    again.get_state(descriptor)
    for key in (0, 500, 999):
        touch(again, LONG, [key])
        assert again.read("v", key) == values[key]


@pytest.mark.parametrize(("managed", "read"), [(None, 64), (2048, 64), (200, 20), (1, 4)])
def test_a_merge_reads_at_once_what_its_share_of_managed_memory_has_room_for(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, managed: int | None, read: int
) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.overlay_table._in_process", WeakSet())
    backend, _other = (make_backend(key_type=LONG, managed_memory=managed and managed << 20) for _ in range(2))
    backend.begin_checkpoint("1-1", phase=0)
    assert backend._files.part_bytes == read << 20


def test_restoring_a_range_opens_only_what_it_needs(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    keys = list(range(100))
    snapshot = write(make_backend(key_type=LONG), {key: key for key in keys})
    key_groups = KeyGroupRange(4, 7)
    backend = make_backend(snapshot, key_type=LONG, key_groups=key_groups)  # Restricts by itself.
    mine = [key for key, group in zip(keys, groups_of(LONG, keys).tolist(), strict=True) if group in key_groups]
    assert read(backend, mine) == mine
    assert backend.statistics.rows == len(mine)
    assert len(read_table(backend.snapshot().tables[0], store)) == len(mine)


def test_keys_of_other_subtasks_are_refused(make_backend: MakeBackend) -> None:
    keys = list(range(100))
    foreign = next(k for k, g in zip(keys, groups_of(LONG, keys).tolist(), strict=True) if g > 7)
    backend = make_backend(key_type=LONG, key_groups=KeyGroupRange(0, 7))
    with pytest.raises(ConfigurationError, match=rf"'op': key {foreign} belongs to key group .* 0 to 7"):
        touch(backend, LONG, [foreign])


def test_state_that_is_not_asked_for_is_kept(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    first = make_backend(key_type=LONG)
    write(first, {1: 1})
    snapshot = write(first, {1: 5}, ValueStateDescriptor("other", LONG))
    later = make_backend(snapshot, key_type=LONG)
    write(later, {1: 2})
    assert make_backend(later.snapshot()).snapshot() == later.snapshot()  # Even without a single record.
    assert read(make_backend(later.snapshot(), key_type=LONG), [1], ValueStateDescriptor("other", LONG)) == [5]


@pytest.mark.parametrize(
    ("descriptor", "namespace_type"),
    [
        (ValueStateDescriptor("v", STRING), None),
        (ListStateDescriptor("v", LONG), None),
        (MapStateDescriptor("v", LONG, LONG), None),
        (ValueStateDescriptor("v", LONG), STRING),
    ],
)
def test_another_schema_is_refused_with_both(
    make_backend: MakeBackend, descriptor: StateDescriptor, namespace_type: Any
) -> None:
    first = make_backend(key_type=LONG)
    snapshot = write(first, {1: 1})
    said = (r"'op' declares state 'v' twice: as VALUE .* and as .*", r"'op': state 'v' was VALUE .* declared as .*")
    for backend, message in zip((first, make_backend(snapshot)), said, strict=True):
        with pytest.raises(StateSchemaError, match=message):
            backend.get_state(descriptor, namespace_type)


def test_another_key_type_is_refused_with_both(make_backend: MakeBackend) -> None:
    snapshot = write(make_backend(key_type=LONG), {1: 1})
    with pytest.raises(StateSchemaError, match=r"key of state 'v'.*LONG.*STRING") as error:
        make_backend(snapshot, key_type=STRING)
    assert "wider" not in str(error.value)
    backend = make_backend(key_type=LONG)
    with pytest.raises(StateSchemaError, match=r"two types, Types.LONG\(\) and Types.STRING\(\); convert"):
        backend.bind_key_type(STRING)
    backend.bind_key_type(LONG)


def test_the_same_name_is_the_same_state(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    assert backend.get_state(VALUE) is backend.get_state(ValueStateDescriptor("v", LONG))
    assert backend.get_timers("v") is backend.get_timers("v")


def test_state_without_a_current_key_is_refused(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    state = backend.get_state(VALUE)
    for use in (state.value, lambda: state.update(1), state.clear):
        with pytest.raises(ConfigurationError, match="no current key"):
            use()
    with pytest.raises(ConfigurationError, match="is not for keyed state"):
        backend.get_state(StateDescriptor("x", LONG))


def test_a_value_of_another_type_is_named_with_its_key(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=STRING)
    with pytest.raises(TypeMismatchError, match=r"state 'v' of key 'b'.*'many'"):
        write(backend, {"a": 1, "b": "many"})


def test_unhashable_keys_are_refused(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=Types.TUPLE([LONG, LONG]))
    with pytest.raises(UnsupportedKeyTypeError, match=r"\[1, 2\]"):
        backend.set_current_key([1, 2])
    with pytest.raises(UnsupportedKeyTypeError, match="'op'"):
        make_backend(key_type=Types.LIST(LONG))
    state = backend.get_state(MapStateDescriptor("m", STRING, LONG))
    backend.set_current_key((1, 2))
    with pytest.raises(UnsupportedKeyTypeError, match="map key"):
        state.get(["x"])
    for bad in (Types.PICKLED_BYTE_ARRAY(), Types.TUPLE([Types.LIST(LONG)])):
        with pytest.raises(UnsupportedKeyTypeError, match="map key of state 'n'"):
            backend.get_state(MapStateDescriptor("n", bad, LONG))


def test_rows_and_tuples_as_keys(make_backend: MakeBackend) -> None:
    key_type = Types.ROW_NAMED(["a", "b"], [LONG, STRING])
    snapshot = write(make_backend(key_type=key_type), {Row(1, "x"): 1, Row(2, None): 2})
    backend = make_backend(snapshot, key_type=key_type)
    keys = [Row(1, "x"), Row(a=2, b=None), (1, "x"), Row(b="x", a=1), {"b": "x", "a": 1}, Row(3, "x")]
    assert read(backend, keys) == [1, 2, 1, 1, 1, None]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (Types.SQL_DATE(), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
        (Types.SQL_TIME(), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
        (Types.SQL_TIMESTAMP(), [datetime.datetime(2024, 1, 1, 0, 0, 0, n) for n in (1, 2)]),  # hash alike
    ],
    ids=repr,
)
def test_dates_and_times_as_keys(make_backend: MakeBackend, kind: TypeInformation, keys: list[Any]) -> None:
    for key_type, named in ((kind, keys), (Types.TUPLE([LONG, kind]), [(7, key) for key in keys])):
        snapshot = write(make_backend(key_type=key_type), dict(zip(named, (1, 2), strict=True)))
        backend = make_backend(snapshot, key_type=key_type)
        touch(backend, key_type, [named[1], named[0], named[1]])
        assert read(backend, named) == [1, 2]
        assert backend.key_context.current_key() == named[1]
        assert read(make_backend(write(backend, {named[0]: 3}), key_type=key_type), named) == [3, 2]


def test_changes_without_update_are_not_kept(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    items = backend.get_state(ListStateDescriptor("l", LONG))
    backend.set_current_key(1)
    given = [1]
    items.update(given)
    given.append(2)
    items.get().append(3)
    assert items.get() == [1]


def test_entries_of_a_large_map_are_written_one_by_one(make_backend: MakeBackend) -> None:
    descriptor = MapStateDescriptor("m", LONG, LONG)
    first = make_backend(key_type=LONG)
    first.set_current_key(1)
    first.get_state(descriptor).put_all({i: i for i in range(10_000)})
    backend = make_backend(first.snapshot(), key_type=LONG)
    entries = backend.get_state(descriptor)
    backend.set_current_key(1)
    entries.put(5, 50)
    del entries[6]
    assert [run.rows for run in backend.snapshot().tables[0].runs] == [10_000, 2]
    assert len(list(entries)) == 9_999
    assert entries[5] == 50


def test_changing_a_map_inside_a_loop_over_it(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG)
    entries = backend.get_state(MapStateDescriptor("m", STRING, LONG))
    backend.set_current_key(1)
    entries.put_all({"a": 1, "b": 2})
    for key, value in entries.items():
        entries.put(key + key, value)
        entries.remove(key)
    assert dict(entries.items()) == {"aa": 1, "bb": 2}


class Exploding:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)

    def __deepcopy__(self, memo: Any) -> Exploding:
        return self  # state copies what it is given


def test_only_a_declared_pickle_is_unpickled(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    descriptor = ValueStateDescriptor("v", Types.PICKLED_BYTE_ARRAY())
    snapshot = write(make_backend(key_type=LONG), {1: {"any": "value"}}, descriptor)
    assert read(make_backend(snapshot, key_type=LONG), [1], descriptor) == [{"any": "value"}]
    bad = write(make_backend(key_type=LONG), {1: Exploding()}, descriptor)
    (table,) = bad.tables
    assert read_table(table, store)["value"].to_pylist() == [pickle.dumps(Exploding(), protocol=5)]
    with pytest.raises(StateSchemaError):
        make_backend(bad, key_type=LONG).get_state(VALUE)
    make_backend(bad, key_type=LONG).snapshot()


class Renamed:
    """A class that has another name when its value is read."""


def test_a_pickled_value_whose_class_is_gone_names_the_state(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = ValueStateDescriptor("v", Types.PICKLED_BYTE_ARRAY())
    snapshot = write(make_backend(key_type=LONG), {1: Renamed()}, descriptor)
    monkeypatch.delitem(globals(), "Renamed")
    with pytest.raises(TypeMismatchError, match=r"operator 'op', state 'v': a pickled value .* attribute 'Renamed'"):
        read(make_backend(snapshot, key_type=LONG), [1], descriptor)


def test_damaged_state_is_refused_when_it_is_touched(
    make_backend: MakeBackend, store: LocalObjectStore, tmp_path: Path
) -> None:
    snapshot = write(make_backend(key_type=LONG, inline_below=0), {1: 1})
    (path,) = snapshot.files()
    store.put(path, b"PAR1")
    backend = make_backend(snapshot, key_type=LONG, cache=RunCache(tmp_path / "other"))
    backend.get_state(VALUE)
    with pytest.raises(CorruptStateError, match=path):
        backend.set_current_key(1)


def test_equal_state_has_equal_files(make_backend: MakeBackend) -> None:
    one = write(make_backend(key_type=STRING), {"a": 1, "b": 2, "Aa": 3, "BB": 4})
    other = write(make_backend(key_type=STRING), {"BB": 4, "b": 2, "Aa": 3, "a": 1})
    assert one == other


def test_statistics(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=LONG, inline_below=0)
    assert backend.statistics.rows == backend.statistics.bytes == 0
    snapshot = write(backend, {1: 1, 2: 2})
    statistics = backend.statistics
    assert (statistics.rows, statistics.bytes) == (snapshot.rows, snapshot.bytes) == (2, statistics.delta_bytes)
    assert (statistics.delta_rows, statistics.keys_touched) == (2, 2)
    later = make_backend(snapshot, key_type=LONG)
    read(later, [1])
    assert later.statistics.cache_hits == 1
