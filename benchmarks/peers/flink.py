"""PyFlink and Flink SQL from PyPI, in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections import deque
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import state_programs as programs
from benchmarks.peers.process import answers

VERSION = "2.3.0"
VARIABLE = "FLINKPY_BENCH_PYFLINK"
"""Environment variable with the Python of an environment that already has PyFlink."""

Mode = Literal["process", "thread"]

_COMMON = {
    "execution.runtime-mode": "STREAMING",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.managed.size": "1g",
}


def python() -> Path:
    """Returns the Python of an environment with PyFlink. Creates it below the user's cache directory if needed."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "flinkpy-benchmarks" / f"pyflink-{VERSION}"
    if not (home / "complete").exists():
        print(f"installing apache-flink {VERSION} in {home}; this takes minutes", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", f"apache-flink=={VERSION}"]
        subprocess.run(pip, check=True)
        (home / "complete").touch()
    return home / "bin" / "python"


def pyflink_settings(mode: Mode, keys: int, bundle: int) -> dict[str, str]:
    """Returns settings with state on the heap, which is faster for few keys, and a cache of the state of all keys.

    Args:
        mode: PyFlink's execution mode.
        keys: Number of keys.
        bundle: Events after which a Python worker writes the state that it caches.
    """
    return {
        **_COMMON,
        "state.backend.type": "hashmap",
        "python.execution-mode": mode,
        "python.state.cache-size": str(keys),
        "python.fn-execution.bundle.size": str(bundle),
        "python.fn-execution.bundle.time": "600000",
    }


def sql_settings(backend: str) -> dict[str, str]:
    """Returns the settings of "Performance Tuning" in Flink's documentation: mini-batches and two-phase aggregation.

    Args:
        backend: ``hashmap`` or ``rocksdb``.
    """
    return {
        **_COMMON,
        "state.backend.type": backend,
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "5 s",
        "table.exec.mini-batch.size": "5000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    }


def pyflink_events_per_second(events: int, keys: int, parallelism: int, configuration: dict[str, str]) -> float:
    """Returns the rate of the second half of the events, as recorded by the subtasks. There are no checkpoints.

    The first half includes the time to start and to bring each key into the cache of a Python worker.
    """
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        note_each = max(events // parallelism // 100, 1)
        _run("process_function", [events], keys, parallelism, configuration, folder=folder, note_each=note_each)
        notes = [file.read_text().split() for file in Path(folder).iterdir()]
    times = [[float(time) for time in note[::2]] for note in notes]
    assert len(times) == parallelism, f"{len(times)} subtasks have recorded their progress"
    return sum(len(t) // 2 * note_each / (t[-1] - t[-1 - len(t) // 2]) for t in times)


def sql_events_per_second(events: int, keys: int, parallelism: int, configuration: dict[str, str]) -> float:
    """Returns the rate of ``events`` events: a run of twice as many, minus a run of as many. There are no checkpoints.

    One JVM runs both, after a run to warm up.
    """
    _, once, twice = _run("sql", [events, events, 2 * events], keys, parallelism, configuration)
    return events / (twice - once)


def latencies(rate: int, keys: int, parallelism: int, seconds: int = 20) -> np.ndarray[Any, Any]:
    """Returns the latencies of records in seconds, in the second half of the run.

    It is in thread mode, and has a checkpoint per second.
    """
    configuration = {
        **_COMMON,
        "state.backend.type": "hashmap",
        "python.execution-mode": "thread",
        "execution.buffer-timeout.interval": "0 ms",
        "execution.checkpointing.interval": "1 s",
    }
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        configuration["execution.checkpointing.dir"] = f"file://{folder}/checkpoints"
        noted = Path(folder, "notes")
        noted.mkdir()
        order = {"rate": rate, "keys": keys, "parallelism": parallelism, "seconds": seconds}
        order |= {"configuration": configuration, "folder": str(noted)}
        deque(answers(python(), Path(__file__).with_name("flink_latency.py"), order), maxlen=0)
        emitted, at = np.concatenate([np.loadtxt(file, ndmin=2) for file in noted.iterdir()]).T
    return (at - emitted)[emitted >= (emitted.min() + emitted.max()) / 2]


def _run(
    program: str, events: list[int], keys: int, parallelism: int, configuration: dict[str, str], **more: str | int
) -> list[float]:
    """Returns the seconds of each run, including the start and end of a job.

    Raises:
        RuntimeError: The program failed; the message has the last lines of its output.
    """
    order = {
        "program": program,
        "events": events,
        "keys": keys,
        "values": programs.VALUES,
        "spread": programs.SPREAD,
        "rare": programs.RARE,
        "parallelism": parallelism,
        "configuration": configuration,
        **more,
    }
    seconds: list[float]
    [seconds] = answers(python(), Path(__file__).with_name("flink_state.py"), order)
    return seconds
