"""Messages about the progress of a Spark job."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.core.status import SparkJobInfo, SparkStageInfo
from pyspark.sql import SparkSession

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark import progress as spark_progress
from dagster_flinkpy.spark.progress import ProgressLines, SparkProgress, StageProgress, watched
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import FolderSink, environment
from tests.waiting import LIMIT, until


class Told:
    """A progress reporter whose time the test sets."""

    def __init__(self) -> None:
        self.now, self.lines, self.records = 100.0, list[str](), dict[int, int]()
        lines = ProgressLines("checkpoint 7", self.lines.append, clock=lambda: self.now)
        self.progress = SparkProgress(lines, 2, lambda: self.records)

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
        "checkpoint 7: [#####---------------] stage 1 of 2, 1 of 2 tasks done, 1 running, after 5 s"
    ]
    assert told.after(3, [StageProgress(2, 2), StageProgress(4, 1)], 2) == []
    assert told.after(2, [StageProgress(2, 2), StageProgress(4, 3)], 1) == [
        "checkpoint 7: [#################---] stage 2 of 2, 3 of 4 tasks done, 1 running, after 10 s"
    ]
    assert told.after(60, [StageProgress(2, 2), StageProgress(4, 3)], 1) == []
    assert told.after(1, [StageProgress(2, 2), StageProgress(4, 4)], 0) == [
        "checkpoint 7: Spark is done; fetching the results, after 71 s"
    ]


def test_records_of_the_stage_and_their_rate_since_the_last_line() -> None:
    told, first, second = Told(), [StageProgress(2, 0)], [StageProgress(2, 2), StageProgress(4, 0)]
    told.records = {0: 5_000}
    (line,) = told.after(5, first, 2)
    assert line.endswith("2 running, 5,000 records read (1,000 per second), after 5 s")
    told.records = {0: 25_000}
    (line,) = told.after(10, first, 2)
    assert line.endswith("25,000 records read (2,000 per second), after 15 s")
    (line,) = told.after(5, second, 2)
    assert line.endswith("stage 2 of 2, 0 of 4 tasks done, 2 running, after 20 s")
    told.records = {0: 30_000, 1: 1_000}
    (line,) = told.after(5, second, 2)
    assert line.endswith("1,000 records read (1,200 per second), after 25 s")
    assert told.after(5, second, 2) == []
    told.records = {0: 30_000, 1: 500}  # a task was tried again
    (line,) = told.after(5, second, 2)
    assert line.endswith("500 records read, after 35 s")


def test_a_long_job_says_less() -> None:
    lines, told = 0, Told()
    for i in range(720):
        told.records = {0: i + 1}
        lines += len(told.after(5, [StageProgress(2, 0)], 2))
    assert 50 < lines < 100, "in an hour"


@pytest.mark.parametrize(
    ("stages", "line"),
    [
        ([], "waiting for Spark to start its tasks"),
        ([StageProgress(0, 0)], "waiting for Spark to start its tasks"),
        ([StageProgress(2, 0)], "[--------------------] stage 1 of 2, 0 of 2 tasks done; waiting for free task slots"),
        ([StageProgress(2, 2)], "waiting for Spark to start its tasks"),
        (
            [StageProgress(2, 2), StageProgress(2, 2), StageProgress(2, 0)],
            "[#############-------] stage 3 of 3, 0 of 2 tasks done; waiting for free task slots",
        ),
    ],
)
def test_it_says_what_it_waits_for(stages: list[StageProgress], line: str) -> None:
    assert Told().after(6, stages, 0) == [f"checkpoint 7: {line}, after 6 s"]


class ClassicContext:
    """A driver in this process, as far as its progress goes."""

    def __init__(self, group: str | None = None) -> None:
        self.group = group
        self.jobs = {7: group}  # one that is over

    def getLocalProperty(self, name: str) -> str | None:
        assert name == "spark.jobGroup.id"
        return self.group

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.group = value

    def statusTracker(self) -> ClassicContext:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [job for job, its in self.jobs.items() if its == group]

    def getJobInfo(self, job: int) -> SparkJobInfo | None:
        return SparkJobInfo(job, [5, 4, 6], "RUNNING") if job == 8 else None  # type: ignore[arg-type]

    def getStageInfo(self, stage: int) -> SparkStageInfo | None:
        tasks = {4: (2, 0, 2), 5: (4, 1, 2)}.get(stage)
        return None if tasks is None else SparkStageInfo(stage, 0, "toArrow", *tasks, 0)


@pytest.mark.parametrize("group", [None, "of the user"])
def test_a_driver_in_this_process_is_asked(group: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_progress, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(spark_progress, "_POLL_SECONDS", 0.001)
    context, lines, told = ClassicContext(group), list[str](), threading.Event()

    def on_line(line: str) -> None:
        lines.append(line)
        if "running" in line:
            told.set()

    progress = SparkProgress(ProgressLines("checkpoint 7", on_line), 3, dict)
    session = object.__new__(SparkSession)
    session._sc = context  # type: ignore[assignment]
    with watched(session, progress):
        context.jobs[8] = context.group
        assert told.wait(LIMIT)
    assert "checkpoint 7: [##########----------] stage 2 of 3, 2 of 4 tasks done, 1 running, after" in lines[-1]
    assert context.group == group


@pytest.mark.spark
def test_spark_reports_while_the_job_runs(
    spark_settings: SparkSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_progress, "INTERVAL_SECONDS", 0.0)
    told = tmp_path / "told"
    marker = str(told)

    def wait(value: int) -> tuple[int]:
        """Ends when the driver knows that this task runs."""
        until(Path(marker).exists, "no progress was reported")
        return (value,)

    env = environment(1)
    numbers = env.from_collection([1], Types.LONG()).uid("numbers")
    numbers.map(wait, Types.TUPLE([Types.LONG()])).uid("wait").sink_to(FolderSink(tmp_path / "out")).uid("sink")

    def on_progress(line: str) -> None:
        if "0 of 1 tasks done, 1 running, 1 records read" in line:
            told.touch()

    config = JobConfig("job", StorageLocation(str(tmp_path / "checkpoints")), spark_settings)
    with JobAttempt(env.get_job_graph(), config, owner="test", on_progress=on_progress) as attempt:
        attempt.run_epoch()
    assert told.exists()
