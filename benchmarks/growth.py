"""How the time and memory of a job grow: with events, keys, skew, the size of values, string keys, subtasks, and state.

Each run is a job in one epoch, except for state, from Parquet files that are read through ``ParquetSource``, on a Spark
server of its own with as many slots as subtasks need. Runs that are compared take turns.
``docs/performance.md`` explains the lines.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import line
from benchmarks.state_cost import timed
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.processes import PYTHON_DAEMON
from dagster_flinkpy.spark.sessions import SparkSettings, get_session, stop_server
from dagster_flinkpy.storage import StorageLocation

SIZES = (1_000_000, 10_000_000, 100_000_000)
"""Events. Ratios are taken at the middle size, and the keys grow up to half of the largest."""
KEYS, PARALLELISM, ROUNDS = 100_000, 2, 3
SUBTASKS = (1, 2, 4, 8, 16)
VALUE_BYTES = (8, 100, 1_000, 10_000)
VALUE_KEYS, VALUES_BYTES = 10_000, 100
"""Keys of the runs with large values, and the bytes of all their values per event of the middle size."""
ZIPF = 1.2

_SPREAD, _VALUES, _FILES, _ROW_GROUP = 2_654_435_761, 1_000, 16, 1 << 20
_CHUNK = 4 << 20

Lines = list[dict[str, Any]]


class Sum(KeyedProcessFunction):
    """Adds up the values of a key, record by record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._sum.update((self._sum.value() or 0) + value.value)


class Last(KeyedProcessFunction):
    """Keeps the last value of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.PRIMITIVE_ARRAY(Types.BYTE())))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._last.update(value.value)


FORMS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda keyed: keyed.sum("value"),
    "process": lambda keyed: keyed.process(Sum(), Types.LONG()),
    "last": lambda keyed: keyed.process(Last(), Types.LONG()),
}


# --- input ------------------------------------------------------------------------------------------------------------


def uniform(numbers: Any, keys: int) -> Any:
    """Keys that are all equally frequent: each block of ``keys`` events touches each of them once."""
    return numbers * _SPREAD % keys


def zipf(numbers: Any, keys: int) -> Any:
    """Keys of which number k is k ** -1.2 times as frequent as the first."""
    shares = np.cumsum(np.arange(1, keys + 1) ** -ZIPF)
    drawn = np.random.default_rng(int(numbers[0])).random(len(numbers)) * shares[-1]
    return np.searchsorted(shares, drawn)


def strings(numbers: Any, keys: int) -> pa.Array:
    """Strings of 16 characters, as frequent as those of :func:`uniform`."""
    names = pa.array([f"customer-{key:07}" for key in range(keys)])
    return names.take(pa.array(uniform(numbers, keys)))


def write_events(
    folder: Path, events: int, keys: int = KEYS, *, keyed: Callable[[Any, int], Any] = uniform, value_bytes: int = 0
) -> Path:
    """Writes events in files of equal size, and returns the folder.

    Args:
        folder: A new folder.
        events: Number of events.
        keys: Number of keys.
        keyed: Returns the keys of events by their numbers.
        value_bytes: Bytes of a value; with 0, values are longs.
    """
    folder.mkdir(parents=True)
    bounds = [events * i // _FILES for i in range(_FILES + 1)]
    for file, (first, stop) in enumerate(itertools.pairwise(bounds)):
        writer = None
        for start in range(first, stop, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, stop))
            values = pa.array(numbers % _VALUES) if not value_bytes else _payloads(numbers, value_bytes)
            table = pa.table({"key": pa.array(keyed(numbers, keys)), "value": values})
            writer = writer or pq.ParquetWriter(folder / f"{file:03}.parquet", table.schema)
            writer.write_table(table, row_group_size=_ROW_GROUP)
        if writer is not None:
            writer.close()
    return folder


def _payloads(numbers: Any, size: int) -> pa.Array:
    random = np.random.default_rng(size).integers(0, 256, size + len(numbers), dtype=np.uint8)
    data = np.lib.stride_tricks.sliding_window_view(random, size)[: len(numbers)]
    return pa.Array.from_buffers(pa.binary(size), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(data))]).cast(
        pa.binary()
    )


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a run took."""

    seconds: float
    worker_rss: int
    """Peak bytes of the Python worker that needed most."""
    java_rss: int
    """Peak bytes of Spark's Java process."""
    driver_rss: int
    """Peak bytes of this process, where the master runs."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch took."""

    seconds: float
    cpu_seconds: float
    """Of all processes, without what it took to look at their memory."""
    worker_anonymous: int
    """Peak bytes of the Python worker that needed most, without pages of files and those that it has freed."""
    read: int
    """Bytes that the Python workers have read from files, but for those that are mapped."""
    stored: int
    """Bytes of state in the checkpoint."""
    local: int
    """Bytes of the local copies of state."""


