"""Kills what a job of live tasks needs, in any order: ``python -m tests.chaos.live --kills 300``.

Slots, executors and drivers are killed or frozen, and connections get into trouble, while the job runs. It must go on
by itself; only a driver that was killed is started again. In the end, no record is lost or doubled, no process of a
slot is left, and all cores of Spark are free.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.spark import sessions
from dagster_flinkpy.spark.sessions import SparkSettings, get_session, stop_server
from dagster_flinkpy.storage import StorageLocation
from tests.chaos.cluster import running_cluster
from tests.chaos.live_job import HANG, HANGS, HEARTBEAT_TIMEOUT, KEYS, TABLES, order
from tests.chaos.relay import TROUBLES
from tests.waiting import until

__all__ = ["FAULTS", "LiveChaos", "local_server_pids"]

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 600.0
"""How long the job may take to go on after a fault, on a machine with much else to do."""
_GONE_SECONDS = HEARTBEAT_TIMEOUT + 15.0
"""How long slots may live that have no driver; most of it is for a machine with much else to do."""
_SLOT = "dagster_flinkpy.runtime.worker_daemon"
_EXECUTOR = "CoarseGrainedExecutorBackend"

FAULTS: dict[str, int] = {
    "kill a slot": 8,
    "kill all slots": 3,
    "kill an executor": 4,
    "kill the driver": 6,
    "kill the driver of a function that hangs": 1,
    "freeze a slot": 1,
    "freeze the driver": 1,
    "freeze the driver and start another": 1,
    **{f"{trouble} {to}": 3 if trouble == "cut" else 1 for to in ("slots", "driver") for trouble in TROUBLES},
}
"""How often each is chosen."""


class LiveChaos:
    """A job of live tasks, and what is done to it.

    Args:
        folder: For its tables, checkpoints and logs.
        spark: Runs it.
        pids: Returns the processes of Spark.
        cores: How many tasks Spark runs at once.
        tls: Whether connections use TLS. Default: False.
    """

    def __init__(
        self, folder: Path, spark: SparkSettings, pids: Callable[[], Sequence[int]], cores: int, *, tls: bool = False
    ) -> None:
        self.spark = spark
        self._location, self._folder = StorageLocation(str(folder)), folder
        self._pids, self._cores, self._tls = pids, cores, tls
        self._noted = folder / "pids"
        self._noted.mkdir()
        self._changed = threading.Condition()
        self._driver: subprocess.Popen[str] | None = None
        self.epochs = 0
        """How many epochs drivers have called complete."""
        self._log: deque[str] = deque(maxlen=60)
        self.done: Counter[str] = Counter()

    # --- the driver --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts a driver."""
        ordered = order(self._location, self._noted, self.spark, tls=self._tls)
        driver = self._driver = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.live_job", ordered],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for target in (self._read, self._read_log):
            threading.Thread(target=target, args=(driver,), daemon=True).start()

    def _read(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        for _ in driver.stdout:
            with self._changed:
                self.epochs += 1
                self._changed.notify_all()
        driver.wait()
        with self._changed:
            self._changed.notify_all()

    def _read_log(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stderr is not None
        with (self._folder / "log").open("a") as copy:
            for line in driver.stderr:
                copy.write(f"{time.strftime('%H:%M:%S')} {driver.pid} {line}")
                copy.flush()
                self._log.append(line)

    def say(self, line: str) -> None:
        """Says something to the driver."""
        assert self._driver is not None
        assert self._driver.stdin is not None
        self._driver.stdin.write(line + "\n")
        self._driver.stdin.flush()

    def goes_on(self, epochs: int = 2) -> None:
        """Waits until some more epochs are complete."""
        driver, enough = self._driver, self.epochs + epochs
        assert driver is not None
        with self._changed:
            self._changed.wait_for(lambda: self.epochs >= enough or driver.poll() is not None, _PATIENCE_SECONDS)
            if self.epochs < enough:
                how = "hangs" if driver.poll() is None else f"has ended with {driver.returncode}"
                raise AssertionError(f"the job {how} after {dict(self.done)}:\n{''.join(self._log)}")

    def end(self) -> None:
        """Lets the job end by itself."""
        self.say("end")
        assert self._driver is not None
        assert self._driver.wait(_PATIENCE_SECONDS) == 0, "".join(self._log)

    def close(self) -> None:
        """Ends whatever is left."""
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()

    # --- faults ------------------------------------------------------------------------------------------------------

    def slots(self) -> set[tuple[int, int]]:
        """Returns the slots that live: process and port. A Python worker that Spark keeps does not listen."""
        found: set[tuple[int, int]] = set()
        below = {each.pid for pid in self._pids() for each in _below(pid)}
        for pid in below | {int(file.name) for file in self._noted.glob("[0-9]*")}:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if not psutil.pid_exists(pid) or _SLOT not in process.cmdline()[:3]:
                    continue  # a thread, or another process, that has the number of a slot that is gone
                if process.status() != psutil.STATUS_ZOMBIE:
                    listens = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
                    parent = process.parent()
                    if parent is None or Path(parent.exe()).name != "java":  # Spark's daemon listens, too
                        found |= {(pid, each.laddr.port) for each in listens}
        return found

    def executors(self) -> list[int]:
        """Returns the executors of a cluster."""
        return [each.pid for pid in self._pids() for each in _below(pid) if _EXECUTOR in _command(each)]

    def suffer(self, fault: str, rng: random.Random) -> None:
        """Does something to the job, and waits until it goes on."""
        time.sleep(rng.random() * 0.4)
        slots, driver = sorted(self.slots()), self._driver
        assert driver is not None
        what = fault.partition(" ")[0]
        print(f"{time.strftime('%H:%M:%S')} {fault}", file=sys.stderr, flush=True)
        if fault == "kill a slot" and slots:
            _signal(rng.choice(slots)[0], signal.SIGKILL)
        elif fault == "kill all slots":
            for pid, _ in slots:
                _signal(pid, signal.SIGKILL)
        elif fault == "kill an executor" and (executors := self.executors()):
            _signal(rng.choice(executors), signal.SIGKILL)
        elif fault == "kill the driver":
            driver.kill()
            driver.wait()
            if rng.random() < 0.5:
                self.gone(slots)
            self.start()
        elif fault == "kill the driver of a function that hangs":
            (self._noted / HANG).touch()
            until((self._noted / HANGS).exists, "a function hangs")
            driver.kill()
            driver.wait()
            self.gone(slots)
            for name in (HANG, HANGS):
                (self._noted / name).unlink()
            self.start()
        elif fault == "freeze a slot" and slots:
            _signal(rng.choice(slots)[0], signal.SIGSTOP)  # whoever has frozen is killed
        elif fault == "freeze the driver":
            _freeze(driver.pid)
            self.gone(slots)
            driver.send_signal(signal.SIGCONT)
        elif fault == "freeze the driver and start another":
            _freeze(driver.pid)
            self.start()
            self.goes_on()
            driver.send_signal(signal.SIGCONT)
            assert driver.wait(_PATIENCE_SECONDS), "a driver that others have replaced has gone on"
        elif what in TROUBLES:
            self.say(fault)
            time.sleep(rng.choice([0.1, 1.0, HEARTBEAT_TIMEOUT + 1.0]))
            self.say("mend")
        else:
            return
        self.done[fault] += 1
        self.goes_on()
        if fault == "kill the driver":
            self.gone(slots)

    def gone(self, slots: Sequence[tuple[int, int]]) -> None:
        """Waits until slots are gone that have no driver."""
        end = time.monotonic() + _GONE_SECONDS
        while left := self.slots() & set(slots):
            assert time.monotonic() < end, f"slots without a driver are still there: {left}"
            time.sleep(0.05)

    # --- what is left ------------------------------------------------------------------------------------------------

    def check(self) -> int:
        """Checks what the job leaves behind, after its end. Returns how many records it has read."""
        self.gone(sorted(self.slots()))
        self._all_cores_are_free()
        rows, counts = (self._table(table) for table in TABLES)
        values = np.sort(rows.column(2).to_numpy())
        total = len(values)
        wrong = np.flatnonzero(values != np.arange(total))
        assert not len(wrong), f"rows: {values[max(wrong[0] - 3, 0) : wrong[0] + 3]} of {total}"
        keys, numbers, sums = (counts.column(i).to_numpy() for i in range(3))
        assert len(keys) == total, f"{len(keys)} counts of {total} rows"
        for key in range(KEYS):
            of_key = np.sort(numbers[keys == f"k{key}"])
            assert (of_key == np.arange(1, len(of_key) + 1)).all(), f"counts of k{key}"
            assert sums[keys == f"k{key}"].max() == values[values % KEYS == key].sum(), f"sum of k{key}"
        return total

    def _table(self, name: str) -> pa.Table:
        store = self._location.child(name).open()
        files = [str(self._folder / name / info.key) for info in store.list() if info.key[0] != "."]
        return pa.concat_tables([pq.read_table(file) for file in files])

    def _all_cores_are_free(self) -> None:
        meeting = self._folder / uuid.uuid4().hex
        meeting.mkdir()
        spark = get_session(self.spark)
        try:
            met = spark.range(0, self._cores, 1, self._cores).mapInArrow(
                partial(_meet, str(meeting), self._cores), "met long"
            )
            assert met.toArrow().column(0).to_pylist() == [self._cores] * self._cores, "something holds cores of Spark"
        finally:
            if self.spark.mode != "classic":
                spark.stop()


def _meet(meeting: str, number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    Path(meeting, uuid.uuid4().hex).touch()
    end = time.monotonic() + 60
    while (met := len(list(Path(meeting).iterdir()))) < number and time.monotonic() < end:
        time.sleep(0.02)
    yield pa.record_batch({"met": [met]})


def _below(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _freeze(pid: int) -> None:
    """Stops a process while it holds no lock of files: other drivers would wait for it, as their errors say."""
    while True:
        _signal(pid, signal.SIGSTOP)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process stops")
        if not any(Path(file.path).name == "lock" for file in psutil.Process(pid).open_files()):
            return
        _signal(pid, signal.SIGCONT)
        time.sleep(0.01)


def local_server_pids(settings: SparkSettings) -> list[int]:
    """Returns the process of a local server."""
    state = sessions._state_file(settings).read()
    return [] if state is None or state.server is None else [state.server.pid]


# --- all of it --------------------------------------------------------------------------------------------------------


@contextmanager
def _on_cluster(folder: Path) -> Iterator[LiveChaos]:
    with running_cluster(folder) as cluster:
        yield LiveChaos(folder, cluster.settings, lambda: cluster.pids, cluster.cores, tls=True)


@contextmanager
def _on_local_server(folder: Path) -> Iterator[LiveChaos]:
    settings = SparkSettings(master="local[2]", conf={"spark.driver.memory": "1g"})
    try:
        yield LiveChaos(folder, settings, lambda: local_server_pids(settings), 2)
    finally:
        stop_server(settings)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.live", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--on", choices=["cluster", "local"], nargs="+", default=["cluster", "local"])
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    places: dict[str, Any] = {"cluster": _on_cluster, "local": _on_local_server}
    for number, name in enumerate(arguments.on):
        rng = random.Random(f"{arguments.seed} {name}")
        kills = arguments.kills // len(arguments.on) + (number < arguments.kills % len(arguments.on))
        faults = [fault for fault in FAULTS if name == "cluster" or fault != "kill an executor"]
        weights = [FAULTS[fault] for fault in faults]
        with (
            tempfile.TemporaryDirectory(prefix="live-") as folder,
            places[name](Path(folder)) as chaos,
            get_session(chaos.spark),  # it outlives the drivers
        ):
            try:
                chaos.start()
                chaos.goes_on()
                while chaos.done.total() < kills:
                    chaos.suffer(*rng.choices(faults, weights), rng)
                chaos.end()
            finally:
                chaos.close()
            total = chaos.check()
        print(f"{name}: {dict(chaos.done)}", flush=True)
        print(f"{name}: {chaos.epochs} epochs, {total:,} records, none lost or doubled", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
