"""A program goes on here from the savepoint that it took in Flink."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, UnsupportedSavepointError
from dagster_flinkpy.key_hashes import assign_to_key_group
from dagster_flinkpy.orchestration.flink_import import import_savepoint
from dagster_flinkpy.state_processor import SavepointReader, read_savepoint
from dagster_flinkpy.state_processor.flink_import import ImportReport
from dagster_flinkpy.storage import StorageLocation
from tests.flink_savepoint.corpus import DECLARED, READABLE, SAVEPOINTS, expected, program, shown, shown_key

FIRED = {uid: [ValueStateDescriptor("fired", Types.LONG())] for uid in ("tumbling", "summed", "session")}
IMPORTED = [name for name in READABLE if not name.startswith("sql")]


def imported(name: str, folder: Path, **options: Any) -> tuple[ImportReport, SavepointReader]:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in-rules").mkdir(exist_ok=True)
    source, target = (StorageLocation(str(each)) for each in (SAVEPOINTS / name / "savepoint", folder / "savepoint"))
    options = {"allow_non_restored_state": True, "declared": FIRED if name.startswith("windows") else None, **options}
    report = import_savepoint(source, program(name, folder), target, **options)
    found = read_savepoint(report.url)
    assert isinstance(found, SavepointReader)
    return report, found


def rows_of(savepoint: Any, uid: str, name: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a state in a form that can be sorted and compared."""
    rows = savepoint.state(uid, name).to_pylist(allow_pickled_state=True)
    columns = ("key", "namespace", "map_key", "value", "time", "expires_at")
    return sorted(tuple(repr(shown(row.get(column))) for column in columns) for row in rows)


@pytest.mark.parametrize("name", IMPORTED)
def test_all_states_and_timers_are_imported_as_they_were(name: str, tmp_path: Path) -> None:
    report, found = imported(name, tmp_path)
    before = read_savepoint(str(SAVEPOINTS / name / "savepoint"), DECLARED[name])
    assert report.imported
    assert {each.uid for each in report.imported} == set(DECLARED[name])
    for each in report.imported:
        assert rows_of(found, each.uid, each.name) == rows_of(before, each.uid, each.name)
    states = {(state.uid, state.name) for state in before.states if state.uid in DECLARED[name] and state.to_arrow()}
    assert {(each.uid, each.name) for each in report.imported} == states


@pytest.mark.parametrize("name", IMPORTED)
def test_each_key_lies_in_the_key_group_of_this_library(name: str, tmp_path: Path) -> None:
    _, found = imported(name, tmp_path)
    for state in found.states:
        if "key_group" in state.schema.names and state.types["key"] == Types.STRING():
            for row in state.to_pylist():
                assert row["key_group"] == assign_to_key_group(row["key"], 128)


def test_state_that_the_program_does_not_have_is_an_error_that_names_all_of_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSavepointError) as caught:
        imported("windows-hashmap-canonical", tmp_path, declared=None, allow_non_restored_state=["lines"])
    for uid in ("tumbling", "summed", "session"):
        assert f"operator {uid!r}, state 'fired': the program does not declare it in open()" in str(caught.value)
    assert not (tmp_path / "savepoint").exists()


def test_what_is_left_behind_is_reported(tmp_path: Path) -> None:
    report, found = imported("windows-hashmap-canonical", tmp_path, declared=None)
    assert {(each.operator, each.problem.split(":")[0]) for each in report.left_behind} >= {
        ("session", "operator 'session', state 'fired'"),
    }
    assert "fired" not in {state.name for state in found.states}


def test_an_import_does_not_write_over_a_savepoint(tmp_path: Path) -> None:
    imported("values-hashmap-canonical", tmp_path)
    with pytest.raises(ConfigurationError, match="already has a savepoint"):
        imported("values-hashmap-canonical", tmp_path)


def test_a_savepoint_of_sql_is_refused(tmp_path: Path) -> None:
    source = StorageLocation(str(SAVEPOINTS / "sql-group-rocksdb-canonical" / "savepoint"))
    (tmp_path / "in").mkdir()
    with pytest.raises(UnsupportedSavepointError, match="RowDataSerializer"):
        import_savepoint(source, program("values-hashmap-canonical", tmp_path), StorageLocation(str(tmp_path / "to")))


def test_a_key_has_all_of_its_state_after_an_import(tmp_path: Path) -> None:
    _, found = imported("collections-hashmap-p2-canonical", tmp_path)
    by_key: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in ("pairs", "words"):
        for row in found.state("collections", name).to_pylist():
            by_key[shown_key(row["key"])][name] = shown(row["value"])
    for key, states in expected("collections-hashmap-p2-canonical")["collections"]["keys"].items():
        assert by_key[key]["pairs"] == states["pairs"]
