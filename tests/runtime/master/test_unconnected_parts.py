"""A job whose parts no edge joins: one Spark job for each epoch, one checkpoint of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.state_processor import write_savepoint
from tests.runtime.harness import HarnessAttempt, run_rows
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

COUNTS = [(f"k{i % 3}", i * 10, i) for i in range(20)]
LINES = [("line", i, i) for i in range(5)]


def deep(env: StreamExecutionEnvironment, folder: Path) -> None:
    counted = events(env, COUNTS, per_epoch=6).key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counted.rebalance().sink_to(FolderSink(folder / "counts")).uid("counts").set_parallelism(1)


def flat(env: StreamExecutionEnvironment, folder: Path) -> None:
    """It has no shuffle, so only one stage, and its input ends first."""
    lines = events(env, LINES, uid="lines", per_epoch=3)
    lines.sink_to(FolderSink(folder / "copy")).uid("copy")


def program(folder: Path, *parts: Any, parallelism: int = 2) -> JobGraph:
    env = environment(parallelism)
    for part in parts:
        part(env, folder)
    return env.get_job_graph()


def run(graph: JobGraph, folder: Path, epochs: int, job: str = "both", **how: Any) -> bool:
    with HarnessAttempt(graph, folder, job_id=job, **how) as attempt:
        for _ in range(epochs):
            if not attempt.finished:
                attempt.run_epoch()
        return attempt.finished


def committed(folder: Path) -> tuple[list[Any], list[Any]]:
    return FolderSink(folder / "counts").rows(), FolderSink(folder / "copy").rows()


@pytest.fixture
def expected(tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """Returns what each part writes as a separate job."""
    for part in (deep, flat):
        assert run(program(tmp_path / "alone", part), tmp_path / "alone", 9, job=part.__name__)
    rows = committed(tmp_path / "alone")
    assert (len(rows[0]), len(rows[1])) == (20, 5)
    return rows


def test_parts_of_different_depth_and_length(tmp_path: Path, expected: tuple[list[Any], list[Any]]) -> None:
    assert not run(program(tmp_path, flat, deep), tmp_path, 2)
    assert run(program(tmp_path, flat, deep), tmp_path, 9, parallelism=3)
    assert committed(tmp_path) == expected


def test_former_jobs_are_joined(tmp_path: Path, expected: tuple[list[Any], list[Any]]) -> None:
    """The part that has ended says so for itself only."""
    assert run(program(tmp_path, flat), tmp_path, 9, job="both.lines")
    assert not run(program(tmp_path, deep), tmp_path, 2, job="both.events")
    writer = write_savepoint(str(tmp_path / "both.lines")).with_operators_of(str(tmp_path / "both.events"))
    path = writer.write(str(tmp_path / "joined"))
    assert run(program(tmp_path, flat, deep), tmp_path, 9, restore_from=path)
    assert committed(tmp_path) == expected


def test_a_script_does_not_start_from_nothing_beside_former_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: tuple[list[Any], list[Any]]
) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))

    def script(name: str, *parts: Any) -> None:
        env = environment(2)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "state"))
        for part in parts:
            part(env, tmp_path)
        env.execute(name)

    script("both.0", flat)
    script("both.1", deep)
    assert committed(tmp_path) == expected
    with pytest.raises(RestoreError, match=r"jobs 'both.0', 'both.1'.*make a program of each part.*with_operators_of"):
        script("both", flat, deep)
    assert not (tmp_path / "state/both").exists()
