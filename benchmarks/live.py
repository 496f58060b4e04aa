"""Tasks that live, beside a Spark job for each epoch: the same programs with both exchanges, in turn on one session.

- Throughput: the epochs of ``benchmarks keyed``, with the built-in sum and with a process function.
- Small epochs: what an epoch costs that reads next to nothing.
- TLS: the sum again, with and without it.
- Latency to a commit: records arrive steadily, and go through the three stages of ``benchmarks continuous``. An epoch
  begins when the one before it has ended. A record's latency is the time from its arrival until its checkpoint is
  committed.
- Checkpoints: epochs of 500,000 records, beside one of 5,000,000. Each begins after the commit of the one before it, or
  all are one run, which reads on meanwhile. And in a job that goes on, whose sources are faster than its function: as
  many records from one checkpoint to the next, beside five seconds; and how long a checkpoint takes there, whose
  barriers wait behind the records under way.
- Subtasks: the sum with 16 of them, beside 2.

A ratio compares both exchanges in the same round, and is the median over the rounds. Those whose names end with ``cpu``
compare the CPU time of all processes, Spark's among them: beside other work on the machine, the clock tells little.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from benchmarks import continuous, keyed
from benchmarks.growth import cpu_seconds
from benchmarks.report import line
from benchmarks.steady import Flood
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

ROUNDS, EPOCHS, SMALL_EPOCHS = 3, 2, 20
RATES, LATENCY_EPOCHS = (1_000.0, 50_000.0), 100
SPARK, PIPELINED = ExchangeOptions(ExchangeMode.SPARK), ExchangeOptions(ExchangeMode.PIPELINED)
WARM_UP, OFTEN, MANY = 2, 500_000, 16
"""First checkpoints that do not count; records between checkpoints; subtasks."""
ONE_SERVER = SparkSettings(master=f"local[{MANY + 4}]")
"""By default a server has four slots per core: too few for so many subtasks."""
RARELY_SECONDS, FLOWING_SECONDS = 5.0, 10.0
"""Between two checkpoints of the job that goes on; how long it is looked at."""
TLS = ExchangeOptions(ExchangeMode.PIPELINED, tls=True)


def small_sum() -> JobGraph:
    """Returns a program of two stages that reads ten records in each epoch."""
    env, stream = keyed.stream()
    stream.sum("value").uid("sum")
    return env.get_job_graph()


def seconds_of(program: JobGraph, exchange: ExchangeOptions, folder: str, epochs: int) -> tuple[float, float]:
    """Returns the median seconds of an epoch after the first one, and the CPU seconds of one on average."""
    seconds = []
    config = JobConfig("live", StorageLocation(folder), spark=ONE_SERVER, exchange=exchange)
    with JobAttempt(program, config, owner="benchmark") as attempt:
        attempt.run_epoch()
        cpu = cpu_seconds()
        for _ in range(epochs):
            started = time.perf_counter()
            attempt.run_epoch()
            seconds.append(time.perf_counter() - started)
        cpu = cpu_seconds() - cpu
    return float(np.median(seconds)), cpu / epochs


def rate_of_run(program: JobGraph, epochs: int) -> float:
    """Returns the epochs per second of one run, which reads on while a checkpoint is committed, after its first one."""
    with tempfile.TemporaryDirectory() as folder:
        config = JobConfig("live", StorageLocation(folder), spark=ONE_SERVER, exchange=PIPELINED)
        with JobAttempt(program, config, owner="benchmark") as attempt:
            ends = [time.perf_counter() for _ in attempt.run_epochs(epochs + 1)]
    return epochs / (ends[-1] - ends[0])


Times = np.ndarray[Any, Any]
"""Seconds and CPU seconds, a row for each round."""


def compared(
    metric: str, ratios: Times, of: str, peer: str, bar: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Returns the lines of the ratio of time, or rate, and of that of CPU time."""
    seconds, cpu = np.median(ratios, axis=0).tolist()
    unit = "ratio of CPU time" if of == "time" else "ratio of rate per CPU"
    return [
        line(metric, seconds, f"ratio of {of}", peer=peer, bar=bar, settings=settings),
        line(f"{metric}_cpu", cpu, unit, peer=peer, settings=settings),
    ]


def measured(
    program: Callable[[], JobGraph], epochs: int, rounds: int, *exchanges: ExchangeOptions
) -> dict[ExchangeOptions, Times]:
    """Returns the seconds and CPU seconds of an epoch, a row for each round, by exchange."""
    found: dict[ExchangeOptions, list[tuple[float, float]]] = {exchange: [] for exchange in exchanges}
    for _ in range(rounds):
        for exchange in exchanges:
            with tempfile.TemporaryDirectory() as folder:
                found[exchange].append(seconds_of(program(), exchange, folder, epochs))
    return {exchange: np.array(seconds) for exchange, seconds in found.items()}


