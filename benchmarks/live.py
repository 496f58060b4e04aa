"""Tasks that live, beside a Spark job for each epoch: the same programs with both exchanges, in turn on one session.

- Throughput: the epochs of ``benchmarks keyed``, with the built-in sum and with a process function.
- Small epochs: what an epoch costs that reads next to nothing.
- TLS: the sum again, with and without it.
- Latency to a commit: records arrive steadily, and go through the three stages of ``benchmarks continuous``. An epoch
  begins when the one before it has ended. A record's latency is the time from its arrival until its checkpoint is
  committed.
- Latency to a function: records arrive steadily, and go through ``key_by``, a ``ValueState`` and a function that notes
  the time. There is a checkpoint per second.

A ratio compares both exchanges in the same round, and is the median over the rounds.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import continuous, keyed
from benchmarks.report import line
from dagster_flinkpy.checkpoint.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

ROUNDS, EPOCHS, SMALL_EPOCHS = 3, 2, 20
RATES, LATENCY_EPOCHS = (1_000.0, 50_000.0), 100
SPARK, PIPELINED = ExchangeOptions(ExchangeMode.SPARK), ExchangeOptions(ExchangeMode.PIPELINED)
TLS = ExchangeOptions(ExchangeMode.PIPELINED, tls=True)


def small_sum() -> JobGraph:
    """Returns a program of two stages that reads ten records in each epoch."""
    env, stream = keyed.stream()
    stream.sum("value").uid("sum")
    return env.get_job_graph()


def seconds_of(program: JobGraph, exchange: ExchangeOptions, folder: str, epochs: int) -> list[float]:
    """Returns the seconds of each epoch after the first one."""
    seconds = []
    config = JobConfig("live", StorageLocation(folder), exchange=exchange)
    with JobAttempt(program, config, owner="benchmark") as attempt:
        attempt.run_epoch()
        for _ in range(epochs):
            started = time.perf_counter()
            attempt.run_epoch()
            seconds.append(time.perf_counter() - started)
    return seconds


def measured(
    program: Callable[[], JobGraph], epochs: int, rounds: int, *exchanges: ExchangeOptions
) -> dict[ExchangeOptions, np.ndarray[Any, Any]]:
    """Returns the median seconds of an epoch in each round, by exchange."""
    found: dict[ExchangeOptions, list[float]] = {exchange: [] for exchange in exchanges}
    for _ in range(rounds):
        for exchange in exchanges:
            with tempfile.TemporaryDirectory() as folder:
                found[exchange].append(float(np.median(seconds_of(program(), exchange, folder, epochs))))
    return {exchange: np.array(seconds) for exchange, seconds in found.items()}


def latencies_of(exchange: ExchangeOptions, rate: float, epochs: int) -> np.ndarray[Any, Any]:
    """Returns latencies of records in seconds, after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        config = JobConfig("latency", StorageLocation(folder), exchange=exchange)
        with JobAttempt(continuous.program(rate), config, owner="benchmark") as attempt:
            read = continuous.epochs(attempt, continuous.WARM_UP + epochs)
            return np.array(continuous.latencies(read, rate, epochs))


def latency() -> list[dict[str, Any]]:
    """Returns the lines of latency."""
    lines = []
    for rate in RATES:
        live = latencies_of(PIPELINED, rate, LATENCY_EPOCHS)
        spark = latencies_of(SPARK, rate, continuous.EPOCHS)
        settings = {"records_per_second": rate, "stages": continuous.STAGES, "parallelism": continuous.PARALLELISM}
        for name, share in (("p50", 50), ("p99", 99)):
            ours, theirs = float(np.percentile(live, share)), float(np.percentile(spark, share))
            both = {**settings, "pipelined_ms": round(ours * 1000, 1), "spark_ms": round(theirs * 1000, 1)}
            metric = f"live.commit_latency_{name}_at_{rate:.0f}_vs_spark_exchange"
            lines.append(line(metric, ours / theirs, "ratio of time", peer="exchange=spark", settings=both))
    return lines


class Steady(Source):
    """Records that arrive steadily, half of them at each of two readers, and are read as they come.

    Args:
        rate: Records per second.
        began: When the first one comes, in seconds since 1970.
    """

    produced_type = continuous.PAIR

    def __init__(self, rate: float, began: float) -> None:
        self._rate, self._began = rate, began

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        return _NoSplits()

    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        return _NoSplits()

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Reader(self._rate, self._began, context)


class _NoSplits(SplitEnumerator):
    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None: ...

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None: ...

    def snapshot_state(self) -> None: ...


