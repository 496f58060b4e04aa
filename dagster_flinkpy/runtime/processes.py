"""Processes of this machine: which one is meant, whether it still runs, and which one a local server belongs to."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["OWNER_PID_VARIABLE", "ProcessId", "childless_daemons", "find_owner", "is_dagster_command", "open_pidfd"]

OWNER_PID_VARIABLE = "FLINKPY_SPARK_OWNER_PID"
"""Names the process a local Spark server belongs to, instead of what `find_owner` finds."""

_HAS_PROC = sys.platform == "linux"
_DAGSTER_PROGRAMS = frozenset({"dagster", "dagster-daemon", "dagster-webserver", "dg"})
_DAGSTER_MODULES = ("dagster", "dagster_webserver", "dagster_dg_cli")


@dataclass(frozen=True)
class ProcessId:
    """One process. A pid is used again after its process has ended, so the start time tells two apart."""

    pid: int
    started: str
    """When it started, in the words of the operating system; only ever compared."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None when there is none, or it has ended and only waits to be reaped."""
        look = _look(pid)
        return None if look is None else cls(pid, look.started)

    @classmethod
    def current(cls) -> ProcessId:
        """The calling process."""
        return cls(os.getpid(), _require(os.getpid()).started)

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def await_end(self, timeout: float) -> bool:
        """Wait until this process has ended, at most `timeout` seconds; whether it has."""
        deadline = time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            pidfd = open_pidfd(self)
            if pidfd is not None:
                stack.callback(os.close, pidfd)
            while self.is_alive() and (left := deadline - time.monotonic()) > 0:
                select.select([] if pidfd is None else [pidfd], [], [], left if pidfd is not None else min(left, 0.1))
        return not self.is_alive()


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it has ended, or outside Linux 5.3 or newer."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return None


def childless_daemons(parent: int) -> frozenset[int]:
    """The pids of the Python daemons of Spark below a server that have no worker now; none are found outside Linux."""
    looks = {int(name): _look(int(name)) for name in os.listdir("/proc") if name.isdigit()} if _HAS_PROC else {}
    parents = {look.parent for look in looks.values() if look is not None}
    return frozenset(
        pid
        for pid, look in looks.items()
        if look is not None and look.parent == parent and "pyspark.daemon" in look.arguments and pid not in parents
    )


def find_owner() -> ProcessId:
    """The process whose end also ends a local Spark server that is started or used now.

    The outermost ancestor that is a Dagster process (``dagster dev`` for a run worker below it), so that successive
    runs share one warm server; else the calling process, or the one that spawned it through `multiprocessing`.

    Raises:
        ConfigurationError: ``FLINKPY_SPARK_OWNER_PID`` does not name a running process.
    """
    if named := os.environ.get(OWNER_PID_VARIABLE):
        owner = ProcessId.of(int(named)) if named.isdigit() else None
        if owner is None:
            raise ConfigurationError(f"{OWNER_PID_VARIABLE}={named} is not the pid of a running process: unset it.")
        return owner
    spawner = multiprocessing.parent_process()
    pid = spawner.pid if spawner is not None and spawner.pid is not None else os.getpid()
    owner = ProcessId.of(pid) or ProcessId.current()
    while pid > 0 and (look := _look(pid)) is not None:
        if is_dagster_command(look.arguments):
            owner = ProcessId(pid, look.started)
        pid = look.parent
    return owner


def is_dagster_command(arguments: Sequence[str]) -> bool:
    """Whether a command line is Dagster's own, as ``dagster dev`` or ``python -m dagster api grpc``.

    The name of a directory on it does not count.
    """
    if any(os.path.basename(argument) in _DAGSTER_PROGRAMS for argument in arguments[:2]):
        return True
    return any(option == "-m" and module.split(".")[0] in _DAGSTER_MODULES for option, module in pairwise(arguments))


@dataclass(frozen=True)
class _Look:
    parent: int
    started: str
    arguments: Sequence[str]


def _look(pid: int) -> _Look | None:
    if not _HAS_PROC:
        return _look_by_ps(pid)
    proc = Path("/proc", str(pid))
    try:
        # The name of the program, in brackets, may hold blanks and brackets itself.
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        arguments = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    state, parent, started = fields[0], int(fields[1]), fields[19]
    return None if state in "ZX" else _Look(parent, started, arguments)


def _look_by_ps(pid: int) -> _Look | None:
    columns = ["-o", "stat=", "-o", "ppid=", "-o", "lstart=", "-o", "command="]
    shown = subprocess.run(["ps", "-ww", "-p", str(pid), *columns], capture_output=True, text=True)
    fields = shown.stdout.split()
    if shown.returncode != 0 or len(fields) < 8 or fields[0].startswith("Z"):
        return None
    return _Look(int(fields[1]), " ".join(fields[2:7]), fields[7:])


def _require(pid: int) -> _Look:
    look = _look(pid)
    assert look is not None, f"process {pid} is running, yet cannot be looked at"
    return look
