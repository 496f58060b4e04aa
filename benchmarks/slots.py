"""Many slots on one machine: 64 subtasks that all send to each other, through 4,096 channels.

- How long it takes until the slots are there and a small epoch is complete, with a process for each, and with one for
  each core. Spark runs already.
- What a slot holds then: threads, and memory that it does not share with other processes.
- The time of a small epoch, beside that of a job of two subtasks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import psutil

from benchmarks import keyed
from benchmarks.report import line
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

MANY, FEW = 64, 2
RECORDS = 20
"""Of a subtask, in an epoch."""
EPOCHS = 5
_MB = 1 << 20


def _run(
    parallelism: int, settings: SparkSettings, task_slots: int | None = 1
) -> tuple[float, float, list[tuple[int, float]]]:
    """Returns the seconds of the start and of an epoch; and threads and megabytes of each slot."""
    keyed.PARALLELISM, keyed.EVENTS = parallelism, RECORDS * parallelism
    seconds = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        exchange = ExchangeOptions(ExchangeMode.PIPELINED, task_slots=task_slots)
        config = JobConfig(f"slots-{parallelism}", StorageLocation(folder), settings, exchange=exchange)
        began = time.perf_counter()
        with JobAttempt(keyed.builtin_sum(), config, owner="benchmark") as attempt:
            attempt.run_epoch()
            started = time.perf_counter() - began
            for _ in range(EPOCHS):
                began = time.perf_counter()
                attempt.run_epoch()
                seconds.append(time.perf_counter() - began)
            held = [(each.num_threads(), each.memory_full_info().uss / _MB) for each in _slots(parallelism)]
    return started, statistics.median(seconds), held


def _slots(number: int) -> list[psutil.Process]:
    """Returns the Python workers of Spark that have worked most."""
    workers = [p for p in psutil.process_iter(["cmdline"]) if "worker_daemon" in " ".join(p.info["cmdline"] or ())]
    return sorted(workers, key=lambda p: -sum(p.cpu_times()[:2]))[:number]


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    del peers
    settings = SparkSettings(master=f"local[{MANY + 1}]")
    spark = get_session(settings)
    try:
        _, few, _ = _run(FEW, settings)
        started, many, held = _run(MANY, settings)
        shared, shared_many, _ = _run(MANY, settings, None)
    finally:
        spark.stop()
    threads, megabytes = (max(values) for values in zip(*held, strict=True))
    facts = {"slots": MANY, "channels": MANY * MANY}
    return [
        line("slots.start_s", started, "s", bar="<= 20", settings=facts),
        line("slots.start_with_a_process_per_core_s", shared, "s", settings=facts),
        line("slots.small_epoch_vs_a_process_per_core", many / shared_many, "ratio of time", settings=facts),
        line("slots.threads_of_a_slot", threads, "threads", settings=facts),
        line("slots.memory_of_a_slot_mb", megabytes, "MB", settings=facts),
        line("slots.small_epoch_vs_two_subtasks", many / few, "ratio of time", settings={**facts, "few": FEW}),
    ]
