"""Two runs on one local Spark server: what each of them gets.

- Two long runs at once: the rate of each, divided by its rate alone. Their rates count while both are at work.
- Epochs of 1,000 records beside a long run: the median of their times, divided by that of the same job alone.

Each long run is a process of its own. Its two subtasks keep both cores busy, and a task of it lasts for seconds: Spark
shares slots between tasks, and does not interrupt one. Alone and at once take turns.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks import state_programs as programs
from benchmarks.report import line
from benchmarks.state_cost import timed
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

EVENTS, KEYS, PARALLELISM = 8_000_000, 10_000, 2
"""Of an epoch of a long run."""
SHORT = 1_000
"""Records of a short epoch."""
LONG_EPOCHS, SHORT_EPOCHS, ROUNDS = 3, 7, 3

_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class LongRun:
    """A run in another process, which goes on until it is told to end."""

    times: Queue[float]
    """When it began, and when each epoch ended."""
    stop: Event
    process: SpawnProcess

    def seconds(self, epochs: int) -> float:
        """Waits for some epochs, and returns their mean time."""
        began = self.times.get()
        return ([self.times.get() for _ in range(epochs)][-1] - began) / epochs


def _run_on(folder: str, name: str, events: int, times: Queue[float], stop: Event) -> None:
    config = JobConfig(name, StorageLocation(folder))
    with JobAttempt(programs.process_function(KEYS, events, PARALLELISM), config, owner=name) as attempt:
        times.put(time.monotonic())
        while not stop.is_set():
            attempt.run_epoch()
            times.put(time.monotonic())


@contextmanager
def long_runs(folder: Path, events: int, *names: str) -> Iterator[list[LongRun]]:
    """Starts runs at the same time, and ends them together."""
    runs = []
    for name in names:
        times, stop = _PROCESSES.Queue(), _PROCESSES.Event()
        process = _PROCESSES.Process(target=_run_on, args=(str(folder), name, events, times, stop), daemon=True)
        runs.append(LongRun(times, stop, process))
        process.start()
    try:
        yield runs
    finally:
        for run in runs:
            run.stop.set()
        for run in runs:
            while run.process.is_alive():  # a process ends when its queue has been read
                while not run.times.empty():
                    run.times.get()
                run.process.join(0.1)


def two_at_once(folder: Path, events: int, rounds: int) -> list[list[float]]:
    """Returns the shares of each run in each round: its rate beside the other run, divided by its rate alone."""
    names, shares = ("one", "other"), list[list[float]]()
    for _ in range(rounds):
        alone = []
        for name in names:
            with long_runs(folder, events, name) as (run,):
                alone.append(run.seconds(LONG_EPOCHS))
        with long_runs(folder, events, *names) as runs:
            beside = [run.seconds(LONG_EPOCHS) for run in runs]
        shares.append([a / b for a, b in zip(alone, beside, strict=True)])
    return shares


def short_beside_long(folder: Path, events: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of short epochs alone, and beside a long run."""
    alone, beside = list[float](), list[float]()
    config = JobConfig("short", StorageLocation(str(folder)))
    with JobAttempt(programs.process_function(KEYS, SHORT, PARALLELISM), config, owner="short") as short:
        for _ in range(rounds):
            short.run_epoch()  # warms up
            alone += [timed(short.run_epoch)[0] for _ in range(SHORT_EPOCHS)]
            with long_runs(folder, events, "long") as (run,):
                run.seconds(1)  # it is at work
                short.run_epoch()
                beside += [timed(short.run_epoch)[0] for _ in range(SHORT_EPOCHS)]
    return alone, beside


def run(peers: tuple[str, ...] = (), *, events: int = EVENTS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Returns the shares of two long runs, and the ratio of the times of short epochs."""
    spark = get_session(SparkSettings())  # the server stays for all of it
    try:
        with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as name:
            short_alone, short_beside = short_beside_long(Path(name), events, rounds)
            shares = two_at_once(Path(name), events, rounds)
    finally:
        spark.stop()
    settings = {"events": events, "parallelism": PARALLELISM, "rounds": rounds, "load": os.getloadavg()[0]}
    alone, beside = statistics.median(short_alone), statistics.median(short_beside)
    times = {"alone_s": round(alone, 3), "beside_s": round(beside, 3), "beside_max_s": round(max(short_beside), 3)}
    return [
        line(
            "sharing.two_runs_least_share",
            statistics.median(min(each) for each in shares),
            "ratio of rate",
            peer="the same run alone, the less fortunate of two",
            bar=">= 0.4",
            settings={**settings, "shares": [[round(share, 2) for share in each] for each in shares]},
        ),
        line(
            "sharing.short_epoch_vs_alone",
            beside / alone,
            "ratio of time",
            peer="the same epoch alone",
            bar="<= 3",
            settings={**settings, "records": SHORT, **times},
        ),
    ]
