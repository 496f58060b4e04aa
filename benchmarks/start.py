"""What it takes to run the smallest program as a script, from nothing: no Spark runs, and each round starts one.

The other sides do the same: a bare PySpark script that starts Spark Connect by itself, and PyFlink. All take turns. CPU
time is that of all processes of a script until the last one has ended. On a machine that does other things, too, it
tells more than seconds.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import line
from dagster_flinkpy.spark.java import find_java_home

ROUNDS = 5
_PR_SET_CHILD_SUBREAPER = 36

_PROGRAM = """
from {package}.common import Configuration, Types
from {package}.datastream import StreamExecutionEnvironment

configuration = Configuration()
{configure}
env = StreamExecutionEnvironment.get_execution_environment(configuration)
env.from_collection([1, 2, 3], Types.LONG()).map(lambda n: n + 1, Types.LONG()).print()
env.execute()
"""
_BARE = """
from pyspark.sql import SparkSession

def same(batches):
    yield from batches

with SparkSession.builder.remote("local[*]").getOrCreate() as spark:
    print(spark.range(1, 4).mapInArrow(same, "id long").toArrow()["id"].to_pylist())
"""


@dataclass
class Side:
    program: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """Of each round, until the script has ended."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of each round, of all its processes."""

    def run(self, script: Path) -> tuple[float, float]:
        script.write_text(self.program)
        before, started = _cpu_seconds(), time.monotonic()
        environment = {**os.environ, **self.environment}
        done = subprocess.run([self.python, script], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError("\n".join(done.stderr.splitlines()[-40:]))
        seconds = time.monotonic() - started
        while True:  # a server that outlives its script
            try:
                os.wait()
            except ChildProcessError:
                return seconds, _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sides(peers: tuple[str, ...], runtime: str) -> dict[str, Side]:
    ours = {"FLINKPY_RUNTIME_DIR": runtime, "PYTHONPATH": str(Path(__file__).parents[1])}
    program = _PROGRAM.format(package="dagster_flinkpy", configure="")
    local = 'configuration.set_string("execution.local", "true")'
    sides = {
        "script": Side(program, environment=ours),
        "local": Side(_PROGRAM.format(package="dagster_flinkpy", configure=local), environment=ours),
        "pyspark": Side(_BARE, environment={"PYSPARK_PYTHON": sys.executable}),
    }
    if "pyflink" in peers:
        from benchmarks.peers import flink

        python = flink.python()
        # Flink looks for `python` on the path.
        path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"JAVA_HOME": str(find_java_home()), "PATH": path}
        sides["pyflink"] = Side(_PROGRAM.format(package="pyflink", configure=""), str(python), environment)
    return sides


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # Linux: servers become children of this process
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        sides, script = _sides(peers, folder), Path(folder, "script.py")
        for side in sides.values():  # the first start fills caches, on each side
            side.run(script)
        for _ in range(ROUNDS):
            for side in sides.values():
                seconds, cpu_seconds = side.run(script)
                side.seconds.append(seconds)
                side.cpu_seconds.append(cpu_seconds)
    lines = []
    for name, side in sides.items():
        lines.append(
            line(f"start.{name}_seconds", statistics.median(side.seconds), "s", bar="<= 2" if name == "local" else "")
        )
        lines.append(line(f"start.{name}_cpu_seconds", statistics.median(side.cpu_seconds), "s"))
    for peer, what in (("pyspark", "bare PySpark script with Spark Connect"), ("pyflink", "PyFlink, the same program")):
        if peer not in sides:
            continue
        for unit, ours, theirs in (
            ("time", sides["script"].seconds, sides[peer].seconds),
            ("cpu_time", sides["script"].cpu_seconds, sides[peer].cpu_seconds),
        ):
            lines.append(
                line(
                    f"start.script_vs_{peer}_{unit}",
                    statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
                    "ratio of " + unit.replace("_", " "),
                    peer=what,
                    bar="<= 1",
                    settings={"rounds": ROUNDS},
                )
            )
    return lines
