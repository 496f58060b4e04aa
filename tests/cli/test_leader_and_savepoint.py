"""What the command does to jobs: leader, savepoints, statistics. The jobs are real, but run without Spark."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.cli import main
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CorruptMetadataError, FencedError
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.master.test_partitions import Job
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(24)]


def counted() -> JobGraph:
    """Returns a program with three epochs of eight records."""
    return collect_graph(
        events(environment(2), RECORDS, per_epoch=8).key_by("key").process(CountPerKey(), COUNTED).uid("count")
    )


def counts(folder: Path, **attempt: Any) -> list[tuple[str, int]]:
    """Runs a job to its end, and returns its counts."""
    rows: list[tuple[str, int]] = []
    with HarnessAttempt(counted(), folder, **attempt) as running:
        while not running.finished:
            running.run_epoch()
            rows += [(row[0], row[1]) for row in collected(running.graph, running.collected)]
    return sorted(rows)


REST = [(f"k{k}", n) for k in range(4) for n in range(3, 7)]


def printed(*args: object) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.output


def error_of(*args: object) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 1, result.output
    return result.output


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Creates a job with one checkpoint, on which no run is active."""
    with HarnessAttempt(counted(), tmp_path, owner="run 1") as attempt:
        attempt.run_epoch()
    return tmp_path / "job"


