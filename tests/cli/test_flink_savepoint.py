"""``flinkpy`` looks at savepoints of Flink."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from dagster_flinkpy.cli import main
from tests.flink_savepoint.corpus import SAVEPOINTS


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def path(name: str) -> str:
    return str(SAVEPOINTS / name / "savepoint")


def test_describe_shows_the_operators_and_states_of_a_savepoint_of_flink() -> None:
    result = run("savepoint", "describe", path("windows-hashmap-canonical"))
    assert result.exit_code == 0, result.output
    assert "window-contents" in result.output
    assert "process mode does not write the types" in result.output
    found = json.loads(
        run("savepoint", "describe", path("windows-hashmap-canonical"), "--uid", "session", "--json").output
    )
    (operator,) = found["operators"]
    assert (found["flink_metadata_version"], operator["uid"], operator["format"]) == (6, "session", "canonical")
    states = {state["name"]: state for state in operator["states"]}
    assert states["merging-window-set"]["kind"] == "MAP"
    assert states["_timers/event_time"]["columns"]["namespace"] == "TUPLE([LONG(), LONG()])"


def test_describe_says_what_cannot_be_read() -> None:
    for name, problem in (
        ("sql-group-rocksdb-canonical", "RowDataSerializer"),
        ("timers-rocksdb-native", "--type canonical"),
    ):
        result = run("savepoint", "describe", path(name))
        assert result.exit_code == 0, result.output
        assert problem in result.output.replace("\n", " ")


def test_an_operator_that_does_not_exist_is_an_error_that_lists_the_others() -> None:
    result = run("savepoint", "describe", path("values-hashmap-canonical"), "--uid", "nothing")
    assert result.exit_code == 1
    assert "the operators are" in result.output


def test_state_of_flink_is_read_and_queried() -> None:
    result = run(
        "state", "read", path("timers-rocksdb-canonical"), "--uid", "timers", "--state", "n", "--format", "json"
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {row["key"]: row["value"] for row in rows}[1] == ["0000000000000004"]
    query = 'select count(*) as n from timers."_timers/event_time" where key = 2'
    found = run("state", "sql", path("timers-rocksdb-canonical"), query, "--format", "json")
    assert json.loads(found.output) == {"n": 11}