class Runner:
    """Runs jobs on one warm Spark server.

    Args:
        folder: A new folder for checkpoints.
        settings: Which Spark to use.
    """

    def __init__(self, folder: Path, settings: SparkSettings) -> None:
        self._folder, self._settings = folder, settings
        self._number = itertools.count()

    def run(self, form: str, source: Path, parallelism: int = PARALLELISM) -> Run:
        """Runs a job in one epoch, without what other jobs have left behind."""
        storage = self._folder / f"job-{next(self._number)}"
        config = JobConfig("growth", StorageLocation(str(storage)), self._settings, cache_dir=str(storage / "cache"))
        processes = _processes()
        for process in processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # peaks begin anew
        with JobAttempt(_program(form, source, parallelism), config, owner="benchmark") as attempt:
            seconds = timed(lambda: list(attempt.run_epochs()))[0]
        peaks: dict[str, list[int]] = {"java": [0], "worker": [0], "driver": [0]}
        for process in _processes():
            peaks[_kind(process)].append(_status(process, "VmHWM"))
        shutil.rmtree(storage)
        return Run(seconds, max(peaks["worker"]), max(peaks["java"]), max(peaks["driver"]))

    def growing(self, form: str, managed_memory: int | None = None) -> Growing:
        """Returns a job that reads one file after the other."""
        return Growing(form, self._folder / f"job-{next(self._number)}", self._settings, managed_memory)

    def compare(self, sides: Mapping[Any, tuple[Any, ...]], rounds: int) -> dict[Any, list[Run]]:
        """Runs some sides in turn, once more than is counted."""
        found: dict[Any, list[Run]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, arguments in sides.items():
                run = self.run(*arguments)
                if number:
                    found[name].append(run)
        return found


class Growing:
    """A job that is run again and again, each time with a file of its own.

    Args:
        form: The job.
        folder: A new folder for files, checkpoints and local copies.
        settings: Which Spark to use.
        managed_memory: About how many bytes of state a worker may hold in memory. None: by default.
    """

    def __init__(self, form: str, folder: Path, settings: SparkSettings, managed_memory: int | None) -> None:
        self._form, self._folder, self._number = form, folder, itertools.count()
        self.cache = folder / "cache"
        """The folder of the local copies."""
        store = StorageLocation(str(folder / "checkpoints"))
        checkpointing = CoordinatorConfig(managed_memory=managed_memory)
        self._config = JobConfig("growth", store, settings, checkpointing=checkpointing, cache_dir=str(self.cache))
        self._files = folder / "files"
        self._files.mkdir(parents=True)

    def run(self, numbers: Any, parallelism: int = PARALLELISM) -> Epoch:
        """Runs the job with an event for each number. Keys are spread over 40 bits."""
        spread = numbers * _SPREAD % (1 << 40)
        pq.write_table(
            pa.table({"key": spread, "value": spread % _VALUES}), self._files / f"{next(self._number):03}.parquet"
        )
        program = _program(self._form, self._files, parallelism, bounded=False)
        cpu, read = cpu_seconds(), _read_bytes()
        with _anonymous_memory() as seen, JobAttempt(program, self._config, owner="benchmark") as attempt:
            start = time.perf_counter()
            *_, last = attempt.run_epochs()
            seconds = time.perf_counter() - start
        local = sum(path.stat().st_size for path in self.cache.rglob("*.arrow"))
        cpu, read = cpu_seconds() - cpu - seen.cpu_seconds, _read_bytes() - read
        return Epoch(seconds, cpu, seen.most, read, last.metadata.state_bytes, local)

    def close(self) -> None:
        """Deletes all that there is of the job."""
        shutil.rmtree(self._folder)


def _program(form: str, source: Path, parallelism: int, *, bounded: bool = True) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_max_parallelism(128)
    events = ParquetSource(str(source), bounded=bounded)
    stream = env.from_source(events, WatermarkStrategy.no_watermarks(), "events").uid("events")
    FORMS[form](stream.key_by("key")).uid(form)
    return env.get_job_graph()


def _processes() -> list[psutil.Process]:
    """Returns this process, and the Java and Python processes of its Spark."""
    me = psutil.Process()
    return [me, *(each for each in me.children(recursive=True) if _kind(each) != "other")]


@dataclass
class _Seen:
    most: int = 0
    """Peak bytes of the Python worker that needed most."""
    cpu_seconds: float = 0.0
    """What looking has taken: the system goes through all pages, so it grows with the state."""


@contextmanager
def _anonymous_memory() -> Iterator[_Seen]:
    """Looks at the memory of the Python workers as long as the block runs."""
    seen, over = _Seen(), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for each in _processes():
                if _kind(each) == "worker" and _status(each, "RssAnon") > seen.most:
                    seen.most = max(seen.most, _anonymous(each))  # takes longer
        seen.cpu_seconds = time.thread_time()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def cpu_seconds() -> float:
    """Returns the CPU time of this process and those below it."""
    found = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])  # with that of processes that have ended
    return found


