"""Jobs on a real Spark. Tests that need no Spark are in tests/runtime/master/test_job.py."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import (
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    SlotSharingGroup,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.errors import (
    CheckpointError,
    NoEffectWarning,
    SegmentLostError,
    SparkUnavailableError,
    StorageError,
    UnsupportedEnvironmentError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.blocking.dataframe_segments import read_parts
from dagster_flinkpy.runtime.blocking.dataframe_types import frame_schema, user_frames
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.deployments import pipelined_region
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.local_conf import available_cores
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE, StateFile
from dagster_flinkpy.spark.sessions import SparkSettings, get_session, open_session, stop_server
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.lease import LEADER_KEY
from tests.pyspark_versions import since
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, run_job
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, Sessions, environment, events

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(24)]
OWN = SparkSettings(
    conf={
        "spark.driver.memory": "512m",
        "spark.python.worker.idleTimeoutSeconds": "1s",
        "spark.python.worker.killOnIdleTimeout": "true",
    }
)
"""The Spark of tests that want a server of their own. It kills Python workers that are silent, as some clusters do."""


@pytest.fixture(scope="module")
def folder_of_own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("own")
    yield folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_DIR_VARIABLE, str(folder))
        stop_server(OWN)


@pytest.fixture
def own_runtime_dir(folder_of_own_server: Path, one_server: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets jobs run on `OWN`, which is started if it is not there."""
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(folder_of_own_server))
    monkeypatch.setattr(job_session, "get_session", get_session)
    return folder_of_own_server


def attempt_of(graph: JobGraph, folder: Path, **options: Any) -> JobAttempt:
    config = JobConfig("job", StorageLocation(str(folder)), **options.pop("config", {}))
    return JobAttempt(graph, config, owner="test", **options)


# --- programs ---------------------------------------------------------------------------------------------------------


class WordCount(KeyedProcessFunction):
    """Counts a word. A timer emits the count when no further records of the word can arrive."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._count.update((self._count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(1000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), timestamp, self._count.value()


def test_word_count_with_timers() -> None:
    words = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
    stream = events(environment(2), [(word, i, 0) for i, word in enumerate(words)], per_epoch=5)
    counts = stream.key_by("key").process(WordCount(), COUNTED).execute_and_collect("word count")
    assert sorted(counts) == sorted((word, 1000, words.count(word)) for word in set(words))


class Largest(KeyedMultipleInputProcessFunction):
    """The largest value of each of three inputs, when the input has ended."""

    def open(self, runtime_context: RuntimeContext) -> None:
        names = ("first", "second", "third")
        self._largest = [runtime_context.get_state(ValueStateDescriptor(name, Types.LONG())) for name in names]

    def get_inputs(self) -> list[Any]:
        return [partial(self._update, number) for number in range(3)]

    def _update(self, number: int, value: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self._largest[number].update(max(value.value, self._largest[number].value() or 0))
        ctx.timer_service().register_event_time_timer(10**9)

    def on_timer(self, timestamp: int, ctx: KeyedMultipleInputProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), *(state.value() for state in self._largest)


def test_three_inputs_and_a_rescale(tmp_path: Path) -> None:
    env = environment(2)
    streams = [
        events(env, [(key, time, time + number) for time, (key, _, _) in enumerate(RECORDS)], uid=uid, per_epoch=12)
        for number, uid in ((0, "first"), (100, "second"), (200, "third"))
    ]
    first, second, third = (stream.key_by("key") for stream in streams)
    row = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])
    graph = collect_graph(first.connect(second, third).process(Largest(), row).uid("largest"))
    with attempt_of(graph, tmp_path) as attempt:
        attempt.run_epoch()
    with attempt_of(graph, tmp_path, parallelism=3) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
        largest = collected(attempt.graph, attempt.collected)
    assert sorted(largest) == [(f"k{i}", 20 + i, 120 + i, 220 + i) for i in range(4)]


WAVES = 40
"""Tasks of the long job. Each waits three seconds for the short one, so it comes in time on a slow machine, too."""


class SlowToOpen(MapFunction):
    """Records whether the short job was done when this subtask began, and then waits a while for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        done = self._folder / "short job"
        seen = self._folder / f"subtask {runtime_context.get_index_of_this_subtask()}"
        seen.with_suffix(".draft").write_text(str(done.exists()))
        seen.with_suffix(".draft").rename(seen)
        for _ in range(60):
            if done.exists():
                break
            time.sleep(0.05)

    def map(self, value: Any) -> Any:
        return value


