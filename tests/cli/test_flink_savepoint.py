"""``flinkpy`` looks at savepoints of Flink."""

from __future__ import annotations

import json
from pathlib import Path

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


def program_of(name: str, folder: Path) -> str:
    """Returns the program of a savepoint as ``--program`` takes it."""
    (folder / "in").mkdir()
    lines = ["from pathlib import Path", "from tests.flink_savepoint.corpus import program", ""]
    lines += ["def build():", f"    return program({name!r}, Path({str(folder)!r}))", ""]
    (folder / "job.py").write_text("\n".join(lines))
    return f"{folder}/job.py:build"


def test_the_types_of_values_are_those_of_the_program(tmp_path: Path) -> None:
    name = "timers-rocksdb-canonical"
    arguments = ("--uid", "timers", "--state", "fired", "--format", "json", "--program", program_of(name, tmp_path))
    result = run("state", "read", path(name), *arguments)
    assert result.exit_code == 0, result.output
    rows = {row["key"]: row["value"] for row in map(json.loads, result.stdout.splitlines())}
    assert rows[0] == [1007215]


def test_a_savepoint_of_flink_is_imported_and_its_path_is_printed(tmp_path: Path) -> None:
    name = "values-hashmap-canonical"
    arguments = ("--program", program_of(name, tmp_path), "--to", str(tmp_path / "to"))
    refused = run("savepoint", "import", path(name), *arguments)
    assert refused.exit_code == 1
    says, *problems, advice = refused.stderr.splitlines()
    assert says.endswith("imported:") and advice.startswith("To leave it behind, pass ")
    assert all(each.startswith("- ") for each in problems) and "source" in problems[0]
    result = run("savepoint", "import", path(name), *arguments, "--allow-non-restored-uid", "lines")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == (tmp_path / "to").as_uri()
    assert "values.total: 7 rows" in result.stderr
    found = json.loads(run("savepoint", "describe", str(tmp_path / "to"), "--json").output)
    assert [operator["uid"] for operator in found["operators"]] == ["values"]


def test_state_that_the_program_does_not_ask_for_in_open_is_declared_by_name(tmp_path: Path) -> None:
    name, target = "windows-hashmap-canonical", str(tmp_path / "to")
    arguments = ("--program", program_of(name, tmp_path), "--to", target, "--allow-non-restored-uid", "lines")
    refused = run("savepoint", "import", path(name), *arguments)
    assert "state 'fired': the program does not declare it" in refused.output.replace("\n", " ")
    module = "tests.flink_savepoint.test_import"
    result = run("savepoint", "import", path(name), *arguments, "--declared", f"{module}:FIRED")
    assert result.exit_code == 0, result.output
    wrong = run(
        "savepoint", "import", path(name), *arguments, "--declared", "tests.flink_savepoint.test_import:IMPORTED"
    )
    assert wrong.exit_code == 1
    assert "there is no dict of lists of descriptors by uid" in wrong.output


def test_a_savepoint_is_exported_to_flink_and_its_path_is_printed(tmp_path: Path) -> None:
    name, ours, flinks = "values-hashmap-canonical", str(tmp_path / "ours"), str(tmp_path / "flinks")
    program = ("--program", program_of(name, tmp_path))
    assert (
        run("savepoint", "import", path(name), *program, "--to", ours, "--allow-non-restored-uid", "lines").exit_code
        == 0
    )
    result = run("savepoint", "export", ours, *program, "--to", flinks, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {"uid": "values", "name": "total", "flink_name": "python-state-total", "rows": 7} in report["exported"]
    (operator,) = json.loads(run("savepoint", "describe", flinks, "--json").output)["operators"]
    assert operator["format"] == "canonical"
    again = run("savepoint", "export", ours, *program, "--to", flinks)
    assert again.exit_code == 1
    assert "already has a savepoint" in again.output
    assert "is a savepoint of Flink already" in run("savepoint", "export", flinks, *program, "--to", ours + "2").output


def test_commands_for_savepoints_of_here_lead_to_the_import(tmp_path: Path) -> None:
    flink = path("values-hashmap-canonical")
    for arguments in (["restore", flink, str(tmp_path)], ["verify", flink]):
        result = run("savepoint", *arguments)
        assert result.exit_code == 1 and "savepoint of Flink: 'flinkpy savepoint import'" in result.output


def test_a_folder_that_is_no_savepoint_of_flink_is_not_imported(tmp_path: Path) -> None:
    program = program_of("values-hashmap-canonical", tmp_path)
    result = run("savepoint", "import", str(tmp_path), "--program", program, "--to", str(tmp_path / "to"))
    assert result.exit_code == 1 and "is not a savepoint of Flink: it has no _metadata" in result.output
