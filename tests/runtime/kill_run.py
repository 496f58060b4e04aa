"""A run of the job of test_kill.py that kills itself."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.parquet as pq

from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

RECORDS = [(f"k{i % 4}", i * 10, 1) for i in range(24)]
TABLES = ("rows", "counts")
JOB = "killed"


def program(location: StorageLocation) -> JobGraph:
    """Returns a program with three epochs and two tables."""
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=8)
    rows = stream.map(lambda v: (v.key, v.time, v.value), COUNTED).uid("map")
    rows.sink_to(ParquetSink(location.child("rows"))).uid("rows")
    counts = stream.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counts.sink_to(ParquetSink(location.child("counts"))).uid("counts")
    return env.get_job_graph()


def config_of(location: StorageLocation, spark: SparkSettings) -> JobConfig:
    return JobConfig(JOB, location.child("checkpoints"), spark)


def committed(location: StorageLocation, table: str) -> list[Any]:
    """Returns what a reader of the table sees."""
    store = location.child(table).open()
    tables = [pq.read_table(io.BytesIO(store.get(info.key)[0])) for info in store.list() if info.key[0] != "."]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def _die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(point: str, attempt: JobAttempt) -> None:
    if point == "before metadata":
        attempt._store.write_metadata = lambda *_: _die()
    elif point == "before HEAD":
        attempt._store.complete = lambda *_, **__: _die()
    elif point == "before commit":
        attempt._commit = lambda *_: _die()
    elif point == "within commit":
        store = type(attempt.config.storage.open())
        store.complete_upload = _once(store.complete_upload)
    else:
        raise AssertionError(point)


def _once(complete: Callable[..., str]) -> Callable[..., str]:
    def complete_and_die(self: ObjectStore, *args: Any, **options: Any) -> str:
        complete(self, *args, **options)
        return str(_die())

    return complete_and_die


def run(point: str, location: StorageLocation, spark: SparkSettings, variables: Mapping[str, str]) -> None:
    """Runs the job until it is killed in its second epoch.

    Args:
        point: Where.
        location: Where checkpoints and tables are.
        spark: The Spark of the test.
        variables: The environment of the test.
    """
    os.environ.update(variables)
    with JobAttempt(program(location), config_of(location, spark), owner="doomed") as attempt:
        attempt.run_epoch()
        _kill_at(point, attempt)
        attempt.run_epoch()