def _read_bytes() -> int:
    return sum(each.io_counters().read_chars for each in _processes() if _kind(each) == "worker")


def _kind(process: psutil.Process) -> str:
    if process.pid == os.getpid():
        return "driver"
    try:
        if process.name() == "java":
            return "java"
        return "worker" if PYTHON_DAEMON in process.cmdline() else "other"
    except psutil.NoSuchProcess:
        return "other"


def _status(process: psutil.Process, name: str) -> int:
    """Returns a number of bytes that Linux tells about a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def _anonymous(process: psutil.Process) -> int:
    """Returns the bytes of a process in pages without a file, but for those that the system may take back at once."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines[1:]}
    return sizes["Anonymous"] - sizes["LazyFree"]


@contextmanager
def runner(folder: Path) -> Iterator[Runner]:
    """Starts a Spark server of its own, whose processes are below this one."""
    settings = SparkSettings(conf={"spark.app.name": f"growth-{os.getpid()}"})
    spark = get_session(settings)
    try:
        yield Runner(folder, settings)
    finally:
        spark.stop()
        stop_server(settings)


# --- what is measured -------------------------------------------------------------------------------------------------


def _events(at: Runner, folder: Path, sizes: Sequence[int]) -> Lines:
    """Time and memory by the number of events."""
    lines: Lines = []
    runs: dict[tuple[str, int], Run] = {}
    for size in sizes:
        source = write_events(folder / f"events-{size}", size)
        for form in ("sum", "process"):
            if size == sizes[0]:
                at.run(form, source)  # warms up
            run = runs[form, size] = at.run(form, source)
            settings = {"events": size, "keys": KEYS, "parallelism": PARALLELISM, "load": os.getloadavg()[0]}
            memory = {
                "worker_rss_mb": run.worker_rss >> 20,
                "java_rss_mb": run.java_rss >> 20,
                "driver_rss_mb": run.driver_rss >> 20,
            }
            lines.append(
                line(f"growth.{form}_events_per_s", size / run.seconds, "events/s", settings={**settings, **memory})
            )
        shutil.rmtree(source)
    for form, (less, more) in itertools.product(("sum", "process"), itertools.pairwise(sizes)):
        a, b = runs[form, less], runs[form, more]
        settings = {"events": more, "peer_events": less, "keys": KEYS, "parallelism": PARALLELISM}
        peer = f"{less:,} events"
        allowed = 1.05 * more / less
        lines.append(
            line(
                f"growth.{form}_time",
                b.seconds / a.seconds,
                "ratio of time",
                peer=peer,
                bar=f"<= {allowed:g}",
                settings=settings,
            )
        )
        for process in ("worker", "driver"):
            before, after = (getattr(run, f"{process}_rss") for run in (a, b))
            lines.append(
                line(
                    f"growth.{form}_{process}_rss",
                    after / before,
                    "ratio of peak bytes",
                    peer=peer,
                    bar="<= 1.2",
                    settings={**settings, "mb": after >> 20},
                )
            )
    return lines


