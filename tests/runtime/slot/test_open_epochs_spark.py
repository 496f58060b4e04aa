"""Live tasks of a job with a checkpoint interval, on a real Spark: they read files as they come."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import FileSource, NumberSequenceSource, StreamFormat
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.spark

COUNTED = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    """Counts words, and notes each one in a file. The word ``die`` kills the process, the first time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Any:
        if value == "die" and not (self._folder / "died").exists():
            (self._folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        (self._folder / f"{value}-{count}").touch()
        yield value, count


def program(folder: Path) -> JobGraph:
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder / "in"))
    source.monitor_continuously(Duration.of_millis(20))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    lines = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    counted = lines.key_by(lambda line: line, Types.STRING()).process(Count(folder), COUNTED).uid("counts")
    counted.sink_to(ParquetSink(str(folder / "out"))).uid("sink")
    return env.get_job_graph()


def written(folder: Path) -> list[str]:
    return [str(file) for file in (folder / "out").rglob("*.parquet") if not file.name.startswith("_")]


def rows(folder: Path) -> list[tuple[str, int]]:
    files = written(folder)
    return sorted((row["word"], row["count"]) for row in pads.dataset(files).to_table().to_pylist()) if files else []


def test_a_slot_that_dies_between_two_checkpoints_reads_again_what_came_since(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    (tmp_path / "in").mkdir()
    config = JobConfig(
        "job",
        StorageLocation(str(tmp_path / "store")),
        spark=spark_settings,
        exchange=ExchangeOptions(ExchangeMode.PIPELINED),
        checkpointing=CoordinatorConfig(interval=timedelta(days=1)),
        failover=FailoverConfig(FixedDelayRestart(3, timedelta(0))),
    )
    begun, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with JobAttempt(program(tmp_path), config, owner="test") as attempt:
                begun.set()
                list(attempt.run_epochs(periodic=True))
        except BaseException as error:
            errors.append(error)
        begun.set()

    def comes(name: str, words: str, seen: str) -> None:
        (tmp_path / name).write_text(words)
        (tmp_path / name).rename(tmp_path / "in" / name)
        until((tmp_path / seen).exists, f"{seen} was not processed")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    begun.wait(LIMIT)
    asker = JobRequests(config.storage.child("job"), "test")
    comes("1", "a\nb\n", "b-1")
    assert asker.wait(asker.submit(Order(RequestKind.CHECKPOINT))).checkpoint_id == 1
    until(lambda: rows(tmp_path), "the rows of the first checkpoint were not committed")
    comes("2", "a\n", "a-2")
    comes("3", "die\nb\n", "die-1")
    comes("4", "a\n", "a-3")
    assert rows(tmp_path) == [("a", 1), ("b", 1)], "what no checkpoint has is not visible"
    asker.wait(asker.submit(Order(RequestKind.STOP)))
    thread.join(LIMIT)
    assert errors == []
    assert rows(tmp_path) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("die", 1)]


class Waits(ParquetSource):
    """Yields nothing for now after 50,000 records, until a file is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "in"), row_type=Types.ROW_NAMED(["n"], [Types.LONG()]), bounded=True)
        self._go = folder / "go"

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        read = split.offset
        for column, offset in super().read(split):
            while offset > 50_000 and not self._go.exists():
                yield column[:0], read
            yield column, offset
            read = offset


class CountNumbers(KeyedProcessFunction):
    """Counts by key. Record 30,000 kills the process, the first time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.n == 30_000 and not (self._folder / "died").exists():
            (self._folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        if value.n == 49_151:
            (self._folder / "seen").touch()
        yield str(ctx.get_current_key()), count


def test_a_file_is_read_by_a_slot_that_dies_then_up_to_a_savepoint_and_then_by_spark_jobs(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": pa.array(range(100_000), pa.int64())}), tmp_path / "in" / "a.parquet")
    config = JobConfig(
        "job",
        StorageLocation(str(tmp_path / "store")),
        spark=spark_settings,
        exchange=ExchangeOptions(ExchangeMode.PIPELINED),
        checkpointing=CoordinatorConfig(interval=timedelta(days=1)),
        failover=FailoverConfig(FixedDelayRestart(3, timedelta(0))),
    )

    def graph(parallelism: int) -> JobGraph:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        numbers = env.from_source(Waits(tmp_path), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        counted = numbers.key_by(lambda row: row.n % 10, Types.LONG()).process(CountNumbers(tmp_path), COUNTED)
        counted.uid("counts").sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")
        return env.get_job_graph()

    begun, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with JobAttempt(graph(1), config, owner="test") as attempt:
                begun.set()
                list(attempt.run_epochs(periodic=True))
        except BaseException as error:
            errors.append(error)
        begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    begun.wait(LIMIT)
    until((tmp_path / "seen").exists, "the first records were not processed")
    asker = JobRequests(config.storage.child("job"), "test")
    asker.wait(asker.submit(Order(RequestKind.STOP)))
    thread.join(LIMIT)
    assert errors == []
    assert 0 < len(rows(tmp_path)) <= 50_000
    (tmp_path / "go").touch()
    with JobAttempt(graph(2), replace(config, exchange=ExchangeOptions(ExchangeMode.SPARK)), owner="test") as attempt:
        list(attempt.run_epochs())
    assert rows(tmp_path) == sorted((str(key), count) for key in range(10) for count in range(1, 10_001))


class Slow(MapFunction):
    """Takes 5 ms for each record, until a file tells that it need not."""

    def __init__(self, released: Path) -> None:
        self._released, self._waits = released, True

    def map(self, value: int) -> tuple[int]:
        if self._waits:
            time.sleep(0.005)
            self._waits = not self._released.exists()
        return (value,)


@pytest.mark.parametrize("shuffled", [False, True])
def test_checkpoints_come_while_slow_functions_are_at_work(
    tmp_path: Path, spark_settings: SparkSettings, shuffled: bool
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers = env.from_source(NumberSequenceSource(1, 12_000), WatermarkStrategy.no_watermarks(), "in").uid("in")
    slow = (numbers.rebalance() if shuffled else numbers).map(Slow(tmp_path / "released"), Types.TUPLE([Types.LONG()]))
    slow.uid("slow").sink_to(ParquetSink(str(tmp_path / "out"))).uid("sink")
    config = JobConfig(
        "job",
        StorageLocation(str(tmp_path / "store")),
        spark=spark_settings,
        exchange=ExchangeOptions(ExchangeMode.PIPELINED),
        checkpointing=CoordinatorConfig(interval=timedelta(milliseconds=200)),
    )
    counts = []
    with JobAttempt(env.get_job_graph(), config, owner="test") as attempt:
        for _ in attempt.run_epochs(goes_on=True):
            counts.append(pads.dataset(written(tmp_path)).count_rows())
            if counts[-1]:
                (tmp_path / "released").touch()
    assert [each for each in counts if 0 < each < 12_000], "a checkpoint came while functions were at work"
    found = pads.dataset(written(tmp_path)).to_table().column(0).to_pylist()
    assert sorted(found) == list(range(1, 12_001))
