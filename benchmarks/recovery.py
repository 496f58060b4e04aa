"""How long no records flow in a job with a million keys: after a slot was killed under load, and when it is rescaled.

Records arrive steadily and are counted by key. The time without records is the longest time between two records that
come to the last function, in the seconds after the kill or the request. One job does both, with a checkpoint per
second.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import continuous
from benchmarks.latency import Count
from benchmarks.report import line
from benchmarks.steady import Note, Steady, notes
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import NumberSequenceSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

KEYS, RATE = 1_000_000, 20_000
PARALLELISM, RESCALED = 2, 3
SECONDS = 10.0
"""For how long records are looked at after the kill, and after the rescale."""
_PATIENCE_SECONDS = 300.0


def program(began: float, noted: Path) -> JobGraph:
    """Returns a job that begins with a record of each key."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(PARALLELISM)
    nothing = WatermarkStrategy.no_watermarks()
    all_keys = env.from_source(NumberSequenceSource(0, KEYS - 1), nothing, "keys").uid("keys")
    all_keys = all_keys.map(lambda key: (key, -1), continuous.PAIR).uid("first")
    steady = env.from_source(Steady(RATE, began, KEYS), nothing, "numbers").uid("numbers")
    keyed = steady.union(all_keys).key_by(lambda pair: pair[0], Types.LONG())
    keyed.process(Count(), continuous.PAIR).uid("count").map(Note(noted), continuous.PAIR).uid("note")
    return env.get_job_graph()


def _longest_gap(noted: Path, since: float) -> float:
    """Returns the longest time between two records that arrived steadily, in the seconds since then."""
    number, at = notes(noted).T
    at = at[number >= 0]
    at = at[(at > since - 1) & (at < since + SECONDS)]
    return float(np.diff(at).max())


def _until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {_PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.02)


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    del peers
    spark = get_session(SparkSettings())
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder, "noted")
        noted.mkdir()
        store = StorageLocation(str(Path(folder, "store")))
        config = JobConfig(
            "recovery",
            store,
            checkpointing=CoordinatorConfig(interval=timedelta(seconds=1)),
            exchange=ExchangeOptions(ExchangeMode.PIPELINED),
            failover=FailoverConfig(FixedDelayRestart(attempts=3, delay=timedelta(milliseconds=100))),
        )
        epochs, failed, asker = [0], list[BaseException](), JobRequests(store.child("recovery"), "benchmark")

        def work() -> None:
            try:
                with JobAttempt(program(time.time(), noted), config, owner="benchmark") as attempt:
                    for _ in attempt.run_epochs(periodic=True):
                        epochs[0] += 1
            except BaseException as error:
                failed.append(error)

        def completed(more: int) -> None:
            enough = epochs[0] + more
            _until(lambda: epochs[0] >= enough or failed, "checkpoints")
            if failed:
                raise failed[0]

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        _until(lambda: failed or (list(noted.iterdir()) and len(notes(noted)) > KEYS), "a record of each key")
        completed(5)
        killed = time.time()
        os.kill(int(next(noted.glob("0-*")).name.split("-")[1]), signal.SIGKILL)
        time.sleep(SECONDS)
        completed(2)
        asked = time.time()
        request = asker.submit(Order(RequestKind.RESCALE, parallelism=RESCALED))
        _until(lambda: asker.answer(request) or failed, "the answer to a rescale")
        time.sleep(SECONDS)
        asker.submit(Order(RequestKind.STOP))
        worker.join(_PATIENCE_SECONDS)
        if failed:
            raise failed[0]
        settings = {"keys": KEYS, "records_per_second": RATE, "parallelism": PARALLELISM, "load": os.getloadavg()[0]}
        found = {
            "recovery.slot_killed_s": (_longest_gap(noted, killed), "<= 2"),
            "recovery.rescale_s": (_longest_gap(noted, asked), "<= 3"),
        }
    spark.stop()
    return [
        line(name, seconds, "s without records", bar=bar, settings=settings) for name, (seconds, bar) in found.items()
    ]