@since("4.0", "server that runs share")
def test_a_short_epoch_does_not_wait_for_all_of_a_long_one(tmp_path: Path) -> None:
    slow = events(environment(WAVES, WAVES), RECORDS).map(SlowToOpen(tmp_path), EVENT).uid("slow")
    quick = events(environment(1), RECORDS).map(lambda event: event, EVENT).uid("quick")
    said: list[str] = []

    def run_long() -> None:
        config = JobConfig("long", StorageLocation(str(tmp_path / "checkpoints")))
        with JobAttempt(collect_graph(slow), config, owner="test") as attempt:
            attempt.run_epoch()

    long = threading.Thread(target=run_long)
    long.start()
    while long.is_alive() and not list(tmp_path.glob("subtask *[0-9]")):
        time.sleep(0.01)
    with attempt_of(collect_graph(quick), tmp_path / "checkpoints", on_progress=said.append) as attempt:
        attempt.run_epoch()
    (tmp_path / "short job").touch()
    long.join()
    began_later = [path.read_text() for path in sorted(tmp_path.glob("subtask *[0-9]"))]
    assert len(began_later) == WAVES and began_later.count("True") >= 2
    ahead = f"checkpoint 1 of job 'job' shares Spark with checkpoint 1 of job 'long' (process {os.getpid()}, for "
    assert any(line.startswith(ahead) for line in said)


class Waits(MapFunction):
    """Says that this subtask has begun, and waits until it may go on; says so, too, if nobody let it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        subtask = runtime_context.get_index_of_this_subtask()
        (self._folder / f"began {subtask}").touch()
        deadline = time.monotonic() + 120
        while not (self._folder / "go on").exists():
            if time.monotonic() > deadline:
                (self._folder / f"gave up {subtask}").touch()
                break
            time.sleep(0.01)

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.usefixtures("own_runtime_dir")
def test_a_run_has_slots_while_another_one_keeps_all_cores(tmp_path: Path) -> None:
    cores = available_cores()
    waiting = collect_graph(events(environment(cores), RECORDS).map(Waits(tmp_path), EVENT).uid("waits"))
    quick = collect_graph(events(environment(cores), RECORDS).key_by("key").process(CountPerKey(), COUNTED).uid("n"))

    def run_long() -> None:
        config = JobConfig("long", StorageLocation(str(tmp_path / "checkpoints")), OWN)
        with JobAttempt(waiting, config, owner="test") as attempt:
            attempt.run_epoch()

    long = threading.Thread(target=run_long)
    long.start()
    try:
        while long.is_alive() and len(list(tmp_path.glob("began *"))) < cores:
            time.sleep(0.01)
        with attempt_of(quick, tmp_path / "checkpoints", config={"spark": OWN}) as attempt:
            attempt.run_epoch()
            counts = collected(attempt.graph, attempt.collected)
    finally:
        (tmp_path / "go on").touch()
        long.join()
    assert len(list(tmp_path.glob("began *"))) == cores and not list(tmp_path.glob("gave up *"))
    assert len(counts) == len(RECORDS)


@since("4.0", "server that runs share")
def test_a_server_that_dies_between_epochs_is_named_and_replaced(tmp_path: Path, own_runtime_dir: Path) -> None:
    graph = collect_graph(events(environment(1), RECORDS, per_epoch=12))
    with attempt_of(graph, tmp_path, config={"spark": OWN}) as attempt:
        attempt.run_epoch()
        (state_path,) = own_runtime_dir.glob("spark-*.json")
        server = StateFile(state_path).read()
        assert server is not None and server.server is not None
        os.kill(server.server.pid, signal.SIGKILL)
        assert server.supervisor.await_end(300)
        named = f"The local Spark server ended while .* The next run starts another. .*{server.log}"
        with pytest.raises(SparkUnavailableError, match=named):
            attempt.run_epoch()
    with attempt_of(graph, tmp_path, config={"spark": OWN}) as attempt:
        assert attempt.run_epoch().checkpoint_id == 3
        assert len(collected(attempt.graph, attempt.collected)) == 12


@since("4.1", "kills silent workers")
@pytest.mark.parametrize("exchange", [ExchangeMode.PIPELINED, ExchangeMode.SPARK])
def test_spark_does_not_kill_tasks_that_say_nothing(
    tmp_path: Path, own_runtime_dir: Path, exchange: ExchangeMode
) -> None:
    silent = events(environment(1), RECORDS[:3]).map(lambda event: time.sleep(0.7) or event.value, Types.LONG())
    config = {"spark": OWN, "exchange": ExchangeOptions(exchange)}
    with attempt_of(collect_graph(silent.uid("silent")), tmp_path, config=config) as attempt:
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == 3
        assert attempt.execution is not None and not attempt.execution.failures


def test_modules_of_a_worker_are_out_of_garbage_collection_after_its_first_task(tmp_path: Path) -> None:
    frozen = events(environment(1), RECORDS, per_epoch=12).map(lambda event: gc.get_freeze_count(), Types.LONG())
    with attempt_of(collect_graph(frozen.uid("frozen")), tmp_path) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        assert min(collected(attempt.graph, attempt.collected)[-12:]) > 10_000


class LosesASegment(MapFunction):
    """Deletes the segments that the second epoch reads, once, before its task reads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        found = sorted((self._folder / "job" / "exchange").glob("*/*-0000000002/*.arrow"))
        if found:
            with suppress(FileExistsError):  # two subtasks may come at once, and only one deletes
                (self._folder / "lost").touch(exist_ok=False)
                for path in found:
                    path.unlink()

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.smoke
def test_a_lost_segment_restarts_the_region_that_wrote_it(tmp_path: Path) -> None:
    def program(folder: Path, through: bool) -> tuple[JobGraph, FolderSink]:
        env, sink = environment(2), FolderSink(folder / "sink")
        stream = events(env, RECORDS, per_epoch=8)
        if through:
            stream = stream.blocking().map(LosesASegment(folder), EVENT).uid("loses")
        stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
        return env.get_job_graph(), sink

    graph, sink = program(tmp_path, True)
    failover = FailoverConfig(FixedDelayRestart(3, timedelta(0)))
    each_epoch = ExchangeOptions(ExchangeMode.SPARK)  # so that each opens its functions
    with attempt_of(graph, tmp_path, config={"failover": failover, "exchange": each_epoch}) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3]
        assert attempt.token == 1, "the job has not gone back to a checkpoint"
        status = attempt._deployed.failover.graph
        assert (status.restarts, status.attempt(0), status.attempt(1)) == (1, 1, 1)
    graph, straight = program(tmp_path / "straight", False)
    with HarnessAttempt(graph, tmp_path / "straight") as expected:
        list(expected.run_epochs())
    assert sink.rows() == straight.rows()


