"""Jobs with sources in Flink's shape. If tasks live, readers ask for splits, and barriers pass between two records."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Duration, Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import SourceReadError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local
from tests.ranges import SIZE, Ranges
from tests.waiting import LIMIT, until


class Note(KeyedProcessFunction):
    """Notes each number in a file. A file ``fail-N`` makes N raise, ``kill-N`` makes it end the process, once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        for what in ("fail", "kill"):
            if (wish := self._folder / f"{what}-{value}").exists():
                wish.unlink()
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("as wished")
        (self._folder / f"seen-{value}").touch()
        yield value, value % 7


def program(folder: Path, parallelism: int = 2, ranges: int = 5) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism).set_max_parallelism(128)
    numbers = env.from_source(Ranges(folder, ranges), WatermarkStrategy.for_monotonous_timestamps(), "numbers")
    row_type = Types.ROW_NAMED(["n", "rest"], [Types.LONG(), Types.LONG()])
    noted = numbers.uid("numbers").key_by(lambda n: n % 7, Types.LONG()).process(Note(folder), row_type).uid("note")
    noted.sink_to(ParquetSink(str(folder / "out"))).uid("sink")
    return env.get_job_graph()


def rows(folder: Path) -> list[int]:
    import pyarrow.dataset as ds

    files = [str(file) for file in (folder / "out").rglob("*.parquet") if not file.name.startswith("_")]
    return sorted(ds.dataset(files).to_table().column("n").to_pylist()) if files else []


def config_of(folder: Path, spark: SparkSettings | None, exchange: ExchangeMode) -> JobConfig:
    config = JobConfig(
        "job",
        StorageLocation(str(folder / "store")),
        exchange=ExchangeOptions(exchange),
        checkpointing=CoordinatorConfig(interval=timedelta(days=1)),
        failover=FailoverConfig(FixedDelayRestart(3, timedelta(0))),
        in_process=spark is None,
    )
    return config if spark is None else replace(config, spark=spark)


class Run:
    """A run of a job in a thread, until its input ends or it is stopped."""

    def __init__(self, folder: Path, spark: SparkSettings | None, graph: JobGraph | None = None) -> None:
        self.folder = folder
        self._config = config_of(folder, spark, ExchangeMode.PIPELINED)
        self._begun, self.errors = threading.Event(), list[BaseException]()
        self._graph = graph or program(folder)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._begun.wait(LIMIT)

    def _run(self) -> None:
        try:
            with JobAttempt(self._graph, self._config, owner="test") as attempt:
                self._begun.set()
                list(attempt.run_epochs(periodic=True))
        except BaseException as error:
            self.errors.append(error)
        self._begun.set()

    def seen(self, *numbers: int) -> None:
        """Waits until numbers were seen."""
        for n in numbers:
            until(lambda n=n: self.errors or (self.folder / f"seen-{n}").exists(), f"{n} was not seen")  # type: ignore[misc]
        assert self.errors == []

    def ask(self, kind: RequestKind, **how: Any) -> Any:
        """Asks for something, and waits until it is done."""
        asker = JobRequests(self._config.storage.child("job"), "test")
        return asker.wait(asker.submit(Order(kind, **how)))

    def end(self) -> None:
        """Waits until it has ended."""
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        assert self.errors == []


@pytest.fixture(params=["here", pytest.param("spark", marks=pytest.mark.spark)])
def spark(request: pytest.FixtureRequest) -> SparkSettings | None:
    return None if request.param == "here" else request.getfixturevalue("spark_settings")


def hold(folder: Path, *numbers: int) -> Callable[[], None]:
    files = [folder / f"hold-{n}" for n in numbers]
    for file in files:
        file.touch()

    def release() -> None:
        for file in files:
            file.unlink()

    return release