class _Reader(SourceReader):
    def __init__(self, rate: float, began: float, context: SourceReaderContext) -> None:
        self._rate, self._began, self._step = rate, began, context.current_parallelism()
        self._next = context.get_index_of_subtask()
        self._clock = ThreadPoolExecutor(1)

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        come = (time.time() - self._began) * self._rate
        while self._next < come:
            output.collect((self._next % continuous.KEYS, self._next))
            self._next += self._step
        return InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None]:
        due = self._began + self._next / self._rate
        return self._clock.submit(lambda: time.sleep(max(due - time.time(), 0.0)))

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return []

    def close(self) -> None:
        self._clock.shutdown()


class Count(continuous.Count):
    """Counts by key, and passes the record on."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self._count.update((self._count.value() or 0) + 1)
        yield value


class Note(MapFunction):
    """Notes when each record has come, in a file per subtask."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self._file = Path(self._folder, str(runtime_context.get_index_of_this_subtask())).open("a")  # noqa: SIM115

    def map(self, value: Any) -> Any:
        self._file.write(f"{value[1]} {time.time()}\n")
        return value

    def close(self) -> None:
        self._file.close()


def function_latencies(rate: float, checkpoints: int = 10) -> np.ndarray[Any, Any]:
    """Returns the latencies of records in seconds, but for those before and at the first checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        notes.mkdir()
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(continuous.PARALLELISM)
        began = time.time()
        source = Steady(rate, began)
        numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        counted = numbers.key_by(lambda pair: pair[0], Types.LONG()).process(Count(), continuous.PAIR).uid("count")
        counted.map(Note(str(notes)), continuous.PAIR).uid("note")
        config = JobConfig(
            "function",
            StorageLocation(str(Path(folder, "store"))),
            checkpointing=CoordinatorConfig(interval=timedelta(seconds=1)),
            exchange=ExchangeOptions(ExchangeMode.PIPELINED, buffer_timeout=timedelta(0)),
        )
        with JobAttempt(env.get_job_graph(), config, owner="benchmark") as attempt:
            ends = [time.time() for _ in itertools.islice(attempt.run_epochs(periodic=True), checkpoints)]
        lines = [line.split() for file in notes.iterdir() for line in file.read_text().splitlines()]
    arrivals = ((began + int(number) / rate, float(at)) for number, at in lines)
    return np.array([at - due for due, at in arrivals if ends[continuous.WARM_UP] <= due < ends[-1]])


def latency_to_function() -> list[dict[str, Any]]:
    """Returns the lines of the latency to a function."""
    lines = []
    for rate, bar in zip(RATES, ("<= 5", "<= 25"), strict=True):
        found = function_latencies(rate)
        settings = {"records_per_second": rate, "parallelism": continuous.PARALLELISM, "load": os.getloadavg()[0]}
        for name, share in (("p50", 50), ("p99", 99)):
            ms = float(np.percentile(found, share)) * 1000
            metric = f"live.function_latency_{name}_at_{rate:.0f}"
            lines.append(line(metric, ms, "ms", bar=bar if share == 99 else "", settings=settings))
    return lines


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    del peers
    spark = get_session(SparkSettings())
    lines = []
    events = {"events": keyed.EVENTS, "keys": keyed.KEYS, "parallelism": keyed.PARALLELISM, "rounds": ROUNDS}
    for name, program, bar in (("sum", keyed.builtin_sum, ">= 1.8"), ("process", keyed.process_function, ">= 1.3")):
        seconds = measured(program, EPOCHS, ROUNDS, SPARK, PIPELINED)
        rate = keyed.EVENTS / float(np.median(seconds[PIPELINED]))
        ratio = float(np.median(seconds[SPARK] / seconds[PIPELINED]))
        lines.append(line(f"live.{name}_events_per_s", rate, "events/s", settings=events))
        lines.append(
            line(
                f"live.{name}_vs_spark_exchange",
                ratio,
                "ratio of rate",
                peer="exchange=spark",
                bar=bar,
                settings=events,
            )
        )
    seconds = measured(keyed.builtin_sum, EPOCHS, ROUNDS, PIPELINED, TLS)
    ratio = float(np.median(seconds[PIPELINED] / seconds[TLS]))
    lines.append(line("live.sum_tls_vs_plain", ratio, "ratio of rate", settings=events))
    kept, keyed.EVENTS = keyed.EVENTS, 20
    try:
        seconds = measured(small_sum, SMALL_EPOCHS, ROUNDS, SPARK, PIPELINED)
    finally:
        keyed.EVENTS = kept
    lines.append(
        line(
            "live.small_epoch_vs_spark_exchange",
            float(np.median(seconds[PIPELINED] / seconds[SPARK])),
            "ratio of time",
            peer="exchange=spark",
            bar="<= 1.0",
            settings={"epochs": SMALL_EPOCHS, "rounds": ROUNDS},
        )
    )
    lines.append(line("live.small_epoch_ms", float(np.median(seconds[PIPELINED])) * 1000, "ms", settings={}))
    lines += latency() + latency_to_function()
    spark.stop()
    return lines