def test_resources_of_a_slot_sharing_group_have_no_effect_in_local_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.common.no_effect._warned_of", set())
    group = SlotSharingGroup.builder("large").set_cpu_cores(2).set_task_heap_memory_mb(64).build()
    mapped = events(environment(2), RECORDS).rebalance().map(lambda event: event, EVENT).uid("mapped")
    graph = collect_graph(mapped.slot_sharing_group(group))
    with attempt_of(graph, tmp_path) as attempt, pytest.warns(NoEffectWarning, match="group 'large' has no effect"):
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == len(RECORDS)


def test_execute_writes_a_table(tmp_path: Path) -> None:
    env = environment(2)
    rows = events(env, RECORDS, per_epoch=10).map(lambda v: (v.key, v.time, v.value), COUNTED).uid("rows")
    rows.sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "checkpoints"))
    assert env.execute("table").last_checkpoint_id == 3
    files = (tmp_path / "table").glob("*.parquet")
    assert sorted(tuple(row.values()) for f in files for row in pq.read_table(f).to_pylist()) == sorted(RECORDS)


def test_a_run_with_checkpoints_and_a_rescale_gives_what_a_straight_one_does(tmp_path: Path) -> None:
    def sessions(per_epoch: int | None, parallelism: int) -> JobGraph:
        stream = events(environment(parallelism), RECORDS, per_epoch=per_epoch).rebalance().map(lambda v: v, EVENT)
        return collect_graph(stream.uid("map").key_by("key").process(Sessions(1000), COUNTED).uid("sessions"))

    straight = run_job(sessions(None, 1), tmp_path / "straight")
    graph, records = sessions(5, 2), []
    with attempt_of(graph, tmp_path) as attempt:
        for _ in range(3):
            attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
    with attempt_of(graph, tmp_path, parallelism=3) as attempt:
        attempt.commit_restored()
        while not attempt.finished:
            attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
    assert sorted(records) == sorted(straight)
    assert len(straight) == 4


