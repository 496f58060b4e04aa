"""Runs a Nexmark query as a user would, and measures it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.nexmark.queries import build
from dagster_flinkpy.common import Configuration
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Sink, SinkWriter
from dagster_flinkpy.errors import JobNotRunningError
from dagster_flinkpy.spark.server_state import StateFile, runtime_directory

__all__ = ["Settings", "Used", "run", "used"]


@dataclass(frozen=True)
class Settings:
    """How a query is run."""

    parallelism: int = 2
    checkpoint_every: int | None = None
    """Events between two checkpoints. Default: there is one, at the end."""
    rescale_to: int | None = None
    """The parallelism with which the job continues from a savepoint."""
    local: bool = False
    """Whether tasks run in this process, without Spark."""


@dataclass(frozen=True)
class Used:
    """What a run has taken."""

    seconds: float
    cpu_seconds: float
    """Of this process, of Spark and of its Python workers."""

    def __sub__(self, less: Used) -> Used:
        """Returns the difference, or all of it if the difference is too small to measure."""
        if self.seconds <= less.seconds or self.cpu_seconds <= less.cpu_seconds:
            return self
        return Used(self.seconds - less.seconds, self.cpu_seconds - less.cpu_seconds)


class Discard(Sink):
    """Takes records of any type, like Flink's ``blackhole``."""

    def validate(self, type_info: Any) -> None:
        pass

    def create_writer(self, context: Any, type_info: Any) -> SinkWriter:
        return _Discarded()


class _Discarded(SinkWriter):
    def write(self, column: pa.Array) -> None:
        pass

    def abort(self) -> None:
        pass


def run(name: str, folder: Path, settings: Settings, output: Path | None = None) -> None:
    """Runs a query to the end of its input.

    Args:
        name: Name of the query.
        folder: Folder with the events.
        settings: How to run it.
        output: Where the result goes, as Parquet. Default: it is discarded.

    Raises:
        SystemExit: The job ended before it could be stopped for the other parallelism.
    """
    with tempfile.TemporaryDirectory(prefix="flinkpy-nexmark-") as checkpoints:
        first = _declared(name, folder, settings, output, Path(checkpoints), {})
        if settings.rescale_to is None:
            first.execute(name)
            return
        stop = first.execute_async(name).stop_with_savepoint(False, f"{checkpoints}/savepoints")
        try:
            savepoint = stop.result()
        except JobNotRunningError:
            raise SystemExit(f"{name} has ended before it could be stopped: run it with more events") from None
        more = {"execution.state-recovery.path": savepoint, "parallelism.default": str(settings.rescale_to)}
        _declared(name, folder, settings, output, Path(checkpoints) / "rescaled", more).execute(name)


def _declared(
    name: str, folder: Path, settings: Settings, output: Path | None, checkpoints: Path, more: dict[str, str]
) -> StreamExecutionEnvironment:
    options = {
        "parallelism.default": str(settings.parallelism),
        "execution.local": str(settings.local).lower(),
        "execution.checkpointing.dir": str(checkpoints),
        **more,
    }
    configuration = Configuration()
    for option, value in options.items():
        configuration.set_string(option, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    result = build(name, env, folder, events_per_epoch=settings.checkpoint_every)
    result.sink_to(Discard() if output is None else ParquetSink(str(output))).uid("sink")
    return env


def used(action: Callable[[], Any]) -> Used:
    """Returns what an action takes, with the processes of the local Spark servers of the runtime directory."""
    cpu, started = _cpu_seconds(), time.perf_counter()
    action()
    return Used(time.perf_counter() - started, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    me = psutil.Process(os.getpid())
    roots = [me, *_spark_server()]
    processes = {each.pid: each for root in roots for each in [root, *root.children(recursive=True)]}
    others = sum(sum(_times(process)) for process in processes.values() if process.pid != me.pid)
    return time.process_time() + sum(me.cpu_times()[2:4]) + others


def _times(process: psutil.Process) -> tuple[float, ...]:
    """Returns what a process has used, and its children that have ended."""
    try:
        return process.cpu_times()[:4]
    except psutil.NoSuchProcess:
        return ()


def _spark_server() -> list[psutil.Process]:
    states = [StateFile(path).read() for path in runtime_directory().glob("spark-*.json")]
    return [psutil.Process(s.server.pid) for s in states if s is not None and s.server is not None]
