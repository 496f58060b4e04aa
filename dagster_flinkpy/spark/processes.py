"""Processes of this machine: their identity, whether they run, and which one owns a local server."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import psutil

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.file_lock import describe_process
from dagster_flinkpy.json_records import JsonRecord

__all__ = [
    "OWNER_PID_VARIABLE",
    "PYTHON_DAEMON",
    "ProcessId",
    "childless_daemons",
    "find_owner",
    "is_dagster_command",
    "open_pidfd",
]

OWNER_PID_VARIABLE = "FLINKPY_SPARK_OWNER_PID"
"""Environment variable with the pid of the process that owns a local Spark server; overrides `find_owner`."""

PYTHON_DAEMON = "dagster_flinkpy.runtime.worker_daemon"
"""The module that forks Spark's Python workers on this machine."""

_DAGSTER_PROGRAMS = frozenset({"dagster", "dagster-daemon", "dagster-webserver", "dg"})
_DAGSTER_MODULES = ("dagster", "dagster_webserver", "dagster_dg_cli")
_CLOCK_JITTER_SECONDS = 2.0
"""How much the boot time may vary between two reads. No pid is reused within so short a time."""


@dataclass(frozen=True)
class ProcessId(JsonRecord):
    """One process. A pid may be reused after its process has ended, so the start time distinguishes processes."""

    pid: int
    started: float
    """When it started, in seconds since the machine started. Setting the clock does not change it."""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Returns the process that has this pid now, or None if there is none, or if it is a zombie."""
        try:
            process = psutil.Process(pid)
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            return cls(pid, round(process.create_time() - psutil.boot_time(), 2))
        except psutil.NoSuchProcess:
            return None

    @classmethod
    def current(cls) -> ProcessId:
        """Returns the calling process."""
        process = cls.of(os.getpid())
        assert process is not None
        return process

    def is_alive(self) -> bool:
        """Returns whether exactly this process still runs."""
        now = ProcessId.of(self.pid)
        return now is not None and abs(now.started - self.started) < _CLOCK_JITTER_SECONDS

    def await_end(self, timeout: float) -> bool:
        """Waits until this process has ended, for at most `timeout` seconds; returns whether it has ended."""
        deadline = time.monotonic() + timeout
        # `psutil.Process.wait` would also wait until the parent has reaped it.
        with contextlib.ExitStack() as stack:
            pidfd = open_pidfd(self)
            if pidfd is not None:
                stack.callback(os.close, pidfd)
            while self.is_alive() and (left := deadline - time.monotonic()) > 0:
                select.select([] if pidfd is None else [pidfd], [], [], left if pidfd is not None else min(left, 0.1))
        return not self.is_alive()

    def describe(self) -> str:
        """Describes the process for messages: its pid, its command, and whether it is stopped."""
        return describe_process(self.pid)


def open_pidfd(process: ProcessId) -> int | None:
    """Returns a descriptor that becomes readable when the process ends.

    Returns None if the process has ended, or if the system is not Linux 5.3 or newer.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return None


def childless_daemons(parent: int) -> list[int]:
    """Returns the pids of the Spark Python daemons below a server that currently have no worker, the oldest first."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if PYTHON_DAEMON in child.cmdline() and not child.children():
                    found.append((child.create_time(), child.pid))
    return [pid for _, pid in sorted(found)]


def find_owner() -> ProcessId:
    """Returns the process that owns a local Spark server which is started or used now: the server ends with it.

    This is the outermost ancestor that is a Dagster process (``dagster dev`` for a run worker below it), so that
    successive runs share one warm server. Without such an ancestor, it is the calling process, or the process that
    spawned it through `multiprocessing`.

    Raises:
        ConfigurationError: ``FLINKPY_SPARK_OWNER_PID`` does not name a running process.
    """
    if named := os.environ.get(OWNER_PID_VARIABLE):
        owner = ProcessId.of(int(named)) if named.isdigit() else None
        if owner is None:
            raise ConfigurationError(
                f"{OWNER_PID_VARIABLE}={named} is not the pid of a running process: correct it, or unset it."
            )
        return owner
    spawner = multiprocessing.parent_process()
    pid = spawner.pid if spawner is not None and spawner.pid is not None else os.getpid()
    owner = ProcessId.of(pid) or ProcessId.current()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for candidate in (process, *process.parents()):
            if is_dagster_command(_command(candidate)):
                owner = ProcessId.of(candidate.pid) or owner
    return owner


def _command(process: psutil.Process) -> Sequence[str]:
    try:
        return tuple(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ()


def is_dagster_command(arguments: Sequence[str]) -> bool:
    """Returns whether a command line runs Dagster, such as ``dagster dev`` or ``python -m dagster api grpc``.

    The names of directories on it do not count.
    """
    if any(os.path.basename(argument) in _DAGSTER_PROGRAMS for argument in arguments[:2]):
        return True
    return any(option == "-m" and module.split(".")[0] in _DAGSTER_MODULES for option, module in pairwise(arguments))