def flowing(interval: float) -> tuple[float, float]:
    """Returns records per second and the median seconds of a checkpoint of a job that goes on, after its first ones."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(keyed.PARALLELISM)
    events = env.from_source(Flood(), WatermarkStrategy.no_watermarks(), "events").uid("events")
    events.key_by("key").process(keyed.Count(), keyed.EVENT).uid("count")
    checkpointing = CoordinatorConfig(interval=timedelta(seconds=interval))
    ends, records, seconds = list[float](), list[int](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        location = StorageLocation(folder)
        config = JobConfig("flowing", location, ONE_SERVER, checkpointing=checkpointing, exchange=PIPELINED)
        with JobAttempt(env.get_job_graph(), config, owner="benchmark") as attempt:
            for epoch in attempt.run_epochs(periodic=True):
                ends.append(time.perf_counter())
                records.append(next(each.records_out for each in epoch.operators if each.uid == "events"))
                seconds.append(epoch.duration_ms / 1000)
                if len(ends) > WARM_UP + 1 and ends[-1] > ends[WARM_UP] + FLOWING_SECONDS:
                    break
    rate = sum(records[WARM_UP + 1 :]) / (ends[-1] - ends[WARM_UP])
    return rate, float(np.median(seconds[WARM_UP:]))


@contextmanager
def _changed(**values: int) -> Iterator[None]:
    """Changes the size of the programs for a while."""
    kept = {name: getattr(keyed, name) for name in values}
    try:
        for name, value in values.items():
            setattr(keyed, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(keyed, name, value)


def latencies_of(exchange: ExchangeOptions, rate: float, epochs: int) -> np.ndarray[Any, Any]:
    """Returns latencies of records in seconds, after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        config = JobConfig("latency", StorageLocation(folder), spark=ONE_SERVER, exchange=exchange)
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


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    del peers
    spark = get_session(ONE_SERVER)
    lines = []
    events = {"events": keyed.EVENTS, "keys": keyed.KEYS, "parallelism": keyed.PARALLELISM, "rounds": ROUNDS}
    for name, program, bar in (("sum", keyed.builtin_sum, ">= 1.8"), ("process", keyed.process_function, ">= 1.3")):
        seconds = measured(program, EPOCHS, ROUNDS, SPARK, PIPELINED)
        rate = keyed.EVENTS / float(np.median(seconds[PIPELINED][:, 0]))
        lines.append(line(f"live.{name}_events_per_s", rate, "events/s", settings=events))
        metric = f"live.{name}_vs_spark_exchange"
        lines += compared(metric, seconds[SPARK] / seconds[PIPELINED], "rate", "exchange=spark", bar, events)
    seconds = measured(keyed.builtin_sum, EPOCHS, ROUNDS, PIPELINED, TLS)
    ratio = float(np.median(seconds[PIPELINED][:, 0] / seconds[TLS][:, 0]))
    lines.append(line("live.sum_tls_vs_plain", ratio, "ratio of rate", settings=events))
    whole, often, many, few = (list[Times]() for _ in range(4))
    in_run, times = list[float](), keyed.EVENTS // OFTEN
    for _ in range(ROUNDS):
        few.append(measured(keyed.builtin_sum, EPOCHS, 1, PIPELINED)[PIPELINED])
        with _changed(PARALLELISM=MANY):
            many.append(measured(keyed.builtin_sum, EPOCHS, 1, PIPELINED)[PIPELINED])
        whole.append(measured(keyed.process_function, EPOCHS, 1, PIPELINED)[PIPELINED])
        with _changed(EVENTS=OFTEN):
            often.append(measured(keyed.process_function, EPOCHS * times, 1, PIPELINED)[PIPELINED])
        none = rate_of_run(keyed.process_function(), EPOCHS)
        with _changed(EVENTS=OFTEN):
            in_run.append(rate_of_run(keyed.process_function(), EPOCHS * times) / times / none)
    both = {**events, "parallelism": MANY}
    ratios_of_many = np.concatenate(many) / np.concatenate(few)
    lines += compared("live.sum_16_subtasks_vs_2", ratios_of_many, "time", "2 subtasks", "<= 1.15", both)
    each = {**events, "events_between_checkpoints": OFTEN}
    ratios_of_often = np.concatenate(whole) / np.concatenate(often) / times
    lines += compared("live.process_checkpoints_vs_none", ratios_of_often, "rate", "one epoch", ">= 0.95", each)
    ratio = float(np.median(in_run))
    lines.append(
        line("live.process_checkpoints_of_a_run_vs_none", ratio, "ratio of rate", peer="one epoch", settings=each)
    )
    ratios, waits = list[float](), list[float]()
    for _ in range(ROUNDS):
        none, _ = flowing(RARELY_SECONDS)
        rate, wait = flowing(OFTEN / none)
        ratios.append(rate / none)
        waits.append(wait * 1000)
    beside, ratio = f"one every {RARELY_SECONDS:g} s", float(np.median(ratios))
    lines.append(line("live.flowing_checkpoints_vs_none", ratio, "ratio of rate", peer=beside, settings=each))
    lines.append(line("live.flowing_checkpoint_ms", float(np.median(waits)), "ms", settings=each))
    with _changed(EVENTS=20):
        seconds = measured(small_sum, SMALL_EPOCHS, ROUNDS, SPARK, PIPELINED)
    lines.append(
        line(
            "live.small_epoch_vs_spark_exchange",
            float(np.median(seconds[PIPELINED][:, 0] / seconds[SPARK][:, 0])),
            "ratio of time",
            peer="exchange=spark",
            bar="<= 1.0",
            settings={"epochs": SMALL_EPOCHS, "rounds": ROUNDS},
        )
    )
    lines.append(line("live.small_epoch_ms", float(np.median(seconds[PIPELINED][:, 0])) * 1000, "ms", settings={}))
    lines += latency()
    spark.stop()
    return lines
