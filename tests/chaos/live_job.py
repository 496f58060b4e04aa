"""The job of tasks that live, whose processes are killed: ``python -m tests.chaos.live_job ORDER`` (JSON).

It goes on until it reads ``end`` from standard input. Other lines make trouble for its connections, all of which go
through relays: ``stops slots``, ``cut driver`` (see `Relay`), and ``mend``. It says how many epochs are complete.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.chaos.relay import Relays
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment
from tests.soak.job import Endless

KEYS, RECORDS, PARALLELISM, TASK_SLOTS = 11, 300, 4, 2
TABLES = ("rows", "counts")
HEARTBEAT_TIMEOUT = 5.0
HANG, HANGS = "hang", "hangs"
"""Files that tell a function to hang, and say that it does."""
_BATCH = 50
_PAUSE_SECONDS = 0.01


class Numbers(Endless):
    """Each subtask gets the next numbers in each epoch, in batches with pauses between them."""

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        number = int(split.split_id)
        for start in range(split.offset, RECORDS, _BATCH):
            values = range(number * RECORDS + start, number * RECORDS + start + _BATCH)
            yield EVENT.to_arrow([(f"k{value % KEYS}", number, value) for value in values]), start + _BATCH
            time.sleep(_PAUSE_SECONDS)


class Counts(CountPerKey):
    """Counts per key, and notes the process in which it does. It hangs as long as a file says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        (self._folder / f"{os.getpid()}").touch()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        while (self._folder / HANG).exists():
            (self._folder / HANGS).touch()
            time.sleep(_PAUSE_SECONDS)
        yield from super().process_element(value, ctx)


def program(location: StorageLocation, folder: Path) -> JobGraph:
    """Returns a program without an end: it counts numbers by key, and writes numbers and counts into tables."""
    env = environment(PARALLELISM)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    stream = env.from_source(Numbers(), strategy, "numbers").uid("numbers")
    stream.map(lambda v: (v.key, v.time, v.value), COUNTED).uid("map").sink_to(ParquetSink(location.child("rows"))).uid(
        "rows"
    )
    counts = stream.key_by("key").process(Counts(folder), COUNTED).uid("count")
    counts.sink_to(ParquetSink(location.child("counts"))).uid("counts")
    return env.get_job_graph()


def order(location: StorageLocation, folder: Path, spark: SparkSettings, *, tls: bool) -> str:
    """Returns the command-line argument.

    Args:
        location: Where checkpoints and tables are.
        folder: Where processes of slots are noted.
        spark: Runs the job.
        tls: Whether connections use TLS.
    """
    return json.dumps([asdict(location), str(folder), asdict(spark), tls])


def main() -> None:
    """Runs the job."""
    place, where, settings, tls = json.loads(sys.argv[1])
    relays, end = Relays(), threading.Event()
    relays.install()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                end.set()
            else:
                what, _, to = line.strip().partition(" ")
                relays.trouble(what, to) if to else relays.mend()
        os._exit(1)  # whoever wanted the job is gone

    threading.Thread(target=listen, daemon=True).start()
    location = StorageLocation(**place)
    config = JobConfig(
        "live",
        location.child("checkpoints"),
        SparkSettings(**settings),
        failover=FailoverConfig(FixedDelayRestart(attempts=1_000_000, delay=timedelta(milliseconds=50))),
        exchange=ExchangeOptions(
            ExchangeMode.PIPELINED,
            task_slots=TASK_SLOTS,
            buffer_timeout=timedelta(milliseconds=5),
            heartbeat_interval=timedelta(seconds=0.5),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_TIMEOUT),
            tls=tls,
        ),
    )

    def progress(line: str) -> None:
        print(f"# {line}", file=sys.stderr, flush=True)

    with JobAttempt(program(location, Path(where)), config, owner="chaos", on_progress=progress) as attempt:
        for number, _ in enumerate(attempt.run_epochs(), 1):
            print(number, flush=True)
            if end.is_set():
                break


if __name__ == "__main__":
    main()
