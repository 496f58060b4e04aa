"""Savepoints that real Flink wrote are read as what their programs had in state."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CorruptStateError, RestoreError, TypeMismatchError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.metadata import operator_id
from dagster_flinkpy.state_processor import FlinkSavepointReader, read_savepoint
from tests.flink_savepoint.corpus import DECLARED, READABLE, SAVEPOINTS, expected, shown, shown_key


def reader(name: str, *, declared: bool = True) -> FlinkSavepointReader:
    found = read_savepoint(str(SAVEPOINTS / name / "savepoint"), DECLARED[name] if declared else None)
    assert isinstance(found, FlinkSavepointReader)
    return found


def rows(savepoint: FlinkSavepointReader, uid: str, state: str) -> list[dict[str, Any]]:
    return savepoint.state(uid, state).to_pylist(allow_pickled_state=True)


def by_key(savepoint: FlinkSavepointReader, uid: str) -> dict[str, dict[str, Any]]:
    """Returns the state of each key of an operator, by name of the state."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for state in savepoint.states:
        if state.uid != uid or state.kind == "TIMER" or "key_group" not in state.schema.names:
            continue
        for row in rows(savepoint, uid, state.name):
            key, value = shown_key(row["key"]), shown(row["value"])
            if state.kind == "MAP":
                found[key].setdefault(state.name, {})[str(row["map_key"])] = value
            else:
                assert state.name not in found[key]
                found[key][state.name] = value
    return found


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (name, uid)
        for name in READABLE
        for uid, each in expected(name).items()
        if "keys" in each and not name.startswith("sql")
    ],
)
def test_each_key_has_the_state_that_the_program_found_in_flink(name: str, uid: str) -> None:
    wanted = expected(name)[uid]["keys"]
    found = by_key(reader(name), uid)
    for key, states in wanted.items():
        mine = found[key]
        if uid == "folding":
            mine = {**mine, "mean": mine["mean"][0] / mine["mean"][1]}
        for state, value in states.items():
            held = mine.get(state, {} if state == "right" else [] if state in ("words", "fired", "log") else None)
            if state == "fired":  # the program sorts it
                held = sorted(held)
            assert held == value, (key, state)
    assert set(wanted) == set(found) or uid in ("pairs",)


@pytest.mark.parametrize(
    "name", ["timers-rocksdb-canonical", "connected-hashmap-canonical", "connected-hashmap-native"]
)
@pytest.mark.parametrize("domain", ["event_time", "processing_time"])
def test_timers_are_those_that_are_pending(name: str, domain: str) -> None:
    uid = "timers" if name.startswith("timers") else "pairs"
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows(reader(name), uid, f"_timers/{domain}"):
        found[shown_key(row["key"])].append(row["time"])
    assert {key: sorted(times) for key, times in found.items()} == expected(name)[uid].get(f"{domain}_timers", {})


@pytest.mark.parametrize("name", ["connected-hashmap-canonical", "connected-hashmap-native"])
def test_broadcast_state_is_the_same_in_all_subtasks_and_read_once(name: str) -> None:
    savepoint = reader(name)
    for state, wanted in expected(name)["rules"]["broadcast"].items():
        found = savepoint.state("rules", state)
        assert found.kind == "BROADCAST"
        assert {str(row["key"]): shown(row["value"]) for row in found.to_pylist()} == wanted


@pytest.mark.parametrize("uid", ["tumbling", "summed", "session"])
def test_open_windows_have_their_contents_and_a_timer(uid: str) -> None:
    savepoint, wanted = reader("windows-hashmap-canonical"), expected("windows-hashmap-canonical")[uid]
    contents = {(row["key"], row["namespace"]): row["value"] for row in rows(savepoint, uid, "window-contents")}
    if uid == "session":
        mapping = {(row["key"], row["map_key"]): row["value"] for row in rows(savepoint, uid, "merging-window-set")}
        contents = {(key, window): contents[key, state] for (key, window), state in mapping.items()}
    found = {f"{key} [{start}, {end})": shown(value) for (key, (start, end)), value in contents.items()}
    if uid == "summed":
        found = {window: [value] for window, value in found.items()}
    assert found == wanted["open_windows"]
    timers = {(row["key"], row["namespace"], row["time"]) for row in rows(savepoint, uid, "_timers/event_time")}
    assert timers == {(key, window, window[1] - 1) for key, window in contents}
    fired = {row["key"]: row["value"] for row in rows(savepoint, uid, "fired")}
    assert fired == wanted["global_state"]["fired"]


