"""Our side of the stateful suite: jobs on a warm Spark session, with a checkpoint for each slice of the input."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks.stateful.input import Input
from benchmarks.stateful.processes import VARIABLE, cpu_seconds
from benchmarks.stateful.programs import program
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE
from dagster_flinkpy.spark.sessions import SparkSettings, open_session, stop_server
from dagster_flinkpy.storage import StorageLocation


@contextmanager
def session(folder: Path) -> Iterator[None]:
    """Runs a Spark server of its own, whose CPU time can be told from that of others."""
    with patch.dict(os.environ, {RUNTIME_DIR_VARIABLE: str(folder), VARIABLE: uuid.uuid4().hex}):
        with open_session(SparkSettings()):
            yield
        stop_server(SparkSettings())


def run_program(name: str, source: Input, folder: Path, parallelism: int) -> tuple[float, float]:
    """Runs a program to its end. Its output is in ``output``, below the folder.

    Returns:
        Seconds, and CPU seconds of all processes.
    """
    env = program(name, source, str(folder / "output"), parallelism)
    config = JobConfig(name, StorageLocation(str(folder / "store")), cache_dir=str(folder / "cache"))
    with JobAttempt(env.get_job_graph(), config, owner="benchmark") as attempt:
        started, before = time.perf_counter(), cpu_seconds()
        for _ in attempt.run_epochs(source.slices):
            pass
        return time.perf_counter() - started, cpu_seconds() - before
