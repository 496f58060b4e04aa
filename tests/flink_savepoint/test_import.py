"""A program goes on here from the savepoint that it took in Flink."""

from __future__ import annotations

import json
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.metadata import read_metadata
from dagster_flinkpy.key_hashes import assign_to_key_group
from dagster_flinkpy.orchestration.flink_import import import_savepoint
from dagster_flinkpy.orchestration.flink_job import flink_job
from dagster_flinkpy.state_processor import FlinkSavepointReader, SavepointReader, flink_import, read_savepoint
from dagster_flinkpy.state_processor.flink_sources import position_of
from dagster_flinkpy.state_processor.import_report import ImportReport
from dagster_flinkpy.storage import StorageLocation
from tests.flink_savepoint.corpus import DECLARED, READABLE, SAVEPOINTS, expected, program, shown, shown_key
from tests.runtime.harness import HarnessAttempt

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
    assert {each.uid for each in report.imported if each.name != "position"} == set(DECLARED[name])
    for each in report.imported:
        if each.name == "position":
            continue
        assert rows_of(found, each.uid, each.name) == rows_of(before, each.uid, each.name)
    states = {(state.uid, state.name) for state in before.states if state.uid in DECLARED[name] and state.to_arrow()}
    assert {(each.uid, each.name) for each in report.imported if each.name != "position"} == states


def test_key_groups_with_great_values_are_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink_import, "_BYTES", 1)
    _, found = imported("values-hashmap-canonical", tmp_path)
    before = read_savepoint(str(SAVEPOINTS / "values-hashmap-canonical" / "savepoint"))
    groups = {row["key_group"] for row in before.state("values", "name").to_pylist()}
    runs = [run for _, table in found.state("values", "name").tables for run in table.runs]
    assert len(runs) == len(groups) > 1
    assert sum(run.rows for run in runs) == len(before.state("values", "name").to_arrow())


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


def test_numbers_go_on_after_the_last_one_that_was_read(tmp_path: Path) -> None:
    report, found = imported("sources-hashmap-canonical", tmp_path)
    assert "numbers" in {each.uid for each in report.imported if each.name == "position"}
    (count,) = found.state("count", "n").to_pylist()
    (numbers,) = [each for each in found.metadata.operators if each.uid == "numbers"]
    assert numbers.coordinator_state == {"next": count["value"], "ended": False}


def test_a_job_does_not_migrate_state_that_was_imported_as_it_declares_it(tmp_path: Path) -> None:
    name = "values-hashmap-canonical"
    (tmp_path / "in").mkdir()
    (tmp_path / "in-rules").mkdir()
    source, target = (StorageLocation(str(each)) for each in (SAVEPOINTS / name / "savepoint", tmp_path / "savepoint"))
    env = program(name, tmp_path).migrate_state("values", 0, lambda states: {})
    found = read_savepoint(import_savepoint(source, env, target, allow_non_restored_state=True).url)
    assert isinstance(found, SavepointReader)
    assert {each.uid: each.state_version for each in found.metadata.operators}["values"] == 1


def test_files_that_were_read_in_flink_are_not_read_again() -> None:
    savepoint = read_savepoint(str(SAVEPOINTS / "values-hashmap-canonical" / "savepoint"))
    assert isinstance(savepoint, FlinkSavepointReader)
    operator = savepoint.metadata.operator("lines")
    assert operator is not None
    coordinator = savepoint.savepoint.coordinator_state(operator)
    folder = "/flink/job0/in/values-hashmap"
    names = [f"file://{folder}/{name}.csv" for name in "ab"]
    for paths in ([folder], ["/flink"], [f"{folder}/a.csv", f"{folder}/b.csv"], ["/elsewhere", f"file://{folder}"]):
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths).build()
        position = position_of(source, coordinator, [], "operator 'lines'")
        assert sorted(position["found"]) == names
        source.create_enumerator(position)
    moved = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/moved").build()
    with pytest.raises(UnsupportedSavepointError, match=r"has read file:/flink/job0.*is in none of the paths"):
        position_of(moved, coordinator, [], "operator 'lines'")
    with pytest.raises(UnsupportedSavepointError, match="operator 'lines': it has version"):
        position_of(source, coordinator, [b"split"], "operator 'lines'")


