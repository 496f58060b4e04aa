"""A live job whose last operator is slower than its sources, for the page of a running job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Row, Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import CommittingSinkWriter, SourceSplit
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import JobCancelledError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import FolderSink
from tests.soak.job import Endless
from tests.waiting import LIMIT

__all__ = ["program", "running"]

_SITES = ("docs", "blog", "shop", "forum", "status", "about")
_CLICK = Types.ROW_NAMED(
    ["site", "time", "visitors", "page"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.STRING()]
)
_START_MS, _HOUR_MS = 1_788_000_000_000, 3_600_000
_BATCH, _SLOW_SECONDS = 50, 0.003
_PAGE = "." * 100_000
"""Fills the channels with few records."""


class Clicks(Endless):
    """Has its records ready, so that it is fast.

    Args:
        records: How many a subtask reads in an epoch.
        start_ms: Event time of the first epoch.
    """

    def __init__(self, records: int, start_ms: int) -> None:
        super().__init__(records, _BATCH)
        self._start_ms = start_ms

    @property
    def produced_type(self) -> Any:
        return _CLICK

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        time_ms = self._start_ms + int(split.split_id) * 60_000
        clicks = _CLICK.to_arrow([Row(_SITES[i % len(_SITES)], time_ms, 1, _PAGE) for i in range(_BATCH)])
        for start in range(split.offset, self._records, _BATCH):
            yield clicks, start + _BATCH


def _add(a: Any, b: Any) -> Any:
    return Row(a.site, b.time, a.visitors + b.visitors, a.page)


def _without_page(row: Any) -> Any:
    return Row(row.site, row.time, row.visitors, "")


class _SlowWriter(CommittingSinkWriter):
    def __init__(self, writer: CommittingSinkWriter) -> None:
        self._writer = writer

    def write(self, column: pa.Array) -> None:
        time.sleep(_SLOW_SECONDS * len(column))
        self._writer.write(column)

    def prepare_commit(self) -> list[Any]:
        return self._writer.prepare_commit()

    def abort(self) -> None:
        self._writer.abort()


class SlowSink(FolderSink):
    """Takes its time for each record."""

    def create_writer(self, *args: Any) -> CommittingSinkWriter:
        return _SlowWriter(super().create_writer(*args))


def program(folder: Path, *, records: int = 1_000) -> JobGraph:
    """Returns a program that counts clicks and campaigns by site, and writes the counts slowly.

    Args:
        folder: Where the sink writes.
        records: How many clicks a subtask reads in an epoch.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    clicks, campaigns = (
        env.from_source(source, strategy, f"Source: {uid}").uid(uid)
        for uid, source in (
            ("clicks", Clicks(records, _START_MS)),
            ("campaigns", Clicks(_BATCH, _START_MS - _HOUR_MS)),
        )
    )
    valid = clicks.filter(lambda row: row.visitors > 0).name("Valid clicks").uid("valid")
    counted = valid.union(campaigns).key_by("site").reduce(_add).name("Visitors by site").uid("visitors")
    counted.map(_without_page, _CLICK).name("Without page").uid("rows").sink_to(SlowSink(folder)).name(
        "Sink: warehouse"
    ).uid("warehouse")
    return env.get_job_graph()


@contextmanager
def running(graph: JobGraph, storage: StorageLocation, settings: SparkSettings, job_id: str) -> Iterator[None]:
    """Runs a job on a thread, with live tasks on Spark, and cancels it at the end."""
    config = JobConfig(job_id, storage, settings, exchange=ExchangeOptions(ExchangeMode.PIPELINED))
    begun, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with JobAttempt(graph, config, owner="a browser test") as attempt:
                begun.set()
                for _ in attempt.run_epochs():
                    pass
        except JobCancelledError:
            pass
        except BaseException as error:
            errors.append(error)
        begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(LIMIT)
        yield
    finally:
        asker = JobRequests(storage.child(job_id), "a browser test")
        asker.wait(asker.submit(Order(RequestKind.CANCEL)))
        thread.join(LIMIT)
    assert not errors, errors