def _keys(at: Runner, folder: Path, events: int) -> Lines:
    """Time and memory by the number of keys. Each key has at least one event."""
    lines: Lines = []
    numbers = sorted({KEYS, *(n for n in (10 * KEYS, 100 * KEYS) if n < events), events})
    for keys in numbers:
        source = write_events(folder / f"keys-{keys}", events, keys)
        run = at.run("sum", source)
        settings = {
            "events": events,
            "keys": keys,
            "parallelism": PARALLELISM,
            "worker_rss_mb": run.worker_rss >> 20,
            "java_rss_mb": run.java_rss >> 20,
        }
        lines.append(line("growth.keys_events_per_s", events / run.seconds, "events/s", settings=settings))
        shutil.rmtree(source)
    return lines


def _distributions(at: Runner, folder: Path, events: int, rounds: int) -> Lines:
    """Skew and string keys, each beside long keys that are equally frequent."""
    sources = {
        name: write_events(folder / name, events, keyed=keyed)
        for name, keyed in {"uniform": uniform, "zipf": zipf, "strings": strings}.items()
    }
    sides = {(form, name): (form, source) for form in ("sum", "process") for name, source in sources.items()}
    runs = at.compare(sides, rounds)
    lines: Lines = []
    for form, name in itertools.product(("sum", "process"), ("zipf", "strings")):
        lines.append(
            line(
                f"growth.{form}_{name}_vs_uniform",
                _ratio(runs[form, name], runs[form, "uniform"]),
                "ratio of time",
                peer="longs that are equally frequent",
                bar="<= 1.5",
                settings={"events": events, "keys": KEYS, "parallelism": PARALLELISM, "rounds": rounds},
            )
        )
    for source in sources.values():
        shutil.rmtree(source)
    return lines


