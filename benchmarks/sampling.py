"""Where the CPU time of a job goes: samples of all Python processes, by stage, and the CPU time of Spark.

A timer interrupts a process after each 2 ms of its CPU time. The innermost function that belongs to a stage gets
the sample. That costs less than 1%.
"""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

FOLDER = "FLINKPY_BENCH_SAMPLES"
"""Environment variable with the folder of the samples, a file per process."""
INTERVAL = 0.002
_WRITE_EACH = 20

STAGES = (
    "scan",
    "hash",
    "combine",
    "split",
    "encode",
    "Spark",
    "Spark's Python worker",
    "decode",
    "lookup",
    "user code",
    "state",
    "snapshot",
    "task",
    "driver",
)

_OURS = f"{os.sep}dagster_flinkpy{os.sep}"
_RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("runtime/shuffle/wire.py", ("decode_buffer", "decode_buffers", "_read", "_decode", "rows_of"), "decode"),
    ("runtime/shuffle/wire.py", (), "encode"),
    ("runtime/shuffle/record_writer.py", ("flush_lane", "_send"), "encode"),
    ("runtime/shuffle/record_writer.py", (), "split"),
    ("runtime/shuffle/key_columns.py", (), "hash"),
    ("key_hashes.py", (), "hash"),
    ("state/keys.py", ("hash_keys",), "hash"),
    ("runtime/operators/local_aggregate.py", (), "combine"),
    ("state/backend.py", ("_touch", "_touch_column", "touch_column", "touch"), "lookup"),
    ("state/", (), "state"),
    ("runtime/operators/folds.py", (), "state"),
    ("runtime/operators/grouped_rows.py", (), "state"),
    ("runtime/operators/source_operator.py", ("run",), "scan"),
    ("connectors/", (), "scan"),
    ("storage/object_store.py", ("read", "readinto"), "scan"),
    ("runtime/worker_daemon.py", (), "Spark's Python worker"),
    ("", (), "task"),
)
"""The part of a path inside the package, function names (none: all), and their stage; the first that fits counts."""


def start() -> None:
    """Begins to sample this process; its samples go to a file."""
    seconds: Any = Counter()
    samples, last = 0, time.process_time()
    file = Path(os.environ[FOLDER], f"{os.getpid()}.json")

    def take(_: int, frame: FrameType | None) -> None:
        nonlocal samples, last
        now = time.process_time()  # the timer is as fine as the kernel's ticks
        seconds[_stage(frame)] += now - last
        samples, last = samples + 1, now
        if samples % _WRITE_EACH == 0:
            file.write_text(json.dumps(seconds))

    signal.signal(signal.SIGPROF, take)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)


def _stage(frame: FrameType | None) -> str:
    """Returns the stage of the innermost function that has one. A snapshot and a lookup are whole."""
    found, last = "", ""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if _OURS in file:
            last = _stage_of(file.rpartition(_OURS)[2], name)
            if name in ("snapshot", "finish"):
                return "snapshot"
            if last == "lookup":
                return last
            found = found or last
        elif not found and not file.startswith((_LIBRARY, "<")) and "site-packages" not in file:
            found = "user code" if "state_programs" not in file or "process" in name else "scan"
        frame = frame.f_back
    return found or "Spark's Python worker"


_LIBRARY = sysconfig.get_path("stdlib")


def _stage_of(path: str, function: str) -> str:
    return next(stage for part, names, stage in _RULES if part in path and (not names or function in names))


@contextmanager
def sampled(folder: Path) -> Iterator[None]:
    """Samples the Spark server that starts inside, its Python workers, and this process."""
    here = Path(__file__).parent
    path = [str(here / "worker_path"), str(here.parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "FLINKPY_RUNTIME_DIR": str(folder / "server"),  # a server of its own, because a running one has no samples
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def cpu_seconds(folder: Path) -> dict[str, float]:
    """Returns the CPU seconds so far of each stage."""
    seconds: Any = Counter()
    for file in folder.glob("*.json"):
        seconds.update(json.loads(file.read_text()))
    seconds["driver"] = sum(psutil.Process().cpu_times()[:2])
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == "java" and process.environ().get(FOLDER) == str(folder):
                seconds["Spark"] += sum(process.cpu_times()[:2])
    return dict(seconds)


def table(programs: dict[str, dict[str, float]], events: int) -> str:
    """Returns nanoseconds of CPU time per event, by stage and program, for people."""
    width = max(len(stage) for stage in STAGES)
    lines = [f"{'ns of CPU per event':<{width}}" + "".join(f"{name:>20}" for name in programs)]
    for stage in STAGES:
        numbers = [seconds.get(stage, 0.0) / events * 1e9 for seconds in programs.values()]
        lines.append(f"{stage:<{width}}" + "".join(f"{number:>20.0f}" for number in numbers))
    totals = [sum(seconds.values()) / events * 1e9 for seconds in programs.values()]
    lines.append(f"{'all':<{width}}" + "".join(f"{number:>20.0f}" for number in totals))
    return "\n".join(lines)


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Returns the CPU seconds of each stage between two moments."""
    return {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}
