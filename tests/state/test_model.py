"""Compares random programs with dicts, across snapshots, compaction and changes of parallelism."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.functions import AggregateFunction, ReduceFunction
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index, compute_operator_index_for_key_group
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.keyed_snapshot_future import KeyedSnapshotFuture
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.state.value_folds import PaneState
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples

from .conftest import HASHMAP, make_panes, small_disk
from .deferred import Deferred

MAX_PARALLELISM = 16
NAN = float("nan")


def _row(a: Any, b: Any) -> Row:
    return Row(a=a, b=b)


# -1 and 0 have one hash, "Aa" and "BB" too.
POOLS = {
    "LONG": (Types.LONG(), [-1, 0, 1, 2, 77, 1 << 40, -(1 << 63)]),
    "STRING": (Types.STRING(), ["", "Aa", "BB", "AaAa", "BBBB", "AaBB", "é", "\U0001f680"]),
    "DOUBLE": (Types.DOUBLE(), [0.0, -0.0, NAN, 1.5, math.inf, -math.inf]),
    "TUPLE": (
        Types.TUPLE([Types.LONG(), Types.STRING()]),
        [(0, "Aa"), (-1, "Aa"), (0, "BB"), (-1, "BB"), (5, None), (None, None)],
    ),
    "ROW": (
        Types.ROW_NAMED(["a", "b"], [Types.DOUBLE(), Types.STRING()]),
        [_row(NAN, "Aa"), _row(0.0, "BB"), _row(-0.0, "BB"), _row(None, "x"), _row(1.0, None)],
    ),
}
MAP_KEYS = [0.0, -0.0, NAN, -2.5]
NAMESPACES = [(0, 10), (10, 20)]


class Longest(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return (acc_a[0] + acc_b[0], acc_a[1] + acc_b[1])


class ByKey:
    """The state of windows, used like that of a program: by the current key."""

    def __init__(self, panes: PaneState) -> None:
        self._panes = panes

    def set_current_namespace(self, namespace: Any) -> None:
        self._namespace = namespace

    def _cell(self) -> Any:
        table = self._panes.table
        return table.find(np.array([table.require_key()]), [self._namespace], np.zeros(1, dtype=np.int64))

    def add(self, value: Any) -> None:
        self._panes.add_each([self._panes.table.require_key()], self._cell(), (value,))

    def get(self) -> Any:
        (cell,) = self._cell().tolist()
        return self._panes.get_of(cell)

    def clear(self) -> None:
        self._panes.table.delete(self._cell())

    def merge_namespaces(self, target: Any, sources: list[Any]) -> None:
        for source in sources:
            self.set_current_namespace(source)
            (other,) = self._cell().tolist()
            self.set_current_namespace(target)
            self._panes.merge(self._cell().item(), other)


class Subtask:
    """A backend with the states of the program."""

    def __init__(self, backend: ColumnarKeyedStateBackend, key_type: Any, late: bool) -> None:
        namespace = Types.TUPLE([Types.LONG(), Types.LONG()])
        if not late:
            backend.bind_key_type(key_type)
        self.backend = backend
        self.value = backend.get_state(ValueStateDescriptor("value", Types.STRING()))
        self.list = backend.get_state(ListStateDescriptor("list", Types.LONG()))
        self.map = backend.get_state(MapStateDescriptor("map", Types.DOUBLE(), Types.LONG()))
        panes = ListStateDescriptor("panes", Types.STRING())
        self.panes: Any = ByKey(make_panes(backend, panes, namespace)) if late else backend.get_state(panes, namespace)
        windows = ReducingStateDescriptor("windows", Longest(), Types.LONG())
        self.windows: Any = (
            ByKey(make_panes(backend, windows, namespace)) if late else backend.get_state(windows, namespace)
        )
        self.mean = backend.get_state(
            AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        )
        self.timers = backend.get_timers("value", namespace)  # The same name as a state is fine.
        backend.bind_key_type(key_type)


MODEL = ("values", "lists", "maps", "panes", "windows", "means", "timers")


def bits(number: float) -> str:
    return number.hex()


class Program(RuleBasedStateMachine):
    kind = "LONG"
    made = 0

    @initialize(
        parallelism=st.integers(1, 4),
        overlay_rows=st.sampled_from([0, 8, 1000]),
        late=st.booleans(),
        inline_below=st.sampled_from([0, 6000, 20_000]),
        heap=st.booleans(),
    )
    def start(self, parallelism: int, overlay_rows: int, late: bool, inline_below: int, heap: bool) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.store = LocalObjectStore(self.directory / "store")
        self.cache = RunCache(self.directory / "cache")
        self.heap = heap
        self.overlay_rows, self.late, self.inline_below = overlay_rows, late, inline_below
        self.key_type, self.pool = POOLS[self.kind]
        column = self.key_type.to_arrow(self.pool)
        self.hashes = hash_keys(self.key_type, column)
        self.groups = key_groups_of_hashes(self.hashes, MAX_PARALLELISM)
        # By index of the key, because the model has no equality of keys.
        self.values: dict[int, str] = {}
        self.lists: dict[int, list[int]] = {}
        self.maps: dict[int, dict[str, int | None]] = {}
        self.panes: dict[tuple[int, int], list[str]] = {}
        self.windows: dict[tuple[int, int], int] = {}
        self.means: dict[int, list[int]] = {}
        self.timers: set[tuple[int, int, int]] = set()
        self.begun: tuple[list[KeyedSnapshotFuture], dict[str, Any]] | None = None
        self.make([None] * parallelism)

    def make(self, snapshots: list[KeyedSnapshot | None]) -> None:
        self.subtasks = []
        self.made += 1
        for i, snapshot in enumerate(snapshots):
            key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, len(snapshots), i)
            options: dict[str, Any] = {
                "operator": "op",
                "key_groups": key_groups,
                "max_parallelism": MAX_PARALLELISM,
                "store": self.store,
                "cache": self.cache,
                "restored": snapshot,
                "inline_below": self.inline_below,
                "written_by": f"1-{self.made}",
            }
            options |= HASHMAP if self.heap else {"overlay_rows": self.overlay_rows, "phase": (self.made + i) % 2}
            backend = ColumnarKeyedStateBackend(**options)
            self.subtasks.append(Subtask(backend, self.key_type, self.late))

    def at(self, i: int, touched: bool = False) -> Subtask:
        i %= len(self.pool)
        index = compute_operator_index_for_key_group(MAX_PARALLELISM, len(self.subtasks), int(self.groups[i]))
        subtask = self.subtasks[index]
        if touched:
            subtask.backend.touch_column(self.key_type.to_arrow([self.pool[i]]), self.hashes[i : i + 1])
        subtask.backend.set_current_key(self.pool[i])
        return subtask

    keys = st.integers(0, 7)

    @rule(key=keys, value=st.sampled_from(["a", "b", None]), clear=st.booleans(), touched=st.booleans())
    def update(self, key: int, value: str | None, clear: bool, touched: bool) -> None:
        subtask, key = self.at(key, touched), key % len(self.pool)
        assert subtask.value.value() == self.values.get(key)
        if value is None and clear:
            subtask.value.clear()
        else:
            subtask.value.update(value)
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    @rule(
        key=keys,
        values=st.lists(st.integers(0, 9), max_size=2),
        what=st.sampled_from(["add", "add_all", "update", "clear"]),
        look=st.booleans(),
    )
    def change_list(self, key: int, values: list[int], what: str, look: bool) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        if look:
            assert list(subtask.list.get()) == self.lists.get(key, [])
        if what == "add":
            for value in values:
                subtask.list.add(value)
            self.lists[key] = self.lists.get(key, []) + values
        elif what == "add_all":
            subtask.list.add_all(values)
            self.lists[key] = self.lists.get(key, []) + values
        elif what == "update":
            subtask.list.update(values)
            self.lists[key] = values
        else:
            subtask.list.clear()
            self.lists[key] = []

    @rule(key=keys, map_key=st.sampled_from(MAP_KEYS), value=st.sampled_from([1, 2, None]))
    def put(self, key: int, map_key: float, value: int | None) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        assert subtask.map.get(map_key) == self.maps.get(key, {}).get(bits(map_key))
        subtask.map.put(map_key, value)
        self.maps.setdefault(key, {})[bits(map_key)] = value

    @rule(key=keys, map_key=st.sampled_from(MAP_KEYS), everything=st.booleans())
    def remove(self, key: int, map_key: float, everything: bool) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        if everything:
            subtask.map.clear()
            self.maps.pop(key, None)
        else:
            subtask.map.remove(map_key)
            self.maps.get(key, {}).pop(bits(map_key), None)
        assert not subtask.map.contains(map_key)

    @rule(
        key=keys, pane=st.integers(0, 1), value=st.sampled_from("ab"), what=st.sampled_from(["add", "clear", "merge"])
    )
    def change_pane(self, key: int, pane: int, value: str, what: str) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        subtask.panes.set_current_namespace(NAMESPACES[pane])
        if what == "add":
            subtask.panes.add(value)
            self.panes.setdefault((key, pane), []).append(value)
        elif what == "clear":
            subtask.panes.clear()
            self.panes.pop((key, pane), None)
        elif not self.late:  # windows that many keys share do not merge
            subtask.panes.merge_namespaces(NAMESPACES[pane], [NAMESPACES[1 - pane]])
            moved = self.panes.pop((key, 1 - pane), [])
            self.panes[key, pane] = self.panes.get((key, pane), []) + moved

    @rule(key=keys, window=st.integers(0, 1), value=st.integers(0, 5), clear=st.booleans())
    def change_window(self, key: int, window: int, value: int, clear: bool) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        subtask.windows.set_current_namespace(NAMESPACES[window])
        if clear:
            subtask.windows.clear()
            self.windows.pop((key, window), None)
        else:
            subtask.windows.add(value)
            self.windows[key, window] = max(value, self.windows.get((key, window), 0))
        assert subtask.windows.get() == self.windows.get((key, window))

    @rule(key=keys, value=st.integers(0, 5))
    def average(self, key: int, value: int) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        subtask.mean.add(value)
        seen = self.means.setdefault(key, [])
        seen.append(value)
        assert subtask.mean.get() == sum(seen) / len(seen)

    @rule(key=keys, time=st.integers(-3, 9), window=st.integers(0, 1), register=st.sampled_from([True, True, False]))
    def change_timer(self, key: int, time: int, window: int, register: bool) -> None:
        subtask, key = self.at(key), key % len(self.pool)
        subtask.timers.set_current_namespace(NAMESPACES[window])
        if register:
            subtask.timers.register(time)
            self.timers.add((time, key, window))
        else:
            subtask.timers.delete(time)
            self.timers.discard((time, key, window))

    @rule(time=st.integers(-3, 9), again=st.booleans())
    def advance(self, time: int, again: bool) -> None:
        """Fires timers. The first timer of each key registers another one that is also due."""
        for index, subtask in enumerate(self.subtasks):
            mine = {t for t in self.timers if self.owner(t[1]) == index and t[0] <= time}
            fired = []
            for when, key, namespace in subtask.timers.advance_to(time):
                i = self.index_of(key)
                fired.append((when, i, NAMESPACES.index(namespace)))
                assert subtask.value.value() == self.values.get(i)
                if again and fired[-1] in mine and (time, i, fired[-1][2]) not in mine:
                    subtask.timers.set_current_namespace(namespace)
                    subtask.timers.register(time)
                    mine.add((time, i, fired[-1][2]))
            assert sorted(fired) == sorted(mine)
            order = [(when, self.groups[i], int(self.hashes[i]) & 0xFFFFFFFF) for when, i, _ in fired]
            assert order == sorted(order)
            self.timers -= mine

    def owner(self, i: int) -> int:
        return compute_operator_index_for_key_group(MAX_PARALLELISM, len(self.subtasks), int(self.groups[i]))

    def index_of(self, key: Any) -> int:
        return next(i for i, known in enumerate(self.pool) if repr(known) == repr(key))

    @rule()
    def snapshot(self) -> None:
        snapshots = [subtask.backend.snapshot() for subtask in self.subtasks]
        for subtask in self.subtasks:
            again = subtask.backend.snapshot()
            assert again == snapshots[self.subtasks.index(subtask)]

    @rule(fails=st.sampled_from(["", "", "before", "after"]))
    def begin_snapshot(self, fails: str) -> None:
        Deferred.fails = fails
        futures = [subtask.backend.begin_snapshot() for subtask in self.subtasks]
        Deferred.fails = ""
        self.begun = futures, copy.deepcopy({name: getattr(self, name) for name in MODEL})

    @precondition(lambda self: self.begun)
    @rule()
    def end_snapshot(self) -> None:
        """Checks that a snapshot has nothing of what came after its barrier."""
        assert self.begun is not None
        (futures, then), self.begun = self.begun, None
        if any(future.has_failed for future in futures):
            return
        now = {name: getattr(self, name) for name in (*MODEL, "subtasks")}
        vars(self).update(then)
        snapshots: list[KeyedSnapshot | None] = [future.result() for future in futures]
        self.make(snapshots)
        self.check_tables(snapshots)
        self.reads_what_was_written()
        self.advance(9, again=False)
        vars(self).update(now)

    @rule(parallelism=st.integers(1, 5), cold=st.booleans(), heap=st.booleans())
    def restore(self, parallelism: int, cold: bool, heap: bool) -> None:
        self.heap = heap
        old = [KeyedSnapshot.from_json(subtask.backend.snapshot().to_json()) for subtask in self.subtasks]
        if cold:
            shutil.rmtree(self.directory / "cache", ignore_errors=True)
        restored: list[KeyedSnapshot | None] = []
        for i in range(parallelism):
            key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, parallelism, i)
            pieces = [piece for snapshot in old if (piece := snapshot.restrict(key_groups))]
            restored.append(KeyedSnapshot.concat(pieces, key_groups))
        self.make(restored)
        self.check_tables(restored)
        self.reads_what_was_written()

    def check_tables(self, snapshots: list[KeyedSnapshot | None]) -> None:
        tables = [t for s in snapshots if s is not None for t in s.tables]
        rows: dict[str, int] = {}
        for table in tables:
            name = table.kind if table.kind == "TIMER" else table.name
            found = read_table(table, self.store)
            rows[name] = rows.get(name, 0) + len(found)
        expected = {
            "value": len(self.values),
            "list": sum(map(bool, self.lists.values())),
            "map": sum(map(len, self.maps.values())),
            "panes": sum(map(bool, self.panes.values())),
            "windows": len(self.windows),
            "mean": len(self.means),
            "TIMER": len(self.timers),
        }
        assert {name: count for name, count in rows.items() if count} == {n: c for n, c in expected.items() if c}

    @rule()
    def reads_what_was_written(self) -> None:
        for i in range(len(self.pool)):
            subtask = self.at(i)
            assert subtask.value.value() == self.values.get(i)
            assert list(subtask.list.get()) == self.lists.get(i, [])
            assert {bits(k): v for k, v in subtask.map.items()} == self.maps.get(i, {})
            assert subtask.map.is_empty() == (not self.maps.get(i))
            for window, namespace in enumerate(NAMESPACES):
                subtask.windows.set_current_namespace(namespace)
                assert subtask.windows.get() == self.windows.get((i, window))
                subtask.panes.set_current_namespace(namespace)
                assert (subtask.panes.get() or []) == self.panes.get((i, window), [])
            seen = self.means.get(i)
            assert subtask.mean.get() == (sum(seen) / len(seen) if seen else None)

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.mark.parametrize("kind", POOLS)
def test_state_behaves_like_dicts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.state.cell_table._SPARE_CELLS", 2)  # cells are numbered anew often
    monkeypatch.setattr("dagster_flinkpy.state.backend.run_aside", Deferred)
    machine = type(f"Program_{kind}", (Program,), {"kind": kind})
    few = settings(max_examples=examples(15), stateful_step_count=30, suppress_health_check=list(HealthCheck))
    with small_disk(4000, look_after=125):
        run_state_machine_as_test(machine, settings=few)
