"""Programs of which operators are recomputed, and how to run them and look at their rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink
from dagster_flinkpy.datastream import BroadcastProcessFunction, KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.orchestration import SparkResource
from dagster_flinkpy.orchestration.program import program_attempt
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import environment, events

__all__ = [
    "DAY",
    "FACTOR",
    "PER_EPOCH",
    "RECORDS",
    "ROW",
    "SPARK",
    "Backwards",
    "Multiply",
    "Numbers",
    "Program",
    "Texts",
    "Totals",
    "catalog_of",
    "checkpoint_of",
    "expected",
    "files",
    "job_of",
    "latest",
    "program",
    "run",
    "segments",
    "sink_of",
    "table",
    "totals_of",
]

ROW = Types.ROW_NAMED(["key", "count", "total"], [Types.STRING(), Types.LONG(), Types.LONG()])
FACTOR = MapStateDescriptor("factor", Types.LONG(), Types.LONG())
RECORDS = [(f"k{i % 3}", i, i) for i in range(30)]
PER_EPOCH = 6
DAY = timedelta(days=1)
SPARK = SparkResource()
Program = Callable[[], StreamExecutionEnvironment]


class Totals(KeyedProcessFunction):
    """Counts and adds up the records of each key, each record so many times."""

    kind = Types.LONG()

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", self.kind))
        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, context: Any) -> Any:
        count, total = int(self.count.value() or 0) + 1, (self.total.value() or 0) + self.times * value.total
        self.count.update(count if self.kind == Types.LONG() else str(count))
        self.total.update(total)
        yield value.key, count, total


class Texts(Totals):
    """Keeps the count as a text, so that the state of `Totals` does not fit."""

    kind = Types.STRING()


class Multiply(BroadcastProcessFunction):
    """Multiplies each record with the factor that a static input gives."""

    def process_element(self, value: Any, context: Any) -> Any:
        yield value.key, 1, value.value * context.get_broadcast_state(FACTOR).get(0)

    def process_broadcast_element(self, value: int, context: Any) -> None:
        context.get_broadcast_state(FACTOR).put(0, value)


class Backwards(Totals):
    """Adds up in other states."""

    def __init__(self) -> None:
        super().__init__(-1)

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.total = context.get_state(ValueStateDescriptor("sum", Types.LONG()))


class Numbers(Totals):
    """Is in front of the blocking edge: its state shows whether it has read something twice."""

    def process_element(self, value: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, self.count.value(), value.value


def program(
    folder: Path,
    function: Any = None,
    *,
    retain: timedelta | None = DAY,
    unaligned: bool = False,
    edges: int = 1,
    sink: Any = None,
    sink_uid: str = "table",
    parallelism: int = 2,
) -> Program:
    """Returns a program of two branches behind a blocking edge, of which one is changed."""

    def build() -> StreamExecutionEnvironment:
        env = environment(parallelism)
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        read = events(env, RECORDS, per_epoch=PER_EPOCH).key_by("key").process(Numbers(), ROW).uid("numbers")
        read = read.blocking(retain)
        totals = read.key_by("key").process(function or Totals(), ROW).uid("totals")
        for number in range(edges - 1):
            totals = totals.blocking(retain).map(lambda row: row, ROW).uid(f"behind-{number}")
        totals.sink_to(sink or ParquetSink(str(folder / "table"))).uid(sink_uid)
        others = read.key_by("key").process(Totals(10), ROW).uid("others")
        others.sink_to(ParquetSink(str(folder / "kept"))).uid("kept")
        return env

    return build


def job_of(folder: Path) -> StorageLocation:
    return StorageLocation(str(folder / "jobs" / "job"))


def run(
    program: Program, folder: Path, epochs: int | None = None, job: StorageLocation | None = None, **options: Any
) -> None:
    """Runs some epochs, or all that there is to read."""
    options |= {"spark": SPARK, "owner": "test", "on_progress": lambda line: None}
    with program_attempt(program, job or job_of(folder), **options) as attempt:
        if epochs is None:
            list(attempt.run_epochs())
        for _ in range(epochs or 0):
            attempt.run_epoch()


def latest(job: StorageLocation) -> CheckpointMetadata:
    found = CompletedCheckpointStore(job.open()).latest()
    assert found is not None
    return found


def files(folder: Path, name: str = "table") -> list[Path]:
    return sorted((folder / name).glob("*.parquet"))


def checkpoint_of(file: Path) -> int:
    return int(file.name.split(".")[2])


def catalog_of(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


def sink_of(kind: str, folder: Path) -> Any:
    """Returns a sink into files, a Delta Lake or Iceberg table, or a branch of one."""
    place = str(folder / "table")
    if kind == "files":
        return ParquetSink(place)
    if kind == "delta":
        return DeltaSink(place)
    return IcebergSink("db.t", place, properties=catalog_of(folder), branch="b" if kind == "branch" else "main")


def table(folder: Path, name: str = "table", kind: str = "files") -> Any:
    """Returns what does not depend on the order of records that come over different channels."""
    if kind == "files":
        return totals_of([row for file in files(folder, name) for row in pq.read_table(file).to_pylist()])
    if kind == "delta":
        return totals_of(DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist())
    found = load_catalog("default", **catalog_of(folder)).load_table("db.t")
    head = found.snapshot_by_name("b" if kind == "branch" else "main")
    assert head is not None
    return totals_of(found.scan(snapshot_id=head.snapshot_id).to_arrow().to_pylist())


def totals_of(found: list[dict[str, Any]]) -> Any:
    """Returns the keys and counts of rows, and the last total of each key."""
    rows = sorted(tuple(row.values()) for row in found)
    return sorted((key, count) for key, count, _ in rows), {key: total for key, _, total in rows}


def expected(times: int = 1, epochs: int = 5, first: int = 0) -> Any:
    """Returns the table of a run that has read some epochs, from one on."""
    counts, totals = list[tuple[str, int]](), dict[str, int]()
    for key, _, value in RECORDS[PER_EPOCH * first : PER_EPOCH * epochs]:
        counts.append((key, sum(each == key for each, _ in counts) + 1))
        totals[key] = totals.get(key, 0) + times * value
    return sorted(counts), totals


def segments(folder: Path, job: str = "job") -> list[Path]:
    return sorted((folder / "jobs" / job / "exchange").rglob("*.arrow"))