def test_a_barrier_passes_inside_a_split_and_a_failed_reader_goes_on_from_there(
    tmp_path: Path, spark: SparkSettings | None
) -> None:
    release, last = hold(tmp_path, 5, 15), hold(tmp_path, 49)
    run = Run(tmp_path, spark)
    run.seen(4, 14)
    assert run.ask(RequestKind.CHECKPOINT).checkpoint_id == 1
    until(lambda: rows(tmp_path), "the first checkpoint was not committed")
    assert rows(tmp_path) == [*range(5), *range(10, 15)]
    (tmp_path / ("fail-7" if spark is None else "kill-7")).touch()
    release()
    run.seen(7, 29, 39, 48)
    last()
    run.end()
    assert rows(tmp_path) == list(range(50))
    said = (tmp_path / "enumerator").read_text().split("\n")
    assert said.count("reader 0") == said.count("reader 1") == 2, "they have started twice"
    assert "back" not in " ".join(said)
    assert said[0] == "start 2" and said[-2:] == ["close", ""]
    assert {"read 10", "read 50", "complete 1"} <= set(said)
    assert (tmp_path / "thanks-10").exists() and (tmp_path / "reader-0-complete-1").exists()
    assert (tmp_path / "reader-0-closed").exists() and (tmp_path / "reader-1-closed").exists()


def test_a_slow_reader_does_not_hold_back_the_splits_of_another(tmp_path: Path, spark: SparkSettings | None) -> None:
    release = hold(tmp_path, 0)
    run = Run(tmp_path, spark)
    run.seen(*range(10, 50))
    release()
    run.end()
    assert rows(tmp_path) == list(range(50))


@pytest.mark.short
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_run_at_another_parallelism_reads_on(tmp_path: Path, spark: SparkSettings | None, parallelism: int) -> None:
    release = hold(tmp_path, 5, 15)
    run = Run(tmp_path, spark)
    run.seen(4, 14)
    run.ask(RequestKind.STOP)
    run.end()
    assert rows(tmp_path) == [*range(5), *range(10, 15)]
    release()
    run = Run(tmp_path, spark, program(tmp_path, parallelism))
    run.end()
    assert rows(tmp_path) == list(range(50))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_that_is_rescaled_reads_on_in_the_same_run(tmp_path: Path, parallelism: int) -> None:
    release = hold(tmp_path, 5, 15)
    run = Run(tmp_path, None)
    run.seen(4, 14)
    run.ask(RequestKind.RESCALE, parallelism=parallelism)
    release()
    run.end()
    assert rows(tmp_path) == list(range(50))
    said = (tmp_path / "enumerator").read_text().split("\n")
    assert said.count("close") == 2 and {"start 2", f"start {parallelism}"} <= set(said)


def test_draining_ends_the_source_where_it_is(tmp_path: Path) -> None:
    hold(tmp_path, 5, 15)
    run = Run(tmp_path, None)
    run.seen(4, 14)
    run.ask(RequestKind.STOP, drain=True)
    run.end()
    assert rows(tmp_path) == [*range(5), *range(10, 15)]


SPARK = ExchangeMode.SPARK


@pytest.mark.short
@pytest.mark.parametrize("exchange", [SPARK, ExchangeMode.PIPELINED])
def test_an_epoch_that_is_not_open_reads_what_is_there(
    tmp_path: Path, spark: SparkSettings | None, exchange: ExchangeMode
) -> None:
    release = hold(tmp_path, 5, 15)
    with JobAttempt(program(tmp_path), config_of(tmp_path, spark, exchange), owner="test") as attempt:
        epochs = list(attempt.run_epochs())
        assert not attempt.finished, "readers may have more later"
    polls = (tmp_path / "reader-0-nothing").read_text().count("\n")
    assert 0 < polls <= len(epochs), "a reader that has nothing is not polled again before the barrier"
    assert rows(tmp_path) == [*range(5), *range(10, 15)]
    (tmp_path / "fail-7").touch()
    release()
    with JobAttempt(program(tmp_path, 3), config_of(tmp_path, spark, exchange), owner="test") as attempt:
        assert list(attempt.run_epochs())
        assert attempt.finished
    assert rows(tmp_path) == list(range(50))
    said = (tmp_path / "enumerator").read_text().split("\n")
    assert {f"read {10 * (i + 1)}" for i in range(5)} <= set(said)
    assert said.count("close") == 2
    with JobAttempt(program(tmp_path, 3), config_of(tmp_path, spark, exchange), owner="test") as attempt:
        assert attempt.finished
        list(attempt.run_epochs())
    assert rows(tmp_path) == list(range(50)), "what has ended stays so"


