from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.requests import REQUESTS_FOLDER, JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Configuration
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import MissingUidError, NoEffectWarning, RestoreError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, run_rows
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)


class _Files(CollectionSource):
    """Reads one file per epoch. One of the files may be empty."""

    def __init__(self, files: list[list[int]], *, endless: bool = False) -> None:
        super().__init__([v for file in files for v in file], Types.LONG())
        self.sizes, self.endless = [len(file) for file in files], endless

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _FilesEnumerator(self, (restored or {}).get("next", 0))


class _FilesEnumerator(SplitEnumerator):
    def __init__(self, source: _Files, position: int) -> None:
        self._source, self._next = source, position

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        splits: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        sizes, i = self._source.sizes, self._next
        if i < len(sizes):
            splits[0] = [SourceSplit(str(i), {"end": sum(sizes[: i + 1])}, sum(sizes[:i]))]
            self._next += 1
        return splits

    def on_epoch_read(self, splits: Any) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._next == len(self._source.sizes) and not self._source.endless

    def snapshot_state(self) -> Any:
        return {"next": self._next}


def read(env: StreamExecutionEnvironment, source: CollectionSource) -> DataStream:
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")


def test_records_come_back_epoch_by_epoch() -> None:
    stream = events(environment(2), [("a", 1, 2), ("b", 2, 3), ("a", 3, 5)], per_epoch=1)
    counted = stream.key_by("key").process(CountPerKey(), COUNTED)
    assert list(counted.execute_and_collect()) == [("a", 1, 2), ("b", 1, 3), ("a", 2, 7)]


def test_a_limit_ends_the_run() -> None:
    ran = []
    stream = read(environment(), _Files([[1], [2], [3]])).map(lambda v: v, Types.LONG())
    results = stream.execute_and_collect(limit=2)
    for record in results:
        ran.append(record)
    assert ran == [1, 2]


def test_an_empty_file_is_not_the_end() -> None:
    stream = read(environment(2), _Files([[1, 2], [], [3]]))
    assert list(stream.execute_and_collect()) == [1, 2, 3]


def test_a_source_that_does_not_end_is_read_until_the_job_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=10))
    job = StorageLocation(str(tmp_path)).child("endless")
    plan = _FilesEnumerator.plan_epoch

    def stopped_at_the_end(enumerator: _FilesEnumerator, parallelism: int) -> Any:
        splits = plan(enumerator, parallelism)
        if not any(splits) and not list(job.open().list(REQUESTS_FOLDER)):
            JobRequests(job, "test").submit(Order(RequestKind.STOP))
        return splits

    monkeypatch.setattr(_FilesEnumerator, "plan_epoch", stopped_at_the_end)
    sink = FolderSink(tmp_path / "sink")

    def run() -> None:
        env = environment()
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
        env.configure(Configuration().set_string("execution.local", "true"))
        rows = read(env, _Files([[1], [2]], endless=True)).map(lambda v: (v,)).uid("rows")
        rows.sink_to(sink).uid("sink")
        env.execute("endless")

    run()
    assert sink.rows() == [(1,), (2,)]
    (request_id,) = {info.key.split("/")[1] for info in job.open().list(REQUESTS_FOLDER)}
    answer = JobRequests(job, "test").answer(request_id)
    assert answer is not None and answer.savepoint is not None
    run()
    assert "was stopped with a savepoint, so this run does nothing" in caplog.text
    assert sink.rows() == [(1,), (2,)]
    latest = CompletedCheckpointStore(job.open()).latest()
    assert latest is not None and f"or to 'chk-{latest.checkpoint_id}', its last checkpoint" in caplog.text


def test_a_checkpoint_timeout_has_no_effect_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.common.no_effect._warned_of", set())
    env = environment()
    env.configure(Configuration().set_string("execution.local", "true"))
    env.get_checkpoint_config().set_checkpoint_timeout(1_000)
    read(env, _Files([[1]])).uid("rows")
    with pytest.warns(NoEffectWarning, match=r"set_checkpoint_timeout\(\) has no effect: nothing interrupts"):
        env.execute("brief")


