"""Jobs are forked: both go on from the same state, and neither deletes what the other needs."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointError, ConfigurationError, CorruptStateError, JobNotFoundError
from dagster_flinkpy.spark.user_logs import LogEntry
from dagster_flinkpy.state_processor import Fork, dispose_job, fork_job, list_forks, read_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

N = 3_000
# Large enough that the state is not stored in the metadata.
RECORDS = [(hashlib.md5(str(i % N).encode()).hexdigest(), i, 1) for i in range(4 * N)]
LATER = datetime.now(timezone.utc) + timedelta(days=9)


def counts() -> JobGraph:
    """Returns a program of four epochs: the k-th counts k for each key."""
    stream = events(environment(2), RECORDS, per_epoch=N, batch_size=N)
    return collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))


def run(folder: Path, job_id: str, epochs: int = 1) -> set[int]:
    """Runs a job for some epochs, and returns what the last one has counted."""
    with HarnessAttempt(counts(), folder, job_id=job_id) as attempt:
        for _ in range(epochs):
            attempt.run_epoch()
        return {count for _, count, _ in collected(attempt.graph, attempt.collected)}


def location(folder: Path, job_id: str) -> StorageLocation:
    return StorageLocation(str(folder / job_id))


def files(folder: Path, job_id: str) -> set[str]:
    """Returns the names of the state files in the folder of a job."""
    return {path.name for path in (folder / job_id).rglob("*.parquet")}


def test_both_jobs_go_on_from_the_state_and_neither_deletes_what_the_other_needs(tmp_path: Path) -> None:
    assert run(tmp_path, "job") == {1}
    shared = files(tmp_path, "job")
    assert fork_job(location(tmp_path, "job"), "copy") == 2
    assert not files(tmp_path, "copy")
    assert run(tmp_path, "job", 3) == {4}  # merges the files of the fork into others
    sweep(location(tmp_path, "job").open(), now=LATER)
    assert shared <= files(tmp_path, "job")
    found = read_savepoint(str(tmp_path / "copy")).state("counts", "count").to_arrow()
    assert set(found.column("value").to_pylist()) == {1}
    assert run(tmp_path, "copy") == {2}
    assert run(tmp_path, "copy", 2) == {4}
    [fork] = list_forks(location(tmp_path, "job"))
    assert (fork.job_id, fork.finished, fork.files) == ("copy", True, len(shared))
    sweep(location(tmp_path, "copy").open(), now=LATER)  # its last three checkpoints no longer name them all
    sweep(location(tmp_path, "job").open(), now=LATER)
    [fork] = list_forks(location(tmp_path, "job"))
    assert fork.files == len(shared & files(tmp_path, "job")) < len(shared)
    dispose_job(location(tmp_path, "copy"))
    sweep(location(tmp_path, "job").open(), now=LATER)
    assert not shared & files(tmp_path, "job")
    assert list(location(tmp_path, "copy").open().list()) == []
    assert list_forks(location(tmp_path, "job")) == []


@pytest.mark.parametrize("format_type", list(SavepointFormatType))
def test_a_fork_of_a_savepoint_survives_its_disposal(tmp_path: Path, format_type: SavepointFormatType) -> None:
    with HarnessAttempt(counts(), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(format_type=format_type)
        attempt.run_epoch()
    job = location(tmp_path, "job")
    fork_job(job, "copy", at=savepoint)
    assert not files(tmp_path, "copy")
    dispose_savepoint(StorageLocation(savepoint), owner="test", now_ms=0)
    sweep(job.open(), now=LATER)
    assert run(tmp_path, "job", 2) == {4}
    fork_job(location(tmp_path, "copy"), "copy_of_copy")
    dispose_job(location(tmp_path, "copy"))
    assert run(tmp_path, "copy_of_copy") == {2}
    dispose_job(location(tmp_path, "copy_of_copy"))
    sweep(job.open(), now=LATER)
    assert list(job.open().list("savepoint-")) == []


def test_the_original_can_be_disposed_of_and_its_last_files_go_with_the_fork(tmp_path: Path) -> None:
    run(tmp_path, "job")
    job, fork = location(tmp_path, "job"), location(tmp_path, "copy")
    fork_job(job, "copy", at="chk-1")
    dispose_job(job)
    with pytest.raises(CheckpointError, match="was disposed of, and some of its files are still there"):
        run(tmp_path, "job")
    with pytest.raises(CheckpointError, match="it keeps none"):
        fork_job(job, "another")
    assert run(tmp_path, "copy") == {2}
    dispose_job(job)  # again, which changes nothing
    assert run(tmp_path, "copy") == {3}
    dispose_job(fork)
    assert list(tmp_path.rglob("*.parquet")) == [] == list(job.open().list())
    with pytest.raises(JobNotFoundError, match="no job in"):
        dispose_job(fork)


def test_what_cannot_be_forked_or_disposed_of_is_left_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, "job")
    run(tmp_path, "other")
    job = location(tmp_path, "job")
    before = sorted(tmp_path.rglob("*"))
    for name, at, error in (
        ("a/b", None, "cannot be named 'a/b'"),
        ("job", None, "another name than its job"),
        ("other", None, "there is a job 'other' already"),
        ("copy", "chk-7", "cannot be forked at chk-7: it keeps chk-1"),
        ("copy", str(tmp_path / "other" / "chk-1"), "is not in the folder of the job"),
    ):
        with pytest.raises((CheckpointError, ConfigurationError), match=error):
            fork_job(job, name, at=at)
    with pytest.raises(CheckpointError, match="it keeps none"):
        fork_job(location(tmp_path, "nothing"), "copy")
    assert sorted(tmp_path.rglob("*")) == before
    with HarnessAttempt(counts(), tmp_path) as attempt:
        attempt.savepoint()
        with pytest.raises(CheckpointError, match="contains savepoints: savepoint-job-"):
            dispose_job(job)
        fork_job(job, "copy")  # beside the run
    with (
        HarnessAttempt(counts(), tmp_path, job_id="copy"),
        pytest.raises(CheckpointError, match="may still be running"),
    ):
        dispose_job(location(tmp_path, "copy"))
    assert [each.job_id for each in list_forks(job)] == ["copy"]
    assert isinstance(list_forks(job)[0], Fork)


def test_a_savepoint_that_was_copied_in_part_is_not_forked(tmp_path: Path) -> None:
    """The fork would be there, and each run of it fail."""
    with HarnessAttempt(counts(), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = StorageLocation(attempt.savepoint())
    moved = location(tmp_path, "job").child("savepoint-moved")
    [first, *others] = [info.key for info in savepoint.open().list() if info.key.endswith(".parquet")]
    for key in ("_metadata", *others):
        moved.open().put(key, savepoint.open().get(key)[0])
    with pytest.raises(CorruptStateError, match=f"{first} is missing, but the savepoint names it"):
        fork_job(location(tmp_path, "job"), "copy", at=moved.url)
    assert list_forks(location(tmp_path, "job")) == []
    moved.open().put(first, savepoint.open().get(first)[0])
    fork_job(location(tmp_path, "job"), "copy", at=moved.url)
    assert run(tmp_path, "copy") == {2}


class Named(FolderSink):
    """A sink that says where it writes."""

    def __init__(self, folder: Path, uri: str | None, folders: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        self._uri, self._folders = uri, folders

    def uri(self) -> str | None:
        return self._uri

    def folders(self) -> tuple[str, ...]:
        return self._folders


STAGED = {"folders": ("/staging",)}


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ({"uri": "kafka://server/orders"}, {"uri": "kafka://server/orders"}, True),
        ({"uri": "kafka://server/orders"}, {"uri": "kafka://server/orders_copy"}, False),
        (STAGED | {"uri": "kafka://server/orders"}, STAGED | {"uri": "kafka://server/orders"}, True),
        (STAGED | {"uri": "kafka://server/orders"}, STAGED | {"uri": "kafka://server/orders_copy"}, False),
        (STAGED | {"uri": "hive://server/orders"}, STAGED | {"uri": "hive://server/orders_copy"}, True),
        ({"uri": None, "folders": ("/data/orders",)}, {"uri": None, "folders": ("/data/orders/copy",)}, True),
        ({"uri": None, "folders": ("/data/orders",)}, {"uri": None, "folders": ("/data/orders_copy",)}, False),
        ({"uri": None}, {"uri": None}, True),
    ],
)
def test_a_fork_does_not_write_where_the_original_does(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], refused: bool
) -> None:
    def program(sink: FolderSink) -> JobGraph:
        env = environment(1)
        events(env, RECORDS[:9], per_epoch=3).sink_to(sink).uid("table")
        return env.get_job_graph()

    folder = tmp_path / "rows"
    with HarnessAttempt(program(Named(folder, **before)), tmp_path / "jobs") as attempt:
        attempt.run_epoch()
    fork_job(location(tmp_path / "jobs", "job"), "copy")
    fork = HarnessAttempt(program(Named(folder, **after)), tmp_path / "jobs", job_id="copy")
    if refused:
        with pytest.raises(ConfigurationError, match=r"sink 'table' writes to .* job 'job'"), fork:
            pass
        dispose_job(location(tmp_path / "jobs", "job"))  # then the fork replaces it
    told: list[LogEntry] = []
    with HarnessAttempt(
        program(Named(folder, **after)), tmp_path / "jobs", job_id="copy", on_log=told.append
    ) as attempt:
        attempt.run_epoch()
    assert not [entry for entry in told if "share these checkpoints" in entry.text], "a fork has checkpoints of its own"
    assert len(Named(folder, None).rows()) == 6
