"""A job that goes on: a source without an end, state of constant size, a table, and a checkpoint after each epoch.

With live tasks, the source is faster than the task before the table, which stops it for most of the time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import FlatMapFunction
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark import sessions
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment
from tests.servers import QUICK_JAVA
from tests.soak.growth import Held, Sample, files_below, hold

__all__ = ["SETTINGS", "samples"]

PARALLELISM, KEYS, RECORDS = 2, 500, 1_000
LIVE_RECORDS, LIVE_BATCH, SLOW_SECONDS = 400_000, 20_000, 0.1
"""Of a subtask with live tasks: how many records it reads in an epoch, in batches of how many, and how long a task
takes for the records of one buffer."""
SETTINGS = SparkSettings(
    master="local[2]",
    # Java collects garbage after so much work, on any machine. Spark then deletes files of shuffles.
    conf={"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Xmn64m"},
)
"""Nobody else has these, so the job has a server of its own."""


class _Endless(SplitEnumerator):
    def __init__(self, restored: Any) -> None:
        self._next = restored["next"] if restored else 0

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        first = self._next
        self._next += parallelism
        return [[SourceSplit(f"{number}")] for number in range(first, self._next)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot_state(self) -> dict[str, Any]:
        return {"next": self._next}


class Endless(Source):
    """Each subtask gets the same number of records in each epoch.

    Args:
        records: The number.
        batch: How many are read at once.
    """

    def __init__(self, records: int = RECORDS, batch: int = RECORDS) -> None:
        self._records, self._batch = records, batch

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Endless(restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        number = int(split.split_id)
        records = EVENT.to_arrow([(f"k{i % KEYS}", number, i) for i in range(self._batch)])
        for start in range(split.offset, self._records, self._batch):
            yield records, start + self._batch


class Slow(FlatMapFunction):
    """Passes on one of many records, and takes its time for them."""

    def open(self, runtime_context: Any) -> None:
        self._seen = 0

    def flat_map(self, value: Any) -> Iterator[Any]:
        self._seen += 1
        if self._seen % LIVE_BATCH == 0:
            time.sleep(SLOW_SECONDS)
            yield value


def program(tables: StorageLocation, *, live: bool = False) -> JobGraph:
    env = environment(PARALLELISM)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    source = Endless(LIVE_RECORDS, LIVE_BATCH) if live else Endless()
    stream = env.from_source(source, strategy, "events").uid("events")
    if live:
        stream = stream.rebalance().flat_map(Slow(), EVENT).uid("slow")
    counts = stream.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    passed = counts.key_by(lambda row: row[0], Types.STRING()).map(lambda row: row, COUNTED).uid("pass")
    passed.sink_to(ParquetSink(tables)).uid("table")
    return env.get_job_graph()


def samples(folder: Path, enough: Callable[[int], bool], *, live: bool = False) -> Iterator[Sample]:
    """Runs the job for a while, and yields what is held after each epoch.

    Args:
        folder: Contains its checkpoints, the cache of its state, and its table, which does grow.
        enough: Says after each epoch, given their number, whether it was the last one.
        live: Whether tasks live, with a fast source before a slow task. Default: False, each epoch is a Spark job.
    """
    config = JobConfig(
        "soak",
        StorageLocation(str(folder / "checkpoints")),
        SETTINGS,
        cache_dir=str(folder / "cache"),
        exchange=ExchangeOptions(ExchangeMode.PIPELINED if live else ExchangeMode.SPARK),
    )
    with JobAttempt(program(StorageLocation(str(folder / "table")), live=live), config, owner="soak") as attempt:
        state = sessions._state_file(SETTINGS).read()
        for number, _ in enumerate(attempt.run_epochs(), 1):
            state = state or sessions._state_file(SETTINGS).read()
            assert state is not None and state.server is not None and state.scratch is not None
            server = psutil.Process(state.server.pid)
            yield Sample(
                hold(psutil.Process(os.getpid())),
                hold(server),
                sum(map(hold, server.children(recursive=True)), Held()),
                files_below(checkpoints=folder / "checkpoints", cache=folder / "cache", scratch=Path(state.scratch)),
            )
            if enough(number):
                return
