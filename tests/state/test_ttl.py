from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.functions import AggregateFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import ConfigurationError, StateSchemaError
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot, TableSnapshot
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.state.conftest import MakeBackend

MAX_PARALLELISM = 16
TTL = 10
KEYS = list(range(6))


class Sum(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return -accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


def with_ttl(descriptor: Any, config: StateTtlConfig) -> Any:
    descriptor.enable_time_to_live(config)
    return descriptor


def descriptors() -> dict[str, StateDescriptor]:
    return {
        "value": ValueStateDescriptor("value", Types.STRING()),
        "list": ListStateDescriptor("list", Types.LONG()),
        "map": MapStateDescriptor("map", Types.STRING(), Types.LONG()),
        "sum": ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()),
        "total": AggregatingStateDescriptor("total", Sum(), Types.LONG()),
    }


def builder(on_read: bool = False, ttl: int = TTL) -> StateTtlConfig.Builder:
    made = StateTtlConfig.new_builder(Time.milliseconds(ttl))
    return made.update_ttl_on_read_and_write() if on_read else made


@st.composite
def settings_of_states(draw: Any) -> dict[str, Any]:
    """Returns a time to live, and how a backend keeps what has it."""
    ttl, on_read = draw(st.sampled_from([TTL, 3, 40])), draw(st.booleans())
    made = builder(on_read, ttl)
    if draw(st.booleans()):
        made.cleanup_full_snapshot()
    if expired := draw(st.booleans()):
        made.return_expired_if_not_cleaned_up()
    heap = draw(st.booleans())
    options = (
        {"overlay_rows": 1 << 62, "one_run": True} if heap else {"overlay_rows": draw(st.sampled_from([0, 6, 1000]))}
    )
    return {"ttl": ttl, "on_read": on_read, "expired": expired, "config": made.build(), "options": options}


def is_between(live: list[tuple[int, int]], found: list[int], known: list[tuple[int, int]]) -> bool:
    """Returns whether a list has all elements that are live, in order, and of others only ones that have expired."""
    if not known:
        return not found
    here = bool(found) and found[0] == known[0][0]
    if live and known[0] is live[0]:
        return here and is_between(live[1:], found[1:], known[1:])
    return is_between(live, found, known[1:]) or (here and is_between(live, found[1:], known[1:]))


