"""What sinks of Flink have not finished is never left behind in silence."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.connector_state import COMMITTER_STATE, WRITER_STATE, committables, open_part_file
from dagster_flinkpy.orchestration.flink_import import import_savepoint
from dagster_flinkpy.state_processor import FlinkSavepointReader, read_savepoint
from dagster_flinkpy.state_processor.flink_reader import FlinkOperatorRows
from dagster_flinkpy.state_processor.import_report import ImportReport
from dagster_flinkpy.storage import StorageLocation
from tests.flink_savepoint.corpus import SAVEPOINTS, program

NAME = "sources-hashmap-canonical"
SAVEPOINT = SAVEPOINTS / NAME / "savepoint"
"""Of two sinks: ``sink-open`` keeps its part files open, ``sink-rolled`` finishes them with each checkpoint."""
COMMITTER = "Sink Committer: sink-rolled"


def elements(uid: str, state: str) -> list[bytes]:
    found = read_savepoint(str(SAVEPOINT)).state(uid, state)
    assert isinstance(found, FlinkOperatorRows)
    return [each for position in range(len(found.subtasks)) for each in found.elements(position)]


def imported(savepoint: Path, folder: Path, *allowed: str) -> ImportReport:
    (folder / "in").mkdir(exist_ok=True)
    source, target = StorageLocation(str(savepoint)), StorageLocation(str(folder / "to"))
    return import_savepoint(source, program(NAME, folder), target, allow_non_restored_state=["lines", *allowed])


def sized(version: int, *bodies: bytes) -> bytes:
    return struct.pack(">2i", version, len(bodies)) + b"".join(struct.pack(">i", len(each)) + each for each in bodies)


def test_results_that_are_not_committed_and_open_part_files_are_errors_that_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSavepointError) as caught:
        imported(SAVEPOINT, tmp_path)
    problems = [line for line in str(caught.value).splitlines() if line.startswith("- ")]
    assert len(problems) == 2  # and nothing of the finished output
    assert f"operator {COMMITTER!r}" in problems[0]
    assert "its last results (2) are not committed, which only Flink can do. Stop the job" in problems[0]
    assert "operator 'sink-open'" in problems[1]
    assert "part files are open (2) in /flink/job0/in/sources-hashmap-sink-open/2026-11-24--13" in problems[1]
    assert "--drain" in problems[1]
    assert not (tmp_path / "to").exists()


def test_what_sinks_lose_is_left_behind_only_if_that_is_allowed(tmp_path: Path) -> None:
    report = imported(SAVEPOINT, tmp_path, COMMITTER, "sink-open")
    assert {each.operator for each in report.left_behind if each.lost} == {"lines", COMMITTER, "sink-open"}


@pytest.mark.parametrize("kind", [b"Suspend Savepoint", b"Terminate Savepoint"])
def test_results_are_committed_if_the_job_was_stopped_with_the_savepoint(tmp_path: Path, kind: bytes) -> None:
    """The savepoint is one of a job that went on, in which the name of its kind is replaced."""
    stopped = tmp_path / "stopped"
    shutil.copytree(SAVEPOINT, stopped)
    metadata = (stopped / "_metadata").read_bytes()
    before, after = (b"t" + struct.pack(">h", len(each)) + each for each in (b"Savepoint", kind))
    assert metadata.count(before) == 1
    (stopped / "_metadata").write_bytes(metadata.replace(before, after))
    with pytest.raises(UnsupportedSavepointError, match="part files are open") as caught:
        imported(stopped, tmp_path)
    assert COMMITTER not in str(caught.value)
    report = imported(stopped, tmp_path, "sink-open")
    (committed,) = [each for each in report.left_behind if not each.lost]
    assert committed.operator == COMMITTER
    assert "Flink committed its last results (2) when the job had stopped" in committed.problem


def test_a_stopped_job_is_known_by_the_savepoints_that_flink_wrote() -> None:
    halves = SAVEPOINTS.parent / "flink-halves"
    for folder, stopped in ((halves / "values" / "savepoint", True), (SAVEPOINT, False)):
        reader = read_savepoint(str(folder))
        assert isinstance(reader, FlinkSavepointReader)
        assert reader.metadata.stopped is stopped


def test_finished_output_is_nothing() -> None:
    assert [committables(each, "sink") for each in elements("Sink Committer: sink-open", COMMITTER_STATE)] == [0, 0]
    assert [open_part_file(each, "sink") for each in elements("sink-rolled", WRITER_STATE)] == ["", ""]


def test_results_are_counted_in_the_form_of_flink_1_20() -> None:
    request = struct.pack(">2i", 1, 3) + b"any" + struct.pack(">2i", 0, 0)
    subtask = sized(0, request, request) + struct.pack(">3i", 2, 0, 0)
    collector = struct.pack(">I", 0xB91F252C) + sized(0, struct.pack(">q", 7) + sized(0, subtask))
    assert committables(struct.pack(">2i", 2, len(collector)) + collector, "sink") == 2


def test_of_state_in_another_form_it_is_not_said_that_the_output_is_finished() -> None:
    kafka = struct.pack(">2i", 1, 5) + b"\0\3abc"
    for element in (kafka, b"", kafka[:9]):
        with pytest.raises(UnsupportedSavepointError, match=r"may be unfinished\. Stop the job with --drain"):
            open_part_file(element, "operator 'kafka'")


def test_state_with_the_name_of_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlinkOperatorRows, "elements", lambda state, position: [7])
    with pytest.raises(UnsupportedSavepointError) as caught:
        imported(SAVEPOINT, tmp_path)
    for uid, state in (("numbers", "SourceReaderState"), (COMMITTER, COMMITTER_STATE), ("sink-open", WRITER_STATE)):
        assert f"operator {uid!r}" in str(caught.value)
        assert f"elements of {state!r} are not bytes" in str(caught.value)


def test_damaged_state_of_a_sink_is_an_error() -> None:
    (collector, _), (bucket, _) = elements(COMMITTER, COMMITTER_STATE), elements("sink-open", WRITER_STATE)
    for element, read in ((collector, committables), (bucket, open_part_file)):
        for end in range(len(element)):
            with pytest.raises(UnsupportedSavepointError):
                read(element[:end], "sink")
    for end in range(12, len(collector)):
        with pytest.raises(UnsupportedSavepointError):
            committables(collector[:4] + struct.pack(">i", end - 8) + collector[8:end], "sink")
    with pytest.raises(CorruptStateError, match="sink, byte"):
        open_part_file(bucket[:4] + struct.pack(">i", 52) + bucket[8:60], "sink")
