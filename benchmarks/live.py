"""Tasks that live, beside a Spark job for each epoch: the same programs with both exchanges, in turn on one session.

- Throughput: the epochs of ``benchmarks keyed``, with the built-in sum and with a process function.
- Small epochs: what an epoch costs that reads next to nothing.
- Latency: records arrive steadily, and go through the three stages of ``benchmarks continuous``. An epoch begins when
  the one before it has ended. A record's latency is the time from its arrival until its checkpoint is committed.

A ratio compares both exchanges in the same round, and is the median over the rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import continuous, keyed
from benchmarks.report import line
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

ROUNDS, EPOCHS, SMALL_EPOCHS = 3, 2, 20
RATES, LATENCY_EPOCHS = (1_000.0, 50_000.0), 100
BOTH = (ExchangeMode.SPARK, ExchangeMode.PIPELINED)


def small_sum() -> JobGraph:
    """Returns a program of two stages that reads ten records in each epoch."""
    env, stream = keyed.stream()
    stream.sum("value").uid("sum")
    return env.get_job_graph()


def seconds_of(program: JobGraph, mode: ExchangeMode, folder: str, epochs: int) -> list[float]:
    """Returns the seconds of each epoch after the first one."""
    seconds = []
    config = JobConfig("live", StorageLocation(folder), exchange=ExchangeOptions(mode))
    with JobAttempt(program, config, owner="benchmark") as attempt:
        attempt.run_epoch()
        for _ in range(epochs):
            started = time.perf_counter()
            attempt.run_epoch()
            seconds.append(time.perf_counter() - started)
    return seconds


def measured(program: Callable[[], JobGraph], epochs: int, rounds: int) -> dict[ExchangeMode, np.ndarray[Any, Any]]:
    """Returns the median seconds of an epoch in each round, by exchange."""
    found: dict[ExchangeMode, list[float]] = {mode: [] for mode in BOTH}
    for _ in range(rounds):
        for mode in BOTH:
            with tempfile.TemporaryDirectory() as folder:
                found[mode].append(float(np.median(seconds_of(program(), mode, folder, epochs))))
    return {mode: np.array(seconds) for mode, seconds in found.items()}


def latencies_of(mode: ExchangeMode, rate: float, epochs: int) -> np.ndarray[Any, Any]:
    """Returns latencies of records in seconds, after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        config = JobConfig("latency", StorageLocation(folder), exchange=ExchangeOptions(mode))
        with JobAttempt(continuous.program(rate), config, owner="benchmark") as attempt:
            read = continuous.epochs(attempt, continuous.WARM_UP + epochs)
            return np.array(continuous.latencies(read, rate, epochs))


def latency() -> list[dict[str, Any]]:
    """Returns the lines of latency."""
    lines = []
    for rate in RATES:
        live = latencies_of(ExchangeMode.PIPELINED, rate, LATENCY_EPOCHS)
        spark = latencies_of(ExchangeMode.SPARK, rate, continuous.EPOCHS)
        settings = {"records_per_second": rate, "stages": continuous.STAGES, "parallelism": continuous.PARALLELISM}
        for name, share in (("p50", 50), ("p99", 99)):
            ours, theirs = float(np.percentile(live, share)), float(np.percentile(spark, share))
            both = {**settings, "pipelined_ms": round(ours * 1000, 1), "spark_ms": round(theirs * 1000, 1)}
            metric = f"live.commit_latency_{name}_at_{rate:.0f}_vs_spark_exchange"
            lines.append(line(metric, ours / theirs, "ratio of time", peer="exchange=spark", settings=both))
    return lines


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    del peers
    spark = get_session(SparkSettings())
    lines = []
    events = {"events": keyed.EVENTS, "keys": keyed.KEYS, "parallelism": keyed.PARALLELISM, "rounds": ROUNDS}
    for name, program, bar in (("sum", keyed.builtin_sum, ">= 1.8"), ("process", keyed.process_function, ">= 1.3")):
        seconds = measured(program, EPOCHS, ROUNDS)
        rate = keyed.EVENTS / float(np.median(seconds[ExchangeMode.PIPELINED]))
        ratio = float(np.median(seconds[ExchangeMode.SPARK] / seconds[ExchangeMode.PIPELINED]))
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
    kept, keyed.EVENTS = keyed.EVENTS, 20
    try:
        seconds = measured(small_sum, SMALL_EPOCHS, ROUNDS)
    finally:
        keyed.EVENTS = kept
    lines.append(
        line(
            "live.small_epoch_vs_spark_exchange",
            float(np.median(seconds[ExchangeMode.PIPELINED] / seconds[ExchangeMode.SPARK])),
            "ratio of time",
            peer="exchange=spark",
            bar="<= 1.0",
            settings={"epochs": SMALL_EPOCHS, "rounds": ROUNDS},
        )
    )
    lines.append(
        line("live.small_epoch_ms", float(np.median(seconds[ExchangeMode.PIPELINED])) * 1000, "ms", settings={})
    )
    lines += latency()
    spark.stop()
    return lines
