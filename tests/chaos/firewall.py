"""A job of live tasks behind a firewall: ``unshare -n -m python -m tests.chaos.firewall CASE FOLDER``.

The driver and each slot are in a network namespace of their own. The firewall drops packets without an answer, between
the slots or between slots and driver, from the start or in the middle of the job. The last line says what became of it.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.errors import FlinkPyError, SlotLostError
from dagster_flinkpy.runtime.master import job_failover
from dagster_flinkpy.runtime.master.deployments import job_exchange
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.slots.slot_pool import SlotPool
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor, TaskExecutor
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.slot.test_live_failures import Noted, OnRestart, assert_exact, program

__all__ = ["CASES", "main"]

CASES = ("slots", "driver", "slots later", "driver later", "auto slots", "auto driver", "auto slots later")
_DRIVER = "10.9.0.1"
_SLOTS = 2
_PREFERENCE = 5


def _ip(*words: str) -> None:
    subprocess.run(["ip", *" ".join(words).split()], check=True)


class Network:
    """The driver in this namespace, and slots in others, which reach each other through it."""

    def __init__(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)  # nobody else sees it
        _ip("link set lo up")
        for n in range(_SLOTS):
            _ip(f"netns add slot{n}")
            _ip(f"link add v{n} type veth peer name e{n} netns slot{n}")
            _ip(f"addr add 10.9.{n}.1/24 dev v{n}")
            _ip(f"link set v{n} up")
            for command in ("link set lo up", f"addr add 10.9.{n}.2/24 dev e{n}", f"link set e{n} up"):
                _ip(f"-n slot{n} {command}")
            _ip(f"-n slot{n} route add default via 10.9.{n}.1")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _ip(f"rule add pref {_PREFERENCE + 1} lookup local")  # the rules of the firewall come first
        _ip("rule del pref 0")
        self._rules = 0

    def drop(self, to: str) -> None:
        """Drops what slots send to the ``driver``, or to other ``slots``."""
        for n in range(_SLOTS):
            for target in [_DRIVER] if to == "driver" else [f"10.9.{m}.2" for m in range(_SLOTS) if m != n]:
                _ip(f"rule add pref {_PREFERENCE} iif v{n} to {target} blackhole")
                self._rules += 1

    def mend(self) -> None:
        """Drops nothing any more."""
        for _ in range(self._rules):
            _ip(f"rule del pref {_PREFERENCE}")
        self._rules = 0


class _Process:
    """A slot in its namespace."""

    def __init__(self, descriptor: SlotDescriptor) -> None:
        self._descriptor = descriptor
        number = descriptor.name.rpartition("-")[2]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", f"slot{number}", sys.executable, "-m", __spec__.name, "slot"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self) -> None:
        _, said = self._process.communicate(pickle.dumps(self._descriptor))
        if self._process.returncode:
            raise SlotLostError(said.decode().strip().splitlines()[-1])

    def end(self) -> None:
        self._process.kill()


def run(case: str, folder: Path) -> str:
    """Runs a job, and returns what its progress and its end say."""
    network = Network()
    here: Any = job_exchange
    here.start_here = _Process
    here.start_on_spark = lambda job_id, shared: _Process
    here.SlotPool = lambda start, host, *args: SlotPool(start, _DRIVER, *args)
    auto, later, to = "auto" in case, "later" in case, "driver" if "driver" in case else "slots"
    if not later:
        network.drop(to)
    mode = ExchangeMode.AUTO if auto else ExchangeMode.PIPELINED
    config = JobConfig(
        "job",
        StorageLocation(str(folder / "store")),
        SparkSettings(master="local[4]", conf={"spark.driver.memory": "1g"}),
        exchange=ExchangeOptions(
            mode, heartbeat_interval=timedelta(seconds=0.5), heartbeat_timeout=timedelta(seconds=4)
        ),
        failover=FailoverConfig(FixedDelayRestart(100 if later else 0, timedelta(0))),
        in_process=not auto,
    )
    graph, sink = program(folder, Noted(folder))
    if not auto:
        logging.getLogger(job_failover.__name__).addFilter(OnRestart(network.mend))
    lines: list[str] = []
    try:
        with JobAttempt(
            graph,
            config,
            owner="test",
            on_progress=lines.append,
        ) as attempt:
            for epoch in attempt.run_epochs():
                if later and epoch.checkpoint_id == 2:
                    network.drop(to)
            restarts = attempt._deployed.failover.graph.restarts
    except FlinkPyError as error:
        assert sink.rows() == []
        return f"{type(error).__name__}: {error}"
    assert_exact(sink)
    said = [line for line in lines if "execution.exchange" in line or "this epoch is a Spark job" in line]
    return f"exact after {min(restarts, 1)} restarts; {'; '.join(said[:2])}"


def main() -> None:
    if sys.argv[1] == "slot":
        TaskExecutor(pickle.loads(sys.stdin.buffer.read()), own_process=True).run()
    else:
        print(" ".join(run(sys.argv[1], Path(sys.argv[2])).splitlines()), flush=True)


if __name__ == "__main__":
    main()