def alive(job: Path) -> lease.Leader:
    """Returns a leader with a long lease, whose process is gone."""
    store = CompletedCheckpointStore(LocalObjectStore(job))
    return store.begin_attempt("run 2", time.time_ns() // 1_000_000).leader


# --- the leader -------------------------------------------------------------------------------------------------------


def test_show_who_led(job: Path) -> None:
    shown = printed("leader", "show", job)
    assert "run 1" in shown
    assert "released" in shown
    facts = json.loads(printed("leader", "show", job, "--json"))
    assert (facts["owner"], facts["token"], facts["alive"], facts["committed"]) == ("run 1", 1, False, 1)


def test_show_who_leads(job: Path) -> None:
    leader = alive(job)
    shown = printed("leader", "show", job)
    assert "run 2" in shown
    assert "until" in shown
    assert json.loads(printed("leader", "show", job, "--json"))["alive"] is True
    lease.renew(LocalObjectStore(job), leader, timedelta(seconds=1), 0)
    assert "was killed or hangs" in printed("leader", "show", job)


def test_nobody_ever_led(tmp_path: Path) -> None:
    assert "no run has ever led" in error_of("leader", "show", tmp_path)
    assert "no run has ever led" in error_of("leader", "release", tmp_path)
    assert not list(tmp_path.iterdir())


def test_release_fences_whoever_leads(job: Path) -> None:
    leader = alive(job)
    assert "'run 2' may be running; use --force" in error_of("leader", "release", job)
    lease.check(LocalObjectStore(job), leader)
    assert "'run 2' (token 2) no longer leads the job" in printed("leader", "release", job, "--force")
    with pytest.raises(FencedError, match=r"'run 2' \(token 2\) was fenced by .*flinkpy leader release by"):
        lease.check(LocalObjectStore(job), leader)
    assert "released" in printed("leader", "show", job)
    assert counts(job.parent) == REST


# --- a lost HEAD ------------------------------------------------------------------------------------------------------


def test_a_lost_head_is_recovered(job: Path) -> None:
    assert "checkpoint 1 is the latest. There is nothing to recover" in error_of("checkpoints", "recover", job)
    assert "'flinkpy job list' shows" in error_of("savepoint", "trigger", job.parent)
    wrong = error_of("checkpoints", "recover", job.parent)
    assert "nothing of a job in" in wrong and "start_empty" not in wrong, "who did that would write all rows again"
    (job / "HEAD").unlink()
    for command in (["savepoint", "describe"], ["checkpoints", "sweep"], ["savepoint", "trigger"]):
        assert f"'flinkpy checkpoints recover file://{job}'" in error_of(*command, job)
    assert "continues from checkpoint 1\n" in printed("checkpoints", "recover", job)
    assert counts(job.parent) == REST


def test_a_head_is_not_recovered_beside_a_run(job: Path) -> None:
    alive(job)
    (job / "HEAD").unlink()
    said = error_of("checkpoints", "recover", job)
    assert "'run 2' may still be running" in said and f"'flinkpy leader release --force file://{job}'" in said
    assert not (job / "HEAD").exists()


def test_who_mends_a_job_need_not_wait_for_the_run_that_has_found_the_fault(job: Path) -> None:
    with HarnessAttempt(counted(), job.parent, restore_from="chk-1") as attempt:
        attempt.run_epoch()
    (job / "chk-2" / "_metadata").unlink()
    with pytest.raises(CorruptMetadataError, match="HEAD says it is the latest"):
        HarnessAttempt(counted(), job.parent).__enter__()
    assert "the sinks have committed checkpoint 2" in error_of("checkpoints", "recover", job)
    assert "continues from checkpoint 1" in printed("checkpoints", "recover", job, "--force")


def test_what_was_committed_later_needs_force(job: Path) -> None:
    with HarnessAttempt(counted(), job.parent, restore_from="chk-1") as attempt:
        attempt.run_epoch()
    (job / "HEAD").unlink()
    (job / "chk-2" / "_metadata").write_bytes(b"")
    assert "the sinks have committed checkpoint 2" in error_of("checkpoints", "recover", job)
    told = printed("checkpoints", "recover", job, "--force")
    assert "continues from checkpoint 1" in told
    assert "damaged: file://" in told
    assert "ids up to 2 were used later" in told


# --- savepoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_work", [False, True])
def test_trigger_and_restore_elsewhere(job: Path, tmp_path: Path, at_work: bool) -> None:
    if at_work:
        alive(job)
    savepoint = printed("savepoint", "trigger", job, "--target", tmp_path / "savepoints").strip()
    assert savepoint.startswith(f"file://{tmp_path}/savepoints/savepoint-job-")
    other = tmp_path / "other" / "job"
    assert "now its checkpoint 2" in printed("savepoint", "restore", savepoint, other)
    printed("savepoint", "dispose", savepoint)
    assert counts(other.parent) == REST
    assert counts(job.parent) == REST


def test_restore_over_a_job(job: Path) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    assert counts(job.parent) == REST
    printed("savepoint", "restore", savepoint, job)
    assert counts(job.parent) == REST
    with HarnessAttempt(counted(), job.parent) as attempt:
        assert attempt.finished


def test_a_job_with_partitions_shows_whose_end_a_checkpoint_has_and_replaces_rows(tmp_path: Path) -> None:
    partitioned, job = Job(tmp_path), tmp_path / "state" / "job"
    partitioned.run(0, 0)
    savepoint = printed("savepoint", "trigger", job).strip()
    partitioned.run(1, 1)
    ends = [line.split()[-2] for line in printed("checkpoints", "list", job).splitlines()[1:]]
    assert ends == ["2024-03-01", "2024-03-02"]
    said = CliRunner().invoke(main, ["savepoint", "restore", savepoint, str(job)])
    assert said.exit_code == 0 and "what sinks have committed" not in said.stderr, said.stderr


def test_who_goes_back_is_told_of_the_rows_that_stay(job: Path) -> None:
    """Without the program, nobody can look into the tables."""
    savepoint = printed("savepoint", "trigger", job).strip()
    number = json.loads(printed("savepoint", "describe", savepoint, "--json"))["checkpoint_id"]
    said = CliRunner().invoke(main, ["savepoint", "restore", savepoint, str(job)])
    assert "what sinks have committed since" not in said.stderr
    assert counts(job.parent) == REST
    said = CliRunner().invoke(main, ["savepoint", "restore", savepoint, str(job)])
    assert said.exit_code == 0 and said.stderr.startswith(f"what sinks have committed since checkpoint {number} stays")


def test_who_restores_the_savepoint_of_another_job_is_told_of_the_rows_that_stay(job: Path, tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path, job_id="other") as attempt:
        attempt.run_epoch()
    savepoint = printed("savepoint", "trigger", tmp_path / "other", "--target", tmp_path / "savepoints").strip()
    said = CliRunner().invoke(main, ["savepoint", "restore", savepoint, str(tmp_path / "new")])
    assert said.exit_code == 0 and said.stderr == "", "it has no rows"
    said = CliRunner().invoke(main, ["savepoint", "restore", savepoint, str(job)])
    assert said.exit_code == 0 and said.stderr.startswith("what sinks have committed stays, and is written again")


def test_the_metadata_of_a_savepoint_stands_for_it(job: Path, tmp_path: Path) -> None:
    savepoint = printed("savepoint", "trigger", job).strip()
    for command in ("describe", "verify"):
        printed("savepoint", command, f"{savepoint}/_metadata")
    assert "now its checkpoint" in printed("savepoint", "restore", f"{savepoint}/_metadata", tmp_path / "other")
    printed("savepoint", "dispose", f"{savepoint}/_metadata")
    assert "is not a savepoint" in error_of("savepoint", "dispose", savepoint)


def test_stop(job: Path) -> None:
    savepoint = printed("savepoint", "stop", job).strip()
    assert counts(job.parent) == []
    again = printed("savepoint", "stop", job).strip()
    assert again != savepoint
    printed("savepoint", "restore", again, job)
    assert counts(job.parent) == REST


@pytest.mark.parametrize("command", ["stop", "restore"])
def test_as_many_checkpoints_are_kept_as_before(tmp_path: Path, command: str) -> None:
    job, config = tmp_path / "job", {"checkpointing": CoordinatorConfig(num_retained=4)}
    with HarnessAttempt(counted(), tmp_path, config=config) as attempt:
        for _ in range(5):
            attempt.run_epoch()
    savepoint = printed("savepoint", "trigger", job).strip()
    printed("savepoint", command, *([savepoint] if command == "restore" else []), job)
    assert CompletedCheckpointStore(LocalObjectStore(job)).retained() == (3, 4, 5, 6)
    with HarnessAttempt(counted(), tmp_path, restore_from="chk-5") as attempt:
        assert attempt.run_epoch().checkpoint_id == 7


@pytest.mark.parametrize("command", ["trigger", "stop"])
def test_native(job: Path, command: str) -> None:
    elsewhere = error_of("savepoint", command, job, "--type", "native", "--target", job.parent / "elsewhere")
    assert "a native savepoint names files below" in elsewhere
    savepoint = printed("savepoint", command, job, "--type", "native").strip()
    assert savepoint.endswith("-native")
    other = job.parent / "other"
    printed("savepoint", "restore", savepoint, other / "job")
    assert counts(other) == REST


@pytest.mark.parametrize(
    ("command", "message"), [("stop", "no run took the request"), ("restore", "'run 2' may still be running")]
)
def test_nothing_is_changed_beside_a_run(
    job: Path, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.cli.savepoint.DEFAULT_TIMEOUT", timedelta(0))  # nobody answers
    savepoint = printed("savepoint", "trigger", job).strip()
    alive(job)
    arguments = [savepoint, job] if command == "restore" else [job]
    assert message in error_of("savepoint", command, *arguments)
    assert counts(job.parent) == REST


def test_what_is_not_committed_is_not_touched(tmp_path: Path) -> None:
    """Only the program can commit staged data."""
    sink = FolderSink(tmp_path / "sink")
    env = environment(1)
    events(env, RECORDS, per_epoch=8).sink_to(sink).uid("sink")

    class Dies(HarnessAttempt):
        def _commit(self, metadata: Any) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Dies(env.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()
    for command in ("trigger", "stop"):
        assert "may still have something to commit" in error_of("savepoint", command, tmp_path / "job")
    with HarnessAttempt(env.get_job_graph(), tmp_path) as attempt:
        assert attempt.committed_on_recovery
    printed("savepoint", "trigger", tmp_path / "job")


def test_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path):
        pass
    assert "no completed checkpoint" in error_of("savepoint", "trigger", tmp_path / "job")
    assert "no completed checkpoint" in error_of("savepoint", "stop", tmp_path / "job")


def test_dispose_refuses_what_a_job_retains(job: Path) -> None:
    assert "chk-1 is retained by its job" in error_of("savepoint", "dispose", job / "chk-1")
    missing = error_of("savepoint", "dispose", job / "chk-9")
    assert "is not a savepoint" in missing and f"checkpoints list file://{job}' shows" in missing
    assert counts(job.parent) == REST


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics(job: Path) -> None:
    counts(job.parent)
    shown = printed("checkpoints", "stats", job)
    assert "3 completed, 0 failed, 1 restored, 0 restarts" in shown
    assert "duration_ms" in shown
    assert "COMPLETED" in shown
    (phases,) = (line for line in shown.splitlines() if line.split()[:4] == ["total", "ms", "trigger", "plan"])
    assert phases.split()[4:10] == ["spark", "snapshot", "upload", "metadata", "head", "commit"]
    (count,) = (line.split() for line in shown.splitlines() if line.split()[:1] == ["count"])
    assert sum(map(int, count[7:10])) == 1000, "busy, idle and back-pressured"
    assert json.loads(printed("checkpoints", "stats", job, "--json"))["counts"]["completed"] == 3


def test_statistics_of_no_job(tmp_path: Path) -> None:
    assert "Give the folder of a job: 'flinkpy job list'" in error_of("checkpoints", "stats", tmp_path)