def _values(at: Runner, folder: Path, events: int) -> Lines:
    """The rate of bytes by the size of a value."""
    lines: Lines = []
    for size in VALUE_BYTES:
        number = max(min(events // 10, events * VALUES_BYTES // size), VALUE_KEYS)
        source = write_events(folder / f"values-{size}", number, VALUE_KEYS, value_bytes=size)
        run = at.run("last", source)
        settings = {
            "events": number,
            "keys": VALUE_KEYS,
            "value_bytes": size,
            "mb_per_s": round(number * size / run.seconds / 1e6, 1),
            "worker_rss_mb": run.worker_rss >> 20,
        }
        lines.append(line("growth.values_events_per_s", number / run.seconds, "events/s", settings=settings))
        shutil.rmtree(source)
    return lines


def _subtasks(at: Runner, folder: Path, events: int, rounds: int) -> Lines:
    """Time by the number of subtasks."""
    source = write_events(folder / "subtasks", events)
    sides = {(form, n): (form, source, n) for form in ("sum", "process") for n in SUBTASKS}
    runs = at.compare(sides, rounds)
    lines: Lines = []
    for form, n in sides:
        seconds = statistics.median(run.seconds for run in runs[form, n])
        memory = max(run.worker_rss for run in runs[form, n]) >> 20
        settings = {"events": events, "keys": KEYS, "parallelism": n, "rounds": rounds, "worker_rss_mb": memory}
        lines.append(line(f"growth.{form}_subtasks_events_per_s", events / seconds, "events/s", settings=settings))
        if n == max(SUBTASKS):
            ratio = _ratio(runs[form, n], runs[form, PARALLELISM])
            lines.append(
                line(
                    f"growth.{form}_{n}_subtasks_vs_2",
                    ratio,
                    "ratio of time",
                    peer="2 subtasks",
                    bar="<= 1.3",
                    settings=settings,
                )
            )
    shutil.rmtree(source)
    return lines


def _state(at: Runner, keys: int) -> Lines:
    """Memory and time by the size of the state: keys that are new in each epoch, then updates at random."""
    (_, few), (new, updates) = (_grown(at, each) for each in (keys // 8, keys))
    settings = {
        "keys": keys,
        "parallelism": PARALLELISM,
        "worker_anonymous_mb": [each.worker_anonymous >> 20 for each in (*new, *updates)],
        "seconds": [round(each.seconds, 2) for each in (*new, *updates)],
    }
    # The first epoch has the delta, but nothing to merge it with.
    memory = max(each.worker_anonymous for each in new[4:]) / max(each.worker_anonymous for each in new[1:4])
    slowest = max(each.seconds for each in new[1:]) / statistics.median(each.seconds for each in new[1:])
    cpu, cpu_of_few = (statistics.median(each.cpu_seconds for each in epochs) for epochs in (updates, few))
    last = updates[-1]
    found = [
        ("state_worker_anonymous", memory, "ratio of peak bytes", "the first half of the keys", "<= 1.2"),
        ("state_slowest_epoch", slowest, "ratio of time", "the median epoch", "<= 1.5"),
        ("state_updates", cpu / cpu_of_few, "ratio of CPU time", "an eighth of the keys", "<= 1.2"),
        ("state_local_copies", last.local / last.stored, "ratio of bytes", "the state in the store", "<= 2"),
    ]
    return [
        line(f"growth.{n}", ratio, unit, peer=peer, bar=bar, settings=settings) for n, ratio, unit, peer, bar in found
    ]


def _grown(at: Runner, keys: int) -> tuple[list[Epoch], list[Epoch]]:
    """Returns eight epochs with new keys, and four with a million updates at random."""
    part, random = keys // 8, np.random.default_rng(keys)
    job = at.growing("sum")
    new = [job.run(part * i + np.arange(part)) for i in range(8)]
    updates = [job.run(random.integers(0, keys, 1_000_000)) for _ in range(4)]
    job.close()
    return new, updates


def _ratio(of: Sequence[Run], to: Sequence[Run]) -> float:
    return statistics.median(a.seconds / b.seconds for a, b in zip(of, to, strict=True))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark alone."""
    parser.add_argument(
        "--sizes", nargs="+", type=_size, default=SIZES, metavar="EVENTS", help="growth: two numbers or more, ascending"
    )


def _size(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of events")
    return number


def run(peers: tuple[str, ...] = (), *, sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> Lines:
    """Returns the lines of all growths.

    Args:
        peers: Ignored.
        sizes: Numbers of events, at least two, ascending. Default: a million, ten and a hundred.
        rounds: How often sides that are compared run. Default: 3.

    Raises:
        ValueError: There are fewer than two sizes, or they do not ascend.
    """
    if len(sizes) < 2 or list(sizes) != sorted(set(sizes)):
        raise ValueError(f"sizes {list(sizes)}: give at least two numbers of events, ascending")
    middle, largest = sizes[-2], sizes[-1]
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as name:
        folder = Path(name)
        with runner(folder) as at:
            parts: tuple[Callable[[], Lines], ...] = (
                lambda: _events(at, folder, sizes),
                lambda: _distributions(at, folder, middle, rounds),
                lambda: _subtasks(at, folder, middle, rounds),
                lambda: _values(at, folder, middle),
                lambda: _keys(at, folder, largest // 2),
                lambda: _state(at, 4 * middle),
            )
            lines: Lines = []
            for part in parts:
                seconds, found = timed(part)
                print(f"{seconds:.0f} s", *found, sep="\n", file=sys.stderr)
                lines += found
    return lines