class Timers(KeyedProcessFunction):
    """Notes the event time in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        ctx.timer_service().register_event_time_timer(value)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        (self._folder / f"seen-{timestamp}").touch()
        yield timestamp, 0


@pytest.mark.parametrize("idle", [False, True])
def test_event_time_does_not_wait_for_readers_that_have_ended_or_are_idle(tmp_path: Path, idle: bool) -> None:
    release = hold(tmp_path, *([1] if idle else []), 18 if idle else 8)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if idle:
        strategy = strategy.with_idleness(Duration.of_millis(1))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers = env.from_source(Ranges(tmp_path, 2 if idle else 1), strategy, "numbers").uid("numbers")
    row_type = Types.ROW_NAMED(["n", "rest"], [Types.LONG(), Types.LONG()])
    timers = numbers.key_by(lambda n: 0, Types.LONG()).process(Timers(tmp_path), row_type).uid("timers")
    timers.sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")
    run = Run(tmp_path, None, env.get_job_graph())
    run.seen(16 if idle else 6)
    assert not (tmp_path / ("seen-17" if idle else "seen-7")).exists(), "later records may still have this time"
    release()
    run.end()
    assert {0, 8, 9} <= set(rows(tmp_path)), "all timers fire at the end"


@pytest.mark.parametrize("seed", range(3))
def test_failures_anywhere_between_periodic_checkpoints(tmp_path: Path, seed: int) -> None:
    chance, ranges = random.Random(seed), 12
    for n in chance.sample(range(SIZE * ranges), 4):
        (tmp_path / f"fail-{n}").touch()
    interval, tries = timedelta(milliseconds=chance.choice([10, 60])), 0
    config = replace(
        config_of(tmp_path, None, ExchangeMode.PIPELINED),
        checkpointing=CoordinatorConfig(interval=interval, unaligned=seed == 2),  # then its epochs are not open
        failover=FailoverConfig(FixedDelayRestart(1, timedelta(0))),
    )
    finished = False
    while not finished:
        tries += 1
        assert tries < 6
        # What is in flight at an unaligned checkpoint can only go to as many tasks.
        graph = program(tmp_path, 2 if seed == 2 else chance.randint(1, 3), ranges)
        try:
            with JobAttempt(graph, config, owner="test") as attempt:
                list(attempt.run_epochs(periodic=True))
                finished = attempt.finished
        except UserFunctionError:
            pass  # as wished, twice without a checkpoint between
    assert rows(tmp_path) == list(range(SIZE * ranges))


class _Columns(SourceReader):
    """Emits single records and columns for a split, in turn."""

    def __init__(self, last: pa.Array) -> None:
        self._last = last
        self._splits: list[Any] = []

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if self._splits:
            self._splits.clear()
            output.collect("a", 1)
            output.collect_column(pa.array(["b", "c"]), pa.array([2, 3]))
            output.collect_column(pa.array([], pa.string()))
            output.collect("d", 4)
            output.collect_column(self._last, pa.array([5]))
        return InputStatus.END_OF_INPUT

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._splits += splits

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return self._splits


class _ColumnSource(Ranges):
    produced_type = Types.STRING()

    def __init__(self, folder: Path, last: pa.Array) -> None:
        super().__init__(folder, 1)
        self._last = last

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Columns(self._last)


class _Times(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp()


def collected(source: Source) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "columns").uid("columns")
    [found] = run_local(env, stream.process(_Times()).uid("times"))
    return found


def test_a_reader_emits_columns_and_single_records_in_their_order(tmp_path: Path) -> None:
    assert collected(_ColumnSource(tmp_path, pa.array(["e"]))) == [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeMismatchError, match=r"operator 'columns': collect_column\(\)"):
        collected(_ColumnSource(tmp_path, pa.array([1])))
    with pytest.raises(TypeMismatchError, match="2 records and 1 timestamps"):
        collected(_ColumnSource(tmp_path, pa.array(["x", "y"])))


class _Doorbell(SourceReader):
    """Has a number each time that its bell has rung: a file ``bell-N``. It ends after three."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next, self._threads = folder, 0, ThreadPoolExecutor(1)
        self._bell = self._listen()

    def _listen(self) -> Future[None]:
        (self._folder / f"waits-{self._next}").touch()
        bell = self._folder / f"bell-{self._next}"
        return self._threads.submit(lambda: until(bell.exists, "nobody has rung"))

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if not self._bell.done():
            return InputStatus.NOTHING_AVAILABLE
        output.collect(self._next, self._next)
        self._next += 1
        if self._next == 3:
            return InputStatus.END_OF_INPUT
        self._bell = self._listen()
        return InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None]:
        return self._bell

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return []

    def close(self) -> None:
        self._threads.shutdown()