HALF_READ = bytes.fromhex(
    "000000010000006e000a3030303030303030303201010566696c650000ffffffff011d2f746d702f666c696e6b7265616c2f"
    "68616c662f696e2f612e7478740000000000000000000000000000007a6b6a000001a21b0715e700000000007a6b6a000000"
    "0001ffffffffffffffff000000000000063d"
)
"""A split as Flink 2.3.0 wrote it: 1,597 lines of the file of 8,022,890 bytes are read."""
WAITING = bytes.fromhex(
    "0000000100000001000000bcefbeadde0100000001000000020000005e000000000a3030303030303030303101010566696c"
    "650000ffffffff011d2f746d702f666c696e6b7265616c2f68616c662f696e2f622e74787400000000000000000000000000"
    "00007a6b6a000001a21b0716ad00000000007a6b6a00000000002100000066696c653a2f746d702f666c696e6b7265616c2f"
    "68616c662f696e2f622e7478742100000066696c653a2f746d702f666c696e6b7265616c2f68616c662f696e2f612e747874"
)
"""The enumerator beside it: another file is found, and no reader has it yet."""


def test_of_a_file_that_was_half_read_only_the_other_lines_are_read(tmp_path: Path) -> None:
    root = "/tmp/flinkreal/half/in"
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), root).build()
    position = position_of(source, WAITING, [HALF_READ], "operator 'lines'")
    url = f"file://{root}"
    assert sorted(position["found"]) == [f"{url}/a.txt", f"{url}/b.txt"]
    assert {each["properties"]["key"]: each["properties"]["lines"] for each in position["open"]} == {
        "b.txt": 0,
        "a.txt": 1597,
    }
    lines = CsvReaderFormat.for_row_type(Types.ROW_NAMED(["line"], [Types.STRING()]))
    with pytest.raises(UnsupportedSavepointError, match="only of files of plain lines"):
        csv = FileSource.for_record_stream_format(lines, root).build()
        position_of(csv, WAITING, [HALF_READ], "operator 'lines'")
    for end in range(len(HALF_READ)):
        with pytest.raises((CorruptStateError, UnsupportedSavepointError)):
            position_of(source, WAITING, [HALF_READ[:end]], "operator 'lines'")

    (tmp_path / "a.txt").write_bytes(b"".join(b"%d\n" % n for n in range(1600)))
    (split,) = [each for each in position["open"] if each["properties"]["lines"]]
    split["properties"] |= {"root": tmp_path.as_uri(), "size": (tmp_path / "a.txt").stat().st_size}
    here = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path)).build()
    enumerator = here.create_enumerator({**position, "found": [f"{tmp_path.as_uri()}/a.txt"], "open": [split]})
    ((planned,),) = enumerator.plan_epoch(1)
    assert [line for column, _ in here.read(planned) for line in column.to_pylist()] == ["1597", "1598", "1599"]


ASKED = {
    "values-hashmap-canonical": ("values",),
    "collections-hashmap-p2-canonical": ("collections",),
    "folding-rocksdb-canonical": ("folding",),
    "timers-rocksdb-canonical": ("timers",),
    "connected-hashmap-canonical": ("rules", "pairs"),
    "connected-hashmap-native": ("rules", "pairs"),
}


def went_on(name: str, folder: Path, lines: list[str]) -> list[dict[str, Any]]:
    """Imports a savepoint, lets the program go on from it with new input, and returns what it wrote."""
    report, _ = imported(name, folder)
    (folder / "in" / "new.csv").write_text("".join(f"{line}\n" for line in lines))
    (folder / "out").touch()
    graph = flink_job(program(name, folder), "job").graph
    config = {"cache_dir": str(folder / "cache")}
    with HarnessAttempt(
        graph, folder / "job", live=True, restore_from=report.url, allow_pickled_state=True, config=config
    ) as attempt:
        attempt.run_epoch()
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


