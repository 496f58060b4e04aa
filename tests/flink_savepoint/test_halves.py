"""Programs run half in Flink and half here: what they write is what one run of Flink writes."""

from __future__ import annotations

import os
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import (
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.orchestration.flink_import import export_savepoint, import_savepoint
from dagster_flinkpy.orchestration.flink_job import flink_job
from dagster_flinkpy.state_processor.flink_export import ExportReport
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures" / "flink-halves"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
BACK = ("lists", "maps", "plain-rules", "rules", "timers", "tumbling", "values", "wide")
"""Programs whose first half runs here."""
FLINK = os.environ.get("FLINKPY_PYFLINK", "")
"""The Python of an environment with PyFlink and its jars; ``make flink-halves`` makes one."""


def _programs() -> types.ModuleType:
    text = (HERE / "halves.py").read_text().replace("from pyflink", "from dagster_flinkpy")
    module = types.ModuleType("halves_here")
    exec(compile(text, "halves.py", "exec"), module.__dict__)
    return module


HALVES = _programs()


def lines(*paths: Path) -> list[str]:
    return sorted(line for path in paths for line in path.read_text().splitlines())


def write_half(folder: Path, half: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{half}.csv").write_text("".join(f"{line}\n" for line in HALVES.lines_of(half)))


def run(name: str, folder: Path, restore_from: str | None = None) -> tuple[list[str], str]:
    """Runs a program here on the files that are there, and returns what it wrote, and a savepoint."""
    program: StreamExecutionEnvironment = HALVES.build(name, folder)
    (folder / "out").write_text("")
    with HarnessAttempt(
        flink_job(program, "job").graph,
        folder / "job",
        live=True,
        restore_from=restore_from,
        allow_pickled_state=True,
        config={"cache_dir": str(folder / "cache")},
    ) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(folder / "savepoint"))
    return lines(folder / "out"), savepoint


DECLARED: dict[str, dict[str, list[StateDescriptor]]] = {
    **{name: {"windows": [ValueStateDescriptor("fired", Types.LONG())]} for name in ("sessions", "tumbling")},
    "triggered": {"windows": [ReducingStateDescriptor("count", lambda a, b: a + b, Types.LONG())]},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_goes_on_here_as_it_would_have_in_flink(name: str, tmp_path: Path) -> None:
    source, target = StorageLocation(str(FIXTURES / name / "savepoint")), StorageLocation(str(tmp_path / "to"))
    (tmp_path / "in").mkdir()
    options: dict[str, Any] = {"declared": DECLARED.get(name), "allow_non_restored_state": ["lines"]}  # paths differ
    report = import_savepoint(source, HALVES.build(name, tmp_path), target, **options)
    assert {each.operator for each in report.left_behind} == {"lines"}
    write_half(tmp_path, 1)
    found, _ = run(name, tmp_path, report.url)
    assert sorted([*lines(FIXTURES / name / "first.txt"), *found]) == lines(FIXTURES / name / "straight.txt")


class CountInInts(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Any, ctx: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("name", ["long-keys", "plain-rules"])
def test_a_type_other_than_that_in_flink_is_said_to_be_the_cause(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HALVES, "RULES", MapStateDescriptor("rules", Types.STRING(), Types.INT()))
    monkeypatch.setattr(HALVES, "Count", CountInInts)
    (tmp_path / "in").mkdir()
    source, target = StorageLocation(str(FIXTURES / name / "savepoint")), StorageLocation(str(tmp_path / "to"))
    with pytest.raises(CorruptStateError, match=r"Types.INT\(\), as the program declares.*if the program in Flink"):
        import_savepoint(source, HALVES.build(name, tmp_path), target, allow_non_restored_state=["lines"])


def exported(name: str, folder: Path) -> ExportReport:
    """Runs the first half of a program here, and makes a savepoint of Flink of it."""
    write_half(folder, 0)
    found, savepoint = run(name, folder)
    assert found == lines(FIXTURES / name / "first.txt")
    target = StorageLocation(str(folder / "flink"))
    return export_savepoint(StorageLocation(savepoint), HALVES.build(name, folder), target)


@pytest.mark.parametrize("name", BACK)
def test_the_state_of_the_first_half_is_written_as_flink_has_resumed_it(name: str, tmp_path: Path) -> None:
    report = exported(name, tmp_path)
    assert ("lines", "position") in {(each.uid, each.name) for each in report.exported}
    found = {path.name: path.read_bytes() for path in (tmp_path / "flink").glob("*-*")}
    assert found == {path.name: path.read_bytes() for path in (FIXTURES / name / "exported").iterdir()}
    resumed, first, straight = (FIXTURES / name / f"{each}.txt" for each in ("resumed", "first", "straight"))
    assert lines(first, resumed) == lines(straight)


@pytest.mark.skipif(not FLINK, reason="needs PyFlink with its jars: make flink-halves")
@pytest.mark.parametrize("name", BACK)
def test_flink_goes_on_with_what_was_exported(name: str, tmp_path: Path) -> None:
    exported(name, tmp_path)
    script = [str(Path(FLINK).absolute()), str(HERE / "make_fixtures.py"), "--resume", str(tmp_path), name]
    subprocess.run(script, check=True, timeout=900)
    assert lines(FIXTURES / name / "first.txt", FIXTURES / name / "resumed.txt") == lines(
        FIXTURES / name / "straight.txt"
    )
