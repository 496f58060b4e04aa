"""Latency from the arrival of a record to a function, through ``key_by`` and a ``ValueState``, beside PyFlink.

Records arrive steadily, and there is a checkpoint per second. Readers emit each record when it is due. With
``--peer pyflink``, PyFlink runs the same program in thread mode, in the same run: its generator emits records at the
same rate, and a record's latency counts from then on.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import continuous
from benchmarks.peers import flink
from benchmarks.report import line
from benchmarks.steady import Note, Steady, notes
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

RATES = {1_000: "", 50_000: "<= 25"}
"""Records per second, and the bar of their p99 in milliseconds, if that is not half of PyFlink's."""
CHECKPOINTS, WARM_UP = 10, 3


class Count(continuous.Count):
    """Counts by key, and passes the record on."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self._count.update((self._count.value() or 0) + 1)
        yield value


def latencies(rate: int) -> np.ndarray[Any, Any]:
    """Returns the latencies of records in seconds, but for those before and at the first checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder, "notes")
        noted.mkdir()
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(continuous.PARALLELISM)
        began = time.time()
        numbers = env.from_source(Steady(rate, began), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        counted = numbers.key_by(lambda pair: pair[0], Types.LONG()).process(Count(), continuous.PAIR).uid("count")
        counted.map(Note(noted), continuous.PAIR).uid("note")
        config = JobConfig(
            "latency",
            StorageLocation(str(Path(folder, "store"))),
            checkpointing=CoordinatorConfig(interval=timedelta(seconds=1)),
            exchange=ExchangeOptions(ExchangeMode.PIPELINED, buffer_timeout=timedelta(0)),
        )
        with JobAttempt(env.get_job_graph(), config, owner="benchmark") as attempt:
            ends = [time.time() for _ in itertools.islice(attempt.run_epochs(periodic=True), CHECKPOINTS)]
        numbers_at = notes(noted)
    due, at = began + numbers_at[:, 0] / rate, numbers_at[:, 1]
    return (at - due)[(ends[WARM_UP] <= due) & (due < ends[-1])]


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    spark = get_session(SparkSettings())
    lines = []
    for rate, bar in RATES.items():
        settings = {"records_per_second": rate, "parallelism": continuous.PARALLELISM, "load": os.getloadavg()[0]}
        ours = np.percentile(latencies(rate), (50, 99)) * 1000
        theirs = None
        if "pyflink" in peers:
            theirs = np.percentile(flink.latencies(rate, continuous.KEYS, continuous.PARALLELISM), (50, 99)) * 1000
        for place, name in enumerate(("p50", "p99")):
            metric = f"latency.{name}_at_{rate}"
            lines.append(line(metric, float(ours[place]), "ms", bar=bar if name == "p99" else "", settings=settings))
            if theirs is not None:
                ratio = float(ours[place] / theirs[place])
                both = {**settings, "pyflink_ms": round(float(theirs[place]), 1)}
                half = "<= 0.5" if (rate, name) == (1_000, "p99") else ""
                lines.append(
                    line(f"{metric}_vs_pyflink", ratio, "ratio of time", peer="PyFlink", bar=half, settings=both)
                )
    spark.stop()
    return lines
