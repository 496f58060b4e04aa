from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import (
    list_savepoints,
    savepoint_choices,
    savepoint_location,
)
from dagster_flinkpy.storage import StorageLocation


def _savepoint(job: Path, name: str, seconds: int) -> None:
    file = job / name / METADATA_NAME
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    os.utime(file, (seconds, seconds))


def test_whole_savepoints_are_listed_by_age(tmp_path: Path) -> None:
    job = StorageLocation(str(tmp_path / "words"))
    for number in range(12):
        _savepoint(tmp_path / "words", f"savepoint-words-{number:02}", 1_000_000 - 60 * number)
    (tmp_path / "words" / "savepoint-words-unfinished").mkdir()
    names = [name for _, name in list_savepoints(job.open())]
    assert names == [f"savepoint-words-{number:02}" for number in reversed(range(12))]
    said = savepoint_choices(job.open())
    assert "are, newest first: savepoint-words-00 (1970-01-12 13:46 UTC), savepoint-words-01 (" in said
    assert said.endswith("savepoint-words-09 (1970-01-12 13:37 UTC), and 2 older ones.")


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("savepoint-words-1", "s3://bucket/state/words/savepoint-words-1"),
        ("savepoint-words-1/_metadata", "s3://bucket/state/words/savepoint-words-1"),
        ("s3://bucket/other/savepoint-words-1/", "s3://bucket/other/savepoint-words-1"),
        ("folder/savepoint-words-1", "folder/savepoint-words-1"),
    ],
)
def test_a_name_is_enough_next_to_the_checkpoints(path: str, folder: str) -> None:
    job = StorageLocation("s3://bucket/state/words", "http://host:9000")
    assert savepoint_location(path, job) == StorageLocation(folder, "http://host:9000")


def test_a_folder_of_the_working_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "savepoint-words-1").mkdir()
    job = StorageLocation("s3://bucket/state/words")
    assert savepoint_location("savepoint-words-1", job) == StorageLocation("savepoint-words-1")
