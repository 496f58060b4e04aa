"""Native savepoints are quick to write, and the files of the job that they name stay."""

from __future__ import annotations

import hashlib
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

N = 4_000
# Large enough that the state is not stored in the metadata.
RECORDS = [(hashlib.md5(str(i % N).encode()).hexdigest(), i, 1) for i in range(3 * N)]
GRAPH = collect_graph(
    events(environment(2), RECORDS, per_epoch=N, batch_size=N)
    .key_by("key")
    .process(CountPerKey(), COUNTED)
    .uid("counts")
)


def counts_of(path: str) -> set[int]:
    return set(read_savepoint(path).state("counts", "count").to_arrow().column("value").to_pylist())


def test_a_native_savepoint_keeps_files_and_moves_with_the_folder_of_the_job(tmp_path: Path) -> None:
    with HarnessAttempt(GRAPH, tmp_path / "one") as attempt:
        attempt.run_epoch()
        files = {path.name for path in (tmp_path / "one" / "job" / "shared").iterdir()}
        assert files
        with pytest.raises(ConfigurationError, match="a native savepoint names files below"):
            attempt.savepoint(str(tmp_path / "elsewhere"), SavepointFormatType.NATIVE)
        native = attempt.savepoint(format_type=SavepointFormatType.NATIVE)
        assert native.endswith("-native")
        attempt.run_epoch()  # touches each key again, so the runs of the savepoint are merged into others
    with HarnessAttempt(GRAPH, tmp_path / "one") as attempt:
        attempt.run_epoch()
    shared = tmp_path / "one" / "job" / "shared"
    assert files <= {path.name for path in shared.iterdir()}
    assert counts_of(native) == {1}
    assert counts_of(str(tmp_path / "one" / "job")) == {3}

    moved = tmp_path / "two" / "job"
    shutil.copytree(tmp_path / "one" / "job", moved)
    shutil.rmtree(tmp_path / "one")
    savepoint = str(moved / native.rpartition("/")[2])
    canonical = write_savepoint(savepoint).write(str(tmp_path / "canonical"))
    for number, (folder, source) in enumerate([("two", savepoint), ("three", savepoint), ("four", canonical)]):
        with HarnessAttempt(GRAPH, tmp_path / folder, restore_from=source, parallelism=3 - number) as attempt:
            attempt.run_epoch()
            assert {count for _, count, _ in collected(attempt.graph, attempt.collected)} == {2}
    shutil.rmtree(moved)
    assert counts_of(canonical) == {1}


@pytest.mark.parametrize("drain", [False, True])
def test_stop_with_a_native_savepoint(tmp_path: Path, drain: bool) -> None:
    with HarnessAttempt(GRAPH, tmp_path / "one") as attempt:
        attempt.run_epoch()
        with pytest.raises(ConfigurationError, match="a native savepoint names files below"):
            attempt.stop_with_savepoint(str(tmp_path / "elsewhere"), SavepointFormatType.NATIVE)
        assert not attempt.finished  # detected before anything is stopped
        native = attempt.stop_with_savepoint(format_type=SavepointFormatType.NATIVE, drain=drain)
        assert attempt.finished
    assert not list((tmp_path / "one" / "job" / native.rpartition("/")[2]).rglob("*.parquet"))
    with HarnessAttempt(GRAPH, tmp_path / "two", restore_from=native, parallelism=3) as attempt:
        assert attempt.finished is drain
    assert counts_of(native) == {1}


def test_files_of_a_native_savepoint_go_when_it_is_gone(tmp_path: Path) -> None:
    with HarnessAttempt(GRAPH, tmp_path) as attempt:
        attempt.run_epoch()
        native = attempt.savepoint(format_type=SavepointFormatType.NATIVE)
        attempt.run_epoch()
        attempt.run_epoch()
    store = StorageLocation(str(tmp_path / "job")).open()
    assert sweep(store, timedelta(0)).files == 0
    assert counts_of(native) == {1}
    dispose_savepoint(StorageLocation(native), owner="test", now_ms=0)
    assert sweep(store, timedelta(0)).files > 0
    assert counts_of(str(tmp_path / "job")) == {3}


def test_a_sweep_leaves_what_the_run_at_work_may_still_name_however_long_it_takes(tmp_path: Path) -> None:
    """What was copied from a savepoint is as old as the run: a first epoch may wait for input for days."""
    with HarnessAttempt(GRAPH, tmp_path / "one") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    store = StorageLocation(str(tmp_path / "two" / "job")).open()
    with HarnessAttempt(GRAPH, tmp_path / "two", restore_from=savepoint) as attempt:
        assert sweep(store, timedelta(0)).files == 0
        attempt.commit_restored()
    assert counts_of(str(tmp_path / "two" / "job")) == {1}
    with pytest.raises(KeyboardInterrupt), HarnessAttempt(GRAPH, tmp_path / "two", restore_from=savepoint):
        raise KeyboardInterrupt
    assert sweep(store, timedelta(0)).files > 0, "that one has ended"


def test_a_sweep_leaves_what_an_epoch_has_written_that_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, complete = StorageLocation(str(tmp_path / "job")).open(), CompletedCheckpointStore.complete

    def swept(*args: Any, **options: Any) -> None:
        assert sweep(store, timedelta(0)).files == 0
        complete(*args, **options)

    monkeypatch.setattr(CompletedCheckpointStore, "complete", swept)
    with HarnessAttempt(GRAPH, tmp_path) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    assert counts_of(str(tmp_path / "job")) == {2}
