"""Processes of slots that die or stop, on a real Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import PythonWorkerLostError, SlotLostError
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.user_logs import LogEntry
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

pytestmark = pytest.mark.spark

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]


class Waits(MapFunction):
    """Notes its process, and waits at the record of a time until a file is there, in the first execution."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        self._attempt, subtask = runtime_context.get_attempt_number(), runtime_context.get_index_of_this_subtask()
        (self._folder / f"pid-{self._attempt}.{subtask}").write_text(str(os.getpid()))

    def map(self, value: Any) -> Any:
        if value.time == 13 and self._attempt == 0:
            print("waits")
            (self._folder / "reached").touch()
            while not (self._folder / "go").exists():
                time.sleep(0.05)
        return value


class Says(MapFunction):
    """Prints the number of its subtask at its first record."""

    def open(self, runtime_context: Any) -> None:
        self._subtask: int | None = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        if self._subtask is not None:
            print(self._subtask)
            self._subtask = None
        return value


def program(folder: Path, parallelism: int = 2) -> tuple[JobGraph, FolderSink]:
    env, sink = environment(parallelism), FolderSink(folder / "sink")
    stream = events(env, RECORDS, per_epoch=4).map(Waits(folder), EVENT).uid("map")
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def assert_exact(sink: FolderSink) -> None:
    rows = sink.rows()
    numbers = {key: [value for name, _, value in RECORDS if name == key] for key in ("k0", "k1", "k2")}
    assert [(k, n) for k, n, _ in rows] == [(k, i + 1) for k, values in numbers.items() for i in range(len(values))]
    assert {key: total for key, _, total in rows} == {key: sum(values) for key, values in numbers.items()}
    assert sink.staged() == []


def attempt_of(
    graph: JobGraph,
    folder: Path,
    settings: SparkSettings,
    restarts: int,
    mode: ExchangeMode = ExchangeMode.PIPELINED,
    task_slots: int | None = None,
    **options: Any,
) -> JobAttempt:
    exchange = ExchangeOptions(
        mode,
        task_slots=task_slots,
        heartbeat_interval=timedelta(seconds=0.5),
        heartbeat_timeout=timedelta(seconds=5),
    )
    failover = FailoverConfig(FixedDelayRestart(restarts, timedelta(0)))
    config = JobConfig(
        "job", StorageLocation(str(folder / "store")), spark=settings, exchange=exchange, failover=failover
    )
    return JobAttempt(graph, config, owner="test", **options)


def when_reached(folder: Path, act: Any) -> threading.Thread:
    def run() -> None:
        while not (folder / "reached").exists():
            time.sleep(0.05)
        act(int((folder / "pid-0.0").read_text()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def pids(folder: Path, attempt: int, subtasks: int = 2) -> list[str]:
    return [(folder / f"pid-{attempt}.{i}").read_text() for i in range(subtasks)]


def is_there(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_slot_that_is_killed_is_replaced_alone(tmp_path: Path, spark_settings: SparkSettings) -> None:
    graph, sink = program(tmp_path)
    kills = when_reached(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
    with attempt_of(graph, tmp_path, spark_settings, 1) as attempt:
        list(attempt.run_epochs())
    kills.join()
    assert_exact(sink)
    assert pids(tmp_path, 1)[1] == pids(tmp_path, 0)[1]
    assert pids(tmp_path, 1)[0] != pids(tmp_path, 0)[0]


def test_slots_of_a_process_that_is_killed_are_replaced_together(tmp_path: Path, spark_settings: SparkSettings) -> None:
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "go").touch()

    graph, sink = program(tmp_path, 4)
    kills = when_reached(tmp_path, kill)
    with attempt_of(graph, tmp_path, spark_settings, 1, task_slots=2) as attempt:
        list(attempt.run_epochs())
    kills.join()
    assert_exact(sink)
    first, second = (pids(tmp_path, execution, 4) for execution in (0, 1))
    for each in (first, second):
        assert each[0] == each[2] != each[1] == each[3]
    assert second[1] == first[1]
    assert second[0] != first[0]


def test_auto_runs_an_epoch_as_a_spark_job_whose_slot_is_killed(tmp_path: Path, spark_settings: SparkSettings) -> None:
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "go").touch()

    graph, sink = program(tmp_path)
    lines: list[str] = []
    kills = when_reached(tmp_path, kill)
    with attempt_of(graph, tmp_path, spark_settings, 0, ExchangeMode.AUTO, on_progress=lines.append) as attempt:
        list(attempt.run_epochs())
    kills.join()
    assert_exact(sink)
    assert len([line for line in lines if "; this epoch is a Spark job" in line]) == 1


def test_what_a_slot_had_that_is_killed_is_named(tmp_path: Path, spark_settings: SparkSettings) -> None:
    graph, _ = program(tmp_path)
    when_reached(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL))
    with (
        attempt_of(graph, tmp_path, spark_settings, 0) as attempt,
        pytest.raises((SlotLostError, PythonWorkerLostError), match="subtask 0 of "),
    ):
        list(attempt.run_epochs())


def test_a_slot_that_stops_is_lost_and_not_used_again(tmp_path: Path, spark_settings: SparkSettings) -> None:
    graph, sink = program(tmp_path)
    lines: list[str] = []
    when_reached(tmp_path, lambda pid: os.kill(pid, signal.SIGSTOP))
    with attempt_of(graph, tmp_path, spark_settings, 1, on_progress=lines.append) as attempt:
        list(attempt.run_epochs())
    assert_exact(sink)
    assert pids(tmp_path, 1)[1] == pids(tmp_path, 0)[1]
    assert not is_there(pids(tmp_path, 0)[0])


def test_what_functions_print_reaches_the_run(tmp_path: Path, spark_settings: SparkSettings) -> None:
    graph, sink = program(tmp_path)
    (tmp_path / "go").touch()
    entries: list[LogEntry] = []
    with attempt_of(graph, tmp_path, spark_settings, 0, on_log=entries.append) as attempt:
        list(attempt.run_epochs())
    assert_exact(sink)
    assert [(entry.operator, entry.text) for entry in entries] == [("map", "waits")]


def test_what_the_slots_of_a_process_print_is_told_apart(tmp_path: Path, spark_settings: SparkSettings) -> None:
    env, entries = environment(3), list[LogEntry]()
    says = events(env, RECORDS, per_epoch=4).map(Says(), EVENT).uid("map")
    says.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(FolderSink(tmp_path / "sink")).uid("sink")
    with attempt_of(env.get_job_graph(), tmp_path, spark_settings, 0, task_slots=3, on_log=entries.append) as attempt:
        list(attempt.run_epochs())
    assert {(entry.operator, entry.subtask, entry.text) for entry in entries} == {("map", i, f"{i}") for i in range(3)}
