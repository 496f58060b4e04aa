"""Lines about how far a Spark job is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.runtime.master import spark_progress
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.spark_progress import SparkProgress, StageProgress
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import FolderSink, environment


class Told:
    """A progress whose time the test sets."""

    def __init__(self) -> None:
        self.now, self.lines = 100.0, list[str]()
        self.progress = SparkProgress("checkpoint 7", 2, self.lines.append, lambda: self.now)

    def after(self, seconds: float, stages: list[StageProgress], running: int) -> list[str]:
        self.lines.clear()
        self.now += seconds
        self.progress.update(stages, running)
        return list(self.lines)


def test_a_short_job_says_nothing() -> None:
    assert Told().after(4.9, [StageProgress(2, 1)], 1) == []


def test_a_line_every_few_seconds_and_only_if_something_is_new() -> None:
    told = Told()
    assert told.after(5, [StageProgress(2, 1)], 1) == [
        "checkpoint 7: stage 1 of 2, 1 of 2 tasks done, 1 running, after 5 s"
    ]
    assert told.after(3, [StageProgress(2, 2), StageProgress(4, 1)], 2) == []
    assert told.after(2, [StageProgress(2, 2), StageProgress(4, 3)], 1) == [
        "checkpoint 7: stage 2 of 2, 3 of 4 tasks done, 1 running, after 10 s"
    ]
    assert told.after(60, [StageProgress(2, 2), StageProgress(4, 3)], 1) == []
    assert told.after(1, [StageProgress(2, 2), StageProgress(4, 4)], 0) == [
        "checkpoint 7: Spark is done; fetching the results, after 71 s"
    ]


@pytest.mark.parametrize(
    ("stages", "line"),
    [
        ([], "waiting for Spark to start its tasks"),
        ([StageProgress(0, 0)], "waiting for Spark to start its tasks"),
        ([StageProgress(2, 0)], "stage 1 of 2, 0 of 2 tasks done; waiting for free task slots"),
        ([StageProgress(2, 2)], "waiting for Spark to start its tasks"),
    ],
)
def test_it_says_what_it_waits_for(stages: list[StageProgress], line: str) -> None:
    assert Told().after(6, stages, 0) == [f"checkpoint 7: {line}, after 6 s"]


@pytest.mark.spark
def test_spark_reports_while_the_job_runs(
    spark_settings: SparkSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_progress, "INTERVAL_SECONDS", 0.0)
    told = tmp_path / "told"
    marker = str(told)

    def wait(value: int) -> tuple[int]:
        """Ends when the driver has heard that this task runs."""
        deadline = time.monotonic() + 120
        while not Path(marker).exists():
            assert time.monotonic() < deadline, "no progress was reported"
            time.sleep(0.05)
        return (value,)

    env = environment(1)
    numbers = env.from_collection([1], Types.LONG()).uid("numbers")
    numbers.map(wait, Types.TUPLE([Types.LONG()])).uid("wait").sink_to(FolderSink(tmp_path / "out")).uid("sink")

    def on_progress(line: str) -> None:
        if "0 of 1 tasks done, 1 running" in line:
            told.touch()

    config = JobConfig("job", StorageLocation(str(tmp_path / "checkpoints")), spark_settings)
    with JobAttempt(env.get_job_graph(), config, owner="test", on_progress=on_progress) as attempt:
        attempt.run_epoch()
    assert told.exists()
