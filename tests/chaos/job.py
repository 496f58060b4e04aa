"""The job whose processes are killed: ``python -m tests.chaos.job ORDER`` (JSON) runs it to its end, or death."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import CheckpointedFunction, RuntimeContext
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

PER_EPOCH, EPOCHS = 8, 4
RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(PER_EPOCH * EPOCHS)]
TABLES = ("rows", "counts")
_TRAPPED_EPOCH = 2
_LOOK_SECONDS = 0.02


class Trap(CountPerKey, CheckpointedFunction):
    """Stops the first task that gets to a point, until a file says that it may continue or the process is killed.

    Args:
        folder: Contains the files.
        point: ``record`` or ``snapshot``, both in the second epoch, or ``none``.
    """

    def __init__(self, folder: Path, point: str) -> None:
        self._folder, self._point = folder, point

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._epoch = 0

    def initialize_state(self, context: Any) -> None:
        pass

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self._epoch = value.time // 10 // PER_EPOCH + 1
        yield from super().process_element(value, ctx)
        self._stop("record")

    def snapshot_state(self, context: Any) -> None:
        self._stop("snapshot")

    def _stop(self, point: str) -> None:
        if point != self._point or self._epoch != _TRAPPED_EPOCH:
            return
        try:
            file = os.open(self._folder / "caught", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(file, f"{os.getpid()}\n".encode())
        os.close(file)
        while not (self._folder / "go").exists():
            time.sleep(_LOOK_SECONDS)


def caught(folder: Path, job: Future[None] | None = None) -> int:
    """Waits until a task is in the trap, and returns the id of its Python worker.

    Args:
        folder: Contains the files of the trap.
        job: The job, if it runs beside. If it ends before, its error is raised.
    """
    file, looks = folder / "caught", threading.Event()
    while not (file.exists() and file.read_text().endswith("\n")):
        if job is not None and job.done():
            job.result()
            raise AssertionError("no task came to the trap")
        looks.wait(_LOOK_SECONDS)
    return int(file.read_text())


def program(location: StorageLocation, folder: Path, point: str) -> JobGraph:
    """Returns a program with four epochs and two tables."""
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=PER_EPOCH)
    rows = stream.map(lambda v: (v.key, v.time, v.value), COUNTED).uid("map")
    rows.sink_to(ParquetSink(location.child("rows"))).uid("rows")
    counts = stream.key_by("key").process(Trap(folder, point), COUNTED).uid("count")
    counts.sink_to(ParquetSink(location.child("counts"))).uid("counts")
    return env.get_job_graph()


def attempt(location: StorageLocation, folder: Path, point: str, spark: SparkSettings | None) -> JobAttempt:
    """Returns an attempt of the job; without settings it runs in this process."""
    config = JobConfig(
        "chaos",
        location.child("checkpoints"),
        spark or SparkSettings(),
        failover=FailoverConfig(FixedDelayRestart(attempts=3, delay=timedelta(seconds=1))),
        exchange=ExchangeOptions(ExchangeMode.SPARK),  # tests.chaos.live kills live tasks
        in_process=spark is None,
    )
    return JobAttempt(program(location, folder, point), config, owner="chaos")


def order(location: StorageLocation, folder: Path, point: str, spark: SparkSettings, dies_at: int = 0) -> str:
    """Returns the command-line argument.

    Args:
        location: Where checkpoints and tables are.
        folder: Contains the files of the trap.
        point: Where the trap is.
        spark: The cluster.
        dies_at: The write to the store at which the driver is killed: before it if the number is odd, else after it.
            Default: 0, no write.
    """
    return json.dumps([asdict(location), str(folder), point, asdict(spark), dies_at])


def _die_at(number: int) -> None:
    writes = itertools.count(1)

    def deadly(write: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            dies = next(writes) == number
            if dies and number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return write(*args, **kwargs)
            finally:  # a conditional write may be refused
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)

        return stand_in

    for name in ("put", "delete_many", "complete_upload", "abort_upload"):
        setattr(LocalObjectStore, name, deadly(getattr(LocalObjectStore, name)))


if __name__ == "__main__":
    place, where, point, settings, dies_at = json.loads(sys.argv[1])
    _die_at(dies_at)
    with attempt(StorageLocation(**place), Path(where), point, SparkSettings(**settings)) as running:
        while not running.finished:
            for epoch in running.run_epochs():
                print(epoch.checkpoint_id, flush=True)