class _Doorbells(Ranges):
    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Doorbell(self._folder)


def test_a_reader_says_when_it_has_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.runtime.slot.deployment._TIMER_SECONDS", 1e6)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_source(_Doorbells(tmp_path, 0), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    row_type = Types.ROW_NAMED(["n", "rest"], [Types.LONG(), Types.LONG()])
    noted = numbers.key_by(lambda n: n % 7, Types.LONG()).process(Note(tmp_path), row_type).uid("note")
    noted.sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")
    run = Run(tmp_path, None, env.get_job_graph())
    for n in range(3):
        until((tmp_path / f"waits-{n}").exists, "the reader does not wait")
        (tmp_path / f"bell-{n}").touch()
        run.seen(n)
    run.end()
    assert rows(tmp_path) == [0, 1, 2]


def test_a_job_reads_files_and_a_source_with_readers_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "in"))
    lines.monitor_continuously(Duration.of_millis(20))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers = env.from_source(Ranges(tmp_path, 5), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    others = env.from_source(lines.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    both = numbers.union(others.map(int, Types.LONG()).uid("int")).key_by(lambda n: n % 7, Types.LONG())
    row_type = Types.ROW_NAMED(["n", "rest"], [Types.LONG(), Types.LONG()])
    both.process(Note(tmp_path), row_type).uid("note").sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")

    def comes(n: int) -> None:
        (tmp_path / str(n)).write_text(f"{n}\n")
        (tmp_path / str(n)).rename(tmp_path / "in" / str(n))

    release = hold(tmp_path, 5, 15)
    run = Run(tmp_path, None, env.get_job_graph())
    comes(101)
    run.seen(4, 14, 101)
    run.ask(RequestKind.CHECKPOINT)
    (tmp_path / "fail-102").touch()
    comes(102)
    run.seen(102)
    release()
    run.seen(49)
    comes(103)
    run.seen(103)
    run.ask(RequestKind.STOP)
    run.end()
    assert rows(tmp_path) == [*range(50), 101, 102, 103]


class _Broken(Ranges):
    """Its reader returns or raises something instead of a status."""

    def __init__(self, folder: Path, status: Any) -> None:
        super().__init__(folder, 1)
        self._status = status

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        reader = super().create_reader(context)

        def poll_next(output: ReaderOutput) -> Any:
            if isinstance(self._status, Exception):
                raise self._status
            return self._status

        reader.poll_next = poll_next  # type: ignore[method-assign]
        return reader


class _BrokenEnumerator(Ranges):
    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        context.call_async(lambda: 1 / 0, self._on_found)
        return super().create_enumerator(context)

    def _on_found(self, found: Any, error: Exception | None) -> None:
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (None, TypeMismatchError, "poll_next() of operator 'columns' (columns) returned None, but must return an Inp"),
        (ValueError("no"), UserFunctionError, "poll_next() of operator 'columns' (columns), subtask 0, raised Value"),
    ],
)
def test_errors_of_a_reader_name_it(tmp_path: Path, status: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        collected(_Broken(tmp_path, status))


def test_errors_of_an_enumerator_name_it(tmp_path: Path) -> None:
    with pytest.raises(SourceReadError, match="the split enumerator of source 'columns' raised ZeroDivisionError"):
        collected(_BrokenEnumerator(tmp_path, 1))


class _SaysYes(_Doorbell):
    def is_available(self) -> Any:
        return True


class _SaysYesSource(Ranges):
    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _SaysYes(self._folder)


def test_what_tells_when_there_is_more_must_be_a_future(tmp_path: Path) -> None:
    (tmp_path / "bell-0").touch()
    with pytest.raises(TypeMismatchError, match=r"is_available\(\) of operator 'columns' .* returned True, but must"):
        collected(_SaysYesSource(tmp_path, 0))
