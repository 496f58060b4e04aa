"""Small jobs for the tests of attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 4}", i * 10, 1) for i in range(24)]


def counted(
    *, parallelism: int = 2, max_parallelism: int | None = 16, per_epoch: int = 8, uid: str = "count"
) -> DataStream:
    stream = events(environment(parallelism, max_parallelism), RECORDS, per_epoch=per_epoch)
    return stream.key_by("key").process(CountPerKey(), COUNTED).uid(uid)


def counted_graph(**options: Any) -> JobGraph:
    return collect_graph(counted(**options))


def run_epochs(graph: JobGraph, folder: Path, number: int, **options: Any) -> list[Any]:
    """Runs a number of epochs in one attempt, and returns the collected records."""
    records = []
    with HarnessAttempt(graph, folder, **options) as attempt:
        for _ in range(number):
            attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
    return records


def sunk(folder: Path, function: Callable[[Any], Any] | None = None) -> tuple[JobGraph, FolderSink]:
    """Returns a program with three epochs and a sink. Each record goes through the function."""
    sink = FolderSink(folder / "table")
    env = environment(2)
    stream = events(env, RECORDS, per_epoch=8)
    stream = stream.map(function or (lambda v: v), EVENT).uid("map")
    stream.map(lambda v: (v.key, v.time, v.value), COUNTED).uid("rows").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def fail_at(time: int) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        if value.time == time:
            raise ValueError(f"boom at {time}")
        return value

    return function