def flat(times: list[Any]) -> list[int]:
    return [time for each in times for time in (each if isinstance(each, list) else [each])]


def test_a_value_with_a_time_to_live_keeps_the_time_of_its_last_access() -> None:
    undeclared = reader("folding-rocksdb-canonical", declared=False)
    declared = reader("folding-rocksdb-canonical")
    ttl = 3650 * 86_400_000
    for name in ("last", "log", "by"):
        before = undeclared.state("folding", name).to_arrow().column("last_access").to_pylist()
        after = declared.state("folding", name).to_arrow().column("expires_at").to_pylist()
        before, after = flat(before), flat(after)  # undeclared, a value is a list of process mode
        assert after == [time + ttl for time in before]
        assert min(before) > 1_700_000_000_000


def test_without_a_program_keys_are_known_and_pyflinks_values_stay_bytes() -> None:
    state = reader("values-hashmap-canonical", declared=False).state("values", "total")
    assert state.kind == "LIST"
    found = {row["key"]: row["value"] for row in state.to_pylist()}
    assert found["k0"] == [(70).to_bytes(8, "big")]
    assert {row["key_group"] for row in state.for_keys(["k0"]).to_pylist()} == {14}


def test_a_key_is_found_in_the_key_group_of_its_row() -> None:
    state = reader("values-hashmap-canonical").state("values", "total")
    groups = {row["key"]: row["key_group"] for row in state.to_pylist()}
    assert [groups[key] for key in ("k0", "k1", "k2", "k3")] == [14, 6, 87, 29]


def test_an_operator_is_found_by_the_hash_of_its_uid() -> None:
    assert operator_id("values") == "8918828246c22e7d25902f74d971b709"
    for name in READABLE:
        for operator in reader(name).metadata.operators:
            assert not operator.uid or operator_id(operator.uid) == operator.id


def test_the_native_format_of_rocksdb_is_refused_with_what_to_do() -> None:
    savepoint = read_savepoint(str(SAVEPOINTS / "timers-rocksdb-native" / "savepoint"))
    with pytest.raises(UnsupportedSavepointError, match=r"operator 'timers'.*--type canonical"):
        savepoint.state("timers", "n")


def test_state_of_sql_is_refused_by_operator_and_serializer_and_the_source_is_read() -> None:
    savepoint = reader("sql-group-rocksdb-canonical")
    (problem,) = savepoint.unreadable
    assert problem.operator.name == "GroupAggregate[6]"
    assert "RowDataSerializer" in problem.problem
    with pytest.raises(UnsupportedSavepointError, match="RowDataSerializer"):
        savepoint.state(problem.operator.id, "accState")
    assert [state.name for state in savepoint.states] == ["SourceReaderState"]


def test_a_declaration_that_does_not_fit_is_refused() -> None:
    path = str(SAVEPOINTS / "values-hashmap-canonical" / "savepoint")
    as_map = read_savepoint(path, {"values": [MapStateDescriptor("total", Types.LONG(), Types.LONG())]})
    with pytest.raises(TypeMismatchError, match="kind MAP"):
        as_map.state("values", "total").to_arrow()
    with pytest.raises(RestoreError, match="it has: any, name, "):
        as_map.state("values", "nothing")
    wrong = read_savepoint(path, {"values": [ValueStateDescriptor("name", Types.LONG())]})
    with pytest.raises(CorruptStateError, match="state 'name'"):
        wrong.state("values", "name").to_arrow()
