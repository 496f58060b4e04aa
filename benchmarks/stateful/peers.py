"""Runs the programs of other engines in processes of their own, checks their output and measures them.

Each peer is a script, which its own Python runs with a JSON object as argument::

    {"program": NAME, "settings": {...}, "output": FILE, "inputs": [FOLDER, ...]}

It runs the program once for each input, in one process. The output of the first run is written, as JSON lists on
lines; afterwards it is discarded. At the end it prints ``[[seconds, CPU seconds], ...]``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
import venv
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import flink
from benchmarks.stateful.checker import check, json_rows
from benchmarks.stateful.input import Input
from benchmarks.stateful.processes import VARIABLE
from benchmarks.stateful.programs import PROGRAMS
from benchmarks.stateful.rules import GAP
from dagster_flinkpy.spark.java import find_java_home

_SECONDS = 900
_PER_SLICE = 50_000
MORE = 5
_PROCESS_FUNCTION, _WINDOWS = "process function", "windows or timers"


class Rates(NamedTuple):
    """Rows per second, and per second of CPU time of all processes."""

    per_second: float
    per_cpu_second: float


@dataclass(frozen=True)
class Peer:
    """Another engine, in one of its modes.

    Args:
        name: Its name in metrics.
        what: Its name for people.
        script: The file with its programs, in this folder.
        package: What its environment has: ``NAME==VERSION``. Default: this environment.
        settings: How it is tuned; the script gets them.
        lengths: Events of the two runs whose difference counts.
        quick: Programs that take so little time that they get :data:`MORE` times the events.
        bars: How many times its rate ours must be, by kind of program.
        programs: The programs that it has.
        open_at_end: Whether it writes sessions that are open when the input ends. Otherwise only earlier ones count.
    """

    name: str
    what: str
    script: str
    package: str
    settings: dict[str, Any]
    lengths: tuple[int, int]
    bars: dict[str, float] = field(default_factory=lambda: {_PROCESS_FUNCTION: 40, _WINDOWS: 15})
    programs: tuple[str, ...] = tuple(PROGRAMS)
    open_at_end: bool = True
    quick: tuple[str, ...] = ()

    def events(self, program: str) -> tuple[int, int]:
        """Returns the events of the two runs of a program."""
        few, many = self.lengths
        return (MORE * few, MORE * many) if program in self.quick else (few, many)

    def python(self) -> str:
        """Returns the Python of its environment, which is made if needed."""
        if not self.package:
            return sys.executable
        return str(flink.python() if self.package.startswith("apache-flink") else _environment(self.package))


def _pyflink(mode: flink.Mode, lengths: tuple[int, int]) -> Peer:
    settings = {
        "execution.runtime-mode": "STREAMING",
        "pipeline.object-reuse": "true",
        "taskmanager.memory.managed.size": "1g",
        "state.backend.type": "hashmap",
        "python.execution-mode": mode,
        "python.state.cache-size": "100000",
        "python.map-state.read-cache-size": "100000",
        "python.map-state.write-cache-size": "100000",
        "python.fn-execution.bundle.size": "100000",
        "python.fn-execution.bundle.time": "1000",
        "parallelism.default": "2",
    }
    what = f"PyFlink {flink.VERSION}, {mode} mode"
    package = f"apache-flink=={flink.VERSION}"
    return Peer(f"pyflink_{mode}", what, "pyflink_programs.py", package, settings, lengths)


def _bytewax(processes: int) -> Peer:
    version = "0.21.1"
    settings = {"processes": processes, "batch size": 1_000, "recovery": "none", "source": "memory"}
    bars = {_PROCESS_FUNCTION: 3.0, _WINDOWS: 3.0}
    what = f"Bytewax {version}, {processes} {'process' if processes == 1 else 'processes'}"
    package, lengths, quick = f"bytewax=={version}", (100_000, 300_000), ("top_n", "fraud", "enrichment")
    return Peer(f"bytewax_{processes}", what, "bytewax_programs.py", package, settings, lengths, bars, quick=quick)


def _quix() -> Peer:
    version = "3.28.1"
    settings = {
        "auto_offset_reset": "earliest",
        "use_changelog_topics": False,
        "commit_interval": 5.0,
        "consumer_poll_timeout": 0.1,
    }
    bars = {_PROCESS_FUNCTION: 3.0, _WINDOWS: 3.0}
    package, lengths = f"quixstreams=={version}", (10_000, 30_000)
    what = f"Quix Streams {version}, mock cluster"
    return Peer("quix", what, "quix_programs.py", package, settings, lengths, bars, open_at_end=False)


def _spark() -> Peer:
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": store,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # In processing time, there would always be another one.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    programs = ("deduplicate", "top_n", "fraud", "features")
    what = "Spark transformWithState"
    return Peer("spark", what, "spark_programs.py", "", settings, (10_000, 40_000), programs=programs)


PEERS = (
    _pyflink("thread", (50_000, 200_000)),
    _pyflink("process", (20_000, 80_000)),
    _bytewax(1),
    _bytewax(2),
    _quix(),
    _spark(),
)
"""A program takes each of them a minute or so on idle cores, so their numbers of events differ."""


def measure(peer: Peer, name: str, folder: Path, small: Input, wanted: Counter[tuple[Any, ...]], keys: int) -> Rates:
    """Returns the rates of a peer.

    Args:
        peer: The peer.
        name: The program.
        folder: Folder for input and output.
        small: The input of the first run.
        wanted: The rows that the first run must write.
        keys: Number of users in the input of the other runs.

    Raises:
        OutputDiffersError: It writes other rows.
        RuntimeError: The program failed; the message has the last lines of its output.
    """
    inputs = [_input(folder / f"input-{events}", events, keys) for events in peer.events(name)]
    output = folder / f"{peer.name}-{name}.jsonl"
    order = {
        "program": name,
        "settings": peer.settings,
        "output": str(output),
        "inputs": [str(each.folder) for each in (small, *inputs)],
    }
    _, short, long = _run(peer, order)
    _check(peer, name, output, wanted, small)
    rows = [each.rows(*PROGRAMS[name].tables) for each in inputs]
    return Rates(*((rows[1] - rows[0]) / (long[i] - short[i]) for i in range(2)))


def _check(peer: Peer, name: str, output: Path, wanted: Counter[tuple[Any, ...]], small: Input) -> None:
    found = json_rows(output)
    if name == "sessions" and not peer.open_at_end:
        found, wanted = (_closed(rows, small.end - 2 * GAP) for rows in (found, wanted))
    check(f"{peer.what}, {name},", found, wanted)


def _closed(sessions: Counter[tuple[Any, ...]], until: int) -> Counter[tuple[Any, ...]]:
    """Returns the sessions that end before a time, in milliseconds."""
    return Counter({row: times for row, times in sessions.items() if row[2] < until})


def _input(folder: Path, events: int, keys: int) -> Input:
    return Input(folder, events, keys, _PER_SLICE, new=not folder.exists())


def _run(peer: Peer, order: dict[str, Any]) -> list[list[float]]:
    python = peer.python()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},  # of our own session
        VARIABLE: uuid.uuid4().hex,
        "PYTHONPATH": str(Path(__file__).parent),  # Flink's workers import the functions
        "JAVA_HOME": str(find_java_home()),
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",  # Flink looks for `python` there
    }
    command = [python, str(Path(__file__).with_name(peer.script)), json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SECONDS)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
        raise RuntimeError("\n".join(said[-40:]))
    runs: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return runs


def _environment(package: str) -> Path:
    """Returns the Python of an environment with a package and PyArrow, below the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "flinkpy-benchmarks" / package.replace("==", "-")
    if not (home / "complete").exists():
        print(f"installing {package} in {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", package, "pyarrow"], check=True)
        (home / "complete").touch()
    return home / "bin" / "python"
