"""A job continues from state whose types its program has changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import CheckpointedFunction, KeyedBatchFunction, KeyedProcessFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import StateSchemaError
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state_processor import read_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment, events

OLD = Types.ROW_NAMED(["n", "gone"], [Types.INT(), Types.STRING()])
NEW = Types.ROW_NAMED(["n", "added"], [Types.LONG(), Types.STRING()])


class Kinds(KeyedProcessFunction, CheckpointedFunction):
    """Keeps state of each kind with a row in it.

    Args:
        kind: Type of the row.
        number: Type of numbers.
        added: The second field of new rows.
    """

    def __init__(self, kind: TypeInformation, number: TypeInformation, added: str) -> None:
        self._kind, self._number, self._added = kind, number, added

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self._list = store.get_list_state(ListStateDescriptor("list", self._kind))
        self._rules = store.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), self._kind))

    def snapshot_state(self, context: Any) -> None:
        pass

    def open(self, runtime_context: Any) -> None:
        row, number = self._kind, self._number
        self._value = runtime_context.get_state(ValueStateDescriptor("value", row))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), row))
        self._rows = runtime_context.get_list_state(ListStateDescriptor("rows", row))
        self._sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, number))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        row = Row(value.value, self._added)
        yield {
            "value": _plain(self._value.value()),
            "map": {key: _plain(each) for key, each in self._map.items()},
            "rows": [_plain(each) for each in self._rows.get()],
            "sum": self._sum.get(),
            "list": [_plain(each) for each in self._list.get()],
            "rules": {key: _plain(each) for key, each in self._rules.items()},
        }
        self._value.update(row)
        self._map.put(value.time, row)
        self._rows.add(row)
        self._sum.add(value.value)
        self._list.update([row])
        self._rules.put("rule", row)


def _plain(row: Row | None) -> Any:
    return row and row.as_dict()


def graph(kind: TypeInformation, number: TypeInformation, added: str, value: int, parallelism: int = 1) -> JobGraph:
    records = [("a", 1, value), ("a", 2, value)]
    function = Kinds(kind, number, added)
    stream = events(environment(parallelism), records, per_epoch=1)
    return collect_graph(stream.key_by("key").process(function, Types.PICKLED_BYTE_ARRAY()).uid("kinds"))


OLD_GRAPH = (OLD, Types.INT(), "x", 7)
NEW_GRAPH = (NEW, Types.LONG(), "y", 2**40)
SEEN = {"n": 7, "added": None}
FOUND = {"value": SEEN, "map": {1: SEEN}, "rows": [SEEN], "sum": 7, "list": [SEEN], "rules": {"rule": SEEN}}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_fields_come_and_go_and_numbers_widen(tmp_path: Path, parallelism: int) -> None:
    with HarnessAttempt(graph(*OLD_GRAPH), tmp_path) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph(*NEW_GRAPH), tmp_path, parallelism=parallelism) as attempt:
        if parallelism > 1:
            attempt.commit_restored()
        attempt.run_epoch()
        (found,) = collected(attempt.graph, attempt.collected)
    # A subtask has its own elements of operator list state, and all of the broadcast state.
    assert {**found, "list": [SEEN]} == FOUND
    assert found["list"] in ([SEEN], [])
    stored = read_savepoint(str(tmp_path / "job"))
    new = {"n": 2**40, "added": "y"}
    assert stored.state("kinds", "value").to_arrow().column("value").to_pylist() == [new]
    assert stored.state("kinds", "rows").to_arrow().column("value").to_pylist() == [[SEEN, new]]
    assert stored.state("kinds", "sum").to_arrow().column("value").to_pylist() == [2**40 + 7]


def test_what_does_not_fit_fails_with_both_types(tmp_path: Path) -> None:
    with HarnessAttempt(graph(*NEW_GRAPH), tmp_path) as attempt:
        attempt.run_epoch()
    message = (
        r"operator 'kinds': operator state 'list' was .*LONG.* and is now declared as .*INT.*may gain and lose fields"
    )
    old = HarnessAttempt(graph(*OLD_GRAPH), tmp_path)
    with old as attempt, pytest.raises(StateSchemaError, match=message) as error:
        attempt.run_epoch()
    assert "Types." in str(error.value) and "{" not in str(error.value)


class Latest(KeyedBatchFunction):
    """Keeps the last value of each key, with a type that only `process_batch` tells."""

    def __init__(self, kind: TypeInformation) -> None:
        self._latest = ValueStateDescriptor("latest", kind)

    def process_batch(self, keys: Any, batch: Any, state: Any) -> Any:
        before = state.lookup(self._latest, keys)
        state.update(self._latest, keys, batch.column("value").cast(self._latest.type_info.arrow_type))
        return pa.table([keys, before], names=["key", "before"])


def latest(kind: TypeInformation, keys: str, parallelism: int = 2) -> JobGraph:
    stream = events(environment(parallelism), [(key, 1, 7) for key in keys], per_epoch=1)
    return collect_graph(
        stream.key_by("key")
        .process_batch(Latest(kind), Types.ROW_NAMED(["key", "before"], [Types.STRING(), kind]))
        .uid("s")
    )


def run_one(graph: JobGraph, folder: Path, **options: Any) -> list[Any]:
    with HarnessAttempt(graph, folder, **options) as attempt:
        if attempt.restored is not None:
            attempt.commit_restored()
        attempt.run_epoch()
        return collected(attempt.graph, attempt.collected)


def keys_of_two_subtasks() -> str:
    """Returns two keys, of the first and of the second of two subtasks."""
    kind = Types.STRING()
    found: dict[int, str] = {}
    for key in "abcdefgh":
        (group,) = key_groups_of_hashes(hash_keys(kind, kind.to_arrow([key])), 16)
        found.setdefault(int(group) // 8, key)
    return found[0] + found[1]


@pytest.mark.parametrize("idle", [0, 1])
def test_a_type_that_changes_while_a_subtask_is_idle(tmp_path: Path, idle: int) -> None:
    one, other = keys_of_two_subtasks()[::-1] if idle == 0 else keys_of_two_subtasks()
    keys = one + other + one + other
    for kind in (Types.INT(), Types.INT(), Types.LONG()):
        run_one(latest(kind, keys), tmp_path)
    stored = read_savepoint(str(tmp_path / "job")).state("s", "latest").to_arrow()
    assert sorted(stored.column("key").to_pylist()) == sorted([one, other])
    assert stored.schema.field("value").type == pa.int64()
    (found,) = run_one(latest(Types.LONG(), keys, 1), tmp_path, parallelism=1)
    assert (found.key, found.before) == (other, 7)


def test_a_subtask_without_the_state_refuses_another_type_of_it(tmp_path: Path) -> None:
    one, other = keys_of_two_subtasks()
    run_one(latest(Types.INT(), one + other), tmp_path)
    with pytest.raises(StateSchemaError, match=r"operator 's': state 'latest' was .*INT.* now declared as .*STRING"):
        run_one(latest(Types.STRING(), one + other), tmp_path)


@pytest.mark.spark
def test_on_spark(spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    config = JobConfig("job", StorageLocation(str(tmp_path)))
    with JobAttempt(graph(*OLD_GRAPH), config, owner="test") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    config = JobConfig("other", StorageLocation(str(tmp_path)))
    with JobAttempt(graph(*NEW_GRAPH), config, owner="test", restore_from=savepoint) as attempt:
        attempt.run_epoch()
        assert collected(attempt.graph, attempt.collected) == [FOUND]
