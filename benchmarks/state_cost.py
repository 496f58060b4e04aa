"""What state costs as it grows: micro-batches that touch few keys, memory, restore and rescale, in jobs on Spark."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import state_programs as programs
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation

PARALLELISM, RESCALED, TOUCHED = 4, 6, 1_000
_WARM_UP = 3
_KEPT = 1_000
"""Number of retained checkpoints, so that the first one can be restored again and again."""


@dataclass(frozen=True)
class Growth:
    """Measurements of state with a number of keys."""

    keys: int
    load_seconds: float
    """Seconds to write all keys in one micro-batch."""
    state_bytes: int
    touch_seconds: float
    """Median seconds of a micro-batch that touches :data:`TOUCHED` keys, with its checkpoint."""
    touch_bytes: float
    """Mean bytes that such a micro-batch writes, including compaction."""
    peak_rss: int
    """Peak memory of the worker that needed most, in bytes."""


@dataclass(frozen=True)
class Restore:
    """Measurements of a restore with an empty local cache."""

    parallelism: int
    seconds: float
    """Seconds of the micro-batch: the Spark job, the restore, the checkpoint."""
    open_seconds: tuple[float, ...]
    """Seconds that each subtask waited until all of its state could be looked up."""
    read_bytes: int
    """Bytes of the state that all subtasks read from the store."""
    peak_rss: int


class StateJob:
    """A job with state ``long -> (long, long)``, and its measurements.

    Args:
        folder: Folder of the job's checkpoints and of local caches.
        keys: Number of keys.
    """

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder, self.keys = folder, keys
        self._files: list[list[str]] = []

    def grow(self, rounds: int) -> Growth:
        """Writes all keys, and then touches some of them in each micro-batch."""
        with self._attempt(programs.totals(self.keys, self.keys, PARALLELISM)) as attempt:
            load_seconds, loaded = timed(attempt.run_epoch)
        self._files = [
            [
                f"{self._store}/{self._name}/{run.path}"
                for table in subtask.keyed.tables
                for run in table.runs
                if run.path
            ]
            for subtask in _operator(loaded).subtasks
            if subtask.keyed is not None
        ]
        with self._attempt(self._touching()) as attempt:
            for _ in range(_WARM_UP):
                attempt.run_epoch()
            touched = [timed(attempt.run_epoch) for _ in range(rounds)]
        written = [epoch.operator("totals").delta_bytes for _, epoch in touched]
        return Growth(
            keys=self.keys,
            load_seconds=load_seconds,
            state_bytes=loaded.operator("totals").state_bytes,
            touch_seconds=statistics.median(seconds for seconds, _ in touched),
            touch_bytes=statistics.mean(written),
            peak_rss=max(rss for epoch in (loaded, touched[-1][1]) for rss in _metrics(epoch, "peak_rss_bytes")),
        )

    def restore(self, parallelism: int) -> Restore:
        """Restores the first checkpoint of :meth:`grow`, and touches some keys."""
        cache = self._folder / "cold"
        with self._attempt(
            self._touching(), cache_dir=str(cache), parallelism=parallelism, restore_from="chk-1"
        ) as attempt:
            seconds, epoch = timed(attempt.run_epoch)
        shutil.rmtree(cache)
        return Restore(
            parallelism=parallelism,
            seconds=seconds,
            open_seconds=tuple(micros / 1e6 for micros in _metrics(epoch, "open_us")),
            read_bytes=sum(_metrics(epoch, "open_read_bytes")),
            peak_rss=max(_metrics(epoch, "peak_rss_bytes")),
        )

    def read_with_pyarrow(self, spark: Any) -> list[float]:
        """Returns the seconds of each task of a bare Spark job that reads the same files, a task for each subtask."""
        tasks = len(self._files)
        read = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_read_files, self._files), "seconds double")
        seconds: list[float] = read.toArrow().column("seconds").to_pylist()
        return seconds

    @property
    def _store(self) -> Path:
        return self._folder / "store"

    @property
    def _name(self) -> str:
        return f"state-{self.keys}"

    def _touching(self) -> JobGraph:
        return programs.totals(self.keys, TOUCHED, PARALLELISM)

    def _attempt(self, graph: JobGraph, *, cache_dir: str | None = None, **restore: Any) -> JobAttempt:
        config = JobConfig(
            self._name,
            StorageLocation(str(self._store)),
            cache_dir=cache_dir or str(self._folder / "cache"),
            checkpointing=CoordinatorConfig(num_retained=_KEPT),
        )
        return JobAttempt(graph, config, owner="benchmark", **restore)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Runs an action, and returns its seconds and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _operator(epoch: CompletedEpoch) -> Any:
    return next(o for o in epoch.metadata.operators if o.uid == "totals")


def _metrics(epoch: CompletedEpoch, name: str) -> list[int]:
    """Returns a metric of :class:`~benchmarks.state_programs.Totals` for each subtask."""
    return [int(subtask.metrics[f"user_max.{name}"]) for subtask in _operator(epoch).subtasks]


def _read_files(files: list[list[str]], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    subtasks = [task for batch in batches for task in batch.column(0).to_pylist()]
    start = time.perf_counter()
    for subtask in subtasks:
        for file in files[subtask]:
            pq.read_table(file)
    yield pa.RecordBatch.from_pydict({"seconds": [time.perf_counter() - start]})
