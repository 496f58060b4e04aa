"""A run is killed at each point between pre-commit and the end of the commit. The next run finishes the job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.forks import processes
from tests.runtime import kill_run
from tests.runtime.kill_run import RECORDS, TABLES, committed, config_of, program
from tests.waiting import LIMIT

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]  # the server is not that of the killed process

ROWS = {
    "rows": sorted(RECORDS),
    "counts": sorted((f"k{key}", number, number) for key in range(4) for number in range(1, 7)),
}
FIRST_EPOCH = {
    "rows": sorted(RECORDS[:8]),
    "counts": sorted((f"k{key}", number, number) for key in range(4) for number in range(1, 3)),
}
FILES_PER_EPOCH = 4
"""Two subtasks of two sinks."""


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StorageLocation:
    if request.param == "local":
        return StorageLocation(str(tmp_path))
    place: StorageLocation = request.getfixturevalue("s3_location")
    return place


@pytest.mark.parametrize(
    ("point", "completed", "visible"),
    [
        ("before metadata", False, 0),
        ("before HEAD", False, 0),
        ("before commit", True, 0),
        ("within commit", True, 1),
    ],
)
def test_a_killed_run_loses_nothing_and_doubles_nothing(
    location: StorageLocation, spark_settings: SparkSettings, point: str, completed: bool, visible: int
) -> None:
    killed = processes.Process(target=kill_run.run, args=(point, location, spark_settings, dict(os.environ)))
    killed.start()
    killed.join(LIMIT)
    assert killed.exitcode == -signal.SIGKILL

    seen = {table: committed(location, table) for table in TABLES}
    if visible == 0:
        assert seen == FIRST_EPOCH
    else:
        # The committer works on the files of a table in parallel, so at least one of them exists.
        assert seen["counts"] == FIRST_EPOCH["counts"]
        assert len(seen["rows"]) > 8

    with JobAttempt(program(location), config_of(location, spark_settings), owner="next") as attempt:
        assert attempt.restored is not None
        assert attempt.restored.checkpoint_id == (2 if completed else 1)
        assert attempt.aborted_lingering == (0 if completed else FILES_PER_EPOCH)
        assert attempt.committed_on_recovery in (
            range(1, FILES_PER_EPOCH) if visible else [FILES_PER_EPOCH * completed]
        )
        while not attempt.finished:
            attempt.run_epoch()

    assert {table: committed(location, table) for table in TABLES} == ROWS
    assert [list(location.child(table).open().list_uploads()) for table in TABLES] == [[], []]
