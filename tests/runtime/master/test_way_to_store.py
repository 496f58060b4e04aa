"""What an attempt does if the workers have no way to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.errors import StoreUnreachableError, UnsupportedEnvironmentError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.master.deployments import driver_files, way_to_store
from dagster_flinkpy.runtime.master.deployments.driver_files import SentFiles, run_with_files
from dagster_flinkpy.runtime.master.deployments.way_to_store import WayToStore
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.driver_store import DriverObjectStore, files_of_task
from tests.runtime.programs import environment, events


def job_in(folder: Path) -> EpochJob:
    env = environment(2)
    events(env, [("a", 1, 1)]).print()
    graph = env.get_job_graph()
    return EpochJob(graph, "job", EpochInput(1, {}), 1, StorageLocation(str(folder)), {})


@pytest.mark.parametrize("reached_before", [False, True])
def test_only_workers_that_have_never_reached_the_store_are_served_by_the_driver(
    reached_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ways, said = [reached_before, False, True], list[bool](), list[str]()

    def run_region(spark: Any, job: EpochJob, files: Any = None) -> list[Any]:
        ways.append(job.through_driver)
        if not (job.through_driver or answers.pop(0)):
            raise StoreUnreachableError("no network")
        return []

    monkeypatch.setattr(way_to_store, "run_region", run_region)
    way, job = WayToStore("job", said.append), job_in(tmp_path)
    assert way.run(None, job) == []  # type: ignore[arg-type]
    if reached_before:
        with pytest.raises(StoreUnreachableError):
            way.run(None, job)  # type: ignore[arg-type]
        assert way.run(None, job) == []  # type: ignore[arg-type]
        assert ways == [False, False, False] and not said
    else:
        assert way.run(None, job) == []  # type: ignore[arg-type]
        assert ways == [False, True, True]
        assert "no network" in said[0] and "path_on_workers" in said[1] and len(said) == 2


def test_a_file_that_is_too_large_for_the_way_through_the_driver_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = StorageLocation(str(tmp_path))

    class Writes:
        index = 0

        def run(self, rows: Any) -> Any:
            files = files_of_task()
            assert files is not None
            DriverObjectStore(location, files).put("large", bytes(8))
            yield from ()

    task: Any = Writes()
    assert list(run_with_files(task, iter([])))
    job = job_in(tmp_path)
    job.job_storage.open().put("large", bytes(8))
    monkeypatch.setattr(driver_files, "_paths", lambda job, stage: [(0, "large")])
    assert SentFiles(job).bytes
    monkeypatch.setattr(driver_files, "MAX_PAYLOAD", 16)
    with pytest.raises(UnsupportedEnvironmentError, match=r"large has 8 bytes.*path_on_workers"):
        list(run_with_files(task, iter([])))
    with pytest.raises(UnsupportedEnvironmentError, match=r"large has 8 bytes.*path_on_workers"):
        SentFiles(job)
