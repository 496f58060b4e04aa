"""What a job that runs on costs: latency beside a bare Spark micro-batch, and checkpoints on a store that is far away.

- Latency: records arrive steadily at half of what the job can take, through three stages of one region. A record's
  latency is the time from its arrival until the checkpoint that contains it is complete and committed. The bare job is
  a loop of PySpark micro-batches with the same stages and rows, which counts by key in Python, but keeps no state.
- Regions: the same latency with blocking edges between the stages, which are then three regions.
- Throughput: a checkpoint after each epoch, in a local folder and on an S3 server that takes 30 ms longer per request.
- Recovery: from SIGKILL to the completed checkpoint, less the time in which Spark starts what was killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import line
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

PARALLELISM, KEYS, STAGES = 2, 1_000, 3
WARM_UP, EPOCHS = 3, 12
BACKLOG = 50_000
"""Records of an epoch where capacity and throughput are measured."""
DELAY = 0.03
"""Seconds by which each request to the S3 server is later."""
ROUNDS = 5
_BATCH = 8192
_SAMPLES = 50

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
Lines = list[dict[str, Any]]


class Arrivals(Source):
    """Numbered records that arrive steadily from the first epoch on, or of which each epoch gets the same number.

    Args:
        rate: Records per second, or None for a backlog.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate

    @property
    def produced_type(self) -> TypeInformation:
        return PAIR

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Arrived(self._rate, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        end = split.properties["end"]
        for first in range(split.offset, end, _BATCH):
            stop = min(first + _BATCH, end)
            numbers = np.arange(first, stop)
            yield pa.StructArray.from_arrays([pa.array(numbers % KEYS), pa.array(numbers)], ["f0", "f1"]), stop


class _Arrived(SplitEnumerator):
    def __init__(self, rate: float | None, restored: Any) -> None:
        self._rate = rate
        self._state = restored or {"next": 0, "began": time.time()}

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        first = self._state["next"]
        end = first + BACKLOG if self._rate is None else _arrived(self._rate, self._state["began"])
        self._state = {**self._state, "next": end}
        bounds = [first + (end - first) * i // parallelism for i in range(parallelism + 1)]
        return [[SourceSplit(f"{a}-{b}", {"end": b}, a)] if a < b else [] for a, b in itertools.pairwise(bounds)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot_state(self) -> dict[str, Any]:
        return self._state


def _arrived(rate: float, began: float) -> int:
    return int((time.time() - began) * rate)


class Count(KeyedProcessFunction):
    """Counts by key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value[1] % KEYS, count


def program(rate: float | None, *, blocking: bool = False) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(PARALLELISM)
    stream = env.from_source(Arrivals(rate), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    for stage in range(1, STAGES):
        stream = stream.blocking() if blocking else stream
        stream = stream.key_by(lambda pair: pair[0], Types.LONG()).process(Count(), PAIR).uid(f"count{stage}")
    return env.get_job_graph()


# --- the bare job -----------------------------------------------------------------------------------------------------


def bare_job(spark: Any, first: int, end: int) -> None:
    """Runs a micro-batch of the same stages without this library."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                low, high = (first + (end - first) * i // PARALLELISM for i in (subtask, subtask + 1))
                for start in range(low, high, _BATCH):
                    numbers = np.arange(start, min(start + _BATCH, high))
                    yield pa.record_batch([pa.array(numbers % KEYS), pa.array(numbers)], ["key", "value"])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[int, int] = {}
        for batch in batches:
            keys, values = [], []
            for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                counts[key] = counts.get(key, 0) + 1
                keys.append(value % KEYS)
                values.append(counts[key])
            yield pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.int64())], ["key", "value"])

    def last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = sum(batch.num_rows for batch in count(batches))
        yield pa.record_batch([pa.array([0]), pa.array([total])], ["key", "value"])

    rows = spark.range(0, PARALLELISM, 1, PARALLELISM).mapInArrow(read, "key long, value long")
    for stage in range(1, STAGES):
        rows = rows.repartition(PARALLELISM, rows.key)
        rows = rows.mapInArrow(last if stage == STAGES - 1 else count, "key long, value long")
    rows.toArrow()