def test_functions_of_a_module_that_workers_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        def shout(value):
            return value.upper() + "!"
    """
    (tmp_path / "flinkpy_spark_user_code.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("flinkpy_spark_user_code")
    try:
        stream = environment().from_collection(["a", "b"], Types.STRING()).rebalance().map(module.shout)
        assert list(stream.execute_and_collect()) == ["A!", "B!"]
    finally:
        del sys.modules["flinkpy_spark_user_code"]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_an_error_of_a_user_function_comes_back_whole_and_nothing_is_visible(tmp_path: Path) -> None:
    def sunk(poison: str | None) -> tuple[JobGraph, FolderSink]:
        def check(value: Any) -> Any:
            if value[0] == poison and value[1] == 3:
                raise ValueError(f"{value} is poison")
            return value

        env, sink = environment(2), FolderSink(tmp_path / "table")
        counts = events(env, RECORDS, per_epoch=8).key_by("key").process(CountPerKey(), COUNTED).uid("count")
        counts.map(check, COUNTED).uid("check").sink_to(sink).uid("sink")
        return env.get_job_graph(), sink

    graph, sink = sunk("k2")
    with attempt_of(graph, tmp_path) as attempt:
        attempt.run_epoch()
        first = sink.rows()
        with pytest.raises(UserFunctionError, match=r"raised ValueError: .* is poison") as raised:
            attempt.run_epoch()
    assert (raised.value.operator, len(first)) == ("check", 8)
    assert 'raise ValueError(f"{value} is poison")' in raised.value.user_traceback
    assert (sink.rows(), sink.staged()) == (first, [])
    with attempt_of(sunk(None)[0], tmp_path) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert sorted((key, number) for key, number, _ in sink.rows()) == [
        (f"k{k}", n) for k in range(4) for n in range(1, 7)
    ]


def test_a_checkpoint_that_takes_too_long_frees_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined_region, "_CANCEL_SECONDS", 1.0)  # the functions never give up
    release = tmp_path / "release"

    def wait(value: Any) -> Any:
        while not release.exists():
            time.sleep(0.01)
        return value

    stream = events(environment(2), RECORDS).rebalance().map(wait, EVENT).uid("wait")
    graph = collect_graph(stream)
    config = {"checkpointing": CoordinatorConfig(timeout=timedelta(seconds=2))}
    with (
        attempt_of(graph, tmp_path, config=config) as attempt,
        pytest.raises(CheckpointError, match="tasks answered in 0:00:02"),
    ):
        attempt.run_epoch()
    # Both slots of the Spark server are free again, although nothing was released.
    assert sorted(environment(2).from_collection([1, 2], Types.LONG()).rebalance().execute_and_collect()) == [1, 2]
    release.touch()
    with attempt_of(graph, tmp_path) as attempt:
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == len(RECORDS)


@pytest.fixture
def failing_sink(tmp_path: Path) -> Iterator[tuple[JobGraph, FolderSink]]:
    sink = FolderSink(tmp_path / "table", fail_on=RECORDS[20])
    env = environment(2)
    rows = events(env, RECORDS).map(lambda v: (v.key, v.time, v.value), COUNTED).uid("rows")
    rows.sink_to(sink).uid("sink")
    yield env.get_job_graph(), sink


def test_a_typed_error_of_a_spark_task_keeps_its_type(
    failing_sink: tuple[JobGraph, FolderSink], tmp_path: Path
) -> None:
    graph, sink = failing_sink
    with attempt_of(graph, tmp_path) as attempt, pytest.raises(StorageError, match=r"^the disk is full$"):
        attempt.run_epoch()
    assert (sink.rows(), sink.staged()) == ([], [])


class Needs:
    """An object that workers can only load if they have a module."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.module,)


def test_workers_without_a_module_end_the_run_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    needed = Needs("no_such_module")
    graph = collect_graph(events(environment(1), RECORDS).map(lambda event: (event, needed)[0], EVENT).uid("map"))
    config = {"failover": FailoverConfig(FixedDelayRestart(attempts=9))}
    with (
        attempt_of(graph, tmp_path, config=config) as attempt,
        pytest.raises(UnsupportedEnvironmentError, match="cannot run, however often it is tried") as raised,
    ):
        attempt.run_epoch()
    assert "ModuleNotFoundError: No module named 'no_such_module'" in str(raised.value)
    assert [record for record in caplog.records if "again" in record.getMessage()] == []


def test_an_error_of_a_spark_task_keeps_its_fields(tmp_path: Path, spark_settings: SparkSettings) -> None:
    job = StorageLocation(str(tmp_path))
    job.open().put(LEADER_KEY, b"")
    store = job.child("exchange")
    with open_session(spark_settings) as spark, pytest.raises(SegmentLostError) as raised, user_frames("it"):
        segment = {"key": "1-1/a.arrow", "bytes": 8}
        schema = frame_schema(Types.ROW_NAMED(["a"], [Types.LONG()]), "it")
        read_parts(spark, store, "a.exchange", [segment], schema).collect()
    assert (raised.value.edge, raised.value.key) == ("a.exchange", "1-1/a.arrow")
    assert "a.exchange/1-1/a.arrow is gone" in str(raised.value)
