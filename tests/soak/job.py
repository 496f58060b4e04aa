"""A job that goes on: a source without an end, state of constant size, a table, and a checkpoint after each epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark import sessions
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment
from tests.servers import QUICK_JAVA
from tests.soak.growth import Held, Sample, files_below, hold

__all__ = ["SETTINGS", "samples"]

PARALLELISM, KEYS, RECORDS = 2, 500, 1_000
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
    """Each subtask gets the same number of records in each epoch."""

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Endless(restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        if split.offset == 0:
            time = int(split.split_id)
            yield EVENT.to_arrow([(f"k{i % KEYS}", time, i) for i in range(RECORDS)]), RECORDS


def program(tables: StorageLocation) -> JobGraph:
    env = environment(PARALLELISM)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    stream = env.from_source(Endless(), strategy, "events").uid("events")
    counts = stream.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    passed = counts.key_by(lambda row: row[0], Types.STRING()).map(lambda row: row, COUNTED).uid("pass")
    passed.sink_to(ParquetSink(tables)).uid("table")
    return env.get_job_graph()


def samples(folder: Path, enough: Callable[[int], bool]) -> Iterator[Sample]:
    """Runs the job for a while, and yields what is held after each epoch.

    Args:
        folder: Contains its checkpoints, the cache of its state, and its table, which does grow.
        enough: Says after each epoch, given their number, whether it was the last one.
    """
    config = JobConfig("soak", StorageLocation(str(folder / "checkpoints")), SETTINGS, cache_dir=str(folder / "cache"))
    with JobAttempt(program(StorageLocation(str(folder / "table"))), config, owner="soak") as attempt:
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