def test_who_interrupts_a_program_in_this_process_ends_it_at_once(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.configure(Configuration().set_string("execution.local", "true"))

    def interrupted(number: int) -> int:
        (tmp_path / str(number)).touch()
        signal.raise_signal(signal.SIGINT)  # somebody presses Ctrl-C
        return number

    numbers = env.from_collection([1, 2, 3, 4], Types.LONG())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with & ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(numbers.map(interrupted, Types.LONG()).uid("numbers").execute_and_collect())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_script_says_how_many_late_records_were_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Its results lack them, and nothing else in a terminal shows it."""
    stream = events(environment(2), [("a", at, 1) for at in (1, 150, 2, 300, 3, 4)], per_epoch=1)
    counts = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10))).sum("value").uid("sums")
    assert sum(row.value for row in counts.execute_and_collect()) == 3
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("windows of operator 'sums' have dropped 3 late records")


def test_a_script_says_that_it_does_not_run_on_the_cluster_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.common.no_effect._warned_of", set())
    monkeypatch.setattr("dagster_flinkpy.runtime.master.local_executor.start_server", lambda: None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://cluster:15002")
    with pytest.warns(NoEffectWarning, match="SPARK_REMOTE has no effect: a script runs on this machine"):
        assert list(read(environment(), _Files([[1]])).execute_and_collect()) == [1]


def test_execute_runs_all_parts_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    sinks = [FolderSink(tmp_path / uid) for uid in "ab"]

    def program() -> StreamExecutionEnvironment:
        env = environment()
        for uid, sink in zip("ab", sinks, strict=True):
            stream = read(env, _Files([[1], [2]])).uid(uid).map(lambda v: (v,)).uid(f"{uid}_map")
            stream.sink_to(sink).uid(f"{uid}_sink")
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "checkpoints"))
        return env

    result = program().execute("My job!")
    assert (result.get_job_id(), result.last_checkpoint_id) == ("My-job", 2)
    assert result.get_net_runtime() >= 0
    assert [sink.rows() for sink in sinks] == [[(1,), (2,)]] * 2
    assert program().execute("My job!").last_checkpoint_id is None
    assert [p.name for p in (tmp_path / "checkpoints").iterdir() if p.name.startswith("My")] == ["My-job"]


def test_a_program_starts_from_a_savepoint(tmp_path: Path) -> None:
    def counts(uid: str, **options: str) -> DataStream:
        env = environment()
        env.configure(Configuration.from_dict(options))
        source = events(env, [("a", 1, 2), ("a", 2, 3)], uid=uid, per_epoch=1)
        return source.key_by("key").process(CountPerKey(), COUNTED).uid("counts")

    with HarnessAttempt(collect_graph(counts("first")), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
    recovery = {"execution.state-recovery.path": savepoint}
    with pytest.raises(RestoreError, match="'first'"):
        list(counts("second", **recovery).execute_and_collect())
    recovery["execution.state-recovery.ignore-unclaimed-state"] = "true"
    assert list(counts("second", **recovery).execute_and_collect()) == [("a", 2, 4), ("a", 3, 7)]


THREE = [("a", 1, 2), ("a", 2, 4), ("a", 3, 7)]


def test_a_savepoint_has_all_regions(tmp_path: Path) -> None:
    def counts(**settings: str) -> DataStream:
        env = environment()
        env.configure(Configuration.from_dict(settings))
        stream = events(env, THREE, per_epoch=1).blocking().key_by("key")
        return stream.process(CountPerKey(), COUNTED).uid("counts")

    with HarnessAttempt(collect_graph(counts()), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
    rest = counts(**{"execution.state-recovery.path": savepoint}).execute_and_collect()
    assert list(rest) == [("a", 2, 6), ("a", 3, 13)]


def test_a_script_does_not_start_from_nothing_beside_the_jobs_of_its_regions(tmp_path: Path) -> None:
    def program() -> StreamExecutionEnvironment:
        env = environment()
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
        events(env, THREE, per_epoch=1).blocking().map(lambda v: v).uid("map").print().uid("b")
        return env

    with HarnessAttempt(program().get_job_graph(), tmp_path, job_id="two.0") as former:
        former.run_epoch()
    with pytest.raises(RestoreError, match=r"in the checkpoints of jobs 'two.0': regions used to be separate jobs"):
        program().execute("two")


def test_where_state_is_kept_operators_need_uids(tmp_path: Path) -> None:
    env = environment()
    stream = env.from_collection([1], Types.LONG())
    assert list(stream.execute_and_collect()) == [1]
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    with pytest.raises(MissingUidError):
        stream.execute_and_collect()


SCRIPT = """
import importlib, sys
from pathlib import Path

from dagster_flinkpy.common import Configuration
from dagster_flinkpy.datastream import StreamExecutionEnvironment

seen = Path(sys.argv[1])

def fails_once(value):
    if not seen.exists():
        seen.touch()
        raise ConnectionError("the service is away")
    return value

def needs_a_module(value):
    return importlib.import_module("no_such_module")

def run(function):
    options = Configuration()
    options.set_string("execution.local", "true")
    options.set_string("restart-strategy.type", "fixed-delay")
    options.set_string("restart-strategy.fixed-delay.attempts", "3")
    options.set_string("restart-strategy.fixed-delay.delay", "10 ms")
    env = StreamExecutionEnvironment.get_execution_environment(options)
    env.from_collection([1, 2]).map(function).print()
    env.execute()

run(fails_once)
run(needs_a_module)
"""


def test_a_script_shows_each_restart_and_at_once_what_no_restart_mends(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "seen")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1 and ran.stdout.split() == ["1", "2"]
    restarts = [line for line in ran.stderr.splitlines() if "runs the epoch again" in line]
    (restart,) = restarts
    assert "raised ConnectionError: the service is away" in restart
    assert restart.endswith("the region runs the epoch again: restart 1 of 3 after 10 ms")
    assert "UserFunctionError: map() of operator" in ran.stderr.partition(restart)[2]
    assert "raised ModuleNotFoundError: No module named 'no_such_module'" in ran.stderr