def bare_epochs(spark: Any, rate: float) -> Iterator[tuple[int, int, float]]:
    """Yields what each micro-batch has read, and when the first record would have arrived."""
    began, first = time.time(), 0
    while True:
        end = _arrived(rate, began)
        bare_job(spark, first, end)
        yield first, end, began
        first = end


# --- latency ----------------------------------------------------------------------------------------------------------


def epochs(attempt: JobAttempt, number: int) -> Iterator[tuple[int, int, float]]:
    first = 0
    for epoch in attempt.run_epochs(number):
        state = epoch.metadata.operator("numbers").coordinator_state
        yield first, state["next"], state["began"]
        first = state["next"]


def latencies(read: Iterator[tuple[int, int, float]], rate: float, number_of_epochs: int = EPOCHS) -> list[float]:
    """The latencies of records in equal distances, in seconds, after the warm-up."""
    found: list[float] = []
    for number, (first, end, began) in enumerate(itertools.islice(read, WARM_UP + number_of_epochs)):
        now = time.time()
        if number >= WARM_UP:
            step = max(int(rate) // _SAMPLES, 1)
            found += [now - began - record / rate for record in range(first, end, step)]
    return found


def capacity(attempt: JobAttempt) -> float:
    """Records per second, where there are always enough."""
    times = [time.perf_counter() for _ in epochs(attempt, WARM_UP + ROUNDS * 2)][WARM_UP - 1 :]
    return BACKLOG / statistics.median(b - a for a, b in itertools.pairwise(times))


def _attempt(folder: Path, name: str, rate: float | None, *, blocking: bool = False) -> JobAttempt:
    config = JobConfig(name, StorageLocation(str(folder)))
    return JobAttempt(program(rate, blocking=blocking), config, owner="benchmark")


def _steady(folder: Path, name: str, rate: float, *, blocking: bool = False) -> float:
    with _attempt(folder, name, rate, blocking=blocking) as at_work:
        return statistics.median(latencies(epochs(at_work, WARM_UP + EPOCHS), rate))


def _latency(folder: Path, spark: Any) -> Lines:
    with _attempt(folder, "capacity", None) as at_work:
        most = capacity(at_work)
    rate = most / 2
    base = statistics.median(latencies(bare_epochs(spark, rate), rate))
    middle = _steady(folder, "steady", rate)
    settings = {
        "records_per_second": round(rate),
        "stages": STAGES,
        "parallelism": PARALLELISM,
        "epochs": EPOCHS,
        "median_s": round(middle, 3),
        "peer_median_s": round(base, 3),
        "load": os.getloadavg()[0],
    }
    peer = "a loop of PySpark micro-batches of the same stages, without state"
    return [
        line("continuous.latency_vs_bare", middle / base, "ratio of time", peer=peer, bar="<= 2", settings=settings)
    ]


def _regions(folder: Path, spark: Any) -> Lines:
    with _attempt(folder, "regions_capacity", None, blocking=True) as at_work:
        rate = capacity(at_work) / 2
    one, three = _steady(folder, "one", rate), _steady(folder, "three", rate, blocking=True)
    edge = statistics.median(_seconds(lambda: bare_job(spark, 0, int(rate * one))) for _ in range(EPOCHS))
    settings = {
        "records_per_second": round(rate),
        "regions": STAGES,
        "one_region_s": round(one, 3),
        "three_regions_s": round(three, 3),
        "micro_batch_s": round(edge, 3),
        "load": os.getloadavg()[0],
    }
    peer = "the same operators in one region, and a PySpark micro-batch per edge"
    ratio = three / (one + (STAGES - 1) * edge)
    return [line("continuous.regions_vs_one", ratio, "ratio of time", peer=peer, bar="<= 1.5", settings=settings)]


# --- throughput -------------------------------------------------------------------------------------------------------


def _throughput(folder: Path) -> Lines:
    from dagster_flinkpy.storage.s3 import s3_client
    from tests.servers import delayed, ministack

    with ministack(folder) as near, delayed(near, DELAY) as far:
        s3_client(near, "us-east-1", "test", "test").create_bucket(Bucket="benchmark")
        places = {
            "local": StorageLocation(str(folder / "throughput")),
            "near": StorageLocation("s3://benchmark/near", near, "us-east-1", "test", "test"),
            "far": StorageLocation("s3://benchmark/far", far, "us-east-1", "test", "test"),
        }
        found: dict[str, list[float]] = {name: [] for name in places}
        for _ in range(ROUNDS):
            for name, place in places.items():
                with JobAttempt(program(None), JobConfig("throughput", place), owner="benchmark") as attempt:
                    found[name].append(capacity(attempt))

    def best(name: str) -> float:
        return statistics.median(found[name])

    settings = {
        "records_per_epoch": BACKLOG,
        "delay_s": DELAY,
        "local": round(best("local")),
        "s3_without_delay": round(best("near")),
        "s3": round(best("far")),
        "rounds": ROUNDS,
        "load": os.getloadavg()[0],
    }
    peer = "the same job with its checkpoints in a local folder"
    ratio = best("far") / best("local")
    return [line("continuous.s3_vs_local", ratio, "ratio of throughput", peer=peer, bar=">= 0.9", settings=settings)]


# --- recovery ---------------------------------------------------------------------------------------------------------


def _recovery(folder: Path) -> Lines:
    """Kills a Python worker in mid-epoch, and an executor in mid-snapshot, on a standalone cluster of two workers."""
    from tests.chaos.cluster import ancestor, running_cluster
    from tests.chaos.job import attempt, caught

    def recovered(name: str, point: str, victim: Callable[[int], int], started: Callable[[], float | None]) -> float:
        place, times = folder / name, {}
        place.mkdir()

        def kill() -> None:
            worker = caught(place)
            times["killed"] = time.time()
            os.kill(victim(worker), signal.SIGKILL)
            times["started"] = started() or 0.0

        killer = threading.Thread(target=kill)
        killer.start()
        with attempt(StorageLocation(str(place)), place, point, cluster.settings) as at_work:
            for epoch in at_work.run_epochs():
                times[epoch.checkpoint_id] = time.time()
        killer.join()
        start = times["started"] - times["killed"] if times["started"] else _worker_start(cluster)
        return times[2] - times["killed"] - start

    def executor_started() -> float:
        cluster.await_executors(3)
        return time.time()

    place = folder / "cluster"
    place.mkdir()
    with running_cluster(place) as cluster:
        cluster.await_executors(2)

        def executor(worker: int) -> int:
            return ancestor(worker, "CoarseGrainedExecutorBackend")

        found = {
            "python_worker": recovered("worker", "record", lambda worker: worker, lambda: None),
            "executor": recovered("executor", "snapshot", executor, executor_started),
        }
    settings = {"workers": 2, "slots": 4, "load": os.getloadavg()[0]}
    return [
        line(f"continuous.{what}_killed_seconds", seconds, "s beyond its start", bar="<= 3", settings=settings)
        for what, seconds in found.items()
    ]


def _worker_start(cluster: Any) -> float:
    """Seconds by which the first Python task of a session takes longer than the second."""
    spark = get_session(cluster.settings)
    try:
        first, second = (_seconds(lambda: bare_job(spark, 0, 10)) for _ in range(2))
    finally:
        spark.stop()
    return max(first - second, 0)


def _seconds(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(peers: tuple[str, ...] = ()) -> Lines:
    with tempfile.TemporaryDirectory() as folder:
        spark = get_session(SparkSettings())
        try:
            lines = [*_latency(Path(folder), spark), *_regions(Path(folder), spark), *_throughput(Path(folder))]
        finally:
            spark.stop()
        return [*lines, *_recovery(Path(folder))]
