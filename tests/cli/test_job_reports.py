"""``flinkpy job show``, ``list`` and ``history`` tell how a job was executed."""

from __future__ import annotations

import json
import random
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.checkpoint.reports.execution_report import EXECUTION_KEY, read_execution_report
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli import job_reports
from dagster_flinkpy.cli.command import main
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.errors import StorageError, UserFunctionError
from dagster_flinkpy.runtime.master import job_reporter
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_restarts import FailsAt, Watched, program
from tests.runtime.master.test_tolerated_failures import fails, tolerating
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events


def flinkpy(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def facts(*arguments: str) -> Any:
    return json.loads(flinkpy(*arguments, "--json"))


def words(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with two runs: one ends after two epochs, the other one restarts once and then fails."""
    folder = tmp_path_factory.mktemp("runs")
    graph, _ = program(folder)
    with HarnessAttempt(graph, folder, owner="the first run") as attempt:
        list(attempt.run_epochs(2))
    graph, _ = program(folder, FailsAt(9, folder, executions=9))
    config = {"failover": FailoverConfig(FixedDelayRestart(1, timedelta(0)))}
    options = {"allow_non_restored_state": True, "owner": "the second run"}
    with pytest.raises(UserFunctionError), HarnessAttempt(graph, folder, config=config, **options) as attempt:
        list(attempt.run_epochs())
    return folder


@pytest.fixture
def folder(two_runs: Path, tmp_path: Path) -> Path:
    """A copy of that job."""
    return shutil.copytree(two_runs, tmp_path, dirs_exist_ok=True)


def test_show(folder: Path) -> None:
    output = flinkpy("job", "show", str(folder / "job"))
    lines = words(output)
    assert next(line for line in lines if line[:1] == ["status"])[:4] == ["status", "FAILED,", "as", "of"]
    counts, metrics, event_time = (line for line in lines if line[:1] == ["counts"])
    assert metrics[1] == "4", "records of the last checkpoint"
    assert counts[2:6] == ["0", "2", "CANCELED", "2"]
    assert counts[-1] == "1", "the attempt number"
    assert event_time[1:] == ["1970-01-01", "00:00:00", "UTC", "-", "map", "-"], "that checkpoint has no map"
    assert next("FAILED" in line for line in lines if line[:1] == ["map"])
    assert output.count("UserFunctionError: map() of operator 'map'") == 2


def test_show_as_json(folder: Path) -> None:
    shown = facts("job", "show", str(folder / "job"))
    run = shown["run"]
    assert (run["status"], run["restarts"], run["checkpoint_id"], run["token"]) == ("FAILED", 1, 2, 2)
    assert (run["error"], run["owner"], shown["killed"]) == ("UserFunctionError", "the second run", False)
    by_uid = {each["uid"]: each for each in shown["vertices"]}
    assert by_uid["map"]["states"] == {"CANCELED": 1, "FAILED": 1}
    (prior,) = by_uid["map"]["prior"]
    assert (prior["attempt"], prior["states"]) == (0, {"CANCELED": 1, "FAILED": 1})
    assert [(each["operator"], each["attempt"]) for each in shown["failures"]] == [("map", 0), ("map", 1)]
    assert len(shown["phases"]) > 3
    assert shown["metrics"]["counts"]["numRecordsIn"] == 4


def test_show_says_where_state_was_found(tmp_path: Path) -> None:
    env = environment(2)
    numbers = random.Random(1)
    records = [(f"{numbers.getrandbits(256):x}", i, i) for i in range(2_000)]
    stream = events(env, [*records, *records, *records], per_epoch=len(records), batch_size=len(records))
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    graph = env.get_job_graph()

    def local_state() -> str:
        with HarnessAttempt(graph, tmp_path) as attempt:
            attempt.run_epoch()
        return next(
            line for line in flinkpy("job", "show", str(tmp_path / "job")).splitlines() if "local state" in line
        )

    assert local_state().split() == ["local", "state", "-"], "there was none"
    assert "2 of 2 tasks ran where their state is, with 4 of 4 files" in local_state()
    shutil.rmtree(tmp_path / "cache")
    assert "0 of 2 tasks ran where their state is, with 0 of 8 files" in local_state()
    metrics = facts("job", "show", str(tmp_path / "job"))["job_metrics"]
    assert (metrics["localStateTasks"], metrics["localStateTaskHits"]) == (2, 0)


def test_list(folder: Path) -> None:
    graph, _ = program(folder / "other")
    with HarnessAttempt(graph, folder, job_id="other") as attempt:
        list(attempt.run_epochs())
    jobs = {each["job"]: each for each in facts("job", "list", str(folder))}
    assert {name: each["status"] for name, each in jobs.items()} == {"job": "FAILED", "other": "FINISHED"}
    lines = words(flinkpy("job", "list", str(folder)))
    assert [line[:2] for line in lines if line[:1] in (["job"], ["other"])][1:] == [
        ["job", "FAILED"],
        ["other", "FINISHED"],
    ]


def test_history(folder: Path) -> None:
    found = facts("job", "history", str(folder / "job"))
    assert [(run["owner"], run["status"]) for run in found["runs"]] == [
        ("the first run", "SUSPENDED"),
        ("the second run", "FAILED"),
    ]
    assert [each["attempt"] for each in found["prior_executions"]["counts"]] == [0]
    output = flinkpy("job", "history", str(folder / "job"))
    assert "the first run" in output and "1 CANCELED, 1 FAILED" in output


def test_without_a_report(tmp_path: Path) -> None:
    for command in ("show", "history", "list"):
        result = CliRunner().invoke(main, ["job", command, str(tmp_path)])
        assert result.exit_code == 1
        assert "has stored how" in result.output


def test_a_run_is_watched_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = program(tmp_path)
    monkeypatch.setattr(job_reporter, "_INTERVAL_MS", 0)
    with HarnessAttempt(graph, tmp_path) as attempt:
        epochs = attempt.run_epochs()
        next(epochs)
        waits = list[float]()

        def wait(seconds: float) -> None:
            waits.append(seconds)
            for _ in epochs:
                pass
            attempt.__exit__(None, None, None)

        monkeypatch.setattr(job_reports, "_wait", wait)
        output = flinkpy("job", "show", str(tmp_path / "job"), "--watch")
    assert len(waits) == 1
    assert next(line for line in words(output) if line[:1] == ["status"])[1] == "FINISHED,"


def test_watching_is_for_people(folder: Path) -> None:
    result = CliRunner().invoke(main, ["job", "show", str(folder / "job"), "--watch", "--json"])
    assert result.exit_code == 2
    assert "do not go together" in result.output


def test_a_run_that_was_killed_is_recognised(folder: Path) -> None:
    path = folder / "job" / EXECUTION_KEY
    report = json.loads(path.read_text())
    report["run"]["status"] = "RUNNING"
    path.write_text(json.dumps(report))
    assert facts("job", "show", str(folder / "job"))["killed"]
    assert "RUNNING when it was killed" in flinkpy("job", "show", str(folder / "job"))


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "run": {}}'])
def test_a_report_that_cannot_be_read_is_replaced(folder: Path, damaged: str) -> None:
    (folder / "job" / EXECUTION_KEY).write_text(damaged)
    store = StorageLocation(str(folder / "job")).open()
    assert read_execution_report(store)[0] is None
    graph, _ = program(folder)
    with HarnessAttempt(graph, folder, allow_non_restored_state=True):
        pass
    report, _ = read_execution_report(store)
    assert report is not None
    assert (report.run.status, report.earlier) == ("SUSPENDED", ())


def test_a_run_writes_it_at_the_start_at_most_once_per_checkpoint_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reporter, "_INTERVAL_MS", 0)
    written: list[tuple[str, int | None]] = []
    write = job_reporter.write_execution_report

    def noted(store: Any, report: Any, etag: str | None) -> str | None:
        written.append((report.run.status, report.run.checkpoint_id))
        return write(store, report, etag)

    monkeypatch.setattr(job_reporter, "write_execution_report", noted)
    graph, _ = program(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert written == [("RUNNING", None), *(("RUNNING", n) for n in range(1, 6)), ("FINISHED", 5)]


def test_restarts_are_seen_although_no_checkpoint_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, int, int]] = []
    write = job_reporter.write_execution_report

    def noted(store: Any, report: Any, etag: str | None) -> str | None:
        written.append((report.run.status, report.run.restarts, len(report.failures)))
        return write(store, report, etag)

    monkeypatch.setattr(job_reporter, "write_execution_report", noted)
    graph, _ = program(tmp_path, FailsAt(1, tmp_path, executions=2))
    config = {"failover": FailoverConfig(FixedDelayRestart(2, timedelta(milliseconds=50)))}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        list(attempt.run_epochs())
    restarts = [("RESTARTING", 0, 1), ("RUNNING", 1, 1), ("RESTARTING", 1, 2), ("RUNNING", 2, 2)]
    assert written == [("RUNNING", 0, 0), *restarts, ("FINISHED", 2, 2)]


def test_what_operators_read_is_told_also_behind_a_blocking_edge(tmp_path: Path) -> None:
    stream = events(environment(2), [("k", 1, 1)]).map(lambda v: v, EVENT).uid("map").blocking()
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    with HarnessAttempt(stream._upstream.program.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()
    told = {each["uid"]: each["inputs"] for each in facts("job", "show", str(tmp_path / "job"))["vertices"]}
    assert told == {
        "events": [],
        "map": [{"uid": "events", "partitioner": "forward", "chained": True}],
        "map.exchange": [{"uid": "map", "partitioner": "forward", "chained": True}],
        "map.exchange.counts": [{"uid": "map.exchange", "partitioner": "blocking", "chained": False}],
        "counts": [{"uid": "map.exchange.counts", "partitioner": "hash", "chained": False}],
    }


def test_a_report_of_an_older_release_has_no_inputs(folder: Path) -> None:
    path = folder / "job" / EXECUTION_KEY
    report = json.loads(path.read_text())
    for vertex in report["vertices"]:
        del vertex["inputs"]
    path.write_text(json.dumps(report))
    assert all(each["inputs"] == [] for each in facts("job", "show", str(folder / "job"))["vertices"])


def test_checkpoints_are_told_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_reporter, "_INTERVAL_MS", 0)
    graph, _ = program(tmp_path)

    def told() -> list[tuple[int, str, str | None]]:
        history = facts("job", "show", str(tmp_path / "job"))["checkpoints"]["history"]
        return [(each["checkpoint_id"], each["status"], each["reason"]) for each in history]

    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        assert told() == [(1, "COMPLETED", None), (2, "COMPLETED", None)]


def test_checkpoints_that_fail_are_told_although_none_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_reporter, "_INTERVAL_MS", 0)
    fails(monkeypatch, "write_metadata", [1, 2], StorageError("503"))
    told = list[list[tuple[int, str, str | None]]]()
    write = job_reporter.write_execution_report

    def noted(store: Any, report: Any, etag: str | None) -> str | None:
        history = CompletedCheckpointStore(store).statistics().history
        told.append([(each.checkpoint_id, each.status.value, each.reason and each.reason.name) for each in history])
        return write(store, report, etag)

    monkeypatch.setattr(job_reporter, "write_execution_report", noted)
    graph, _ = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, config=tolerating(2)) as attempt:
        next(attempt.run_epochs())
    first, second = ((number, "FAILED", "FINALIZE_CHECKPOINT_FAILURE") for number in (1, 2))
    assert told[:4] == [[], [first], [first, second], [first, second, (3, "COMPLETED", None)]]


def test_a_store_that_fails_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("a hiccup")

    monkeypatch.setattr(job_reporter, "_INTERVAL_MS", 0)
    monkeypatch.setattr(job_reporter, "write_execution_report", fails)
    graph, _ = program(tmp_path)
    with Watched(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert attempt.finished


def test_an_older_run_does_not_overwrite_the_report_of_a_newer_one(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)
    older = HarnessAttempt(graph, tmp_path, owner="older")
    with older:
        older._reporter.note()
        older._reporter.write()
        with HarnessAttempt(graph, tmp_path, owner="newer"):
            pass
    report, _ = read_execution_report(StorageLocation(str(tmp_path / "job")).open())
    assert report is not None
    assert report.run.owner == "newer"