class Program(RuleBasedStateMachine):
    """Compares random programs with dicts of values and their expiry times."""

    @initialize(settings=settings_of_states(), parallelism=st.integers(1, 3))
    def start(self, settings: dict[str, Any], parallelism: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.store = LocalObjectStore(self.directory / "store")
        self.cache = RunCache(self.directory / "cache")
        self.time = 1000
        vars(self).update(settings)
        # For each state and key, and each entry of a map: value and expiry. For a list, a list of such pairs.
        self.cells: dict[Any, tuple[Any, int]] = {}
        self.lists: dict[int, list[tuple[int, int]]] = {}
        self.maps: dict[int, dict[str, tuple[int, int]]] = {}
        self.make([None] * parallelism)

    def make(self, snapshots: list[KeyedSnapshot | None]) -> None:
        self.subtasks = []
        for i, snapshot in enumerate(snapshots):
            backend = ColumnarKeyedStateBackend(
                operator="op",
                key_groups=compute_key_group_range_for_operator_index(MAX_PARALLELISM, len(snapshots), i),
                max_parallelism=MAX_PARALLELISM,
                store=self.store,
                cache=self.cache,
                restored=snapshot,
                now=lambda: self.time,
                **self.options,
            )
            backend.bind_key_type(Types.LONG())
            states = {name: backend.get_state(with_ttl(d, self.config)) for name, d in descriptors().items()}
            self.subtasks.append((backend, states))

    def at(self, key: int, name: str) -> Any:
        for backend, states in self.subtasks:
            try:
                backend.set_current_key(key)
            except ConfigurationError:  # of another subtask
                continue
            return states[name]
        raise AssertionError(key)

    def read(self, where: dict[Any, tuple[Any, int]], what: Any, found: Any) -> bool:
        """Returns whether what was found may be read."""
        value, expires = where.get(what, (None, 0))
        if expires <= self.time:
            where.pop(what, None)
            return found is None or (self.expired and found == value)  # storage may have dropped it before
        if self.on_read:
            where[what] = (value, self.time + self.ttl)
        return bool(found == value)

    keys = st.sampled_from(KEYS)

    @rule(by=st.integers(1, 12))
    def wait(self, by: int) -> None:
        self.time += by

    @rule(key=keys, value=st.sampled_from(["a", "b", None]), write=st.booleans())
    def value(self, key: int, value: str | None, write: bool) -> None:
        state = self.at(key, "value")
        assert self.read(self.cells, ("value", key), state.value())
        if write:
            state.update(value)
            self.cells.pop(("value", key), None)
            if value is not None:
                self.cells["value", key] = (value, self.time + self.ttl)

    @rule(key=keys, name=st.sampled_from(["sum", "total"]), value=st.integers(1, 9), look=st.booleans())
    def add(self, key: int, name: str, value: int, look: bool) -> None:
        state = self.at(key, name)
        if look or self.expired:
            found = state.get()
            assert self.read(self.cells, (name, key), found if name == "sum" or found is None else -found)
        stored, expires = self.cells.get((name, key), (0, 0))
        state.add(value)
        self.cells[name, key] = ((stored if expires > self.time else 0) + value, self.time + self.ttl)

    @rule(
        key=keys,
        values=st.lists(st.integers(0, 9), max_size=2),
        what=st.sampled_from(["add", "update", "clear", "look"]),
    )
    def change_list(self, key: int, values: list[int], what: str) -> None:
        state, expires = self.at(key, "list"), self.time + self.ttl
        if what == "add":
            state.add_all(values)
            self.lists[key] = self.lists.get(key, []) + [(v, expires) for v in values]
        elif what == "update":
            state.update(values)
            self.lists[key] = [(v, expires) for v in values]
        elif what == "clear":
            state.clear()
            self.lists[key] = []
        else:
            known = self.lists.get(key, [])
            live = [(v, e) for v, e in known if e > self.time]
            found = list(state)
            assert found == [v for v, _ in live] or (self.expired and is_between(live, found, known))
            self.lists[key] = [(v, expires) for v, _ in live] if self.on_read else live

    @rule(
        key=keys,
        entry=st.sampled_from("xyz"),
        value=st.integers(0, 9),
        what=st.sampled_from(["put", "remove", "get", "in"]),
    )
    def change_entry(self, key: int, entry: str, value: int, what: str) -> None:
        state, entries = self.at(key, "map"), self.maps.setdefault(key, {})
        if what == "put":
            state.put(entry, value)
            entries[entry] = (value, self.time + self.ttl)
        elif what == "remove":
            state.remove(entry)
            entries.pop(entry, None)
        elif what == "get":
            assert self.read(entries, entry, state.get(entry))
        else:
            assert self.read(entries, entry, entries.get(entry, (None,))[0] if entry in state else None)

    @rule(key=keys, what=st.sampled_from(["items", "keys", "values", "empty", "clear"]))
    def look_at_map(self, key: int, what: str) -> None:
        state, entries = self.at(key, "map"), self.maps.setdefault(key, {})
        live = {entry for entry, (_, expires) in entries.items() if expires > self.time}
        assert state.is_empty() == (not live) or self.expired
        if what == "clear":
            state.clear()
            entries.clear()
        elif what != "empty":
            known = {entry: value for entry, (value, _) in entries.items()}
            found = list({"items": state.items, "keys": state.keys, "values": state.values}[what]())
            each = {"items": dict.items, "keys": dict.keys, "values": dict.values}[what]
            shown = list(each({entry: value for entry, value in known.items() if entry in live}))
            assert sorted(found) == sorted(shown) or (self.expired and not Counter(found) - Counter(each(known)))
            for entry in known:
                self.read(entries, entry, None)

    @rule(restart=st.booleans(), parallelism=st.integers(1, 3), settings=settings_of_states())
    def snapshot(self, restart: bool, parallelism: int, settings: dict[str, Any]) -> None:
        snapshots = [KeyedSnapshot.from_json(backend.snapshot().to_json()) for backend, _ in self.subtasks]
        if not restart:
            return
        new: list[KeyedSnapshot | None] = []
        for i in range(parallelism):
            key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, i)
            parts = [part for s in snapshots if (part := s.restrict(key_groups))]
            new.append(KeyedSnapshot.concat(parts, key_groups) if parts else None)
        vars(self).update(settings)
        self.make(new)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)


