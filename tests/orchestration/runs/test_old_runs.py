"""Runs that a sweep deletes from Dagster, and what it leaves."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, DailyPartitionsDefinition, Definitions, RunsFilter
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.orchestration import build_flink_jobs, flink_assets
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs.old_runs import old_runs
from dagster_flinkpy.orchestration.runs.runs_of_job import CHECKPOINT_TAG, SAVEPOINT_TAG
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows

TABLE = AssetKey(["words", "table"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as instance:
        yield instance


@pytest.fixture
def checkpoint(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: Any) -> Any:
    """Runs the job for a checkpoint, as its sensor does."""
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    words = [hashlib.md5(str(i).encode()).hexdigest() for i in range(10)]
    program = functools.partial(word_count, tmp_path / "table", words, per_epoch=1)
    job = Definitions(flink_assets(program, name="words"), resources=resources).resolve_implicit_global_asset_job_def()
    config = {"ops": {"words": {"config": {"epochs": 1}}}}

    def run(**tags: str) -> str:
        return job.execute_in_process(config, instance, tags={JOB_TAG: "words", **tags}).run_id

    run.program = program  # type: ignore[attr-defined]
    return run


def old(instance: DagsterInstance, keep: int, checkpoint_id: int = 100) -> list[str]:
    return old_runs(instance, "words", [TABLE], keep=keep, checkpoint_id=checkpoint_id)


def ended(instance: DagsterInstance, status: DagsterRunStatus = DagsterRunStatus.FAILURE, **tags: str) -> str:
    return create_run_for_test(instance, "words", status=status, tags={JOB_TAG: "words", **tags}).run_id


def test_the_newest_runs_and_those_of_other_jobs_and_at_work_are_kept(instance: DagsterInstance) -> None:
    create_run_for_test(instance, "other", status=DagsterRunStatus.SUCCESS)
    at_work = [ended(instance, status) for status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)]
    runs = [ended(instance) for _ in range(5)]
    assert old(instance, keep=2) == [runs[2], runs[1], runs[0]]
    assert not {*at_work} & {*old(instance, keep=0)}
    assert old(instance, keep=5) == []


def test_attempts_that_sensors_count_are_kept(instance: DagsterInstance) -> None:
    for tag, counted in ((CHECKPOINT_TAG, ("8", "9")), (SAVEPOINT_TAG, ("8",))):
        runs = {number: ended(instance, **{tag: number}) for number in ("7", *counted)}
        assert set(old(instance, keep=0, checkpoint_id=8)) & {*runs.values()} == {runs["7"]}


def test_the_run_of_the_newest_materialization_is_kept(instance: DagsterInstance, checkpoint: Any) -> None:
    first, second, *later = checkpoint(), checkpoint(), ended(instance), ended(instance)
    assert old(instance, keep=1) == [later[0], first]
    assert second not in old(instance, keep=0)


@pytest.mark.system
def test_the_run_of_each_partitions_newest_materialization_is_kept(instance: DagsterInstance) -> None:
    from dagster import asset, materialize

    days = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")

    @asset(key=TABLE, partitions_def=days)
    def table() -> None: ...

    def run(day: str) -> str:
        return materialize([table], instance=instance, partition_key=day, tags={JOB_TAG: "words"}).run_id

    again, *kept = [run(f"2026-01-0{day}") for day in (1, 2, 1, 3)]
    assert old(instance, keep=0) == [again]
    assert {run.run_id for run in instance.get_runs()} == {again, *kept}


@pytest.mark.system
@pytest.mark.short("True")
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_sweep_deletes_what_dagster_has_of_a_run(
    dry_run: bool, instance: DagsterInstance, checkpoint: Any, resources: dict[str, Any], monkeypatch: Any
) -> None:
    first, *others = [checkpoint() for _ in range(3)]
    Path(instance.storage_directory(), first, "words.traceback.txt").write_text("as of a step that has failed")
    monkeypatch.setattr("dagster_flinkpy.orchestration.runs.job_operations.old_runs", functools.partial(older, 2))
    (job,) = (job for job in build_flink_jobs(checkpoint.program, name="words") if job.name == "words_sweep")
    config = {"ops": {"sweep_words": {"config": {"keep_runs": 200, "dry_run": dry_run}}}}

    def files() -> set[str]:
        home = Path(instance.root_directory)
        return {str(path) for path in home.rglob("*") if path.is_file() and first in str(path)}

    assert any(name.endswith(".db") for name in files()) and any(name.endswith(".err") for name in files())
    swept = job.execute_in_process(config, instance, resources=resources)
    (said,) = (entry.user_message for entry in instance.all_logs(swept.run_id) if "unreferenced" in entry.user_message)
    assert said.startswith("Would delete" if dry_run else "Deleted") and said.endswith("and 1 runs")
    assert instance.has_run(first) is dry_run
    assert bool(files()) is dry_run
    assert all(instance.has_run(run_id) and instance.all_logs(run_id) for run_id in others)
    assert len(instance.fetch_materializations(TABLE, limit=9).records) == 2 + dry_run


def older(newest: int, *args: Any, keep: int, **named: Any) -> list[str]:
    """Keeps fewer runs than a sweep may be told."""
    assert keep == 200
    return old_runs(*args, keep=newest, **named)


@pytest.mark.system
def test_a_job_that_is_swept_goes_on(
    instance: DagsterInstance, checkpoint: Any, resources: dict[str, Any], monkeypatch: Any
) -> None:
    runs = [checkpoint(**{CHECKPOINT_TAG: str(n)}) for n in (1, 2)]
    monkeypatch.setattr("dagster_flinkpy.orchestration.runs.job_operations.old_runs", functools.partial(older, 0))
    (job,) = (job for job in build_flink_jobs(checkpoint.program, name="words") if job.name == "words_sweep")
    job.execute_in_process({"ops": {"sweep_words": {"config": {"keep_runs": 200}}}}, instance, resources=resources)
    assert not instance.has_run(runs[0]) and instance.has_run(runs[1])
    checkpoint(**{CHECKPOINT_TAG: "3"})
    (latest,) = instance.fetch_materializations(TABLE, limit=1).records
    assert latest.asset_materialization is not None
    assert latest.asset_materialization.metadata["flink/checkpoint_id"].value == 3
    assert instance.get_runs_count(RunsFilter(tags={CHECKPOINT_TAG: "3"})) == 1
