"""Two runs of one job that do not know each other: the later one waits, unless it is told to take over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import FencedError
from dagster_flinkpy.runtime.master import job as job_loop
from dagster_flinkpy.runtime.master import lease_keeper
from dagster_flinkpy.runtime.master.deployments.job_exchange import JobExchange
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.lease_keeper import LeaseKeeper
from dagster_flinkpy.runtime.master.regions.job_regions import JobRegions
from dagster_flinkpy.storage import StorageLocation, lease
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows
from tests.waiting import LIMIT, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    monkeypatch.setattr(lease_keeper, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(job_loop, "_LEASE", timedelta(seconds=1))


def attempt(path: Path, said: list[str] | None = None, **options: Any) -> JobAttempt:
    graph = word_count(path / "table", ["a", "b", "a"], per_epoch=1).get_job_graph()
    config = JobConfig("words", StorageLocation(str(path / "checkpoints")))
    return JobAttempt(
        graph, config, **{"owner": "a run", "take_over": False, **options}, on_progress=(said or []).append
    )


def later(path: Path, **options: Any) -> tuple[threading.Thread, list[str], list[int | None]]:
    """Runs an epoch on a thread. Returns it, what it says, and what it restored."""
    said, restored = [""], list[int | None]()

    def run() -> None:
        with attempt(path, said, owner="another run", **options) as mine:
            restored.append(None if mine.restored is None else mine.restored.checkpoint_id)
            mine.run_epoch()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, said, restored


def waits(said: list[str]) -> bool:
    return any("waiting for the end of" in line for line in said)


def test_a_run_waits_for_another_one_and_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    with attempt(tmp_path, led_by="run-1") as first:
        thread, said, restored = later(tmp_path, led_by="run-2")
        until(lambda: waits(said), "it does not say that it waits")
        for _ in range(2):
            first.run_epoch()
        assert restored == []
    thread.join(LIMIT)
    assert restored == [2]
    (line,) = (line for line in said if "waiting" in line)
    assert f"'a run' (host {socket.gethostname()}, process {os.getpid()}, since 20" in line
    assert "take_over" in line


def test_the_lease_of_a_run_that_does_nothing_is_renewed(tmp_path: Path) -> None:
    store = StorageLocation(str(tmp_path / "checkpoints" / "words")).open()
    with attempt(tmp_path):
        first = lease.read(store)
        assert first is not None
        until(lambda: current_millis() > first.expires_at, "time does not pass")
        now = lease.read(store)
        assert now is not None
        assert now.alive(current_millis())
    assert not any(thread.name == "flinkpy-lease" for thread in threading.enumerate())


@pytest.mark.parametrize("step", [(JobMaster, "interrupt"), (JobExchange, "close"), (JobRegions, "close")])
def test_a_second_interrupt_ends_the_lease_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    """The process of a notebook goes on, and its next cell would wait for this attempt for ever."""
    with pytest.raises(KeyboardInterrupt, match="second"), monkeypatch.context() as patched, attempt(tmp_path):
        patched.setattr(*step, lambda _: (_ for _ in ()).throw(KeyboardInterrupt("second")))
        raise KeyboardInterrupt("first")
    assert not any(thread.name == "flinkpy-lease" for thread in threading.enumerate())
    leader = lease.read(StorageLocation(str(tmp_path / "checkpoints" / "words")).open())
    assert leader is not None
    assert leader.expires_at == 0


def test_a_run_that_is_told_to_take_over_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(FencedError, match="'another run'"), attempt(tmp_path) as first:
        thread, said, restored = later(tmp_path, take_over=True)
        thread.join(LIMIT)
        assert restored == [None]
        assert not waits(said)
        first.run_epoch()


def test_another_try_of_the_same_run_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(FencedError), attempt(tmp_path, led_by="run-1") as first:
        thread, said, _ = later(tmp_path, led_by="run-1")
        thread.join(LIMIT)
        assert not waits(said)
        first.run_epoch()


def test_whoever_is_told_to_release_the_leadership_lets_the_next_one_go_on(tmp_path: Path) -> None:
    with pytest.raises(FencedError), attempt(tmp_path) as first:
        thread, said, restored = later(tmp_path)
        until(lambda: waits(said), "it does not say that it waits")
        store = StorageLocation(str(tmp_path / "checkpoints" / "words")).open()
        CompletedCheckpointStore(store).take_leadership("flinkpy leader release", current_millis())
        thread.join(LIMIT)
        assert restored == [None]
        first.run_epoch()


def _lead(path: str, pipe: Connection) -> None:
    with attempt(Path(path)) as first:
        first.run_epoch()
        pipe.send("leads")
        threading.Event().wait()


def test_a_run_whose_process_is_killed_is_waited_for_until_its_lease_ends(tmp_path: Path) -> None:
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_lead, args=(str(tmp_path), theirs))
    process.start()
    assert process.pid is not None
    assert mine.recv() == "leads"
    thread, said, restored = later(tmp_path)
    until(lambda: waits(said), "it does not say that it waits")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    thread.join(LIMIT)
    assert restored == [1]


def test_a_run_that_has_died_with_its_clock_hours_ahead_is_not_waited_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "_SILENT_SECONDS", 0.1)
    store = CompletedCheckpointStore(StorageLocation(str(tmp_path / "checkpoints" / "words")).open())
    ahead = store.begin_attempt("ahead", current_millis() + 5 * 3_600_000, timedelta(seconds=15))
    thread, said, restored = later(tmp_path)
    thread.join(LIMIT)
    assert waits(said)
    assert restored == [None]
    with pytest.raises(FencedError):
        store.renew(ahead, timedelta(seconds=15), current_millis())


def test_of_several_that_wait_one_is_next_and_the_others_go_on_waiting(tmp_path: Path) -> None:
    with attempt(tmp_path):
        waiting = [later(tmp_path) for _ in range(3)]
        until(lambda: all(waits(said) for _, said, _ in waiting), "they do not say that they wait")
    for thread, _, _ in waiting:
        thread.join(LIMIT)
    assert sorted(each[0] or 0 for _, _, each in waiting) == [0, 1, 2], "nobody has ended another one"


def test_a_keeper_that_is_fenced_stops(tmp_path: Path) -> None:
    store = CompletedCheckpointStore(StorageLocation(str(tmp_path)).open())
    lasts = timedelta(milliseconds=60)
    first = store.begin_attempt("first", current_millis(), lasts)
    keeper = LeaseKeeper(lasts, current_millis)
    keeper.keep(store, first)
    store.begin_attempt("second", current_millis(), timedelta(minutes=1))
    until(lambda: not any(t.name == "flinkpy-lease" for t in threading.enumerate()), "it does not stop")
    keeper.close()
    record = lease.read(store.store)
    assert record is not None
    assert record.owner == "second"