def test_any_program_reads_what_has_not_expired() -> None:
    run_state_machine_as_test(
        Program,
        settings=settings(max_examples=examples(60), stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


# --- one rule at a time -----------------------------------------------------------------------------------------------


class At:
    """A backend with one key, whose clock the test sets."""

    def __init__(
        self, make_backend: MakeBackend, config: StateTtlConfig, restored: KeyedSnapshot | None = None
    ) -> None:
        self.time = 0
        self.backend = make_backend(restored, key_type=Types.STRING(), now=lambda: self.time)
        self.states = {n: self.backend.get_state(with_ttl(d, config)) for n, d in descriptors().items()}
        self.backend.set_current_key("k")

    def __getattr__(self, name: str) -> Any:
        return self.states[name]

    def table(self, name: str, snapshot: KeyedSnapshot) -> TableSnapshot:
        return next(t for t in snapshot.tables if t.name == name)


def test_state_expires_when_its_time_has_come(make_backend: MakeBackend) -> None:
    at = At(make_backend, builder().build())
    at.value.update("a")
    at.time = TTL - 1
    assert at.value.value() == "a"
    at.time = TTL
    assert at.value.value() is None


def test_expired_state_can_be_read_once_where_that_is_wanted(make_backend: MakeBackend) -> None:
    at = At(make_backend, builder().return_expired_if_not_cleaned_up().build())
    at.value.update("a")
    at.list.add_all([1, 2])
    at.map.put_all({"x": 1, "y": 2})
    at.sum.add(5)
    at.time = TTL
    at.map.put("z", 3)
    assert not at.map.is_empty()
    assert [at.value.value(), at.value.value()] == ["a", None]
    assert [list(at.list), list(at.list)] == [[1, 2], []]
    assert [dict(at.map.items()), dict(at.map.items())] == [{"x": 1, "y": 2, "z": 3}, {"z": 3}]
    at.sum.add(1)
    assert at.sum.get() == 6  # as in Flink's TtlReduceFunction


def test_what_has_expired_and_was_read_is_gone_from_storage(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    at = At(make_backend, builder().build())
    at.value.update("a")
    snapshot = at.backend.snapshot()
    stored = read_table(at.table("value", snapshot), store)
    assert stored.column_names == ["key_group", "key_hash", "key", "value", "expires_at"]
    assert stored.select(["key", "value", "expires_at"]).to_pylist() == [{"key": "k", "value": "a", "expires_at": TTL}]
    at.time = TTL
    assert at.value.value() is None
    assert not len(read_table(at.table("value", at.backend.snapshot()), store))


def test_a_list_keeps_a_time_per_element(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    at = At(make_backend, builder().build())
    at.list.add(1)
    at.time = 5
    at.list.add(2)
    snapshot = KeyedSnapshot.from_json(at.backend.snapshot().to_json())
    rows = read_table(at.table("list", snapshot), store).select(["value", "expires_at"]).to_pylist()
    assert rows == [{"value": [1, 2], "expires_at": [TTL, TTL + 5]}]
    again = At(make_backend, builder().build(), snapshot)
    again.time = TTL
    assert list(again.list) == [2]


def test_compaction_drops_what_has_expired(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    at = At(make_backend, builder().build())
    for i in range(30):
        at.time = i
        at.backend.set_current_key(f"k{i}")
        at.value.update("v")
        at.list.add(i)
        at.map.put("x", i)
        snapshot = at.backend.snapshot()
    at.time = 1000
    at.backend.set_current_key("last")
    for _ in range(10):
        at.value.update("w")
        at.list.add(1)
        at.map.put("x", 1)
        snapshot = at.backend.snapshot()
    # No key was read, yet only a few of the old rows are left: those of the newest runs.
    assert all(at.table(name, snapshot).rows < 20 for name in ("value", "list", "map"))


def test_a_list_that_is_emptied_after_it_was_left_out_needs_no_tombstone(make_backend: MakeBackend) -> None:
    at = At(make_backend, builder().cleanup_full_snapshot().build())
    at.list.add(0)
    at.time = TTL
    at.backend.snapshot()
    at.list.update([])
    assert not any(table.rows for table in at.backend.snapshot().tables)


def test_a_full_snapshot_leaves_out_what_has_expired(make_backend: MakeBackend) -> None:
    at = At(make_backend, builder().cleanup_full_snapshot().build())
    for i in range(5):
        at.time = i
        at.backend.set_current_key(f"k{i}")
        at.value.update("v")
        at.list.add(i)
    at.backend.snapshot()
    at.time = TTL + 2
    snapshot = at.backend.snapshot()
    assert [at.table(name, snapshot).rows for name in ("value", "list")] == [2, 2]
    at.time = 1000
    assert at.backend.snapshot().rows == 0


def test_rows_get_their_names_as_without_ttl(make_backend: MakeBackend) -> None:
    row_type = Types.ROW_NAMED(["a"], [Types.LONG()])
    backend = make_backend(key_type=Types.STRING())
    config = StateTtlConfig.new_builder(Duration.of_days(1)).build()
    value = backend.get_state(with_ttl(ValueStateDescriptor("v", row_type), config))
    entries = backend.get_state(with_ttl(MapStateDescriptor("m", Types.LONG(), row_type), config))
    backend.set_current_key("k")
    value.update(Row(1))
    entries.put(1, Row(2))
    assert value.value().a == 1
    assert entries.get(1).a == 2


def test_namespaces_that_merge_leave_out_what_has_expired(make_backend: MakeBackend) -> None:
    now = [0]
    config = builder().build()
    total = with_ttl(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()), config)
    values = with_ttl(ListStateDescriptor("list", Types.LONG()), config)

    def open_states(snapshot: KeyedSnapshot | None) -> tuple[ColumnarKeyedStateBackend, list[Any]]:
        backend = make_backend(snapshot, key_type=Types.STRING(), now=lambda: now[0])
        states = [backend.get_state(each, Types.LONG()) for each in (total, values)]
        backend.set_current_key("k")
        return backend, states

    backend, states = open_states(None)
    for now[0], namespace in ((0, 1), (5, 2), (9, 3)):
        for state in states:
            state.set_current_namespace(namespace)
            state.add(10**namespace)
    now[0] = TTL
    for state in states:
        state.merge_namespaces(3, [1, 2])
    _, states = open_states(backend.snapshot())
    found = []
    for namespace in (1, 2, 3):
        for state in states:
            state.set_current_namespace(namespace)
            found.append(state.get())
    assert found == [None, [], None, [], 1100, [1000, 100]]


@pytest.mark.parametrize("first", [True, False])
def test_ttl_cannot_be_turned_on_or_off_for_stored_state(make_backend: MakeBackend, first: bool) -> None:
    backend = make_backend(key_type=Types.STRING())
    config = builder().build()
    plain, limited = ValueStateDescriptor("v", Types.LONG()), with_ttl(ValueStateDescriptor("v", Types.LONG()), config)
    state = backend.get_state(limited if first else plain)
    backend.set_current_key("k")
    state.update(1)
    restored = make_backend(KeyedSnapshot.from_json(backend.snapshot().to_json()), key_type=Types.STRING())
    with pytest.raises(StateSchemaError, match="with a time to live") as error:
        restored.get_state(plain if first else limited)
    assert "wider" not in str(error.value)


def test_the_ttl_itself_may_change(make_backend: MakeBackend) -> None:
    at = At(make_backend, builder().build())
    at.value.update("a")
    snapshot = at.backend.snapshot()
    again = At(make_backend, StateTtlConfig.new_builder(Time.days(1)).build(), snapshot)
    again.time = TTL
    assert again.value.value() is None  # written state keeps its expiry
    again.value.update("b")
    again.time = 1000
    assert again.value.value() == "b"


def test_disabled_ttl_is_no_ttl(make_backend: MakeBackend) -> None:
    config = builder().set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    assert not config.is_enabled()
    at = At(make_backend, config)
    at.value.update("a")
    at.time = 10 * TTL
    assert at.value.value() == "a"
    assert not at.table("value", at.backend.snapshot()).ttl


def test_the_configuration_has_pyflinks_defaults_and_names() -> None:
    config = StateTtlConfig.new_builder(Time.seconds(1)).build()
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert config.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.get_ttl() == Time.seconds(1)
    strategies = config.get_cleanup_strategies()
    assert strategies.is_cleanup_in_background()
    assert not strategies.in_full_snapshot()
    assert strategies.get_incremental_cleanup_strategy().get_cleanup_size() == 5
    assert strategies.get_rocksdb_compact_filter_cleanup_strategy().get_query_time_after_num_entries() == 1000
    config = (
        StateTtlConfig.new_builder(timedelta(seconds=1))
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(7, Duration.of_days(2))
        .disable_cleanup_in_background()
        .build()
    )
    assert config.ttl_millis == 1000
    strategies = config.get_cleanup_strategies()
    assert strategies.in_full_snapshot()
    assert strategies.get_incremental_cleanup_strategy().run_cleanup_for_every_record()
    assert strategies.get_rocksdb_compact_filter_cleanup_strategy().get_periodic_compaction_time() == Duration.of_days(
        2
    )
    off = StateTtlConfig.new_builder(Time.seconds(1)).disable_cleanup_in_background().build().get_cleanup_strategies()
    assert off.get_incremental_cleanup_strategy() is None


@pytest.mark.parametrize("ttl", [0, -1, 5, None, "1 s", Time.milliseconds(0), Duration.of_millis(-5)])
def test_a_time_to_live_is_a_span_above_zero(ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="time to live"):
        StateTtlConfig.new_builder(ttl)


def test_wrong_settings_are_refused() -> None:
    made = StateTtlConfig.new_builder(Time.seconds(1))
    with pytest.raises(ConfigurationError, match="UpdateType"):
        made.set_update_type("OnReadAndWrite")
    with pytest.raises(ConfigurationError, match="StateVisibility"):
        made.set_state_visibility(1)
    with pytest.raises(ConfigurationError, match="cleanup_size"):
        made.cleanup_incrementally(0, False)
    with pytest.raises(ConfigurationError, match="state 'v' needs a StateTtlConfig"):
        ValueStateDescriptor("v", Types.LONG()).enable_time_to_live(Time.seconds(1))
    with pytest.raises(ConfigurationError, match="state 's' needs a ReduceFunction or a callable"):
        ReducingStateDescriptor("s", 5, Types.LONG())
    with pytest.raises(ConfigurationError, match="state 'a' needs an AggregateFunction"):
        AggregatingStateDescriptor("a", max, Types.LONG())