@pytest.mark.parametrize("name", ASKED)
def test_a_program_goes_on_with_the_state_that_it_had_in_flink(name: str, tmp_path: Path) -> None:
    wanted = {uid: expected(name)[uid]["keys"] for uid in ASKED[name]}
    keys = {*(f"k{i}" for i in range(7)), *(("low", "high") if name.startswith("connected") else ())}
    answers = [each for each in went_on(name, tmp_path, [f"{key},2000,?" for key in sorted(keys)]) if "key" in each]
    answers = [each for each in answers if "timer" not in each]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in answers:
        key = json.dumps(each["key"]) if isinstance(each["key"], list) else str(each["key"])
        uid = each.pop("operator", ASKED[name][0])
        found[uid, key] = each
    for uid, states in wanted.items():
        for key, state in states.items():
            mine = found[uid, key]
            assert {field: mine[field] for field in state} == state
    if name.startswith("connected"):
        for each in answers:
            assert "broadcast" not in each or each["broadcast"] == expected(name)["rules"]["broadcast"]


def test_open_windows_fire_with_what_they_had_in_flink(tmp_path: Path) -> None:
    name = "windows-hashmap-canonical"
    results = went_on(name, tmp_path, [f"k{i},9000000,0" for i in range(4)])
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for each in results:
        if each["end"] < 9_000_000:
            found[each["window"]][f"{each['key']} [{each['start']}, {each['end']})"] = each
    for uid, wanted in expected(name).items():
        windows = wanted["open_windows"]
        assert set(found[uid]) == set(windows)
        for window, values in windows.items():
            mine = found[uid][window]
            assert mine["values"] == (values if uid != "session" else [values])
            assert mine["fired"] == wanted["global_state"]["fired"][mine["key"]] + 1


def test_the_state_of_a_running_sum_is_found_whatever_its_name_in_flink(tmp_path: Path) -> None:
    """PyFlink puts a UUID into the name, so that a job that Flink resumes does not find it. Here it is found."""
    folder = tmp_path / "from"
    shutil.copytree(SAVEPOINTS / "values-hashmap-canonical" / "savepoint", folder)
    metadata = (folder / "_metadata").read_bytes()
    operator = read_metadata(metadata).operator("values")
    assert operator is not None
    handle = operator.subtasks[0].keyed
    assert handle is not None
    assert handle.stream is not None
    file, old, new = folder / handle.stream.path, b"\0\x12python-state-total", b"\0\x20python-state-_reduce_state9f86d0"
    longer = len(new) - len(old)
    file.write_bytes(file.read_bytes().replace(old, new))
    for before, after in (
        (handle.offsets, [offset and offset + longer for offset in handle.offsets]),
        ((handle.stream.size,), (handle.stream.size + longer,)),
    ):
        metadata = metadata.replace(*(struct.pack(f">{len(each)}q", *each) for each in (before, after)))
    (folder / "_metadata").write_bytes(metadata)
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1], Types.LONG()).uid("numbers").key_by(lambda v: str(v), Types.STRING())
    stream.sum().uid("values").print()
    target = StorageLocation(str(tmp_path / "to"))
    report = import_savepoint(StorageLocation(str(folder)), env, target, allow_non_restored_state=True)
    (state,) = report.imported
    assert (state.name, state.origin) == ("_op_state", "python-state-_reduce_state9f86d0")
    found = {row["key"]: row["value"] for row in read_savepoint(report.url).state("values", "_op_state").to_pylist()}
    wanted = expected("values-hashmap-canonical")["values"]["keys"]
    assert found == {key: states["total"] for key, states in wanted.items()}
