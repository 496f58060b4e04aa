from __future__ import annotations

import json
import re
from pathlib import Path

from dagster_flinkpy.spark.processes import ProcessId
from dagster_flinkpy.spark.server_state import CurrentJobs


def test_a_job_is_told_of_those_that_are_at_work(tmp_path: Path) -> None:
    jobs, here = CurrentJobs(tmp_path / "jobs"), ProcessId.current()
    with jobs.announce("first", "first job") as before_first:
        with (
            jobs.announce("second", "second job") as before_second,
            jobs.announce("third", "third job") as before_third,
        ):
            pass
        with jobs.announce("fourth", "fourth job") as before_fourth:
            pass
    assert before_first == []
    assert [re.sub(r"\d+ s", "n s", line) for line in before_third] == [
        f"first (process {here.pid}, for n s)",
        f"second (process {here.pid}, for n s)",
    ]
    assert len(before_second) == len(before_fourth) == 1
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_job_is_not_told_of_its_own_regions(tmp_path: Path) -> None:
    jobs = CurrentJobs(tmp_path)
    with jobs.announce("checkpoint 2", "orders"), jobs.announce("checkpoint 1", "orders") as others:
        assert others == []
        with jobs.announce("checkpoint 7", "visits") as before:
            assert len(before) == 2


def test_slots_that_jobs_keep_are_counted_while_they_run(tmp_path: Path) -> None:
    jobs = CurrentJobs(tmp_path)
    with jobs.announce("live tasks", "orders", slots=2), jobs.announce("checkpoint 1", "orders"):
        with jobs.announce("live tasks", "visits", slots=3):
            assert jobs.kept_slots() == 5
        assert jobs.kept_slots() == 2
    assert jobs.kept_slots() == 0


def test_jobs_of_dead_processes_and_what_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    gone = {"what": "gone", "since": 0.0, "slots": 4, "process": {"pid": 999999999, "started": 1.0}}
    (tmp_path / "gone.json").write_text(json.dumps(gone))
    for i, text in enumerate(["", "[]", "{}", json.dumps({**gone, "process": {"pid": 1}})]):
        (tmp_path / f"bad{i}.json").write_text(text)
    with CurrentJobs(tmp_path).announce("new", "a job") as others:
        assert others == []
        assert CurrentJobs(tmp_path).kept_slots() == 0
    assert not (tmp_path / "gone.json").exists()


def test_a_job_runs_where_nothing_can_be_noted(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file")
    with CurrentJobs(tmp_path / "jobs").announce("new", "a job") as others:
        assert others == []
